"""`sentkit plot masking`: scores by the number of tokens that the readout leaves out."""

from typing import Annotated

import typer

from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def masking(
    *,
    value: Annotated[str, typer.Option(metavar="NAME", help="Field with the score.")] = "spearman",
    output: PlotFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Draw scores by the number of tokens that the mean leaves out.

    \b
    Examples:
      sentkit plot masking masked.jsonl
      sentkit plot masking masked.jsonl -o masking.svg

    Most used: [FILE]... --value -o --width

    The input is reports of "sentkit score --gold" for vectors of "sentkit encode
    --leave-out", as examples/word-frequency.sh makes them: figure 4 of ConSERT. Each
    encoder is one line with its 95 % intervals. The number of left out tokens is in its
    name, such as nano/mean/out36; vectors without --leave-out have the number 0.
    Several reports of one encoder and number are those of several data sets: their mean
    is drawn.
    """
    from sentkit.plots.kinds import masking as kind

    console = run.console("plot masking")
    output.check()
    with row_flags.open(console, output, known=()) as inputs:
        picture = kind.masking(inputs, value)
    output.write(picture, console)
