"""`sentkit inspect`: a description of a checkpoint or a vector file."""

import re
from typing import Annotated, Any

from typer import Argument, Option

from sentkit.console import Console, in_words
from sentkit.errors import NoInputError, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource
from sentkit.flags.rules import needs, refuse_together

MAX_LINES = 10
HIGH_SCORE = 4.0  # of gold scores from 0 to 5
IMPORTANT = (  # in this order, if present
    *(
        "file",
        "rows",
        "numbers",
        "store",
        "spec._emb",
        "spec.model",
        "spec.readout",
        "spec.prompt",
        "spec.precision",
    ),
    *("spec.int8_cosine.lowest", "spec.int8_cosine.mean"),
    *("geometry.alignment", "nan_or_infinite", "duplicates", "geometry.mean_cosine"),
    *(
        "model",
        "architecture",
        "layers",
        "width",
        "parameters",
        "readout",
        "declared_by",
        "max_length",
        "prompt",
    ),
    *("tokenizer.tokens", "sentence_transformers"),
)
COMMAND = re.compile(r"lineage\.(bases\.\d+\.)?(model|command|this_run\.\w+)")


def inspect(
    *,
    path: Annotated[
        str,
        Argument(metavar="PATH", help="A checkpoint as for -m, or a file of vectors."),
    ],
    gold: Annotated[
        str | None,
        Option(
            "--gold",
            metavar="NAME",
            help="For pairs: report the alignment of pairs with a high score in this field.",
        ),
    ] = None,
    above: Annotated[
        float | None,
        Option("--above", metavar="X", help="With --gold: scores above X are high. [default: 4]"),
    ] = None,
    no_geometry: Annotated[
        bool,
        Option(
            "--no-geometry", help="Only count vectors. The geometry of wide vectors takes seconds."
        ),
    ] = False,
    json: options.Json = False,
    field: options.Field = None,
    console: Console,
) -> None:
    """Describe a checkpoint or a file of vectors."""
    refuse_together({"--gold": gold}, {"--no-geometry": no_geometry})
    needs({"--above": above}, {"--gold": gold})

    rows = RowSource([path], field)
    if has_vectors(rows, path):
        record = describe_vector_file(rows, gold, above, geometry=not no_geometry)
    else:
        record = describe_checkpoint(path, field)
    if "vectors_per_row" not in record:
        for flag, value in {"--gold": gold is not None, "--no-geometry": no_geometry}.items():
            if value:
                raise UsageError(f"{flag} needs vectors, but {path} has none")

    output = Output()
    lines = lines_of(flat(record), verbose=console.verbose)
    output.write_record(record, as_table=output.on_terminal and not json, pairs=lines)


def lines_of(lines: list[tuple[str, Any]], *, verbose: bool) -> list[tuple[str, str]]:
    """The most important lines first, then the commands of a checkpoint; the others only
    with -v.
    """
    commands = [(name, in_words(value)) for name, value in lines if COMMAND.fullmatch(name)]
    measures = [(name, in_words(value)) for name, value in lines if not COMMAND.fullmatch(name)]
    rank = {name: index for index, name in enumerate(IMPORTANT)}
    measures.sort(key=lambda line: rank.get(line[0], len(rank)))  # stable: the rest keeps its order
    if verbose:
        return [*measures, *commands]
    hidden = len(measures) - MAX_LINES
    if hidden <= 0:
        return [*measures, *commands]
    return [*measures[:MAX_LINES], *commands, ("...", f"{hidden} more lines with -v")]


def has_vectors(rows: RowSource, path: str) -> bool:
    """Whether the path is a file of rows, or a vector file or folder; otherwise it is a
    checkpoint.
    """
    from sentkit.formats.checkpoints.folders import is_endpoint
    from sentkit.formats.files import (
        MAPPED,
        bare_suffix,
        exists,
        is_folder,
        is_there,
        local_path,
    )
    from sentkit.formats.lexicons.word_vectors import holds_word_vectors
    from sentkit.formats.rows.rows import SUFFIXES

    if path == "-":
        return True
    if exists(path) and not is_folder(path) and not is_there(path):  # a pipe or a device
        return True
    if is_endpoint(path) and "#" in path:  # a model behind an API, not a file
        return False
    if is_folder(path) and rows.open_vector_file(path) is not None:
        return True
    if is_there(local_path(path)):
        return not holds_word_vectors(path)
    if bare_suffix(path) in (*SUFFIXES, *MAPPED):  # no name of a model
        raise NoInputError(f"{path}: no such file")
    return False


def describe_vector_file(
    rows: RowSource, gold: str | None, above: float | None, *, geometry: bool
) -> dict[str, Any]:
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.geometry import Alignment, describe_vectors

    alignment = None
    if gold is not None:
        alignment = Alignment(rows.name_in_input(gold), HIGH_SCORE if above is None else above)
    inputs = rows.inputs(rows.paths, (*VECTOR_FIELDS, gold))
    return describe_vectors(inputs, alignment, geometry=geometry)


def describe_checkpoint(path: str, field: list[str] | None) -> dict[str, Any]:
    from sentkit.model import find_encoder
    from sentkit.model.reading import ReadingOptions

    if field:
        raise UsageError(f"{path}: is a checkpoint; --field can be used only with vectors")
    return find_encoder(path, ReadingOptions()).summary()


def flat(record: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Flatten nested fields: `norm.min`, or `inputs.1.file` for a list of objects."""
    lines: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, list) and any(isinstance(element, dict | list) for element in value):
            value = {str(number): element for number, element in enumerate(value, start=1)}
        if isinstance(value, dict):
            lines += flat(value, f"{before}{name}.")
        else:
            lines.append((before + name, value))
    return lines
