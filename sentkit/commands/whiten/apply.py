"""`sentkit whiten apply`: applies a transform to vectors."""

from typing import Annotated

import typer

from sentkit import options
from sentkit.console import Console


def apply(
    *,
    transform: Annotated[
        str, typer.Option("-t", "--transform", metavar="PATH", help="What sentkit whiten fit has made.")
    ],
    vectors: options.Encoding = "list",
    threads: options.Threads = None,
    output: options.Output = "-",
    force: options.Force = False,
    row_flags: options.RowFlags,
    quiet: options.Quiet = False,
) -> None:
    """Put vectors through a transform.

    \b
    Examples:
      sentkit whiten apply a.safetensors -t whitening.safetensors | sentkit score
      sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

    The new vectors take the place of the old ones, and "_emb" names the space that
    they are in now: the one of `sentkit encode --transform`. Everything else passes
    through byte for byte, in constant memory. Vectors of another space than the
    transform was fitted on are refused; so is a second application. What comes out
    is of no special length: cosines are taken as ever.
    """
    options.limit_threads(threads)
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
