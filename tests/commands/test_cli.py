"""The program's own words: help, versions, wrong command lines, progress."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
from typer import Option

from sentkit import cli, manual, process
from sentkit.commands import plot
from sentkit.console import INTERVAL, Console, RowProgress, StepProgress, slow
from support import ROOT, in_jsonl

NAMES = (
    *(
        "encode",
        "check",
        "score",
        "diff",
        "search",
        "mine",
        "duplicates",
        "cluster",
        "probe",
        "predict",
    ),
    *("train", "report", "translate", "build-entries", "augment", "cat", "inspect"),
    *("export", "distill-static", "whiten", "plot"),
)


@pytest.fixture
def added_figure(monkeypatch):
    """A function in the file of a group, as a new figure is added to `plot`."""

    def lengths(*, bins: Annotated[int, Option("--bins", help="Bars.")] = 20, console: Console):
        """Draw the lengths of vectors.

        Examples:
          sentkit plot lengths titles.safetensors

        Most used: --bins

        A bar is a range of lengths.

        # MANUAL

        Zero vectors have the length 0.
        """
        sys.stdout.write(f"{bins} bars")

    lengths.__module__ = plot.__name__
    monkeypatch.setattr(plot, "lengths", lengths, raising=False)
    cli.program.cache_clear()
    yield
    cli.program.cache_clear()


def test_a_function_with_its_help_is_a_command_of_a_group(sentkit, added_figure):
    group, short, long = (
        sentkit("plot", *words) for words in (["-h"], ["lengths", "-h"], ["lengths", "--help"])
    )
    page = manual.page("sentkit plot lengths", cli.program().commands["plot"].commands["lengths"])

    assert "  lengths  Draw the lengths of vectors.\n" in group.out.decode()
    assert "Examples:\n  sentkit plot lengths titles.safetensors\n" in short.out.decode()
    assert "A bar is a range of lengths." in long.out.decode()
    assert "Zero" not in long.out.decode()
    assert "Zero vectors have the length 0." in page
    assert sentkit("plot", "lengths", "--bins", "3").out == b"3 bars"


def test_no_command_is_wrong_usage(sentkit):
    """The help goes to stderr, because stdout is for data; that of a group lists its commands."""
    whole = sentkit()
    group = sentkit("whiten")
    listed = group.err.partition("Commands:\n")[2].partition("\nExample: ")[0].splitlines()

    assert (whole.code, whole.out) == (group.code, group.out) == (2, b"")
    assert whole.told[0].startswith("Usage: sentkit ")
    assert group.told[0].startswith("Usage: sentkit whiten ")
    assert [line.split()[0] for line in listed] == ["fit", "apply"]


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_below_a_heading(sentkit, words):
    result = sentkit(*words)
    lines = result.out.decode().splitlines()
    listed = [line for line in lines if re.match("  [a-z][a-z-]+  +[A-Z]", line)]

    assert result.code == 0
    headings = ["Texts:", "Vectors:", "Models:", "Files:"]
    assert [line for line in lines if line[:-1] in cli.COMMANDS] == headings
    assert sorted(line.split()[0] for line in listed) == sorted(NAMES)
    # one column of descriptions
    assert len({line.index(line.split()[1], 14) for line in listed}) == 1


@pytest.mark.parametrize("command", cli.every_command())
def test_both_helps_of_a_command_begin_with_examples(sentkit, command):
    """`help COMMAND` is `COMMAND --help`, and both texts have each flag that is most used."""
    words = command.split()
    short = sentkit(*words, "-h")
    long = sentkit(*words, "--help")

    assert (short.code, long.code) == (0, 0)
    for result in (short, long):
        lines = result.out.decode().splitlines()
        assert lines[0].startswith(f"Usage: sentkit {command} [OPTIONS]")
        assert lines[4] == "Examples:"
        assert f"sentkit {command}" in lines[5]
    page = f"sentkit-{command.replace(' ', '-')}"
    assert short.out.decode().endswith(f"\n\nMore: sentkit {command} --help, man {page}\n")
    assert long.out.decode().endswith(f"\n\nFull manual: man {page}\n")
    assert (ROOT / "man/man1" / f"{page}.1").is_file()
    most_used = short.out.decode().partition("Most used:\n")[2]
    flags = most_used.partition("\n\n")[0].splitlines()
    assert flags
    assert [line for line in flags if line not in long.out.decode()] == []
    assert sentkit("help", *words).out == long.out


MORE_FILES = "raise the limit of open files, for example: ulimit -n 4096"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (MemoryError(), 74, "out of memory"),
        (OSError(28, "No space left on device"), 74, "no space left on device"),
        (PermissionError(13, "Permission denied", "x.bin"), 74, "x.bin: permission denied"),
        (RuntimeError("could not create a primitive"), 74, "out of memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            74,
            "out of memory",
        ),
        (ImportError("libx.so: failed to map segment from shared object"), 74, "out of memory"),
        (OSError(24, "Too many open files", "x"), 74, f"x: too many open files\n  {MORE_FILES}"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_system_error_is_short(error, code, told, capsys):
    assert cli.exit_code(error, Console("encode")) == code
    assert capsys.readouterr().err == f"sentkit encode: {told}\n"


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGINT, 130, "sentkit encode: stopped by Ctrl-C\n"),
        (signal.SIGTERM, 143, "sentkit encode: stopped by SIGTERM\n"),
    ],
)
def test_an_error_in_place_of_a_signal_is_no_bug(number, code, told, capsys, monkeypatch):
    """torch replaces the exception of a signal by a ValueError while it reads weights."""
    monkeypatch.setattr(process, "_raised", None)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        process.unwind(number, None)

    assert cli.exit_code(ValueError("no shape"), Console("encode")) == code
    assert capsys.readouterr().err == told


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """Lines of a log have this time, and the intervals of users between them."""
    monkeypatch.setattr("time.strftime", lambda form: "2026-01-02 03:04:05")
    monkeypatch.setattr("sentkit.console.INTERVAL", INTERVAL)


class Clock:
    """A clock that goes these seconds further each time it is read, or is set by hand."""

    def __init__(self, step=10.0):
        self.now = 0.0
        self.step = step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def clock():
    """A clock that stands still."""
    return Clock(0)


LOG = "2026-01-02 03:04:05  "  # before the text of a line


@pytest.fixture(params=["bar", "log"])
def form(request, monkeypatch):
    """A bar on a terminal, a line per minute without one."""
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: request.param == "bar")
    return request.param


def told(form, capsys):
    text = capsys.readouterr().err
    return text.removeprefix("\r\033[K") if form == "bar" else text.removesuffix("\n")


@pytest.mark.parametrize(
    ("flags", "lines"),
    [({}, [6]), ({"quiet": True, "verbose": True}, []), ({"verbose": True}, range(1, 8))],
)
def test_a_log_has_a_line_a_minute_and_with_v_every_ten_seconds(capsys, flags, lines):
    """With a file as stderr. Ten seconds pass before each row."""
    progress = RowProgress(Console("encode", **flags), Clock())
    for _ in range(7):
        progress.add(1, 4)

    expected = [f"sentkit encode: {LOG}{rows} rows, 0 rows/s, 0 tokens/s" for rows in lines]
    assert capsys.readouterr().err.splitlines() == expected


@pytest.mark.parametrize(
    ("share", "added", "words"),
    [
        (0.25, (30, 90), ["25 %", "30 rows", "0 rows/s", "2 tokens/s", "3:00 left"]),
        (0.01, (1,), ["1 %", "1 rows", "0 rows/s", "1:39:00 left"]),
    ],
)
def test_a_known_share_gives_the_time_left(form, clock, capsys, share, added, words):
    """A quarter took one minute, so the rest takes three."""
    progress = RowProgress(Console("encode"), clock)
    progress.share = lambda rows: share * rows / added[0]
    clock.now = 60.0
    progress.add(*added)

    expected = {"bar": "  ".join(words), "log": f"sentkit encode: {LOG}{', '.join(words)}"}
    assert told(form, capsys) == expected[form]


@pytest.mark.parametrize(
    ("seconds", "share", "quiet", "is_told"),
    [
        (9.0, 0.1, False, False),  # too early to know
        (12.0, 0.1, False, True),  # 120 seconds in all
        (12.0, 0.5, False, False),  # 24 seconds in all
        (12.0, None, False, False),  # the size of standard input is unknown
        (61.0, None, False, True),
        (12.0, 0.1, True, False),
    ],
)
def test_a_long_run_is_told_of_a_faster_way_once(
    clock, capsys, monkeypatch, seconds, share, quiet, is_told
):
    measured = []

    def faster_way():
        measured.append(clock.now)
        return "--precision bf16 takes about 0.33 x the time on this CPU"

    progress = RowProgress(Console("encode", quiet=quiet), clock)
    progress.share = lambda rows: share
    progress.advise(faster_way)
    clock.now = seconds
    progress.add(1)
    progress.add(1)

    assert capsys.readouterr().err.count("0.33 x the time") == is_told
    assert measured == [seconds] * is_told


def test_training_is_told_of_a_faster_way(clock, capsys):
    """Steps 1 to 2 of 100 take twelve seconds."""
    progress = StepProgress(Console("train"), clock)
    progress.advise(lambda: "a faster way")
    progress.take({**STEP, "step": 1})
    clock.now = 12.0
    progress.take({**STEP, "step": 2})

    assert "a faster way" in capsys.readouterr().err


def test_a_later_short_run_of_training_is_not_told(clock, capsys):
    """The first run has taken 50 seconds, the last one takes 20: less than a minute."""
    progress = StepProgress(Console("train"), clock)
    progress.advise(lambda: "a faster way")
    clock.now = 50.0
    progress.begin()
    progress.take({**STEP, "step": 1, "of": 21})
    clock.now = 62.0
    progress.take({**STEP, "step": 13, "of": 21})

    assert "a faster way" not in capsys.readouterr().err


def test_a_message_erases_the_bar(capsys, monkeypatch):
    """The bar's line is wiped first."""
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: True)
    console = Console("encode")
    progress = RowProgress(console, Clock())
    progress.add(1, 4)
    console.warn("look")

    assert capsys.readouterr().err.endswith("\r\033[Ksentkit encode: warning: look\n")


STEP = {"of": 100, "terms": {"loss": 0.5}, "lr": [1e-5], "tokens_per_s": 9}


@pytest.mark.parametrize("seed", [None, 7])
def test_steps_name_the_seed_and_the_time_left(seed, clock, capsys):
    """Steps 1 to 31 take one minute, so 69 more take 138 seconds. The best step can be worse than
    step 0.
    """
    progress = StepProgress(Console("train"), clock)
    run = {} if seed is None else {"seed": seed}
    progress.take({**run, "step": 0, "dev": 56.25, "best": False, "before": 56.25})
    progress.take({**STEP, **run, "step": 1})
    clock.now = 60.0
    progress.take({**STEP, **run, "step": 31})
    for step, dev, best in ((31, 44.0, True), (32, 40.0, False), (33, 57.5, True)):
        progress.take({**run, "step": step, "dev": dev, "best": best, "before": 56.25})
    progress.take({**STEP, **run, "step": 100})
    progress.take({**run, "step": 100, "dev": 50.0, "best": False, "before": 56.25})
    who = f"sentkit train: {LOG}{'' if seed is None else 'seed 7: '}step"

    assert capsys.readouterr().err.splitlines() == [
        f"{who} 0:  dev 56.25",
        f"{who} 31/100, 2:18 left, dev 56.25, loss 0.5, 9 tokens/s, lr 1e-05",
        f"{who} 31:  dev 44.00 (best step, not better than the base: step 0 has 56.25), 2:18 left",
        f"{who} 32:  dev 40.00, 2:18 left",
        f"{who} 33:  dev 57.50 (best so far), 2:18 left",
        f"{who} 100:  dev 50.00",
    ]


@pytest.mark.parametrize(("later_work", "runs", "time_left"), [(2.0, 3, "8:58"), (0.5, 2, "3:58")])
def test_the_time_left_is_that_of_all_runs(later_work, runs, time_left, clock, capsys):
    """Steps 1 to 31 of 100 take one minute: 69 and the steps of the later runs remain, 2 seconds
    each.

    The next run starts again, whatever its seed is.
    """
    progress = StepProgress(Console("train"), clock)
    for time in (0.0, 1000.0):
        clock.now = time
        progress.begin(later_work, runs)
        progress.take({**STEP, "seed": 7, "step": 0, "dev": 56.25, "best": False, "before": 56.25})
        progress.take({**STEP, "seed": 7, "step": 1})
        clock.now = time + 60.0
        progress.take({**STEP, "seed": 7, "step": 31})
        told = capsys.readouterr().err.splitlines()

        assert len(told) >= 2
        assert told[0].endswith("seed 7: step 0:  dev 56.25")
        assert (
            f"seed 7: step 31/100, {time_left} left for {runs} runs, dev 56.25, loss 0.5"
            in told[-1]
        )


@pytest.mark.parametrize(
    ("seconds", "verbose", "terminal", "is_reported"),
    [
        (2.0, True, False, True),
        (2.0, False, True, False),
        (0.0, True, True, False),
        (0.04, True, False, False),
    ],
)
def test_the_share_of_the_model_is_reported_with_v_unless_the_time_is_short(
    seconds, verbose, terminal, is_reported, clock, capsys, monkeypatch
):
    """Half of the time, of two threads that worked one second each."""
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: terminal)
    encoder = SimpleNamespace(warnings=lambda stats: (), groups_at_once=2)
    progress = RowProgress(Console("encode", verbose=verbose), clock)
    clock.now = seconds
    progress.encoded(SimpleNamespace(seconds=seconds), encoder)

    expected = "sentkit encode: the model worked 50 % of 2.0 s\n" if is_reported else ""
    assert capsys.readouterr().err == expected


def test_a_narrow_bar_keeps_the_time_left_and_the_score(clock, capsys, monkeypatch):
    """Of three terms of a loss, as many as fit into 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: True)
    progress = StepProgress(Console("train"), clock)
    step = {**STEP, "terms": {"contrast": 0.5, "classification": 0.25, "mlm": 2}}
    progress.take({**step, "step": 1})
    progress.take({"step": 1, "dev": 44.0, "best": False, "before": None})
    clock.now = 60.0
    progress.take({**step, "step": 31})

    bar = capsys.readouterr().err.rpartition("\033[K")[2]
    assert bar == "step 31/100  2:18 left  dev 44.00  contrast 0.5  mlm 2"


def test_slow_work_is_named_only_on_a_terminal(capsys, monkeypatch):
    with slow(Console("cluster"), "clustering 9 rows"):
        pass
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: True)
    with slow(Console("cluster"), "clustering 9 rows"):
        pass

    assert capsys.readouterr().err == "\r\033[Kclustering 9 rows\r\033[K"


READ = [1, 12]  # of twelve rows: the first alone, because it determines what the others are


@pytest.mark.parametrize(
    ("command", "counts", "messages"),
    [
        ("encode gold.jsonl -m static", [12], ["12 rows"]),
        (
            "cluster v.jsonl -k 2..3 --seed 0..2",
            READ,
            [f"{n} of 6 clusterings" for n in range(1, 7)],
        ),
        (
            "probe v.jsonl --label c --folds 3 --penalties 1",
            READ,
            [f"{n} of 3 fits" for n in (1, 2, 3)],
        ),
        ("duplicates v.jsonl --threshold 0.9", [*READ, 11, 12], ["left"]),
        ("duplicates v.jsonl --threshold 0.9 --against v.jsonl", [*READ, 12], ["left"]),
        ("search --queries v.jsonl --corpus v.jsonl", [*READ, 12], ["left"]),
        ("mine pairs.jsonl --corpus v.jsonl", [*READ, 12], ["100 %"]),
        ("report w=words:binary --pairs p=gold.jsonl", [12, 12], ["0 of 1 evaluations", "1 of 1"]),
        (
            "train simcse v.jsonl -m TINY -o out --batch 6 --threads 1",
            [12],
            ["step 1/2", "step 2/2"],
        ),
    ],
)
def test_long_commands_report_rows_tasks_and_steps(
    sentkit, tiny, monkeypatch, command, counts, messages
):
    """With a clock that advances a minute at each call, each possible line is written, and with -q
    none.
    """
    for kind in ("ProgressWriter", "RowProgress", "TaskProgress"):
        monkeypatch.setattr(f"sentkit.console.{kind}.__init__.__defaults__", (Clock(60),))
    numbers = [
        {"embedding": [1 + n % 2, n * n % 7], "c": "ab"[n % 2], "text": f"cat {n}"}
        for n in range(12)
    ]
    both = [{f"embedding_{name}": row["embedding"] for name in "ab"} for row in numbers]
    texts = [{"text_a": f"cat {n}", "text_b": f"dog {n % 5}"} for n in range(12)]
    Path("v.jsonl").write_text(in_jsonl(*numbers))
    Path("pairs.jsonl").write_text(in_jsonl(*(a | b for a, b in zip(texts, both, strict=True))))
    Path("gold.jsonl").write_text(in_jsonl(*(row | {"score": n} for n, row in enumerate(texts))))
    arguments = command.replace("TINY", str(tiny)).split()
    result = sentkit(*arguments)
    told = " ".join(result.told)

    assert result.code == 0, result.err
    assert list(map(int, re.findall(r"(\d+) rows,", told))) == counts
    assert [message for message in messages if message not in told] == []
    assert LOG not in sentkit(*arguments, "-q", *(["-f"] if "-o" in arguments else [])).err


WITH_A_BAR = """
from types import SimpleNamespace
from typing import Annotated

from sentkit.cli import handle_errors
from sentkit.console import write_bar

def command(*, console):
    write_bar("944 rows", 80)
    print("a row")

context = SimpleNamespace(command=SimpleNamespace(params=[]))
handle_errors(command, "cat")(context=context, quiet=False, verbose=False)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("reader", ["", "| cat"])
def test_the_bar_is_erased_before_output_to_a_terminal_or_a_pipe(tmp_path, reader, unbuffered):
    """The program of the pipe writes to the same terminal; without it, the bar would be part of the
    row.
    """
    (tmp_path / "bar.py").write_text(WITH_A_BAR)
    controller, terminal = pty.openpty()
    line = f"{shlex.quote(sys.executable)} bar.py {reader}"
    environment = os.environ | {
        "TERM": "xterm",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": unbuffered,
    }
    subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=environment,
        stdout=terminal,
        stderr=terminal,
        check=True,
    )
    os.close(terminal)
    written = os.read(controller, 65536).decode()
    os.close(controller)

    assert written == "\r\033[K944 rows\r\033[Ka row\r\n"
