"""`sentkit duplicates`: rows of a file that are nearly the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sentkit.console import RowProgress, show, slow
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.rows import StreamFlags
from sentkit.flags.rules import Excludes, Needs

if TYPE_CHECKING:
    from sentkit.metrics.neighbours.closest_pairs import Duplicates

OWN = ("row", "similarity")  # names that every pair has, with _a and _b or without


@dataclass(frozen=True)
class FileFlags(StreamFlags):
    """One file, because the output has the numbers of its rows."""

    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Rows with vectors; '-' is standard input.")
    ] = "-"

    @property
    def paths(self) -> list[str]:
        return [self.file]


def duplicates(
    *,
    threshold: Annotated[
        float, typer.Option(metavar="X", help="Minimum similarity of two rows that are duplicates.")
    ],
    metric: options.Metric = "cosine",
    groups: Annotated[
        bool,
        typer.Option("--groups", help='Write all rows, with the first row of their group in "group".'),
        Excludes("--unique"),
    ] = False,
    unique: Annotated[bool, typer.Option("--unique", help="Write only the first row of each group.")] = False,
    copied: Annotated[
        list[str] | None,
        typer.Option(
            "--show",
            metavar="NAME",
            help="A field to copy from both rows to a pair; repeatable. [default: text or entry]",
        ),
        Excludes("--groups", because=", which writes all fields"),
        Excludes("--unique", because=", which writes all fields"),
    ] = None,
    output: options.ReportFlags,
    replace: Annotated[options.Replace, Needs("--groups")] = False,
    rows: FileFlags,
    run: options.RunFlags,
) -> None:
    """Find rows that are nearly the same.

    \b
    Examples:
      sentkit duplicates titles.safetensors --threshold 0.95
      sentkit encode titles.txt | sentkit duplicates --threshold 0.9
      sentkit duplicates titles.safetensors --threshold 0.95 --groups
      sentkit duplicates titles.safetensors --threshold 0.95 --unique > few.jsonl

    Most used: [FILE] --threshold --groups --unique --show -o

    The output is all pairs of rows that reach the threshold, in the order of the rows.
    A pair has the field "text" or "entry" of both rows as text_a and text_b, the numbers
    of the rows in FILE, and the similarity. The search is exact: each row is compared
    with all later rows. Similarities are compared in float64, before rounding. On a
    terminal, the output is a table.
    """
    from sentkit.formats.vectors.sinks import check_rows_output
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.closest_pairs import Duplicates
    from sentkit.metrics.neighbours.corpus import NAMING

    console = run.console("duplicates")
    options.check_threshold(threshold, metric)
    check_form(copied or [], "--groups" if groups else "--unique" if unique else None, json=output.json)
    check_rows_output(output.path)
    with rows.open(console, output, known=(*VECTOR_FIELDS, "entry")) as inputs, output.open() as out:
        with slow(console, f"reading {rows.file}"):
            found = Duplicates(
                inputs, threshold, metric, copied or [], new=["group"] if groups and not replace else []
            )
        progress = RowProgress(console)
        progress.share, found.compared = found.share, progress.add
        if groups or unique:
            for row, first in found.rows():
                if unique and first == row.number:
                    out.write(row.line + b"\n")
                elif groups:
                    out.write(row.add([(b"group", b"%d" % first)], replace=replace) + b"\n")
        elif output.as_table:
            show_pairs(found, copied or NAMING, metric, out)
        else:
            out.writelines(object_of(pair) for pair in found.pairs())
        progress.done()


def check_form(shown: list[str], form: str | None, *, json: bool) -> None:
    if form is not None and json:
        raise UsageError(f"--json cannot be used with {form}; rows are always JSON")
    if own := next((name for name in shown if name in OWN), None):
        raise UsageError(f"--show {own}: every pair has this field", advice=f"remove --show {own}")


def object_of(pair: dict[str, bytes]) -> bytes:
    import orjson

    return b"{%b}\n" % b",".join(b"%b:%b" % (orjson.dumps(name), value) for name, value in pair.items())


def show_pairs(found: "Duplicates", shown: Sequence[str], metric: str, out: BinaryIO) -> None:
    """Print a line for each pair: the similarity and the two rows."""
    import orjson

    from sentkit.metrics.neighbours.corpus import columns_of_pair

    def lines(pair: dict[str, bytes]) -> list[dict[str, str]]:
        values = {name: orjson.loads(value) for name, value in pair.items()}
        return [{metric: f"{values['similarity']:.4f}"} | columns_of_pair(values, shown)]

    show(found.pairs(), lines, out, as_table=True, texts=("a", "b"), pairs=True)
