"""`sentkit plot curve`: the logs of training runs."""

from dataclasses import replace
from typing import Annotated

import typer

from sentkit.console import Console
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def curve(
    *,
    show: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A panel: loss, a term of it, lr, norm or dev; repeatable. [default: all but norm]",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option(min=2, metavar="N", help="Maximum number of points of a line.")
    ] = 100,
    output: PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the loss, the learning rate and the dev scores of training runs.

    \b
    Examples:
      sentkit plot curve ckpt
      sentkit plot curve run1 run2 --show loss --show dev -o curve.svg

    Most used: [FILE]... --show --points -o --width

    The input is folders of "sentkit train": checkpoints, folders of seeds, or runs that
    are not finished. Their logs are steps.jsonl. Each quantity is one panel, and each run
    one line. Of a run with more than --points steps, a point is the
    mean of consecutive steps; scores on --dev are never averaged. If a run has several
    learning rates, the largest is drawn.
    """
    from sentkit.plots.kinds import curve as kind

    console = Console("plot curve")
    output.check()
    logs = [log for path in row_flags.paths for log in kind.logs_of(path)]
    with replace(row_flags, files=logs).open(console, output, known=()) as inputs:
        picture = kind.curve(inputs, show or [], points)
    output.write(picture, console)
