"""`sentkit whiten apply`: applies a transform to vectors."""

from typing import Annotated

import typer

from sentkit import options
from sentkit.console import Console
from sentkit.process import limit_threads


def apply(
    *,
    transform: Annotated[
        str,
        typer.Option(
            "-t", "--transform", metavar="PATH", help="A transform from sentkit whiten fit or merge."
        ),
    ],
    vectors: options.Encoding = "list",
    threads: options.Threads = None,
    output: options.Output = "-",
    force: options.Force = False,
    row_flags: options.RowFlags,
    quiet: options.Quiet = False,
) -> None:
    """Apply a transform to vectors.

    \b
    Examples:
      sentkit whiten apply a.safetensors -t whitening.safetensors | sentkit score
      sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

    The new vectors replace the old ones, and "_emb" names their new space, the same as
    with `sentkit encode --transform`. All other fields pass through byte for byte, in
    constant memory. The transform accepts only vectors of the space that it was fitted
    to, so a second application is refused. The new vectors are not scaled to unit
    length; cosine similarity does not need that.
    """
    limit_threads(threads)
    from sentkit.formats.outputs.outputs import refuse_existing
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.applying import apply_transform

    console = Console("whiten apply", quiet)
    refuse_existing(output, force=force)
    with row_flags.open(
        console, known=VECTOR_FIELDS, output=output, force=force, reads={"--transform": transform}
    ) as inputs:
        rows = apply_transform(inputs, transform, output, encoding=vectors, force=force)
    if not rows:
        console.warn("no rows")
