"""Draw pictures of vectors, reports and logs.

\b
Examples:
  sentkit plot space titles.safetensors --by pca -o space.svg
  sentkit plot pairs a.safetensors --gold score -o pairs.png

-o FIGURE.svg (or .png, .pdf) writes a picture for a paper; it needs the package
matplotlib: pip install 'sentkit[plot]'. Without -o, a pipe or a file gets the numbers
of the picture as JSON; on a terminal, this needs --json. Further figures of papers are
in their folders: python -m sentkit.papers.consert.figures --help.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from sentkit.console import Console, slow
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Needs, Range

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots.picture import Picture

SUBCOMMANDS = ("space", "pairs", "heat", "curve", "sweep")


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
) -> None:
    """Draw vectors in two dimensions.

    \b
    Examples:
      sentkit plot space titles.safetensors --by pca -o space.svg
      sentkit plot space news.safetensors --label label -o news.png
      sentkit plot space a.safetensors --gold score --each 2 -o space.svg
      sentkit encode pairs.jsonl | sentkit plot space --by svd --json

    Most used: [FILE]... --by --label --gold --sample -o --width

    Each FILE is one panel. The two vectors of a pair are joined by a line; up to 60
    pairs have a number, at both ends unless these are close. --gold NAME draws the N
    pairs with the highest and the N with the lowest score, as in figures 5 and 6 of
    SG-BERT. Of equal scores, it draws random pairs.

    From more rows than --sample, a random sample is drawn. All fits use only the rows
    of the picture. --label gives colours to the 20 most frequent labels; all others are
    grey. With --label cluster, the legend has three keywords of each cluster, as
    sentkit-cluster(1) defines them. In the JSON, "pair" is the number in the picture
    and "row" the number of the row in the file.

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
    console, known = Console("plot space"), (*VECTOR_FIELDS, label, gold)
    draw(console, output, row_flags, known, lambda inputs: space(inputs, space_options, console.warn))


def pairs(
    *,
    gold: str,
    metric: options.Metric = "cosine",
    output: options.PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the similarities of pairs over their gold scores.

    \b
    Examples:
      sentkit plot pairs a.safetensors --gold score -o pairs.png
      sentkit plot pairs a.safetensors b.safetensors --gold score -o pairs.svg
      sentkit encode pairs.jsonl | sentkit plot pairs - --gold score --json

    Most used: [FILE]... --gold --metric -o --width

    Each FILE is one panel with Spearman's correlation x 100 and the number of pairs, as
    in figure 1 of ConSERT. Up to 500 pairs are points, without a line. More pairs are a
    density: the darker a cell, the more pairs, on a logarithmic scale. Its line joins
    the medians of ten bands of gold scores; the band of the line is the quartiles.
    Pairs without a score are skipped.

    Flags:
      --gold NAME: Field with the gold score.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.similarities import pairs

    theirs, known = row_flags.theirs(gold), (*VECTOR_FIELDS, gold)
    draw(Console("plot pairs"), output, row_flags, known, lambda inputs: pairs(inputs, theirs, metric))


def heat(
    *,
    metric: options.Metric = "cosine",
    output: options.PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the similarities of all sentences.

    \b
    Examples:
      sentkit plot heat titles.safetensors -o heat.png
      sentkit encode titles.txt | sentkit plot heat -o heat.svg

    Most used: [FILE]... --metric -o --width

    The input is at most 100 rows with one vector each. The darker a cell, the more
    similar its two sentences: white is 0 (or the smallest negative value), black is 1
    (or the largest value if --metric is not cosine). A line begins with the text of its
    sentence, and the columns have the numbers of the rows. Up to eight sentences also
    have the values in the cells.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.similarities import heat

    draw(Console("plot heat"), output, row_flags, VECTOR_FIELDS, lambda inputs: heat(inputs, metric))


def curve(
    *,
    show: list[str] | None = None,
    points: Annotated[int, Range(min=2)] = 100,
    output: options.PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw the loss, the learning rate and the dev scores of training runs.

    \b
    Examples:
      sentkit plot curve ckpt -o curve.png
      sentkit plot curve run1 run2 --show loss --show dev -o curve.svg

    Most used: [FILE]... --show --points -o --width

    The input is folders of "sentkit train": checkpoints, folders of seeds, or runs that
    are not finished. Their logs are steps.jsonl. Each quantity is one panel, and each run
    one line. Of a run with more than --points steps, a point is the
    mean of consecutive steps; scores on --dev are never averaged, and "kept" marks the
    step of the checkpoint. If a run has several learning rates, the largest is drawn.

    Flags:
      --show NAME: A panel: loss, a term of it, lr, norm or dev; repeatable. [default: all but norm]
      --points N: Maximum number of points of a line.
    """
    from sentkit.plots.reports import curve, logs_of

    logs = replace(row_flags, files=[log for path in row_flags.paths for log in logs_of(path)])
    draw(Console("plot curve"), output, logs, (), lambda inputs: curve(inputs, show or [], points))


def sweep(
    *,
    value: Literal["spearman", "pearson"] = "spearman",
    output: options.PlotFlags,
    row_flags: RowFlags,
) -> None:
    """Draw scores by layer and readout.

    \b
    Examples:
      sentkit plot sweep layers.jsonl -o sweep.png
      sentkit plot sweep layers.jsonl -o sweep.svg

    Most used: [FILE]... --value -o --width

    The input is reports of "sentkit score --gold" of vectors of single layers, as
    examples/layers.sh makes them: figure 1 of SG-BERT. Each model is one panel, and
    each readout one line with its 95 % intervals. A report without a layer number is a
    horizontal line, for comparison. Undefined correlations are gaps. Several reports of
    one layer and readout are those of several data sets: their mean is drawn.

    Flags:
      --value: Field of the reports to draw.
    """
    from sentkit.plots.reports import sweep

    draw(Console("plot sweep"), output, row_flags, (), lambda inputs: sweep(inputs, value))


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
