"""`sentkit plot space`: vectors in two dimensions."""

from typing import Annotated, Literal

import typer

from sentkit.console import Console, slow
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Needs


def space(
    *,
    by: Annotated[
        Literal["tsne", "pca", "svd"],
        typer.Option(help="t-SNE, the first two principal components, or the same without centering."),
    ] = "tsne",
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field that determines the colour.")
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For pairs: draw those with the extreme scores in this field."),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --gold: pairs of each extreme. [default: 20]"),
        Needs("--gold"),
    ] = None,
    sample: Annotated[int, typer.Option(min=3, metavar="N", help="Maximum number of rows.")] = 2000,
    perplexity: Annotated[
        float | None,
        typer.Option(min=1, metavar="X", help="Of t-SNE. [default: 30, or a third of up to 30 vectors]"),
        Needs("--by tsne"),
    ] = None,
    seed: options.Seed = 0,
    output: PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw vectors in two dimensions.

    \b
    Examples:
      sentkit plot space titles.safetensors --by pca
      sentkit plot space news.safetensors --label label
      sentkit plot space a.safetensors --gold score --each 2 -o space.svg
      sentkit encode pairs.jsonl | sentkit plot space --by svd

    Most used: [FILE]... --by --label --gold --sample -o --width

    Each FILE is one panel. The two vectors of a pair are joined by a line; up to 60
    pairs have a number at both ends. --gold NAME draws the N pairs with the highest and
    the N with the lowest score, as in figures 5 and 6 of SG-BERT. Of equal scores, it
    draws random pairs.

    From more rows than --sample, a random sample is drawn. All fits use only the rows
    of the picture. --label gives colours to the 20 most frequent labels; all others are
    grey. In the JSON, "pair" is the number in the picture and "row" the number of the
    row in the file.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.kinds import space as kind

    console = Console("plot space")
    output.check()
    space_options = kind.SpaceOptions(
        by, row_flags.theirs(label), row_flags.theirs(gold), each or 20, sample, perplexity, seed
    )
    known, reading = (*VECTOR_FIELDS, label, gold), slow(console, "reading the vectors")
    with row_flags.open(console, output, known=known) as inputs, reading:
        picture = kind.space(inputs, space_options, console.warn)
    output.write(picture, console)
