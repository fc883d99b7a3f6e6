"""`sentkit inspect`: what a checkpoint or a vector file is."""

import sys
from typing import Annotated, Any

import typer

from sentkit import options
from sentkit.console import print_pairs
from sentkit.errors import UsageError


def inspect(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A checkpoint, as for -m, or a file of vectors.")
    ],
    json: Annotated[bool, typer.Option("--json", help="JSON on a terminal too.")] = False,
    from_: options.From = None,
    field: options.Field = None,
) -> None:
    """Show what a checkpoint or a file of vectors is. Nothing is run or changed.

    \b
    Examples:
      sentkit inspect nano
      sentkit inspect CHECKPOINT --json
      sentkit inspect titles.safetensors

    Of a checkpoint: the architecture, its sizes, how it says it is read and who
    says so, the tokenizer, the parents. Of vectors (a vector file, rows with
    vectors, or an affine file): how many, their norms, zeros, duplicates, NaN, and
    where they come from.
    """
    record = describe(path, from_, field or [])
    if json or sys.stdout is None or not sys.stdout.isatty():
        import orjson

        from sentkit.formats.files import open_output

        with open_output("-", force=False) as out:
            out.write(orjson.dumps(record) + b"\n")
    else:
        print_pairs([(name, shown(value)) for name, value in flat(record)])


def describe(path: str, format: str | None, fields: list[str]) -> dict[str, Any]:
    from pathlib import Path

    from sentkit.formats.checkpoints import read_checkpoint
    from sentkit.metrics.vectorfile import describe_vectors
    from sentkit.model.portrait import portrait

    if path == "-" or Path(path).is_file():
        return describe_vectors(path, format, fields)
    if format or fields:
        raise UsageError("--from and --field are for a file of vectors, and this is a checkpoint")
    return portrait(read_checkpoint(path))


def flat(record: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Nested members as `norm.min`."""
    found: list[tuple[str, Any]] = []
    for name, value in record.items():
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
