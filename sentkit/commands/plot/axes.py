"""`sentkit plot axes`: views of vectors before and after transforms."""

from typing import Annotated

import typer

from sentkit.console import slow
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags

POINTS = ("svd", "pca", "whitening", "ica")
CORRELATION = ("raw", "pca", "whitening", "ica")


def axes(
    *,
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="raw|svd|pca|whitening|ica",
            help="A panel; repeatable. [default: svd, pca, whitening and ica]",
        ),
    ] = None,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Draw the correlations of axes, with raw instead of svd.")
    ] = False,
    sample: Annotated[int, typer.Option(min=3, metavar="N", help="Maximum number of rows.")] = 2000,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum of ICA. [default: 200]")
    ] = None,
    seed: options.Seed = 0,
    output: PlotFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Draw vectors before and after centering, whitening and ICA.

    \b
    Examples:
      sentkit plot axes titles.safetensors
      sentkit plot axes titles.safetensors --view svd --view pca -o axes.svg
      sentkit encode titles.txt | sentkit plot axes --correlation --view raw

    Most used: [FILE]... --view --sample -o --width

    The input is rows with one vector, such as the entries of "sentkit build-entries":
    figures 1 and 3 to 8 of DefSent+. raw is the vectors themselves. svd is their first
    two singular vectors, without subtraction of the mean, pca the first two components
    of the centered vectors, and whitening the same with variance 1. ica is the two
    independent components with the largest skewness. Thin lines show zero.

    With --correlation, a panel has the absolute correlations of the first 32 axes, and
    the mean over all pairs of axes: white is 0, black is 1.

    From more rows than --sample, a random sample is drawn. All fits use only the rows
    of the picture.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.kinds import axes as kind

    console = run.console("plot axes")
    views = tuple(dict.fromkeys(view or (CORRELATION if correlation else POINTS)))
    for name in views:
        if name not in kind.VIEWS:
            raise UsageError(f'--view "{name}"', advice=f"available: {', '.join(kind.VIEWS)}")
    if iterations is not None and "ica" not in views:
        raise UsageError("--iterations has no effect without ica", advice="use it with --view ica")
    output.check()
    axes_options = kind.AxesOptions(views, correlation, sample, seed, iterations or 200)
    with row_flags.open(console, output, known=VECTOR_FIELDS) as inputs, slow(console, "reading the vectors"):
        picture = kind.axes(inputs, axes_options, console.warn)
    output.write(picture, console)
