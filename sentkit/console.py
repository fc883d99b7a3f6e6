"""Messages and progress on standard error; tables and lists on standard output."""

import contextlib
import io
import os
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal, TypeVar

from sentkit.digits import in_clock_time, meaning_of_brackets
from sentkit.escaping import (
    GAP,
    LEGIBLE,
    MINUS,
    escape,
    label_cells,
    look_alike,
    short_head,
    shortened,
    terminal_width,
    widths_of,
    without_secrets,
)

ERASE = "\r\033[K"
INTERVAL = {"bar": 0.1, "log": 60.0, "verbose log": 10.0}  # seconds between two reports
SHORTEST = 0.1  # seconds of which a share is reported
SECONDS_BEFORE_ADVICE = 10.0
LONG_RUN = 60.0  # seconds of a run that gets advice
NAME_COLUMN = 26  # of `print_described`: the largest width of the names
MEANING = 30  # and the smallest width of the texts
PAGE = 1000  # lines of a table below one header

Clock = Callable[[], float]
# number of rows done -> share of the work done; None if unknown
Share = Callable[[int], float | None]
R = TypeVar("R", bound=Mapping[str, Any])  # a record
Line = Mapping[str, str]  # column -> cell

_open_line = False  # true if the last line on the terminal is a progress bar


@dataclass(slots=True)
class Console:
    """Notes, warnings and errors of a command."""

    command: str
    quiet: bool = False
    verbose: bool = False

    def error(self, message: str, advice: str | None = None) -> None:
        self.say(message)
        if advice:
            write_line(f"  {advice}")

    def warn(self, *messages: str) -> None:
        if self.quiet:
            return
        for message in messages:
            self.say(f"warning: {message}")

    def note(self, *messages: str) -> None:
        """Print with -v, or on a terminal."""
        if self.verbose or (not self.quiet and on_terminal()):
            for message in messages:
                self.say(message)

    def report(self, *messages: str) -> None:
        """Print, except with -q."""
        if self.quiet:
            return
        for message in messages:
            self.say(message)

    def loading(self, name: str, notes: Iterable[str]) -> None:
        """Print notes before torch is imported, which takes one or two seconds."""
        self.note(f"loading {name}")
        self.warn(*notes)

    def loaded(self, encoder: Any) -> None:
        """Print the notes, the spaces and the measurements of an encoder."""
        self.warn(*encoder.notes)
        spaces = ", ".join(space.name for space in encoder.spaces[:3])
        if len(encoder.spaces) > 3:
            spaces += " ..."
        self.note(f"{spaces}: {encoder.width} numbers, {encoder.device}, {encoder.precision}")
        self.note(*getattr(encoder, "choices", ()))

    def say(self, message: str) -> None:
        program = f"sentkit {self.command}".rstrip()
        write_line(f"{program}: {message}")


def write_line(text: str) -> None:
    """Write a line of text; erase a progress bar first."""
    close_bar()
    _write(f"{escape(without_secrets(text))}\n")


def write_bar(text: str, width: int) -> None:
    """Replace the progress bar. The text is truncated to the width of the terminal."""
    global _open_line
    _write(f"{ERASE}{escape(text)[: width - 1]}")
    _open_line = True


def close_bar() -> None:
    """Erase the progress bar, if one is shown."""
    global _open_line
    if _open_line:
        _write(ERASE)
        _open_line = False


class BarErasingFile(io.FileIO):
    """Standard output that erases the progress bar first: both can be on one terminal."""

    def write(self, data: Any, /) -> int:
        close_bar()
        return super().write(data)


def erase_bar_before_output() -> None:
    """Erase a progress bar whenever standard output is written to a terminal or a pipe."""
    out = sys.stdout
    if not on_terminal() or not isinstance(out, io.TextIOWrapper):
        return
    is_unbuffered = isinstance(out.buffer, io.FileIO)  # by PYTHONUNBUFFERED
    if not is_unbuffered and not isinstance(out.buffer, io.BufferedWriter):  # it is in memory
        return
    descriptor = out.fileno()
    if not (out.isatty() or stat.S_ISFIFO(os.fstat(descriptor).st_mode)):
        return
    out.flush()
    buffer: Any = BarErasingFile(descriptor, "wb", closefd=False)
    if not is_unbuffered:
        buffer = io.BufferedWriter(buffer)
    sys.stdout = io.TextIOWrapper(
        buffer,
        encoding=out.encoding,
        errors=out.errors,
        line_buffering=out.line_buffering,
        write_through=out.write_through,
    )


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    """Write, and ignore a failure: it must not change an output or an exit code.

    A signal handler can interrupt another write, which is a RuntimeError.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            sys.stderr.write(text)
            sys.stderr.flush()


class ProgressWriter:
    """A bar on a terminal, otherwise a line per minute (-v: more); the time of the last report."""

    rows = 0

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.console = console
        self.clock = clock
        self.form = "bar" if on_terminal() else "log"
        self.interval = INTERVAL[self.form]
        if self.form == "log" and console.verbose:
            self.interval = INTERVAL["verbose log"]
        if console.quiet:
            self.form = ""
        self.start = self.last = clock()
        self.advice: Callable[[], str | None] | None = None

    def advise(self, advice: Callable[[], str | None]) -> None:
        """Measure once, when a run turns out to be long, whether there is a faster way."""
        self.advice = advice

    def advise_if_long(self, share_done: Callable[[], float | None], start: float) -> None:
        """`share_done` gives the share of the work since `start` that is done; None: its size is
        unknown.
        """
        if self.advice is None or self.console.quiet:
            return
        seconds = self.clock() - start
        if seconds < SECONDS_BEFORE_ADVICE:
            return
        share = share_done()
        expected = seconds / share if share else seconds
        if expected <= LONG_RUN:
            return
        message = self.advice()
        self.advice = None
        if message is not None:
            self.say(message)

    def due(self) -> bool:
        """Whether it is time for a report, which is then written."""
        if not self.form or self.clock() - self.last < self.interval:
            return False
        self.last = self.clock()
        return True

    def seconds(self) -> float:
        return max(self.last - self.start, 1e-9)

    def show(self, words: Sequence[str]) -> None:
        """Print a line of a log, or a bar of the first words that fit."""
        if self.form == "log":
            self.say(", ".join(words))
            return
        line = words[0]
        for word in words[1:]:
            if len(line) + len(word) + 2 < terminal_width():
                line += f"  {word}"
        write_bar(line, terminal_width())

    done = staticmethod(close_bar)

    def say(self, line: str) -> None:
        """Print a line, except with -q; outside a terminal it has the time."""
        self.console.report(line if on_terminal() else f"{time.strftime('%F %T')}  {line}")


class RowProgress(ProgressWriter):
    """Rows and tokens done, their rate, and the share of the input if its size is known."""

    tokens = 0
    skipped = 0  # rows that were read and skipped

    def __init__(
        self,
        console: Console,
        clock: Clock = time.monotonic,
        *,
        inputs: Any = None,
        unit: str = "tokens",
    ) -> None:
        super().__init__(console, clock)
        self.unit = unit
        self.share: Share = inputs.counter.share if inputs is not None else lambda rows: None

    def begin(self, encoder: Any) -> None:
        """Print the properties of an encoder. A long run measures whether it has a faster way."""
        self.console.loaded(encoder)
        self.advise(encoder.faster_way)

    def add(self, rows: int, tokens: int = 0) -> None:
        self.rows += rows
        self.tokens += tokens
        self.advise_if_long(lambda: self.share(self.rows + self.skipped), self.start)
        if self.due():
            words = [f"{self.rows} rows", f"{self.rows / self.seconds():.0f} rows/s"]
            if self.tokens:
                words.append(f"{self.tokens / self.seconds():.0f} {self.unit}/s")
            share = self.share(self.rows + self.skipped)
            if share is not None:
                words = [f"{100 * share:.0f} %", *words, *time_left(share, self.seconds())]
            self.show(words)

    def encoded(self, stats: Any, encoder: Any) -> None:
        """Print the remarks of an encoder about all rows; -v: the share of the time it worked."""
        self.console.warn(*encoder.warnings(stats))
        seconds = self.clock() - self.start
        if not self.console.verbose or seconds < SHORTEST:
            return
        busy = stats.seconds / (seconds * max(1, encoder.groups_at_once))
        self.console.note(f"the model worked {100 * min(1.0, busy):.0f} % of {seconds:.1f} s")


def time_left(share: float, seconds: float) -> list[str]:
    """The estimated time left, if a share of the work took so many seconds; else empty."""
    if share <= 0:
        return []
    return [f"{in_clock_time(seconds * (1 - share) / share)} left"]


class TaskProgress(ProgressWriter):
    """The number of finished tasks, such as fits, their total, and the rows of all tasks."""

    def __init__(self, console: Console, unit: str, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.unit = unit
        self.tasks = 0
        self.of = 0

    def begin(self, of: int) -> None:
        """Add tasks to the total."""
        if not self.of:
            close_bar()  # of the rows that were read before
            self.start = self.last = self.clock()
        self.of += of

    def add(self, tasks: int = 1, rows: int = 0) -> None:
        self.tasks += tasks
        self.rows += rows
        if self.due():
            share = self.tasks / max(self.of, self.tasks)
            words = [f"{100 * share:.0f} %", f"{self.tasks} of {self.of} {self.unit}"]
            if self.rows:
                words += [f"{self.rows} rows", f"{self.rows / self.seconds():.0f} rows/s"]
            self.show([*words, *time_left(share, self.seconds())])
        if self.tasks == self.of:
            close_bar()


def watch_rows(console: Console, inputs: Any) -> RowProgress:
    """Progress of the rows that are read from now on."""
    progress = RowProgress(console, inputs=inputs)
    inputs.counter.watch = progress.add
    return progress


@contextlib.contextmanager
def slow(console: Console, what: str) -> Iterator[None]:
    """On a terminal, show `what` during the body, until a progress bar replaces it."""
    if not console.quiet and on_terminal():
        write_bar(what, terminal_width())
    yield
    close_bar()


@contextlib.contextmanager
def reading(console: Console, *inputs: Any) -> Iterator[None]:
    """Report files that the body reads as a whole: their rows, and on a terminal their names."""
    paths = [path for files in inputs for path in files.paths]
    with slow(console, f"reading {' '.join(paths)}"):
        for files in inputs:
            watch_rows(console, files)
        yield
    for files in inputs:
        files.counter.watch = None


class StepProgress(ProgressWriter):
    """The steps of the training runs of a command, and their scores on the dev pairs."""

    dev = ""  # the last score
    first = (0.0, 0)  # time and number of the first step of this run
    remaining: Sequence[str] = ()  # the time left at the last step
    later_work = 0.0  # of the runs after this one, in units of the work of this one
    runs = 1  # that are not finished, this one included

    def begin(self, later_work: float = 0.0, runs: int = 1) -> None:
        """Begin another run."""
        self.dev = ""
        self.first = (0.0, 0)
        self.remaining = ()
        self.later_work = later_work
        self.runs = runs

    def take(self, record: Mapping[str, Any]) -> None:
        """Report a step or a dev evaluation; with several runs, the record has a seed."""
        seed = record.get("seed")
        run = "" if seed is None else f"seed {seed}: "
        if "dev" in record:
            self._report_score(run, record)
            return
        if not self.first[1]:
            self.first = self.clock(), record["step"]
        self.remaining = self._time_left(record["step"], record["of"])
        first_time, _ = self.first
        self.advise_if_long(lambda: self._share_done(record["step"], record["of"]), first_time)
        if self.due():
            terms = [f"{name} {value:.4g}" for name, value in record["terms"].items()]
            speed = [f"{record['tokens_per_s']} tokens/s", f"lr {record['lr'][0]:.3g}"]
            step = f"{run}step {record['step']}/{record['of']}"
            score = [self.dev] if self.dev else []
            self.show([step, *self.remaining, *score, *terms, *speed])

    def _report_score(self, run: str, record: Mapping[str, Any]) -> None:
        """Report a dev evaluation: whether it is the best of this run, and beats that of step 0."""
        score = record["dev"]
        before = record["before"]
        self.dev = "dev -" if score is None else f"dev {score:.2f}"
        remark = ""
        if record["best"]:
            remark = " (best so far)"
            if before is not None and before >= score:
                remark = f" (best step, not better than the base: step 0 has {before:.2f})"
        words = [f"{self.dev}{remark}"]
        if self.form == "log":
            words += self.remaining
        self.say(f"{run}step {record['step']}:  {', '.join(words)}")

    def _share_done(self, step: int, steps: int) -> float:
        """The share of this run and all later ones, without the first step."""
        done = step - self.first[1]
        remaining = steps - step + steps * self.later_work
        return done / (done + remaining or 1)

    def _time_left(self, step: int, steps: int) -> list[str]:
        """The estimated time left for this run and all later ones, from the steps of this one."""
        share = self._share_done(step, steps)
        if share in (0, 1):
            return []
        words = time_left(share, self.clock() - self.first[0])
        if self.runs > 1:
            words = [f"{text} for {self.runs} runs" for text in words]
        return words


def show(
    records: Iterable[R],
    lines: Callable[[R], Iterable[Line]],
    out: BinaryIO,
    *,
    as_table: bool,
    flush: bool = True,
    **layout: Any,
) -> None:
    """Print records as a table, or write each one as a line of JSON as soon as it is computed.

    `lines` converts a record to lines of the table. A long table repeats its header after each PAGE
    lines. A line below it explains brackets around numbers. `layout` are arguments of
    `print_table`: `labels`, `texts`, `optional` and `wrap`.
    """
    if as_table:
        show_table((line for record in records for line in lines(record)), **layout)
        return
    from sentkit.formats.files import json_line

    for record in records:
        out.write(json_line(record))
        if flush:
            out.flush()


def show_table(lines: Iterator[Line], **layout: Any) -> None:
    """Print a table, its header after each PAGE lines, and the meaning of its brackets."""
    names = {*layout.get("texts", ()), *layout.get("labels", ())}
    meanings = list[str]()
    while page := list(islice(lines, PAGE)):
        columns = list(dict.fromkeys(column for line in page for column in line))
        rows = [[line.get(column, "") for column in columns] for line in page]
        print_table(columns, rows, **layout)
        numbers = [column for column in columns if column not in names]
        meanings += meaning_of_brackets(line.get(column, "") for line in page for column in numbers)
    if meanings:
        print_text(["; ".join(dict.fromkeys(meanings))])


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    labels: Sequence[str] = (),
    texts: Sequence[str] = (),
    optional: Sequence[str] = (),
    wrap: bool = False,
) -> None:
    """Print a table on standard output. Columns in `texts` are cut at the end, or in the middle if
    some begin alike, or wrapped (`wrap`).

    Columns in `labels` are shortened so that different cells stay different. Columns in
    `optional` are omitted, in this order, if the terminal is too narrow.
    """
    from rich.cells import cell_len
    from rich.console import Console as Terminal
    from rich.table import Table
    from rich.text import Text

    close_bar()
    terminal = Terminal()

    # The width that each column needs, and then the width that it gets.
    cells = [[escape(cell) for cell in row] for row in rows]
    heads = [escape(column) for column in columns]
    lengths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if sum(lengths) + GAP * (len(lengths) - 1) > terminal.width:
        for i, head in enumerate(heads):
            if head.startswith(MINUS):  # the name of a file, which can be longer than all numbers
                cell_lengths = [cell_len(row[i]) for row in cells]
                lengths[i] = max([min(lengths[i], LEGIBLE), *cell_lengths])
    is_name = [column in texts or column in labels for column in columns]
    optional_indices = [columns.index(name) for name in optional if name in columns]
    width_of_column = widths_of(lengths, is_name, optional_indices, terminal.width)

    # Texts that would look the same are cut in the middle.
    text_columns = [i for i in width_of_column if columns[i] in texts]
    begin_alike = False
    if text_columns and not wrap:
        distinct_texts = {row[i] for row in cells for i in text_columns}
        begin_alike = look_alike(distinct_texts, min(width_of_column[i] for i in text_columns))

    # The columns that have room; `width_of_column` has no others.
    table = Table(box=None, pad_edge=False, header_style="bold")
    look: Any = {"no_wrap": not wrap, "overflow": "fold" if wrap else "ellipsis"}
    shown_columns = list[Sequence[str]]()
    label_columns = [columns.index(name) for name in labels if name in columns]
    names_in_rows = {row[i] for row in cells for i in label_columns}
    for i, width in width_of_column.items():
        justify: Literal["left", "right"] = "right"
        if is_name[i]:
            justify = "left"
        head = heads[i]
        if head.startswith(MINUS) and cell_len(head) > width:
            head = short_head(head, width, names_in_rows)
        table.add_column(Text(head), justify=justify, width=width, **look)
        column_cells = [row[i] for row in cells]
        if columns[i] in labels:
            column_cells = label_cells(column_cells, width)
        elif columns[i] in texts and begin_alike:
            column_cells = [shortened(cell, width) for cell in column_cells]
        shown_columns.append(column_cells)
    for row in zip(*shown_columns, strict=True):
        table.add_row(*map(Text, row))
    # So that rich does not shrink them again.
    table_width = sum(width_of_column.values()) + GAP * len(width_of_column)
    terminal.width = max(terminal.width, table_width)
    terminal.print(table)


def in_words(value: Any, missing: str = "none") -> str:
    """A value of a report for people; `missing` is the word for null."""
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value or "none")


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print one name and value per line on standard output; nothing is truncated."""
    width = max(len(escape(name)) for name, _ in pairs)
    print_text(f"{escape(name):<{width}}  {value}" for name, value in pairs)


def print_text(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    sys.stdout.writelines(f"{escape(line)}\n" for line in lines)


def print_described(items: Sequence[tuple[str, str]]) -> None:
    """Print names and their descriptions, wrapped to the width of the terminal."""
    names = [escape(name) for name, _ in items]
    column = min(max(map(len, names)), NAME_COLUMN) + GAP
    width = max(terminal_width() - column, MEANING)
    new_line = "\n" + " " * column
    for name, (_, words) in zip(names, items, strict=True):
        text = escape(" ".join(words.split()))
        lines = textwrap.wrap(text, width, break_long_words=False)
        if len(name) + GAP > column:  # the text begins below the name
            sys.stdout.write(name + new_line)
        else:
            sys.stdout.write(name.ljust(column))
        sys.stdout.write(new_line.join(lines) + "\n")
