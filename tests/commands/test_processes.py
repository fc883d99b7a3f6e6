"""The program as the shell sees it: pipes, signals, terminals, full disks, closed streams, hostile
names.
"""

import os
import pty
import resource
import signal
import subprocess
import sys
import time

import pytest

from sentkit.console import Console
from sentkit.escaping import escape
from support import ROOT, heed_signals

PAIR = b'{"embedding_a":[1,0],"embedding_b":[0.6,0.8]}\n'
ROW = b'{"text":"a cat"}\n'
ENTRY = b'{"entry":"cat","definition":"an animal"}\n'
COMMANDS = {"encode": ROW, "build-entries": ENTRY, "score": PAIR, "cat": ROW}


@pytest.fixture
def started(tmp_path):
    """A process of the program with word vectors, its streams as pipes; ended with the test at the
    latest.
    """
    (tmp_path / "words").mkdir()
    (tmp_path / "words/w.txt").write_text("a 1 0\ncat 0 1\n")
    running = []

    def start(*arguments, ignored=(), **streams):
        def dispositions():
            heed_signals()
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | streams
        program = [sys.executable, "-m", "sentkit", *arguments]
        running.append(subprocess.Popen(program, cwd=tmp_path, preexec_fn=dispositions, **pipes))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def write_a_row(tmp_path, process):
    """And wait for the output."""
    process.stdin.write(ROW)
    process.stdin.flush()
    while not list(tmp_path.glob("*out.jsonl*")) + list(tmp_path.glob(".*out.jsonl*")):
        assert process.poll() is None
        time.sleep(0.05)


# Pipes and full disks.


@pytest.mark.parametrize(
    ("command", "reader"), [*zip(COMMANDS, ["head -1", "true"] * 2, strict=True)]
)
def test_a_reader_that_closes_the_pipe_is_no_error(forked_shell, tmp_path, command, reader):
    """`| head -1` is quiet and 0, also where the whole pipe must succeed."""
    (tmp_path / "rows.jsonl").write_bytes(COMMANDS[command] * 20_000)
    result = forked_shell(f"sentkit {command} -q rows.jsonl | {reader}")

    assert (result.code, result.err) == (0, "")
    assert result.out.count(b"\n") == (reader == "head -1")


def test_a_reader_that_leaves_at_once_does_not_wait_for_a_slow_writer(forked_shell, tmp_path):
    """A small result is written at the end, into a pipe without a reader; the side output stays."""
    (tmp_path / "v.jsonl").write_bytes(b'{"text":"a cat","embedding":[1,2]}\n' * 3)
    commands = (
        "inspect nano",
        "--version",
        "encode --help",
        "cluster -k 1 v.jsonl --centroids c.jsonl",
    )
    result = forked_shell("; ".join(f"sentkit {command} | true" for command in commands))

    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "c.jsonl").read_text().count("\n") == 1


NUMBERED = (
    b'{"embedding_a":[1,0],"embedding_b":[0,1],"g":1}\n'
    b'{"embedding_a":[1,0],"embedding_b":[1,0],"g":2}\n'
)


FULL = (74, b"", "no space left on device")
CLOSED = (73, b"", "standard output is closed")
LINES = {  # a line of bash -> exit code, output, and the end of the message
    **{
        f"sentkit {command} > /dev/full": FULL
        for command in ("encode row", "score pairs", "inspect nano")
    },
    **{f"sentkit {command} >&-": CLOSED for command in ("cat row", "score --gold g pairs")},
    "sentkit score --gold g pairs > /dev/full": FULL,
    # A look whether an input is there does not use it up.
    "sentkit cat -q <(cat row) <(cat row)": (0, ROW * 2, ""),
    # Nothing is renamed over the pipe.
    "mkfifo pipe; (sentkit cat -o pipe < row &); cat pipe": (0, ROW, ""),
}


@pytest.mark.parametrize("line", LINES)
def test_outputs_that_are_full_closed_or_pipes(shell, tmp_path, line):
    """One line, for every kind of output; otherwise the result would be lost silently."""
    (tmp_path / "row").write_bytes(ROW)
    (tmp_path / "pairs").write_bytes(NUMBERED)
    code, out, told = LINES[line]
    result = shell(line)

    assert (result.code, result.out, len(result.told)) == (code, out, bool(told))
    assert result.err.endswith(f": {told}\n" if told else "")


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.safetensors"])
def test_a_file_that_cannot_grow_leaves_nothing(program, name, tmp_path):
    """As on a full disk: 74, one line, and neither the output nor a part of it."""
    random = b"".join(b'{"embedding":[%d]}\n' % (k * k) for k in range(20_000))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    result = program("cat", "-o", name, stdin=random, preexec_fn=limit)

    assert (result.code, result.told) == (74, [f"sentkit cat: {name}: file too large"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        "cluster -k 2 --centroids c.jsonl",
        "score",
        "search --corpus corpus.jsonl --queries",
        "probe --label g --few-shot 1",
        "whiten fit --kind center",
    ],
)
def test_if_the_disk_is_full_no_output_appears(sentkit, tmp_path, call):
    """The device is full for the rows, and the other outputs would have room."""
    (tmp_path / "corpus.jsonl").write_text('{"embedding":[1,2],"text":"a"}\n')
    rows = (
        '{"embedding":[1,2],"g":"x"}',
        '{"embedding":[2,1],"g":"y"}',
        '{"embedding":[1,1],"g":"x"}',
        "bad",
    )
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    output = "full.safetensors" if call.startswith("whiten") else "/dev/full"
    (tmp_path / "full.safetensors").symlink_to("/dev/full")
    before = sorted(path.name for path in tmp_path.iterdir())

    assert sentkit(*call.split(), "rows.jsonl", "-o", output, "--rejects", "bad").code == 74
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_output_behind_a_link(sentkit, tmp_path):
    """The link stays; vectors and rows are joined in the folder of its target."""
    (tmp_path / "far").mkdir()
    (tmp_path / "v.safetensors").symlink_to("far/target.safetensors")
    codes = [
        sentkit("cat", "-o", "v.safetensors", *flags, stdin='{"embedding":[1]}').code
        for flags in ((), (), ("-f",))
    ]

    assert codes == [0, 73, 0]
    assert (tmp_path / "v.safetensors").is_symlink()
    assert len(sentkit("cat", "far/target.safetensors").rows) == 1
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["target.safetensors"]


def test_a_terminal_on_standard_input_is_wrong_usage(started):
    """Nobody types rows."""
    _, terminal = pty.openpty()
    process = started("encode", "-m", "words/w.txt", stdin=terminal)
    _, told = process.communicate()

    problem = "sentkit encode: standard input is a terminal"
    assert process.returncode == 2
    assert told.decode().splitlines()[-2:] == [
        problem,
        "  name a FILE, or pipe rows into the command",
    ]


def test_rows_come_out_before_the_input_ends(started, tmp_path):
    """The first group is small: the first rows of a slow writer are answered while it still
    writes.
    """
    (tmp_path / "c.jsonl").write_bytes(b'{"embedding":[1,0]}\n')
    for words, rows, answer in (
        (("encode", "-m", "words/w.txt"), ROW * 32, b'{"text":"a cat","_emb":"w.txt/mean:'),
        (
            ("search", "--corpus", "c.jsonl"),
            b'{"embedding":[2,0]}\n' * 16,
            b'{"hits":[{"row":1,"similarity":1.0}]}',
        ),
    ):
        process = started(*words)
        process.stdin.write(rows)
        process.stdin.flush()
        assert process.stdout.readline().startswith(answer)


# Signals.

# A start-up file of Python that raises a signal while a module is imported.
INTERRUPTER = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("module", "start"),
    [
        *((name, ["-m", "sentkit"]) for name in ("typer", "sentkit.cli")),
        ("sentkit.console", ["-c", "from sentkit.__main__ import main; main()"]),
    ],
)
def test_ctrl_c_while_the_program_is_imported(tmp_path, module, start):
    """One line and 130, with `python -m` and with the installed script, which imports the same
    `main`.
    """
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER.format(module=module))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *start, "cat"]
    completed = subprocess.run(
        command, input=ROW, env=environment, capture_output=True, preexec_fn=heed_signals
    )

    assert (completed.returncode, completed.stdout, completed.stderr) == (
        130,
        b"",
        b"sentkit: stopped by Ctrl-C\n",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_file(started, tmp_path, number):
    process = started("cat", "-o", "out.jsonl")
    write_a_row(tmp_path, process)
    process.send_signal(number)
    _, told = process.communicate()

    word = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert (process.returncode, told.decode()) == (
        128 + number,
        f"sentkit cat: stopped by {word}\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["words"]


FOLDER_KEEPS_BLOCKS = "  with -o DIR/, complete blocks are kept, and --resume continues"


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["-o", "out.safetensors"], [FOLDER_KEEPS_BLOCKS]),
        (["-o", "out/", "-n"], []),  # a dry run has no work to keep
        (["-o", "out.safetensors", "-n"], []),
        (["-o", "out/", "--readout", "mean,max"], []),  # files, which --resume cannot continue
        (["-o", "out", "--readout", "mean,max"], []),
    ],
    ids=" ".join,
)
def test_a_stopped_encode_names_a_way_to_keep_its_work_if_there_is_one(started, flags, advice):
    process = started("encode", "-m", "words/w.txt", *flags, "-v")
    assert process.stderr.readline() == b"sentkit encode: loading words/w.txt\n"
    process.send_signal(signal.SIGTERM)
    process.wait(60)  # an end of the input would be another error
    _, told = process.communicate()

    lines = told.decode().splitlines()
    first = lines.index("sentkit encode: stopped by SIGTERM")
    assert (process.returncode, lines[first + 1 :]) == (143, advice)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(started, tmp_path, number):
    """As with `nohup`, or in the background of a script."""
    process = started("cat", "-o", "out.jsonl", ignored=[number])
    write_a_row(tmp_path, process)
    process.send_signal(number)
    process.communicate(ROW)

    assert (process.returncode, (tmp_path / "out.jsonl").read_bytes()) == (0, ROW * 2)


def test_a_signal_within_an_import_waits_for_its_end(tmp_path):
    """An import that breaks off may half succeed, and an exit from within it would leave a half
    file.
    """
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    program = """
import time
from sentkit.process import unwind_on_signals
from sentkit.formats.outputs.outputs import open_output
unwind_on_signals()
with open_output("out.jsonl", force=False):
    import slow
    time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False
    )

    assert completed.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["slow.py"]


@pytest.mark.parametrize("command", [("cat",), ("encode", "-o", "x.jsonl")])
def test_a_deleted_working_folder_is_66(tmp_path, forked_program, command):
    """Where a model is loaded, a library would end the process itself."""
    (folder := tmp_path / "gone").mkdir()
    line = 'cd "$0" && rmdir "$0" && exec "$@"'
    words = ["bash", "-c", line, str(folder), sys.executable, "-m", "sentkit", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(words, input=ROW, env=environment, capture_output=True, check=False)

    assert (completed.returncode, completed.stdout) == (66, b"")
    assert completed.stderr.decode().splitlines() == [
        f"sentkit {command[0]}: the current folder does not exist",
        "  go to another folder with cd",
    ]


# Standard error: its state changes no result.

ENDS = {
    0: (["cat", "-"], ROW),
    1: (["score", "--gold", "g", "--fail-under", "101"], NUMBERED),
    2: (["cat", "--no-such-flag"], ROW),
    65: (["cat", "--from", "jsonl"], ROW + b"{\n"),
    66: (["cat", "absent.jsonl"], b""),
    69: (["encode", "--device", "cuda:99"], ROW),
    73: (["cat", "-o", "kept.jsonl"], ROW),
    74: (["cat", "-o", "/dev/full"], ROW * 5000),
}
STATES = ("closed", "full", "broken pipe")


def states(kind):
    if kind == "closed":
        return {"stderr": None, "preexec_fn": lambda: os.close(2)}
    if kind == "full":
        return {"stderr": os.open("/dev/full", os.O_WRONLY)}
    reader, writer = os.pipe()
    os.close(reader)
    return {"stderr": writer}


@pytest.mark.parametrize("code", ENDS)
def test_stderr_changes_neither_output_nor_exit_code(program, sentkit, tmp_path, code):
    """The same code and bytes as with a working standard error, and no file besides.

    A good result meets all three states, the other codes one of them.
    """
    (tmp_path / "kept.jsonl").write_text("kept")
    (tmp_path / "tmp").mkdir()
    arguments, stdin = ENDS[code]
    usual = sentkit(*arguments, stdin=stdin)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    options = {"stdin": stdin, "env": environment, "stdout": subprocess.PIPE}
    tested = STATES if code == 0 else [STATES[code % 3]]

    assert usual.code == code
    for state in tested:
        result = program(*arguments, **options, capture_output=False, **states(state))
        assert (state, result.code, result.out) == (state, code, usual.out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.jsonl", "tmp"]


def test_a_stop_is_75_and_a_bug_is_70_with_any_stderr(started, tmp_path):
    process = started("train", "simcse", "-o", "ckpt")
    process.stdin.write(ROW * 3)
    process.stdin.flush()
    while not list(tmp_path.glob("ckpt*")):  # it waits for rows, its folder made
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    assert b"sentkit train: stopped before training began" in process.stderr.read()
    assert not list(tmp_path.glob("ckpt*"))
    program = (
        "from sentkit.process import prepare; prepare()\n"
        "from sentkit import cli\n"
        "cli.check_working_folder = lambda: 1 / 0\n"
        "cli.main()\n"
    )
    for state in STATES[1:]:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", program, "cat"]
        completed = subprocess.run(
            command, input=ROW, env=environment, check=False, **states(state)
        )
        assert completed.returncode == 70


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_a_file_never_takes_the_place_of_a_closed_stream(program, tmp_path, closed):
    """With standard error closed, the first file that is opened would get its number."""

    def close_them():
        for number in closed:
            os.close(number)

    (tmp_path / "in.jsonl").write_bytes(ROW + b"{\n" + ROW)
    flags = ("in.jsonl", "--rejects", "/dev/null")
    to_file = program("cat", *flags, "-o", "out.jsonl", capture_output=False, preexec_fn=close_them)
    to_stdout = program("cat", *flags, capture_output=False, preexec_fn=close_them)

    assert (to_file.code, (tmp_path / "out.jsonl").read_bytes()) == (0, ROW * 2)
    assert to_stdout.code == (73 if 1 in closed else 0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, naïve, 北京、　👩‍🚀 \u200fعربي", "plain, naïve, 北京、　👩‍🚀 \u200fعربي"),
        ("\x1b]0;title\x07a\nb\r\tc", r"\x1b]0;title\x07a\nb\r\tc"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202egpj.exe\u2066\u2029\ud800", r"\u202egpj.exe\u2066\u2029\ud800"),
        (os.fsdecode(b"\xff.txt"), r"\xff.txt"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert escape(text) == shown


NAME = "x\x1b[31m\u202e\x9b\ny\u2028"
HOSTILE = NAME + os.fsdecode(b"\xfe")
PAIRED = '{"text":"a","embedding_a":[1,0],"embedding_b":[1,0],"g":%d,"t":"%s"}\n'
IN_JSON = r"x\u001b[31m\u202e\u009b\ny\u2028"
OF_DATA = PAIRED % (1, IN_JSON) + PAIRED % (2, IN_JSON)


@pytest.mark.parametrize(
    "command",
    [  # places of a command line that a message repeats, and values of rows
        *(
            ["encode", HOSTILE],
            ["encode", "--field", f"{HOSTILE}=x"],
            ["cluster", "-k", HOSTILE],
            [HOSTILE],
        ),
        *(
            ["cat", f"--{HOSTILE}"],
            ["score", "--gold", NAME],
            ["score", "--gold", "g", "--group", "t"],
        ),
    ],
    ids=lambda words: " ".join(word for word in words if "x" not in word),
)
def test_a_hostile_name_is_escaped_in_every_message(sentkit, command):
    """Each line begins as a message of sentkit, and one of them contains the escaped name."""
    result = sentkit(*command, stdin=OF_DATA)
    lines = result.err.split("\n")

    assert result.code == (0 if "--group" in command else result.code or 99)
    assert lines.pop() == ""
    assert all(line.startswith(("sentkit", "  ")) and escape(line) == line for line in lines)
    assert r"x\x1b[31m" in result.err


def test_warnings_of_libraries_are_hidden_and_a_broken_stream_is_ignored(
    program, forked_program, jsonl, monkeypatch
):
    """1e-320 is too small for L-BFGS: no fit converges, neither those of three folds nor that of
    all rows.
    """
    rows = [{"embedding": [n, -n], "label": n % 2} for n in range(12)]
    flags = ("--label", "label", "--folds", 3, "--penalties", 1e-320, "-o", "c.safetensors")
    result = program("probe", *flags, stdin=jsonl(*rows), program=forked_program)
    assert (result.code, result.told) == (0, ["sentkit probe: warning: -: 4 fits did not converge"])

    class Broken:
        def write(self, text):
            raise OSError(28, "No space left on device")

    for stream in (Broken(), None):  # sentkit as a library
        monkeypatch.setattr(sys, "stderr", stream)
        Console("cat").warn("lost")
