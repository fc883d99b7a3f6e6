"""`sentkit plot pairs`: gold scores and similarities of pairs."""

from typing import Annotated

import typer

from sentkit.console import Console
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def pairs(
    *,
    gold: Annotated[str, typer.Option(metavar="NAME", help="Field with the gold score.")],
    metric: options.Metric = "cosine",
    output: PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the similarities of pairs over their gold scores.

    \b
    Examples:
      sentkit plot pairs a.safetensors --gold score
      sentkit plot pairs a.safetensors b.safetensors --gold score -o pairs.svg
      sentkit encode pairs.jsonl | sentkit plot pairs - --gold score --json

    Most used: [FILE]... --gold --metric -o --width

    Each FILE is one panel with Spearman's correlation x 100 and the number of pairs, as
    in figure 1 of ConSERT. Up to 500 pairs are points, without a line. More pairs are a
    density: the darker a cell, the more pairs, on a logarithmic scale. Its line joins
    the medians of ten bands of gold scores; the band of the line is the quartiles.
    Pairs without a score are skipped.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.kinds import pairs as kind

    console = Console("plot pairs")
    output.check()
    with row_flags.open(console, output, known=(*VECTOR_FIELDS, gold)) as inputs:
        picture = kind.pairs(inputs, row_flags.theirs(gold), metric)
    output.write(picture, console)
