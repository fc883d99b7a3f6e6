"""`sentkit inspect`: a description of a checkpoint or a vector file."""

import re
from typing import Annotated, Any

from sentkit.console import Console, in_words
from sentkit.errors import UsageError
from sentkit.flags import Excludes, Named, Needs, options
from sentkit.flags.rows import FieldFlags

MAX_LINES = 10
IMPORTANT = (  # in this order, if present
    *("file", "rows", "numbers", "store", "spec._emb", "spec.model", "spec.readout", "spec.precision"),
    *("spec.int8_cosine.lowest", "spec.int8_cosine.mean"),
    *("geometry.alignment", "nan_or_infinite", "duplicates", "geometry.mean_cosine"),
    *("model", "architecture", "layers", "width", "parameters", "readout", "declared_by", "max_length"),
    *("tokenizer.tokens", "sentence_transformers"),
)
COMMAND = re.compile(r"lineage\.(bases\.\d+\.)?(model|command|this_run\.\w+)")


def inspect(
    *,
    path: Annotated[str, Named("PATH")],
    gold: Annotated[str | None, Excludes("--no-geometry")] = None,
    above: Annotated[float | None, Needs("--gold")] = None,
    no_geometry: bool = False,
    json: bool = False,
    field_flags: FieldFlags,
    console: Console,
) -> None:
    """Describe a checkpoint or a file of vectors.

    Flags:
      PATH: A checkpoint as for -m, or a file of vectors.
      --gold NAME: For pairs: report the alignment of pairs with a high score in this field.
      --above X: With --gold: scores above X are high. [default: 4]
      --no-geometry: Only count vectors. The geometry of wide vectors takes seconds.
    """
    record = describe(path, field_flags, gold, above, geometry=not no_geometry)
    if "vectors_per_row" not in record and (gold is not None or no_geometry):
        flag = "--no-geometry" if gold is None else "--gold"
        raise UsageError(f"{flag} needs vectors, but {path} has none")
    options.ReportFlags(json=json).write(record, lines_of(flat(record), verbose=console.verbose))


def lines_of(lines: list[tuple[str, Any]], *, verbose: bool) -> list[tuple[str, str]]:
    """The most important lines first, then the commands of a checkpoint; the others only with -v."""
    commands = [(name, in_words(value)) for name, value in lines if COMMAND.fullmatch(name)]
    lines = [(name, value) for name, value in lines if not COMMAND.fullmatch(name)]
    order = {name: place for place, name in enumerate(IMPORTANT)}
    lines = sorted(lines, key=lambda line: order.get(line[0], len(order)))  # the others keep their order
    pairs = [(name, in_words(value)) for name, value in lines]
    if verbose:
        return [*pairs, *commands]
    shown = [*pairs[:MAX_LINES], *commands]
    more = len(pairs[MAX_LINES:])
    return [*shown, ("...", f"{more} more lines with -v")] if more else shown


def describe(
    path: str, flags: FieldFlags, gold: str | None, above: float | None, *, geometry: bool
) -> dict[str, Any]:
    from sentkit.formats.files import is_folder, is_there, local_path
    from sentkit.formats.lexicons.word_vectors import holds_word_vectors
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.geometry import Alignment, describe_vectors

    is_row_file = is_there(local_path(path)) and not holds_word_vectors(path)
    is_vector_folder = is_folder(path) and flags.vector_file(path) is not None
    if path == "-" or is_vector_folder or is_row_file:
        alignment = None if gold is None else Alignment(flags.theirs(gold), 4.0 if above is None else above)
        inputs = flags.inputs([path], (*VECTOR_FIELDS, gold))
        return describe_vectors(inputs, alignment, geometry=geometry)
    if flags != FieldFlags():
        raise UsageError(f"{path}: is a checkpoint; --field can be used only with vectors")
    from sentkit.model import find_encoder
    from sentkit.model.reading import ReadingOptions

    return find_encoder(path, ReadingOptions()).summary()


def flat(record: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Flatten nested fields: `norm.min`, or `inputs.1.file` for a list of objects."""
    lines: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
            value = {str(number): each for number, each in enumerate(value, start=1)}
        lines += flat(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
    return lines
