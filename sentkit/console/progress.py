"""Progress on standard error: a bar on a terminal, lines in a log file, or JSON lines."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentkit.console.messages import Console
from sentkit.console.stream import close_bar, on_terminal, write_bar, write_line
from sentkit.console.tables import terminal_width
from sentkit.digits import rounded
from sentkit.errors import UsageError

PROGRESS = ("auto", "bar", "log", "json", "none")
PATIENCE = 1.5  # seconds
INTERVAL = {"bar": 0.1, "log": 60.0, "json": 1.0}  # seconds between two reports

Clock = Callable[[], float]
Share = Callable[[int], float | None]  # number of rows done -> share of the work done; None if unknown


class ProgressWriter:
    """The format of progress reports, and the time of the last one."""

    def __init__(self, console: Console, form: str, clock: Clock = time.monotonic) -> None:
        if form not in PROGRESS:
            raise UsageError(f'--progress "{form}"', advice=f"available: {', '.join(PROGRESS)}")
        if form == "auto":
            form = "bar" if on_terminal() else "log"
        self.console, self.clock = console, clock
        self.form = "none" if console.quiet else form
        self.start = self.last = clock()

    def due(self) -> bool:
        return self.form != "none" and self.clock() - self.last >= INTERVAL[self.form]

    def show(self, line: str, record: Mapping[str, Any]) -> None:
        if self.form == "json":
            write_line(json.dumps(rounded(record), separators=(",", ":")))
        elif self.form == "log":
            self.console.say(line)
        elif self.form == "bar":
            write_bar(line, terminal_width())


class RowProgress(ProgressWriter):
    """Rows and tokens done, their rate, and the share of the input if its size is known."""

    rows = tokens = 0
    skipped = 0  # rows that were read and skipped

    def __init__(self, console: Console, form: str, clock: Clock = time.monotonic) -> None:
        super().__init__(console, form, clock)
        self.share: Share = lambda rows: None

    def add(self, rows: int, tokens: int = 0) -> None:
        self.rows += rows
        self.tokens += tokens
        if self.due():
            self.report()

    def done(self) -> None:
        """Print a last JSON report, or erase the bar."""
        if self.form == "json":
            self.report()
        close_bar()

    def report(self) -> None:
        self.last = self.clock()
        seconds = max(self.last - self.start, 1e-9)
        rows, tokens = self.rows / seconds, self.tokens / seconds
        record = {"rows": self.rows, "tokens": self.tokens, "seconds": round(seconds, 1)}
        record["rows_per_s"] = round(rows)
        words = [f"{self.rows} rows", f"{rows:.0f} rows/s"]
        if self.tokens:
            words.append(f"{tokens:.0f} tokens/s")
        share = self.share(self.rows + self.skipped)
        if share is not None:
            record |= remaining(share, seconds)
            words = [f"{100 * share:.0f} %", *words, *time_left(record)]
        self.show((", " if self.form == "log" else "  ").join(words), record)


def remaining(share: float, seconds: float) -> dict[str, Any]:
    """The share done, and the estimated seconds left."""
    record: dict[str, Any] = {"share": round(share, 4)}
    if share > 0:
        record["seconds_left"] = round(seconds * (1 - share) / share, 1)
    return record


def time_left(record: Mapping[str, Any]) -> list[str]:
    if "seconds_left" not in record:
        return []
    minutes, seconds = divmod(round(record["seconds_left"]), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return [f"{clock} left"]


class TaskProgress(ProgressWriter):
    """The number of finished tasks (clusterings, or fits of a classifier) out of a known total."""

    def __init__(self, console: Console, form: str, unit: str, clock: Clock = time.monotonic) -> None:
        super().__init__(console, form, clock)
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
            left = remaining(self.tasks / max(self.of, self.tasks), self.last - self.start)
            record = {self.unit: self.tasks, "of": self.of, **left}
            gap = ", " if self.form == "log" else "  "
            words = [
                f"{100 * self.tasks / max(self.of, self.tasks):.0f} %",
                f"{self.tasks} of {self.of} {self.unit}",
            ]
            self.show(gap.join([*words, *time_left(record)]), record)

    def done(self) -> None:
        close_bar()


def follow_tasks(
    console: Console, form: str, unit: str, inputs: Any
) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Progress of a command that first reads all rows and then runs a known number of tasks.

    Returns two functions. The first adds tasks to the total; the second reports one finished task.
    """
    reading, tasks = RowProgress(console, form), TaskProgress(console, form, unit)
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
            if self.form == "json":
                write_line(json.dumps(rounded(record)))
            elif self.form in ("bar", "log"):
                best = " (best so far)" if record["best"] else ""
                self.console.say(f"{run}step {record['step']}:{self.dev}{best}")
            return
        if not self.first[1]:
            self.first = self.clock(), record["step"]
        if self.due():
            self.last = self.clock()
            record = {**record, **self.remaining(record["step"], record["of"])}
            left = "".join(f"  {words}" for words in time_left(record))
            self.show(f"{run}{self.line(record)}{left}", record)

    def remaining(self, step: int, of: int) -> dict[str, Any]:
        """The share of the run done, and the estimated seconds left."""
        record: dict[str, Any] = {"share": round(step / of, 4)}
        start, first = self.first
        if step > first:
            record["seconds_left"] = round((of - step) * (self.last - start) / (step - first), 1)
        return record

    def line(self, record: Mapping[str, Any]) -> str:
        terms = " ".join(f"{name} {value:.4g}" for name, value in record["terms"].items())
        rate = f"lr {record['lr'][0]:.3g}  {record['tokens_per_s']} tokens/s"
        return f"step {record['step']}/{record['of']}  {terms}  {rate}{self.dev}"

    def done(self) -> None:
        close_bar()
