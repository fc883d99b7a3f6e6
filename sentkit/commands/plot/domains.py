"""`sentkit plot domains`: scores by domain."""

from typing import Annotated

import typer

from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags


def domains(
    *,
    value: Annotated[str, typer.Option(metavar="NAME", help="Field with the score.")] = "spearman",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="For a table: field with the name of the encoder.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="For a table: field with the domain.")
    ] = None,
    output: PlotFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Draw scores by domain.

    \b
    Examples:
      sentkit plot domains table.tsv --name method --domain data --value test

    Most used: [FILE]... --value --name --domain -o --width

    The input is reports of "sentkit score --group". Each group of pairs is a domain
    with one bar for each report. The line on a bar is the 95 % interval. With --name
    and --domain, the input is a table with one score in each row, for example of
    encoders that were trained on several domains, as in figure 4 of SG-BERT. If the
    table has a field such as test_sd for test, the line is the standard deviation.
    Several scores of one encoder and domain are those of several seeds: the bar is their
    mean, and the line their standard deviation.
    """
    from sentkit.plots.kinds import domains as kind

    console = run.console("plot domains")
    if (name is None) != (domain is None):
        raise UsageError("--name and --domain need each other")
    output.check()
    with row_flags.open(console, output, known=()) as inputs:
        picture = kind.domains(inputs, kind.DomainOptions(value, name, domain))
    output.write(picture, console)
