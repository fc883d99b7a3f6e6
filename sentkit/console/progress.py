"""Progress on standard error: a bar on a terminal, lines in a log file, or JSON lines."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sentkit.console.messages import Console, close_bar, on_terminal, write_bar
from sentkit.console.tables import terminal_width

PATIENCE = 1.5  # seconds
INTERVAL = {"bar": 0.1, "log": 60.0, "verbose log": 10.0}  # seconds between two reports

Clock = Callable[[], float]
Share = Callable[[int], float | None]  # number of rows done -> share of the work done; None if unknown


class ProgressWriter:
    """A bar on a terminal, otherwise a line per minute, with -v more; and the time of the last report."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.form = "" if console.quiet else "bar" if on_terminal() else "log"
        detailed = "verbose " if console.verbose and self.form == "log" else ""
        self.interval = INTERVAL.get(detailed + self.form, 0.0)
        self.start = self.last = clock()

    def due(self) -> bool:
        return bool(self.form) and self.clock() - self.last >= self.interval

    def show(self, words: Sequence[str]) -> None:
        """Print a line of a log, or a bar of the first words that fit."""
        if self.form == "log":
            self.say(", ".join(words))
            return
        line, *others = words
        for word in others:
            if len(line) + len(word) + 2 < terminal_width():
                line += f"  {word}"
        write_bar(line, terminal_width())

    def done(self) -> None:
        close_bar()

    def say(self, line: str) -> None:
        """Print a line, except with -q; outside a terminal it has the time."""
        self.console.report(line if on_terminal() else f"{time.strftime('%F %T')}  {line}")


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
    """The number of finished tasks, such as clusterings or fits, their total, and the rows of all tasks."""

    rows = 0

    def __init__(self, console: Console, unit: str, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.unit, self.tasks, self.of = unit, 0, 0

    def begin(self, of: int) -> None:
        """Add tasks to the total."""
        if not self.of:
            self.start = self.last = self.clock()
        self.of += of

    def add(self, tasks: int = 1, rows: int = 0) -> None:
        self.tasks += tasks
        self.rows += rows
        if self.due():
            self.last = self.clock()
            share, seconds = self.tasks / max(self.of, self.tasks), max(self.last - self.start, 1e-9)
            words = [f"{100 * share:.0f} %", f"{self.tasks} of {self.of} {self.unit}"]
            if self.rows:
                words += [f"{self.rows} rows", f"{self.rows / seconds:.0f} rows/s"]
            self.show([*words, *time_left(share, seconds)])


def watch_rows(console: Console, inputs: Any) -> RowProgress:
    """Progress of the rows that are read from now on."""
    progress = RowProgress(console)
    inputs.meter.watch, progress.share = progress.add, inputs.meter.share
    return progress


def follow_tasks(
    console: Console, unit: str, inputs: Any
) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Progress of a command that first reads all rows and then runs a known number of tasks.

    Returns two functions. The first adds tasks to the total; the second reports one finished task.
    """
    reading, tasks = watch_rows(console, inputs), TaskProgress(console, unit)

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


@contextmanager
def reading(console: Console, *inputs: Any) -> Iterator[None]:
    """Report files that the body reads as a whole: their rows, and on a terminal their names."""
    with slow(console, f"reading {' '.join(path for each in inputs for path in each.paths)}"):
        followed = [watch_rows(console, each) for each in inputs]
        yield
    for progress, each in zip(followed, inputs, strict=True):
        progress.done()
        each.meter.watch = None


class StepProgress(ProgressWriter):
    """The steps of a training run and its scores on the dev pairs."""

    dev = ""  # the last score
    seed: int | None = None
    first = (0.0, 0)  # time and number of the first step of this seed
    left: Sequence[str] = ()  # the time left at the last step

    def take(self, record: Mapping[str, Any]) -> None:
        """Report a step or a dev evaluation. The record contains a seed if several seeds are trained."""
        if record.get("seed") != self.seed:
            self.seed, self.dev, self.first, self.left = record.get("seed"), "", (0.0, 0), ()
        run = "" if self.seed is None else f"seed {self.seed}: "
        if "dev" in record:
            score, before = record["dev"], record["before"]
            self.dev = "dev -" if score is None else f"dev {score:.2f}"
            how = ""
            if record["best"]:
                better = before is None or not before >= score
                how = " (best so far)" if better else f" (the best step, but step 0 has {before:.2f})"
            left = self.left if self.form == "log" else ()
            self.say(f"{run}step {record['step']}:  " + ", ".join([f"{self.dev}{how}", *left]))
            return
        if not self.first[1]:
            self.first = self.clock(), record["step"]
        start, first = self.first
        done = (record["step"] - first) / (record["of"] - first) if record["of"] > first else 0.0
        self.left = time_left(done, self.clock() - start) if done < 1 else ()
        if self.due():
            self.last = self.clock()
            self.show([f"{run}step {record['step']}/{record['of']}", *self.left, *self.words(record)])

    def words(self, record: Mapping[str, Any]) -> list[str]:
        """The most important ones first."""
        terms = [f"{name} {value:.4g}" for name, value in record["terms"].items()]
        speed = [f"{record['tokens_per_s']} tokens/s", f"lr {record['lr'][0]:.3g}"]
        return [*([self.dev] if self.dev else []), *terms, *speed]
