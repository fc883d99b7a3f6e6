"""`sentkit plot sweep`: scores by layer and readout."""

from typing import Annotated, Literal

import typer

from sentkit.console import Console
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def sweep(
    *,
    value: Annotated[
        Literal["spearman", "pearson"], typer.Option(help="Field of the reports to draw.")
    ] = "spearman",
    output: PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw scores by layer and readout.

    \b
    Examples:
      sentkit plot sweep layers.jsonl
      sentkit plot sweep layers.jsonl -o sweep.svg

    Most used: [FILE]... --value -o --width

    The input is reports of "sentkit score --gold" of vectors of single layers, as
    examples/layers.sh makes them: figure 1 of SG-BERT. Each model is one panel, and
    each readout one line with its 95 % intervals. A report without a layer number is a
    horizontal line, for comparison. Undefined correlations are gaps. Several reports of
    one layer and readout are those of several data sets: their mean is drawn.
    """
    from sentkit.plots.kinds import sweep as kind

    console = Console("plot sweep")
    output.check()
    with row_flags.open(console, output, known=()) as inputs:
        picture = kind.sweep(inputs, value, console.warn)
    output.write(picture, console)
