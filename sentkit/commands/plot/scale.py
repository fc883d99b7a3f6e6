"""`sentkit plot scale`: scores by a number."""

from typing import Annotated

import typer

from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def scale(
    *,
    x: Annotated[str, typer.Option("--x", metavar="NAME", help="Field with the number.")],
    value: Annotated[str, typer.Option(metavar="NAME", help="Field with the score.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Field with the name of a line.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Draw the numbers on a logarithmic axis.")] = False,
    output: PlotFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Draw scores by a number, such as the batch size.

    \b
    Examples:
      sentkit plot scale table.tsv --x batch --value test --name method
      sentkit plot scale table.tsv --x batch --value test --log -o scale.svg

    Most used: [FILE]... --x --value --name --log -o --width

    The input is a table with one score in each row, as examples/sweep.sh prints it:
    table 4 of ConSERT for the batch size, and figure 5 for the number of training rows.
    A band shows the standard deviation if the table has a field such as test_sd for
    test, or the 95 % interval if the rows are reports of "sentkit score". Rows with "-"
    instead of the number are skipped. Several rows with one number are those of several
    seeds: their mean and standard deviation are drawn.
    """
    from sentkit.plots.kinds import scale as kind

    console = run.console("plot scale")
    output.check()
    with row_flags.open(console, output, known=()) as inputs:
        picture = kind.scale(inputs, kind.ScaleOptions(x, value, name, log))
    output.write(picture, console)
