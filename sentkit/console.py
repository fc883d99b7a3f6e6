"""What people see on stderr: notes, warnings, progress. Standard output is for data alone."""

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sentkit.errors import UsageError

PROGRESS = ("auto", "bar", "log", "json", "none")
NAME_COLUMN, MEANING = 26, 30  # of `print_described`: the widest, and the narrowest
GAP, SHORTEST = 2, 8  # between the columns of a table; a name that is cut no further
EVERY = {"bar": 0.1, "log": 60.0, "json": 1.0}  # seconds between two reports


@dataclass(slots=True)
class Console:
    command: str
    quiet: bool = False
    verbose: bool = False
    open_line: ClassVar[bool] = False  # a progress bar stands on the last line, whoever speaks next

    def error(self, message: str, advice: str | None = None) -> None:
        self.say(message)
        if advice:
            self._line(f"  {advice}")

    def warn(self, message: str) -> None:
        if not self.quiet:
            self.say(f"warning: {message}")

    def note(self, message: str) -> None:
        """For those who asked (-v), and for whoever sits before the terminal."""
        if self.verbose or (not self.quiet and on_terminal()):
            self.say(message)

    def say(self, message: str) -> None:
        who = f"sentkit {self.command}" if self.command else "sentkit"
        self._line(f"{who}: {message}")

    def _line(self, text: str) -> None:
        close_line()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def close_line() -> None:
    """Take the progress bar away, where one stands."""
    if Console.open_line:
        sys.stderr.write("\r\033[K")
        Console.open_line = False


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Progress:
    """Rows and tokens done so far, told as often as the form allows."""

    def __init__(self, console: Console, form: str, clock: Callable[[], float] = time.monotonic) -> None:
        if form not in PROGRESS:
            raise UsageError(f'--progress "{form}"', advice=f"there are: {', '.join(PROGRESS)}")
        if form == "auto":
            form = "bar" if on_terminal() else "log"
        self.console, self.clock = console, clock
        self.form = "none" if console.quiet else form
        self.start = self.told = clock()
        self.rows = self.tokens = 0

    def add(self, rows: int, tokens: int) -> None:
        self.rows += rows
        self.tokens += tokens
        if self.form != "none" and self.clock() - self.told >= EVERY[self.form]:
            self.tell()

    def done(self) -> None:
        """A last report where others have stood, and an empty line where the bar was."""
        if self.form == "json":
            self.tell()
        close_line()

    def tell(self) -> None:
        self.told = self.clock()
        seconds = max(self.told - self.start, 1e-9)
        rows, tokens = self.rows / seconds, self.tokens / seconds
        if self.form == "json":
            sys.stderr.write(
                f'{{"rows":{self.rows},"tokens":{self.tokens},"seconds":{seconds:.1f},"rows_per_s":{rows:.0f}}}\n'
            )
        elif self.form == "log":
            self.console.say(f"{self.rows} rows, {rows:.0f} rows/s, {tokens:.0f} tokens/s")
        else:
            sys.stderr.write(f"\r\033[K{self.rows} rows  {rows:.0f} rows/s  {tokens:.0f} tokens/s")
            Console.open_line = True
        sys.stderr.flush()


class StepProgress:
    """The steps of a training run, told as often as the form allows."""

    def __init__(self, console: Console, form: str, clock: Callable[[], float] = time.monotonic) -> None:
        if form == "auto":
            form = "bar" if on_terminal() else "log"
        self.console, self.clock = console, clock
        self.form = "none" if console.quiet else form
        self.told = clock()
        self.dev = ""  # the last score

    def take(self, record: Mapping[str, Any]) -> None:
        """A step, or a look at the dev pairs."""
        if "dev" in record:
            score = record["dev"]
            self.dev = "  dev -" if score is None else f"  dev {score:.2f}"
            if self.form == "json":
                sys.stderr.write(json.dumps(record) + "\n")
            elif self.form in ("bar", "log"):
                best = " (best so far)" if record["best"] else ""
                self.console.say(f"step {record['step']}:{self.dev}{best}")
            return
        if self.form == "none" or self.clock() - self.told < EVERY[self.form]:
            return
        self.told = self.clock()
        if self.form == "json":
            sys.stderr.write(json.dumps(record) + "\n")
        elif self.form == "log":
            self.console.say(self.line(record))
        else:
            sys.stderr.write(f"\r\033[K{self.line(record)}"[: terminal_width() + 4])
            Console.open_line = True
        sys.stderr.flush()

    def line(self, record: Mapping[str, Any]) -> str:
        terms = " ".join(f"{name} {value:.4g}" for name, value in record["terms"].items())
        rate = f"lr {record['lr'][0]:.3g}  {record['tokens_per_s']} tokens/s"
        return f"step {record['step']}/{record['of']}  {terms}  {rate}{self.dev}"

    def done(self) -> None:
        close_line()


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: Sequence[str]) -> None:
    """A table on standard output, for a person; its columns `names` may be cut, numbers never are."""
    from rich.cells import cell_len
    from rich.console import Console as Terminal
    from rich.table import Table
    from rich.text import Text

    terminal = Terminal()
    cells = [[printable(cell) for cell in row] for row in rows]
    lengths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    widths = fitted(lengths, [column in names for column in columns], terminal.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column in names else "right"
        table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*map(Text, row))
    terminal.width = max(terminal.width, sum(widths) + GAP * len(widths))
    terminal.print(table)


def fitted(lengths: Sequence[int], may_shrink: Sequence[bool], room: int) -> list[int]:
    """Widths of columns: the widest of those that may shrink give way, until all fit or none can."""
    widths = list(lengths)
    while sum(widths) + GAP * (len(widths) - 1) > room:
        shrinkable = ((width, place) for place, width in enumerate(widths) if may_shrink[place])
        widest = max(shrinkable, default=(0, 0))
        if widest[0] <= SHORTEST:
            break
        widths[widest[1]] -= 1
    return widths


def printable(text: str) -> str:
    """What a terminal may be sent: no line ends, and no sequences that would steer it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values, a line each, on standard output; nothing is cut."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        sys.stdout.write(f"{name:<{width}}  {printable(value)}\n")


def print_described(items: Sequence[tuple[str, str]]) -> None:
    """Names and what they are, folded to the terminal's width; nothing is cut."""
    column = min(max(len(name) for name, _ in items), NAME_COLUMN) + GAP
    for name, words in items:
        lines = textwrap.wrap(words, max(terminal_width() - column, MEANING), break_long_words=False)
        first = name.ljust(column) if len(name) + GAP <= column else f"{name}\n{' ' * column}"
        sys.stdout.write(first + f"\n{' ' * column}".join(lines) + "\n")
