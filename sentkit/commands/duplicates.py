"""`sentkit duplicates`: rows of a file that are nearly the same."""

from dataclasses import dataclass
from shlex import quote
from typing import Annotated

from sentkit.console import Console, RowProgress, reading, show
from sentkit.errors import UsageError
from sentkit.flags import Excludes, Named, Needs, excludes, options
from sentkit.flags.rows import StreamFlags

OWN = ("row", "similarity")  # names that every pair has, with _a and _b or without


@dataclass(frozen=True)
class FileFlags(StreamFlags):
    """One file, because the output has the numbers of its rows.

    [FILE]: Rows with vectors; '-' is standard input.
    """

    file: Annotated[str, Named("[FILE]")] = "-"

    @property
    def paths(self) -> list[str]:
        return [self.file]


def duplicates(
    *,
    threshold: float,
    against: Annotated[list[str] | None, Excludes("--groups")] = None,
    metric: options.Metric = "cosine",
    groups: Annotated[bool, Excludes("--unique")] = False,
    unique: bool = False,
    copied: Annotated[
        list[str] | None,
        Named("--show"),
        excludes("--groups", "--unique", because=", which writes all fields"),
    ] = None,
    output: options.ReportFlags,
    replace: Annotated[bool, Needs("--groups")] = False,
    rows: FileFlags,
    comparing: options.ComparingFlags,
    console: Console,
) -> None:
    """Find rows that are nearly the same.

    Flags:
      --show NAME: A field to copy from both rows to a pair; repeatable. [default: text or entry]
      --threshold X: Minimum similarity of two rows that are duplicates, for example 0.95.
      --against OTHER: Compare the rows of FILE with those of OTHER instead; repeatable.
      --groups: Write all rows, with the first row of their group in "group".
      --unique: Write only the first row of each group; with --against, rows without a near row.
          To a vector file, with their vectors.
    """
    import orjson

    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.corpus import NAMING, columns_of_pair, json_of
    from sentkit.metrics.neighbours.duplicates import Duplicates, fields_of_pairs, write_unique

    options.check_threshold(threshold, metric)

    def lines(pair: dict[str, bytes]) -> list[dict[str, str]]:
        values = {name: orjson.loads(value) for name, value in pair.items()}
        return [{metric: f"{values['similarity']:.4f}"} | columns_of_pair(values, copied or NAMING)]

    check_form(copied or [], "--groups" if groups else "--unique" if unique else None, json=output.json)
    output.check_rows(vectors=unique)
    for path in against or []:
        check_input(path)
    device = comparing.find()
    shown, new = copied or [], ["group"] if groups and not replace else []
    reads = {"--against": against or []}
    with rows.open(console, output, known=(*VECTOR_FIELDS, "entry"), reads=reads) as inputs:
        others = [inputs.other(path) for path in against or []]
        with reading(console, *(others or [inputs])):
            found = Duplicates(inputs, threshold, metric, device, shown, others, new)
        console.warn(*(message for corpus in found.corpora for message in corpus.left_out))
        found.compared = RowProgress(console, inputs=inputs if others else None).add
        if unique:
            write_unique(found, inputs, output.path, force=output.force)
        else:
            with output.open() as out:
                if groups:
                    out.writelines(line + b"\n" for line in found.grouped(replace=replace))
                elif output.as_table:
                    show(fields_of_pairs(found), lines, out, as_table=True, texts=("a", "b"))
                else:
                    out.writelines(json_of(pair) + b"\n" for pair in fields_of_pairs(found))


def check_form(shown: list[str], form: str | None, *, json: bool) -> None:
    if form is not None and json:
        raise UsageError(f"--json cannot be used with {form}; rows are always JSON")
    if own := next((name for name in shown if name in OWN), None):
        raise UsageError(f"--show {own}: every pair has this field", advice=f"remove --show {quote(own)}")
