"""`sentkit whiten apply`: applies a transform to vectors."""

from typing import Annotated

import typer

from sentkit.flags import options
from sentkit.flags.rows import RowFlags


def apply(
    *,
    transform: Annotated[
        str,
        typer.Option(
            "-t", "--transform", metavar="PATH", help="A transform from sentkit whiten fit or merge."
        ),
    ],
    output: options.VectorOutputFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Apply a transform to vectors.

    \b
    Examples:
      sentkit whiten apply a.safetensors -t whitening.safetensors | sentkit score
      sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

    Most used: [FILE]... -t -o -f

    The new vectors replace the old ones, and "_emb" names their new space, the same as
    with `sentkit encode --transform`. All other fields are copied byte for byte, in
    constant memory. The transform accepts only vectors of the space that it was fitted
    to, so a second application is an error. The new vectors are not scaled to unit
    length; cosine similarity does not need that.
    """
    from sentkit.formats.outputs.outputs import refuse_existing
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.applying import apply_transform

    console = run.console("whiten apply")
    refuse_existing(output.path, force=output.force)
    with row_flags.open(console, output, known=VECTOR_FIELDS, reads={"--transform": transform}) as inputs:
        apply_transform(inputs, transform, output.path, output.form(replace=True))
