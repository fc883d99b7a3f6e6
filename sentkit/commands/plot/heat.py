"""`sentkit plot heat`: the similarities of all sentences."""

from sentkit.console import Console
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def heat(
    *,
    metric: options.Metric = "cosine",
    output: PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the similarities of all sentences.

    \b
    Examples:
      sentkit plot heat titles.safetensors
      sentkit encode titles.txt | sentkit plot heat -o heat.svg

    Most used: [FILE]... --metric -o --width

    The input is at most 100 rows with one vector each. The darker a cell, the more
    similar its two sentences: white is 0 (or the smallest negative value), black is 1
    (or the largest value if --metric is not cosine). A line begins with the text of its
    sentence, and the columns have the numbers of the rows. Up to eight sentences also
    have the values in the cells.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.kinds import heat as kind

    console = Console("plot heat")
    output.check()
    with row_flags.open(console, output, known=VECTOR_FIELDS) as inputs:
        picture = kind.heat(inputs, metric)
    output.write(picture, console)
