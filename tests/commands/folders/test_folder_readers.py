"""Every command that reads vectors reads a vector folder as the vector file of all its rows."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sentkit.formats import files
from sentkit.formats.outputs.temporary import HOST
from sentkit.formats.vectors import folders
from sentkit.formats.vectors.arrays import array_of
from sentkit.formats.vectors.store import open_vectors
from support import READERS, ROOT, in_jsonl, read_alike, with_program


@pytest.mark.parametrize("name", READERS)
def test_a_folder_is_read_as_one_vector_file(sentkit, folder, joined, name):
    Path("other").write_bytes(joined(folder))
    Path("other").rename("other.safetensors")
    sentkit("whiten", "fit", "other.safetensors", "--kind", "center", "-o", "transform.safetensors")
    outputs = read_alike(sentkit, name, "other.safetensors", "whole")

    assert outputs[0] == outputs[1]


def test_a_folder_and_a_file_have_one_reading_interface(folder, joined):
    joined(folder)
    of_file = open_vectors("joined.safetensors")
    of_folder = open_vectors("whole")
    count = of_file.count

    assert len(of_folder.files) > 1
    for name in ("count", "width", "kind", "names", "space_name", "rows_before", "digest"):
        assert getattr(of_folder, name) == getattr(of_file, name)
    assert [of_folder.row(i).line for i in range(count)] == [
        of_file.row(i).line for i in range(count)
    ]
    vectors = np.concatenate([*of_file.blocks()])
    assert np.array_equal(np.concatenate([*of_folder.blocks()]), vectors)
    for source in (of_file, of_folder):
        assert np.array_equal(array_of(source)[:], vectors)
        assert np.array_equal(source.memory_mapped(), vectors)
        lines = [line for rows in source.row_blocks() for line in rows.lines]
        assert lines == [source.row(i).line for i in range(count)]


ONCE = {
    name: [word if word != "PATH" else "whole" for word in words] for name, words in READERS.items()
}
ONCE |= {
    "encode": ["encode", "whole", "-m", "words.txt"],
    "resume": ["encode", "corpus.jsonl", "-m", "words.txt", "-o", "whole/", "--resume"],
    "plan": ["encode", "corpus.jsonl", "-m", "words.txt", "-o", "whole/", "--resume", "-n"],
    "reuse": [
        "encode",
        "corpus.jsonl",
        "-m",
        "words.txt",
        "-o",
        "new.safetensors",
        "--reuse",
        "whole",
    ],
    "text": ["search", "a cat", "--corpus", "whole", "-m", "words.txt"],
    "shard": ["search", "a cat", "--corpus", "whole", "-m", "words.txt", "--shard", "1/2"],
    "check": ["check", "whole", "--deep"],
}


def counted(function, calls):
    def wrapped(*arguments):
        calls.append(function.__name__)
        return function(*arguments)

    return wrapped


@pytest.mark.parametrize("name", ONCE)
def test_a_command_reads_run_json_and_the_list_of_blocks_once(
    sentkit, folder, joined, monkeypatch, name
):
    """So it sees the same blocks from its start to its end, also if it reads the rows twice."""
    joined(folder)
    sentkit(
        "whiten", "fit", "joined.safetensors", "--kind", "center", "-o", "transform.safetensors"
    )
    calls = []
    for owner, function in ((files, "read_object"), (folders.FolderRun, "existing")):
        monkeypatch.setattr(owner, function, counted(getattr(owner, function), calls))
    result = sentkit(*ONCE[name])

    assert result.code == 0, result.err
    assert sorted(calls) == ["existing", "read_object"]


def test_an_incomplete_folder_is_refused_and_its_blocks_are_files(sentkit, folder):
    sorted(folder.glob("0*"))[2].unlink()
    blocks = sorted(folder.glob("0*"))
    assert sentkit("cat", *blocks, "-o", "rest.safetensors").code == 0
    advice = "  encode --resume writes them; the complete blocks are whole/*.safetensors"
    for name in ("search", "inspect", "cat"):
        of_folder = [word if word != "PATH" else "whole" for word in READERS[name]]
        of_file = [word if word != "PATH" else "rest.safetensors" for word in READERS[name]]
        refused = sentkit(*of_folder)

        assert refused.code == 65
        assert refused.told[0].endswith("whole: an incomplete vector folder, missing blocks: 1")
        assert refused.told[1] == advice
        assert sentkit(*of_file).code == 0


def test_check_lists_missing_shards(sentkit, folder):
    blocks = sorted(folder.glob("0*"))
    assert len(blocks) > 8
    [whole] = sentkit("check", "whole", "--shards", "5").rows
    assert (whole["blocks"], whole["missing"], whole["rows"]) == (len(blocks), 0, 40)
    assert "missing_shards" not in whole
    for index in (1, 2, 3, 5, 6):
        blocks[index].unlink()
    result = sentkit("check", "whole", "--shards", "5")

    assert result.code == 1
    assert result.rows[0]["missing_shards"] == "1-3,5"  # 5 and 0 are the same shard of five
    assert result.told == [f"sentkit check: whole: 5 of {len(blocks)} blocks are missing"]


def test_deep_finds_a_changed_middle_of_the_input(sentkit, encode):
    body = b'{"text":"the cat"}\n' * 20_000
    Path("in.jsonl").write_bytes(body)
    assert encode("in.jsonl", "-o", "a/", "--block-bytes", "100K").code == 0
    assert sentkit("check", "a", "--deep").code == 0
    offset = len(body) // 2 // 19 * 19
    Path("in.jsonl").write_bytes(body[:offset] + b'{"text":"the dog"}\n' + body[offset + 19 :])
    result = sentkit("check", "a", "--deep", "--shards", 4)

    problem = "a/00000-000000102400.safetensors: made from other rows than its input has now"
    assert (result.code, result.rows[0]["problems"]) == (1, [problem])
    # --resume refuses the block, so its shard cannot write it again.
    counts = {"blocks": 4, "missing": 0, "rows": 20_000}
    assert {name: result.rows[0][name] for name in counts} == counts
    assert "missing_shards" not in result.rows[0]

    # Damaged blocks are missing.
    damaged = Path("a/00000-000000204800.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    removed = sentkit("check", "a", "--deep", "--shards", 4, "--remove").rows[0]
    assert (removed["blocks"], removed["missing"], removed["missing_shards"]) == (3, 1, "2")
    assert (removed["removed"], len(removed["problems"])) == (1, 2)


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
    states = []
    for _ in range(3):
        status = Path(f"/proc/{child.pid}/stat").read_text()
        states.append(status.rpartition(")")[2].split()[0])
        time.sleep(0.05)
    return states == ["S"] * 3


def test_a_slow_block_is_dropped(words, tmp_path):
    script = (
        "import sys; from sentkit import cli; from sentkit.flags import encode; encode.GRACE = 0.2;"
        " cli.exit_immediately(cli.run_command_line(sys.argv[1:]))"
    )
    command = ["encode", "-", "-m", words, "-o", "a/", "--block-bytes", "64"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *command],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        child.stdin.write(b'{"text":"the"}\n' * 3)
        child.stdin.flush()
        # for the end of the third block
        while len(list(Path("a").glob("0*"))) < 2 or not is_waiting(child):
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        err = child.stderr.read().decode()

    assert child.returncode == 75
    assert "stopped by a signal; an incomplete block is lost" in err


def test_files_of_killed_processes_of_this_machine_are_removed(sentkit, encode, corpus, folder):
    killed = subprocess.Popen(["true"])
    killed.wait()
    start = "whole/.00000-000000000000.safetensors.sentkit-"
    dead = Path(f"{start}{HOST}-{killed.pid}-01234567")
    live = Path(f"{start}{HOST}-{os.getppid()}-01234567")
    other = Path(f"{start}00000000-{killed.pid}-01234567")  # of another machine
    for path in (dead, live, other):
        path.touch()
    [before] = sentkit("check", "whole").rows
    result = sentkit("encode", corpus, "-m", "words.txt", "-o", "whole/", "--resume")
    [after] = sentkit("check", "whole").rows

    assert (result.code, before["leftovers"], after["leftovers"]) == (0, [str(dead)], [])
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
        limited = shell(f"ulimit -n 140; sentkit {command.replace('PATH', 'many')}")
        whole = sentkit(*command.replace("PATH", "joined.safetensors").split())
        assert (limited.code, limited.out) == (0, whole.out)


# `search --shard` and `--merge`: the parts of a folder give the bytes of one search


QUERIES = ["the dog", "cat runs", "runs . dog"]


@pytest.fixture
def queries(sentkit, words):
    """Three queries with vectors. The folder has 40 rows of 5 texts, so most hits are ties."""
    texts = "\n".join(QUERIES)
    Path("q.jsonl").write_bytes(sentkit("encode", "-m", words, "-q", stdin=texts.encode()).out)
    return ["--queries", "q.jsonl", "--corpus", "whole/"]


@pytest.fixture
def shards(sentkit, folder, queries):
    def run(count, *flags):
        names = [f"part{number}.jsonl" for number in range(1, count + 1)]
        for number, name in enumerate(names, 1):
            result = sentkit(
                "search", *queries, *flags, "--shard", f"{number}/{count}", "-o", name, "-f"
            )
            assert (result.code, result.err) == (0, "")
        return names

    return run


@pytest.mark.parametrize(
    "flags", [[], ["--top", "3"], ["--top", "99"], ["--threshold", "0.5"], ["--metric", "dot"]]
)
@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_shards_have_the_bytes_of_one_search(sentkit, shards, queries, count, flags):
    whole = sentkit("search", *queries, *flags)

    joined = sentkit("search", "--merge", *reversed(shards(count, *flags)))

    assert (joined.code, joined.err) == (0, "")
    assert joined.out == whole.out
    assert [len(row["hits"]) for row in joined.rows] != [0, 0, 0]


def test_a_part_can_have_no_rows(sentkit, encode):
    """A block has no rows if a long line began before it, or if its input is empty."""
    Path("empty.jsonl").touch()
    long_row = {"text": "dog", "note": "x" * 200}
    Path("rows.jsonl").write_text(in_jsonl({"text": "cat"}, long_row, {"text": "dog runs"}))
    assert encode("empty.jsonl", "rows.jsonl", "-o", "rows/", "--block-bytes", 60).code == 0
    count = len(list(Path("rows").glob("0*")))
    search = ["search", "--queries", "rows/", "--corpus", "rows/"]
    parts = []
    for number in range(1, count + 1):
        parts.append(f"part{number}.jsonl")
        result = sentkit(*search, "--shard", f"{number}/{count}", "-o", parts[-1])
        assert (result.code, result.err) == (0, "")
    whole = sentkit(*search)

    assert count == 6
    assert [len(row["hits"]) for row in whole.rows] == [2, 2, 2]
    assert sentkit("search", "--merge", *parts).out == whole.out


def test_a_text_is_searched_by_parts(sentkit, folder, words):
    search = ["search", "the dog", "--corpus", "whole/", "-m", words, "-q"]
    for number in "12":
        assert sentkit(*search, "--shard", f"{number}/2", "-o", f"{number}.jsonl").code == 0

    assert sentkit("search", "--merge", "1.jsonl", "2.jsonl").out == sentkit(*search).out


def test_a_part_reads_only_its_blocks(sentkit, folder, queries):
    """Changed bytes of the first block are an error only in its part. Rows keep their numbers."""
    blocks = sorted(folder.glob("*.safetensors"))
    count = len(blocks)
    first_shard = ["search", *queries, "--shard", f"1/{count}"]
    last_shard = ["search", *queries, "--shard", f"{count}/{count}"]
    before = sentkit(*last_shard)
    assert (sentkit(*first_shard).code, before.code) == (0, 0)

    content = blocks[0].read_bytes()
    blocks[0].write_bytes(content[:-16] + bytes(16))
    after = sentkit(*last_shard)

    assert (sentkit(*first_shard).code, after.code) == (65, 0)
    assert before.out == after.out
    assert {hit["row"] for hit in after.rows[0]["hits"]} <= {*range(30, 41)}


def test_parts_may_be_written_again_by_another_program(sentkit, shards, queries):
    """`json.dumps` puts blanks after colons and commas. The hits of this program keep their
    bytes.
    """
    whole = sentkit("search", *queries)
    names = shards(2, "--top", str(10**20))
    for name in names:
        rows = [json.loads(line) for line in Path(name).read_text().splitlines()]
        Path(name).write_text(in_jsonl(*rows))

    result = sentkit("search", "--merge", *names)

    assert result.code == 0
    assert [row["hits"][:10] for row in result.rows] == [row["hits"] for row in whole.rows]
    assert b'"hits":[{"row": ' in result.out


@pytest.mark.parametrize("suffix", ["jsonl", "safetensors"])
def test_parts_of_equal_texts_with_other_vectors_are_refused(sentkit, folder, words, suffix):
    """As after a search without a prompt, of which the file of one part is left."""
    Path("q.txt").write_text("dog\n")
    for prompt, number in (("", "1"), ("cat ", "2")):
        name = f"q{number}.{suffix}"
        assert sentkit("encode", "q.txt", "-m", words, "--prompt", prompt, "-o", name).code == 0
        search = ["search", "--queries", name, "--corpus", "whole/"]
        assert sentkit(*search, "--shard", f"{number}/2", "-o", f"{number}.jsonl").code == 0
    result = sentkit("search", "--merge", "1.jsonl", "2.jsonl")

    problem = '2.jsonl:1: "queries" of this part is not that of 1.jsonl'
    assert (result.code, problem in result.err) == (65, True)


def test_wrong_parts_are_refused(sentkit, shards, encode, corpus, words):
    """The first two files are the parts 1 and 2 of 3. A file of an older version does not name its
    corpus.
    """
    shards(3, "--top", "2")
    Path("part3.jsonl").rename("top.jsonl")
    shards(3)
    encode(corpus, "-o", "store/", "--store", "float16")
    encode(corpus, "-o", "space/", "--dim", "2")
    texts = "\n".join(QUERIES).encode()
    sentkit("encode", "-m", words, "-q", "--dim", "2", "-o", "small.jsonl", stdin=texts)
    cats = Path("corpus.jsonl").read_text().replace("dog", "cat")
    Path("cats.jsonl").write_text(cats)
    encode("cats.jsonl", "-o", "rows/")
    for name, queries in {"store": "q", "space": "small", "rows": "q"}.items():
        flags = ["--queries", f"{queries}.jsonl", "--corpus", f"{name}/"]
        assert sentkit("search", *flags, "--shard", "3/3", "-o", f"{name}.jsonl").code == 0
    lines = Path("part3.jsonl").read_text().splitlines(keepends=True)
    Path("short.jsonl").write_text("".join(lines[:2]))
    Path("turned.jsonl").write_text("".join(lines[::-1]))
    Path("old.jsonl").write_text("".join(re.sub('"corpus":"[^"]*",', "", line) for line in lines))
    Path("fewer.jsonl").write_text(
        "".join(re.sub(r'(arities":\[)[^,]*,', r"\1", line) for line in lines)
    )
    Path("word.jsonl").write_text(
        "".join(re.sub(r'(arities":)\[[^]]*\]', r'\1"x"', line) for line in lines)
    )
    Path("many.jsonl").write_text("".join(lines).replace('"count":3', f'"count":{10**9}'))

    for third, problem in {
        (): "the files are the parts 1, 2, expected each of 1 to 3 once",
        ("part2.jsonl",): "the files are the parts 1, 2, 2, expected",
        ("many.jsonl",): 'many.jsonl:1: "count" of this part is not that of part1.jsonl',
        ("top.jsonl",): 'top.jsonl:1: "top" of this part is not that of part1.jsonl',
        ("space.jsonl",): 'space.jsonl:1: "space" of this part is not that of',
        ("rows.jsonl",): 'rows.jsonl:1: "corpus" of this part is not that of',
        ("store.jsonl",): 'store.jsonl:1: "corpus" of this part is not that of',
        ("old.jsonl",): "old.jsonl:1: not a row of sentkit search --shard",
        ("fewer.jsonl",): "fewer.jsonl:1: not a row of sentkit search --shard",
        ("word.jsonl",): "word.jsonl:1: not a row of sentkit search --shard",
        ("short.jsonl",): "short.jsonl: it has fewer rows than another part",
        ("turned.jsonl",): "another query than in line 1 of part1.jsonl",
        ("q.jsonl",): "q.jsonl:1: not a row of sentkit search --shard",
    }.items():
        result = sentkit("search", "--merge", "part1.jsonl", "part2.jsonl", *third)

        assert result.code == 65, third
        assert problem in result.err


@pytest.mark.parametrize("name", ["encode", "search", "train"])
def test_the_scripts_of_slurm_request_processors_for_srun_and_memory(tmp_path, name):
    """Since 22.05, `srun` does not inherit --cpus-per-task. An array limits its tasks that run
    together.
    """
    (tmp_path / "bin").mkdir()
    for program in ("srun", "scontrol"):
        (tmp_path / "bin" / program).write_text('#!/bin/sh\necho "$SRUN_CPUS_PER_TASK" > cpus\n')
        (tmp_path / "bin" / program).chmod(0o755)
    script = ROOT / f"examples/slurm/{name}.sbatch"
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "3"}
    subprocess.run(["sh", str(script), "x"], env=environment, cwd=tmp_path, check=True)
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]

    assert (tmp_path / "cpus").read_text() == "3\n"
    assert any(line.startswith("#SBATCH --mem=") for line in lines)
    assert all("%" in line for line in lines if "--array" in line)


def test_an_array_of_slurm_searches_the_parts(sentkit, folder, queries, tmp_path):
    """`srun` is a program that runs its command, as in a task of an array."""
    whole = sentkit("search", *queries).out
    srun = tmp_path / "bin/srun"
    environment = with_program(tmp_path)
    srun.write_text('#!/bin/sh\nexec "$@"\n')
    srun.chmod(0o755)
    for number in range(2):
        task = {
            "SLURM_ARRAY_TASK_ID": number,
            "SLURM_ARRAY_TASK_COUNT": 2,
            "SLURM_ARRAY_TASK_MIN": 0,
        }
        environment |= {name: str(value) for name, value in task.items()}
        script = ["sh", str(ROOT / "examples/slurm/search.sbatch"), *queries]
        subprocess.run(script, env=environment, check=True)

    joined = sentkit("search", "--merge", "hits-0.jsonl", "hits-1.jsonl")

    assert joined.out == whole
    assert json.loads(Path("hits-1.jsonl").read_text().splitlines()[0])["part"]["number"] == 2
