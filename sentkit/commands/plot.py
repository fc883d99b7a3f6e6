"""Draw pictures of vectors, reports and logs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from sentkit.console import Console, slow
from sentkit.flags import Needs, Range, options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots.picture import Picture


def space(
    *,
    by: Literal["tsne", "pca", "svd"] = "tsne",
    label: str | None = None,
    gold: str | None = None,
    each: Annotated[int | None, Range(min=1), Needs("--gold")] = None,
    sample: Annotated[int, Range(min=3)] = 2000,
    perplexity: Annotated[float | None, Range(min=1), Needs("--by tsne")] = None,
    seed: options.Seed = 0,
    output: options.PlotFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Draw vectors in two dimensions.

    Flags:
      --by: t-SNE, the first two principal components, or the same without centering.
      --label NAME: Field that determines the colour.
      --gold NAME: For pairs: draw those with the extreme scores in this field.
      --each N: With --gold: pairs of each extreme. [default: 20]
      --sample N: Maximum number of rows.
      --perplexity X: Of t-SNE. [default: 30, or a third of up to 30 vectors]
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.space import SpaceOptions, space

    fields = row_flags.theirs(label), row_flags.theirs(gold)
    space_options = SpaceOptions(by, *fields, each or 20, sample, perplexity, seed)
    known = (*VECTOR_FIELDS, label, gold)
    draw(console, output, row_flags, known, lambda inputs: space(inputs, space_options, console.warn))


def pairs(
    *,
    gold: str,
    metric: options.Metric = "cosine",
    output: options.PlotFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Draw the similarities of pairs over their gold scores.

    Flags:
      --gold NAME: Field with the gold score.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.similarities import pairs

    theirs, known = row_flags.theirs(gold), (*VECTOR_FIELDS, gold)
    draw(console, output, row_flags, known, lambda inputs: pairs(inputs, theirs, metric))


def heat(
    *,
    metric: options.Metric = "cosine",
    output: options.PlotFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Draw the similarities of all sentences."""
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.similarities import heat

    draw(console, output, row_flags, VECTOR_FIELDS, lambda inputs: heat(inputs, metric))


def curve(
    *,
    show: list[str] | None = None,
    points: Annotated[int, Range(min=2)] = 100,
    output: options.PlotFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Draw the loss, the learning rate and the dev scores of training runs.

    Flags:
      --show NAME: A panel: loss, a term of it, lr, norm or dev; repeatable. [default: all but norm]
      --points N: Maximum number of points of a line.
    """
    from sentkit.plots.reports import curve, logs_of

    logs = replace(row_flags, files=[log for path in row_flags.paths for log in logs_of(path)])
    draw(console, output, logs, (), lambda inputs: curve(inputs, show or [], points))


def sweep(
    *,
    value: Literal["spearman", "pearson"] = "spearman",
    output: options.PlotFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Draw scores by layer and readout.

    Flags:
      --value: Field of the reports to draw.
    """
    from sentkit.plots.reports import sweep

    draw(console, output, row_flags, (), lambda inputs: sweep(inputs, value))


def draw(
    console: Console,
    output: options.PlotFlags,
    rows: RowFlags,
    known: Sequence[str | None],
    picture: "Callable[[Inputs], Picture]",
) -> None:
    """Write the picture of the rows."""
    output.check()
    with rows.open(console, output, known=known) as inputs, slow(console, "reading the rows"):
        made = picture(inputs)
    output.write(made, console)
