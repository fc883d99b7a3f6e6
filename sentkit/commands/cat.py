"""`sentkit cat`: rows from one form to another, joined."""

from typing import Annotated, Literal

import typer

from sentkit import options
from sentkit.console import Console


def cat(
    files: options.Files = None,
    head: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the first N rows.")] = None,
    vectors: Annotated[
        Literal["list", "base64"] | None,
        typer.Option(
            "--vectors", envvar="SENTKIT_VECTORS", help="[default: as they came; list from vector files]"
        ),
    ] = None,
    output: options.Output = "-",
    force: options.Force = False,
    from_: options.From = None,
    field: options.Field = None,
    on_error: options.OnError = "fail",
    rejects: options.RejectsFile = None,
    quiet: options.Quiet = False,
) -> None:
    """Join rows and vector files, and turn one into the other.

    \b
    Examples:
      sentkit cat titles.safetensors --head 3
      sentkit cat part1.jsonl part2.safetensors -o all.safetensors
      sentkit cat table.csv > rows.jsonl

    The suffix of the output says its form. All vectors must be of one space. A
    vector file made from JSONL knows the name of its space, and no more. Rows
    without vectors pass as JSONL.
    """
    from sentkit.formats.convert import convert
    from sentkit.formats.vectors import VECTOR_FIELDS

    console = Console("cat", quiet)
    with options.open_inputs(
        console,
        files,
        format=from_,
        fields=field,
        known=VECTOR_FIELDS,
        on_error=on_error,
        rejects=rejects,
        output=output,
        force=force,
    ) as inputs:
        convert(inputs, output, head=head, encoding=vectors, force=force)
