"""Progress on standard error: a bar on a terminal, lines in a log file, or JSON lines."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sentkit.console.messages import Console
from sentkit.console.stream import close_bar, on_terminal, write_bar
from sentkit.console.tables import terminal_width

PATIENCE = 1.5  # seconds
INTERVAL = {"bar": 0.1, "log": 60.0}  # seconds between two reports

Clock = Callable[[], float]
Share = Callable[[int], float | None]  # number of rows done -> share of the work done; None if unknown


class ProgressWriter:
    """A bar on a terminal, otherwise with -v a line per minute; and the time of the last report."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.form = "bar" if on_terminal() else "log" if console.verbose else ""
        if console.quiet:
            self.form = ""
        self.start = self.last = clock()

    def due(self) -> bool:
        return bool(self.form) and self.clock() - self.last >= INTERVAL[self.form]

    def show(self, words: Sequence[str]) -> None:
        if self.form == "log":
            self.console.say(", ".join(words))
        else:
            write_bar("  ".join(words), terminal_width())

    def done(self) -> None:
        close_bar()


class RowProgress(ProgressWriter):
    """Rows and tokens done, their rate, and the share of the input if its size is known."""

    rows = tokens = 0
    skipped = 0  # rows that were read and skipped

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.share: Share = lambda rows: None

    def add(self, rows: int, tokens: int = 0) -> None:
        self.rows += rows
        self.tokens += tokens
        if self.due():
            self.report()

    def report(self) -> None:
        self.last = self.clock()
        seconds = max(self.last - self.start, 1e-9)
        rows, tokens = self.rows / seconds, self.tokens / seconds
        words = [f"{self.rows} rows", f"{rows:.0f} rows/s"]
        if self.tokens:
            words.append(f"{tokens:.0f} tokens/s")
        share = self.share(self.rows + self.skipped)
        if share is not None:
            words = [f"{100 * share:.0f} %", *words, *time_left(share, seconds)]
        self.show(words)


def time_left(share: float, seconds: float) -> list[str]:
    """The estimated time left, if a share of the work took so many seconds; empty if nothing is done."""
    if share <= 0:
        return []
    minutes, seconds = divmod(round(seconds * (1 - share) / share), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return [f"{clock} left"]


class TaskProgress(ProgressWriter):
    """The number of finished tasks (clusterings, or fits of a classifier) out of a known total."""

    def __init__(self, console: Console, unit: str, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.unit, self.tasks, self.of = unit, 0, 0

    def begin(self, of: int) -> None:
        """Add tasks to the total."""
        if not self.of:
            self.start = self.last = self.clock()
        self.of += of

    def add(self) -> None:
        self.tasks += 1
        if self.due():
            self.last = self.clock()
            share = self.tasks / max(self.of, self.tasks)
            words = [f"{100 * share:.0f} %", f"{self.tasks} of {self.of} {self.unit}"]
            self.show([*words, *time_left(share, self.last - self.start)])


def follow_tasks(
    console: Console, unit: str, inputs: Any
) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Progress of a command that first reads all rows and then runs a known number of tasks.

    Returns two functions. The first adds tasks to the total; the second reports one finished task.
    """
    reading, tasks = RowProgress(console), TaskProgress(console, unit)
    inputs.meter.watch, reading.share = reading.add, inputs.meter.share

    def begin(of: int) -> None:
        if not tasks.of:
            reading.done()
        tasks.begin(of)

    def done() -> None:
        tasks.add()
        if tasks.tasks == tasks.of:
            tasks.done()

    return begin, done


@contextmanager
def slow(
    console: Console, what: str, timer: Callable[..., threading.Timer] = threading.Timer
) -> Iterator[None]:
    """On a terminal, print `what` if the body takes longer than PATIENCE."""
    if console.quiet or not on_terminal():
        yield
        return
    waiting = timer(PATIENCE, console.say, [what])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


class StepProgress(ProgressWriter):
    """The steps of a training run and its scores on the dev pairs."""

    dev = ""  # the last score
    seed: int | None = None
    first = (0.0, 0)  # time and number of the first step of this seed

    def take(self, record: Mapping[str, Any]) -> None:
        """Report a step or a dev evaluation. The record contains a seed if several seeds are trained."""
        if record.get("seed") != self.seed:
            self.seed, self.dev, self.first = record.get("seed"), "", (0.0, 0)
        run = "" if self.seed is None else f"seed {self.seed}: "
        if "dev" in record:
            score = record["dev"]
            self.dev = "  dev -" if score is None else f"  dev {score:.2f}"
            best = " (best so far)" if record["best"] else ""
            self.console.report(f"{run}step {record['step']}:{self.dev}{best}")
            return
        if not self.first[1]:
            self.first = self.clock(), record["step"]
        if self.due():
            self.last = self.clock()
            start, first = self.first
            done = (record["step"] - first) / (record["of"] - first) if record["of"] > first else 0.0
            self.show([f"{run}{self.line(record)}", *time_left(done, self.last - start)])

    def line(self, record: Mapping[str, Any]) -> str:
        terms = " ".join(f"{name} {value:.4g}" for name, value in record["terms"].items())
        rate = f"lr {record['lr'][0]:.3g}  {record['tokens_per_s']} tokens/s"
        return f"step {record['step']}/{record['of']}  {terms}  {rate}{self.dev}"
