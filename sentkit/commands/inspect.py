"""`sentkit inspect`: a description of a checkpoint or a vector file."""

import os
from typing import TYPE_CHECKING, Annotated, Any

from sentkit.console import print_text
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.rows import FieldFlags
from sentkit.flags.rules import Excludes, Named, Needs

MAX_LINES = 10
IMPORTANT = (  # in this order, if present
    *("file", "rows", "numbers", "store", "spec._emb", "spec.model", "spec.readout", "spec.precision"),
    *("spec.int8_cosine.lowest", "spec.int8_cosine.mean"),
    *("geometry.alignment", "nan_or_infinite", "duplicates", "geometry.mean_cosine"),
    *("model", "architecture", "layers", "width", "parameters", "readout", "declared_by", "max_length"),
    *("tokenizer.tokens", "sentence_transformers"),
)

if TYPE_CHECKING:
    from sentkit.metrics.geometry import Geometry


def inspect(
    *,
    path: Annotated[str, Named("PATH")],
    gold: Annotated[str | None, Excludes("--no-geometry")] = None,
    above: Annotated[float | None, Needs("--gold")] = None,
    no_geometry: bool = False,
    replay: Annotated[
        bool,
        Excludes("--gold"),
        Excludes("--above"),
        Excludes("--no-geometry"),
        Excludes("--json"),
        Excludes("--verbose"),
        Excludes("--field"),
    ] = False,
    json: bool = False,
    verbose: bool = False,
    field_flags: FieldFlags,
) -> None:
    """Describe a checkpoint or a file of vectors.

    \b
    Examples:
      sentkit inspect nano
      sentkit inspect CHECKPOINT --json
      sentkit export --normalize -o unit && sentkit inspect unit --replay
      sentkit inspect titles.safetensors

    Most used: PATH --gold --no-geometry --replay --json -v

    For a checkpoint, the output has the architecture, its sizes, the declared readout
    and the source of the declaration, the tokenizer and the parents. For a static
    model, it has the number of known words and the width. For vectors (a vector file,
    rows with vectors, or a transform file), it has the number of vectors, their norms,
    zeros, duplicates and NaN values, and their origin. A terminal shows the ten most
    important lines; -v shows all.

    Flags:
      PATH: A checkpoint as for -m, or a file of vectors.
      --gold NAME: For pairs: report the alignment of pairs with a high score in this field.
      --above X: With --gold: scores above X are high. [default: 4]
      --no-geometry: Only count vectors. The geometry of wide vectors takes seconds.
      --replay: For a checkpoint: print the shell commands that made it and its bases.
      -v, --verbose: Show every line on a terminal.
    """
    if replay:
        print_replay(path)
        return
    geometry = geometry_of(field_flags.theirs(gold), above, leave_out=no_geometry)
    record = describe(path, field_flags, gold, geometry)
    refuse_idle(path, record, gold=gold, no_geometry=no_geometry)
    options.ReportFlags(json=json).write(record, lines_of(flat(record), verbose=verbose))


def print_replay(path: str) -> None:
    """Print a shell script. If it cannot run as it is, exit with code 1."""
    from sentkit.training.runs.replay import replay

    commands, output = replay(path), options.OutputFlags()
    if output.on_terminal:
        print_text(commands.lines)
    else:
        with output.open() as out:
            out.writelines(os.fsencode(line) + b"\n" for line in commands.lines)
    if commands.problems:
        others = len(commands.problems) - 1
        more = f", and {others} more; the output lists all" if others else ""
        raise AnswerIsNo(f"{commands.problems[0]}{more}")


def lines_of(lines: list[tuple[str, Any]], *, verbose: bool) -> list[tuple[str, str]]:
    """The most important lines first; the others only with -v."""
    order = {name: place for place, name in enumerate(IMPORTANT)}
    lines = sorted(lines, key=lambda line: order.get(line[0], len(order)))  # the others keep their order
    pairs = [(name, format_value(value)) for name, value in lines]
    more = 0 if verbose else len(pairs[MAX_LINES:])
    return [*pairs[:MAX_LINES], ("...", f"{more} more lines with -v")] if more else pairs


def geometry_of(gold: str | None, above: float | None, *, leave_out: bool) -> "Geometry | None":
    from sentkit.metrics.geometry import Alignment, Geometry

    if leave_out:
        return None
    if gold is None:
        return Geometry()
    return Geometry(Alignment(gold) if above is None else Alignment(gold, above))


def refuse_idle(path: str, record: dict[str, Any], *, gold: str | None, no_geometry: bool) -> None:
    """Refuse flags about geometry for a checkpoint or a transform."""
    if "vectors_per_row" not in record and gold is not None:
        raise UsageError(f"--gold needs pairs of vectors, but {path} has none")
    if "vectors_per_row" not in record and no_geometry:
        raise UsageError(f"--no-geometry needs vectors, but {path} has none")


def describe(path: str, flags: FieldFlags, gold: str | None, geometry: "Geometry | None") -> dict[str, Any]:
    from sentkit.formats.files import is_there
    from sentkit.formats.lexicons.word_vectors import holds_word_vectors
    from sentkit.formats.urls import is_url
    from sentkit.formats.vectors.folders import is_vector_folder
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.geometry import describe_vectors

    local = is_there(path) and not holds_word_vectors(path)
    if path == "-" or is_url(path) or is_vector_folder(path) or local:
        flags.take_snapshots([path])
        return describe_vectors(flags.inputs([path], (*VECTOR_FIELDS, gold)), geometry)
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


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value or "none")
