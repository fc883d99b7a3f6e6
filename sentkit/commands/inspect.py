"""`sentkit inspect`: a description of a checkpoint or a vector file."""

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentkit import options
from sentkit.console import print_pairs
from sentkit.errors import UsageError

SHOWN = 10  # lines
IMPORTANT = (  # in this order, if present
    *("file", "rows", "numbers", "spec._emb", "spec.model", "spec.readout", "spec.precision"),
    *("geometry.alignment", "nan_or_infinite", "duplicates", "geometry.mean_cosine"),
    *("model", "architecture", "layers", "width", "parameters", "readout", "declared_by", "max_length"),
    *("tokenizer.tokens", "sentence_transformers"),
)

if TYPE_CHECKING:
    from sentkit.metrics.geometry.geometry import Geometry


def inspect(
    *,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A checkpoint, as for -m, or a file of vectors.")
    ],
    gold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of pairs: the alignment of those with a high score in NAME."),
    ] = None,
    above: Annotated[
        float | None, typer.Option(metavar="X", help="With --gold: a high score is above X. [default: 4]")
    ] = None,
    no_geometry: Annotated[
        bool,
        typer.Option(
            "--no-geometry", help="Only count the vectors; the geometry of wide ones takes seconds."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on a terminal too.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Every line on a terminal.")] = False,
    format_flags: options.FormatFlags,
) -> None:
    """Show what a checkpoint or a file of vectors is. Nothing is run or changed.

    \b
    Examples:
      sentkit inspect nano
      sentkit inspect CHECKPOINT --json
      sentkit inspect titles.safetensors
      sentkit encode pairs.jsonl | sentkit inspect - --gold score

    Of a checkpoint: the architecture, its sizes, how it says it is read and who
    says so, the tokenizer, the parents; of a static model: how many words it knows,
    and how wide it is. Of vectors (a vector file, rows with
    vectors, or an affine file): how many, their norms, zeros, duplicates, NaN, and
    where they come from. On a terminal, the ten most important lines; -v shows all.

    And how the vectors lie, in "geometry", from one pass; NaN and infinity are left
    out, and what is not defined is null.

    \b
    directions        vectors that are not zero; put at length 1 for these three:
      mean_cosine     the mean over all pairs of two vectors
      uniformity      how evenly they are spread (lower: more evenly), of 20,000
                      drawn at random where there are more
      alignment       with --gold: the mean squared distance of the two vectors
                      of a pair above a score
    isoscore          of the covariance: 1 where all directions are alike
    effective_rank    how many directions are used, by entropy
    rank              how many there are at all
    component_share   the variance in the first 1, 3 and 10 components, and in
                      the first without centring
    axis_correlation  the mean absolute value over pairs of axes
    constant_axes     axes that never change, which the two below leave out:
    skewness          the mean absolute value, and the largest with its sign and
                      its axis, counted from 0
    excess_kurtosis   the mean, and the largest with its axis
    """
    geometry = asked_geometry(gold, above, leave_out=no_geometry)
    record = describe(path, format_flags, geometry)
    refuse_idle(path, record, gold=gold, no_geometry=no_geometry)
    if json or sys.stdout is None or not sys.stdout.isatty():
        from sentkit.formats.json_files import json_line
        from sentkit.formats.outputs.outputs import open_output

        with open_output("-", force=False) as out:
            out.write(json_line(record))
    else:
        print_lines(flat(record), verbose=verbose)


def print_lines(lines: list[tuple[str, Any]], *, verbose: bool) -> None:
    """Print the most important lines first; print the others only with -v."""
    order = {name: place for place, name in enumerate(IMPORTANT)}
    lines = sorted(lines, key=lambda line: order.get(line[0], len(order)))  # the others keep their order
    pairs = [(name, shown(value)) for name, value in lines]
    more = 0 if verbose else len(pairs[SHOWN:])
    print_pairs([*pairs[:SHOWN], ("...", f"{more} more lines with -v")] if more else pairs)


def asked_geometry(gold: str | None, above: float | None, *, leave_out: bool) -> "Geometry | None":
    from sentkit.metrics.geometry.alignment import Alignment
    from sentkit.metrics.geometry.geometry import Geometry

    if above is not None and gold is None:
        raise UsageError("--above belongs to --gold")
    if above is not None and not math.isfinite(above):
        raise UsageError(f"--above {above}: expected a finite number")
    if gold is not None and leave_out:
        raise UsageError("--gold asks for the alignment, and --no-geometry leaves it out")
    if leave_out:
        return None
    if gold is None:
        return Geometry()
    return Geometry(Alignment(gold) if above is None else Alignment(gold, above))


def refuse_idle(path: str, record: dict[str, Any], *, gold: str | None, no_geometry: bool) -> None:
    """Refuse flags about geometry for a checkpoint or a transform."""
    if "vectors_per_row" not in record and gold is not None:
        raise UsageError(f"--gold is for pairs of vectors, and {path} holds none")
    if "vectors_per_row" not in record and no_geometry:
        raise UsageError(f"--no-geometry is for vectors, and {path} holds none")


def describe(path: str, flags: options.FormatFlags, geometry: "Geometry | None") -> dict[str, Any]:
    from pathlib import Path

    from sentkit.formats.json_files import is_there
    from sentkit.formats.lexicons.word_vectors import holds_word_vectors
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.geometry.vector_file import describe_vectors

    if path == "-" or (is_there(Path(path)) and not holds_word_vectors(path)):
        return describe_vectors(flags.inputs([path], VECTOR_FIELDS), geometry)
    if flags != options.FormatFlags():
        names = "--from, --field, --quoting and --max-line"
        raise UsageError(f"{names} are for a file of vectors, and this is a checkpoint")
    from sentkit.model import find_encoder
    from sentkit.model.reading import Wishes

    return find_encoder(path, Wishes()).portrait()


def flat(record: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Flatten nested fields: `norm.min`, or `inputs.1.file` for a list of objects."""
    found: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
            value = {str(number): each for number, each in enumerate(value, start=1)}
        found += flat(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
    return found


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value or "none")
