"""`sentkit duplicates`: rows of a file that are nearly the same."""

from collections.abc import Sequence
from shlex import quote
from typing import Annotated

from typer import Argument, Option

from sentkit.console import Console, RowProgress, reading, show
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.comparing import check_device_of_metric, find_device
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource
from sentkit.flags.rules import check_threshold, needs, refuse_together

FIELDS_OF_PAIRS = ("row", "similarity")  # every pair has them, with _a and _b or without


def duplicates(
    *,
    threshold: Annotated[
        float,
        Option(
            "--threshold",
            metavar="X",
            help="Minimum similarity of two rows that are duplicates, for example 0.95.",
        ),
    ],
    against: Annotated[
        list[str] | None,
        Option(
            "--against",
            metavar="OTHER",
            help="Compare the rows of FILE with those of OTHER instead; repeatable.",
        ),
    ] = None,
    metric: options.Metric = "cosine",
    groups: Annotated[
        bool,
        Option("--groups", help='Write all rows, with the first row of their group in "group".'),
    ] = False,
    unique: Annotated[
        bool,
        Option(
            "--unique",
            help="Write only the first row of each group; with --against, rows without a near row. "
            "To a vector file, with their vectors.",
        ),
    ] = False,
    shown_fields: Annotated[
        list[str] | None,
        Option(
            "--show",
            metavar="NAME",
            help="A field to copy from both rows to a pair; repeatable. [default: text or entry]",
        ),
    ] = None,
    output_path: options.Output = "-",
    force: options.Force = False,
    json: options.Json = False,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    file_path: Annotated[
        str,
        Argument(metavar="[FILE]", help="Rows with vectors; '-' is standard input."),
    ] = "-",
    device: options.ComparingDevice = "cpu",
    console: Console,
) -> None:
    """Find rows that are nearly the same."""
    whole_rows = {"--groups": groups, "--unique": unique}
    refuse_together({"--against": against}, {"--groups": groups})
    refuse_together({"--groups": groups}, {"--unique": unique})
    refuse_together({"--show": shown_fields}, whole_rows, ", which writes all fields")
    refuse_together({"--json": json}, whole_rows, "; rows are always JSON")
    needs({"--replace": replace}, {"--groups": groups})
    check_device_of_metric(device, metric)
    check_threshold(threshold, metric)
    check_shown_fields(shown_fields or [], has_several_files=len(against or []) > 1)
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.corpus import json_of
    from sentkit.metrics.neighbours.duplicates import Duplicates, fields_of_pairs, write_unique

    output = Output(output_path, force)
    if unique:
        output.check_rows_or_vectors()
    else:
        output.check_rows()
    other_paths = against or []
    for path in other_paths:
        check_input(path)
    comparing_device = find_device(device)
    new_fields = []
    if groups and not replace:
        new_fields = ["group"]
    rows = RowSource([file_path], field, rejects)
    field_names = (*VECTOR_FIELDS, "entry")
    with rows.open(
        console, output, field_names=field_names, reads={"--against": other_paths}
    ) as inputs:
        rows.warn_of_prompts(console, [file_path, *other_paths])
        inputs_of_others = [inputs.with_paths(path) for path in other_paths]
        with reading(console, *(inputs_of_others or [inputs])):
            duplicates = Duplicates(
                inputs,
                threshold,
                metric,
                comparing_device,
                shown_fields or [],
                inputs_of_others,
                new_fields,
            )
        for corpus in duplicates.corpora:
            console.warn(*corpus.left_out)
        # The rows of FILE are read again while they are compared with others, else they are in
        # memory.
        progress = RowProgress(console, inputs=inputs if other_paths else None)
        duplicates.compared = progress.add

        if unique:
            write_unique(duplicates, inputs, output.path, force=force)
            return
        with output.open() as file:
            if groups:
                file.writelines(line + b"\n" for line in duplicates.grouped(replace=replace))
            elif output.on_terminal and not json:
                cells = (
                    cells_of_pair(pair, metric, shown_fields)
                    for pair in fields_of_pairs(duplicates)
                )
                show(cells, lambda line: [line], file, as_table=True, texts=("a", "b"))
            else:
                file.writelines(json_of(pair) + b"\n" for pair in fields_of_pairs(duplicates))
    if duplicates.has_pairs:
        for name in sorted(duplicates.unseen_fields):
            console.warn(f"--show {name}: no row of a pair has this field")


def check_shown_fields(names: Sequence[str], *, has_several_files: bool) -> None:
    for name in names:
        if name in FIELDS_OF_PAIRS or (name == "file" and has_several_files):
            advice = f"remove --show {quote(name)}"
            raise UsageError(f"--show {name}: every pair has this field", advice=advice)


def cells_of_pair(
    pair: dict[str, bytes], metric: str, shown_fields: Sequence[str] | None
) -> dict[str, str]:
    """The line of a table for a pair, of which the fields are JSON."""
    import orjson

    from sentkit.metrics.neighbours.corpus import NAMING, columns_of_pair

    values = {name: orjson.loads(value) for name, value in pair.items()}
    columns = columns_of_pair(values, shown_fields or NAMING)
    return {metric: f"{values['similarity']:.4f}", **columns}
