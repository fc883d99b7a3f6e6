"""Every command that reads vectors reads a vector folder as the vector file of all its rows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentkit.formats.outputs.temporary import HOST
from support import READERS, read_alike


@pytest.mark.parametrize("name", READERS)
def test_a_folder_is_read_as_one_vector_file(sentkit, folder, joined, name):
    Path("other").write_bytes(joined(folder))
    Path("other").rename("other.safetensors")
    sentkit("whiten", "fit", "other.safetensors", "--kind", "center", "-o", "transform.safetensors")
    outputs = read_alike(sentkit, name, "other.safetensors", "whole")

    assert outputs[0] == outputs[1]


def test_an_incomplete_folder_needs_partial(sentkit, folder):
    sorted(folder.glob("0*"))[2].unlink()
    assert sentkit("cat", "whole", "--partial", "-o", "part.safetensors").code == 0
    for name in ("search", "inspect", "cat"):
        done, part = (
            sentkit(*(path if word == "PATH" else word for word in READERS[name]))
            for path in ("whole", "part.safetensors")
        )

        assert (done.code, part.code) == (65, 0)
        assert done.told[0].endswith("whole: an incomplete vector folder, missing blocks: 1")
        assert done.told[1].startswith("  sentkit check whole shows which; sentkit cat --partial reads the ")


def test_check_lists_missing_shards(sentkit, folder):
    blocks = sorted(folder.glob("0*"))
    assert len(blocks) > 8
    [whole] = sentkit("check", "whole", "--shards", "5").rows
    assert (whole["blocks"], whole["missing"], whole["rows"]) == (len(blocks), 0, 40)
    assert "missing_shards" not in whole
    for index in (1, 2, 3, 5, 6):
        blocks[index].unlink()
    done = sentkit("check", "whole", "--shards", "5")

    assert done.code == 1
    assert done.rows[0]["missing_shards"] == "1-3,5"  # 5 and 0 are the same shard of five
    assert done.told == [f"sentkit check: whole: 5 of {len(blocks)} blocks are missing"]


def test_deep_finds_a_changed_middle_of_the_input(sentkit, encode):
    body = b'{"text":"the cat"}\n' * 20_000
    Path("in.jsonl").write_bytes(body)
    assert encode("in.jsonl", "-o", "a/", "--block-bytes", "100K").code == 0
    assert sentkit("check", "a", "--deep").code == 0
    place = len(body) // 2 // 19 * 19
    Path("in.jsonl").write_bytes(body[:place] + b'{"text":"the dog"}\n' + body[place + 19 :])
    done = sentkit("check", "a", "--deep")

    problem = "a/00000-000000102400.safetensors: made from other rows than its input has now"
    assert (done.code, done.rows[0]["problems"]) == (1, [problem])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_finishes_the_block_and_exits_with_75(words, tmp_path, encode, joined, number):
    Path("in.jsonl").write_text('{"text":"the cat"}\n' * 100_000)
    command = ["encode", "in.jsonl", "-m", words, "--block-bytes", "100", "-o", "a/"]
    program = [sys.executable, "-m", "sentkit", *command]
    with subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE) as child:
        while not list(Path("a").glob("0*")):
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(number)
        err = child.stderr.read().decode()

    assert child.returncode == 75
    assert err.endswith("stopped by a signal\n  the same command with --resume continues\n")
    assert not list(Path("a").glob(".*"))


def is_waiting(child):
    """Whether the process sleeps, three times in a row."""
    states = []
    for _ in range(3):
        states.append(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.05)
    return states == ["S"] * 3


def test_a_slow_block_is_dropped(words, tmp_path):
    script = (
        "import sys; from sentkit import cli; from sentkit.flags import encode; encode.GRACE = 0.2;"
        " cli.leave(cli.status(sys.argv[1:]))"
    )
    command = ["encode", "-", "-m", words, "-o", "a/", "--block-bytes", "64"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *command], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdin.write(b'{"text":"the"}\n' * 3)
        child.stdin.flush()
        while len(list(Path("a").glob("0*"))) < 2 or not is_waiting(child):  # for the end of the third block
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        err = child.stderr.read().decode()

    assert child.returncode == 75
    assert "stopped by a signal; an incomplete block is lost" in err


def test_files_of_killed_processes_of_this_machine_are_removed(sentkit, encode, corpus, folder):
    killed = subprocess.Popen(["true"])
    killed.wait()
    start, numbers = "whole/.00000-000000000000.safetensors.sentkit-", (killed.pid, os.getppid())
    dead, live = (Path(f"{start}{HOST}-{number}-01234567") for number in numbers)
    other = Path(f"{start}00000000-{killed.pid}-01234567")
    for path in (dead, live, other):
        path.touch()
    [before] = sentkit("check", "whole").rows
    done = sentkit("encode", corpus, "-m", "words.txt", "-o", "whole/", "--resume")
    [after] = sentkit("check", "whole").rows

    assert (done.code, before["leftovers"], after["leftovers"]) == (0, [str(dead)], [])
    assert (dead.exists(), live.exists(), other.exists()) == (False, True, True)


def test_more_blocks_than_files_can_be_open(sentkit, shell, encode, joined):
    """A memory map keeps its file open, and these commands map blocks to read rows in any order."""
    texts = ["the cat", "dog runs", "cat dog", "the the dog", "cat"]
    Path("in.txt").write_text("".join(f"{texts[n % 5]}\n" for n in range(120)))
    pairs = [{"text_a": "cat", "text_b": text, "score": n} for n, text in enumerate(texts)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    assert encode("in.txt", "-o", "many/", "--block-bytes", 6).code == 0
    assert encode("pairs.jsonl", "-o", "pairs/").code == 0
    assert len(list(Path("many").glob("0*"))) > 140
    joined("many")

    commands = ["search --queries PATH --corpus PATH --top 9", "duplicates PATH --threshold 0.9"]
    for command in commands:
        few = shell(f"ulimit -n 140; sentkit {command.replace('PATH', 'many')}")
        whole = sentkit(*command.replace("PATH", "joined.safetensors").split())
        assert (few.code, few.out) == (0, whole.out)
