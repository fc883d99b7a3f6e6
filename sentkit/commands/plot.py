"""Draw pictures of vectors, reports and logs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sentkit.console import Console, slow
from sentkit.flags import options
from sentkit.flags.outputs import PictureOutput
from sentkit.flags.rows import FieldNames, RowSource, input_paths
from sentkit.flags.rules import needs, refuse_together

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots.picture import Picture

PAIRS_OF_EACH_EXTREME = 20
SAMPLE_SIZE = 2000


def space(
    *,
    by: Annotated[
        Literal["tsne", "pca", "svd"],
        Option(
            "--by", help="t-SNE, the first two principal components, or the same without centering."
        ),
    ] = "tsne",
    label: Annotated[
        str | None,
        Option("--label", metavar="NAME", help="Field that determines the colour."),
    ] = None,
    gold: Annotated[
        str | None,
        Option(
            "--gold",
            metavar="NAME",
            help="For pairs: draw those with the extreme scores in this field.",
        ),
    ] = None,
    pairs_of_each_extreme: Annotated[
        int | None,
        Option(
            "--each", metavar="N", min=1, help="With --gold: pairs of each extreme. [default: 20]"
        ),
    ] = None,
    sample: Annotated[
        int | None,
        Option("--sample", metavar="N", min=3, help="Maximum number of rows. [default: 2000]"),
    ] = None,
    perplexity: Annotated[
        float | None,
        Option(
            "--perplexity",
            metavar="X",
            min=1,
            help="Of t-SNE. [default: 30, or a third of up to 30 vectors]",
        ),
    ] = None,
    seed: Annotated[
        int, Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Random seed.")
    ] = 0,
    output_path: options.Picture = "-",
    force: options.Force = False,
    width: options.Width = None,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Draw vectors in two dimensions."""
    needs({"--each": pairs_of_each_extreme}, {"--gold": gold})
    refuse_together({"--sample": sample}, {"--gold": gold}, ", which draws --each pairs")
    needs({"--perplexity": perplexity}, {"--by tsne": by == "tsne"})
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots.space import CLUSTER, SpaceOptions, space

    rows = RowSource(input_paths(files), field, rejects)
    space_options = SpaceOptions(
        by=by,
        label=rows.name_in_input(label),
        has_clusters=label == CLUSTER,
        gold=rows.name_in_input(gold),
        extreme_count=pairs_of_each_extreme or PAIRS_OF_EACH_EXTREME,
        sample_size=sample or SAMPLE_SIZE,
        perplexity=perplexity,
        seed=seed,
    )
    draw(
        lambda inputs: space(inputs, space_options, console.warn),
        rows,
        (*VECTOR_FIELDS, label, gold),
        PictureOutput(output_path, force, width),
        console,
    )


def pairs(
    *,
    gold: Annotated[
        str,
        Option("--gold", metavar="NAME", help="Field with the gold score."),
    ],
    metric: options.Metric = "cosine",
    output_path: options.Picture = "-",
    force: options.Force = False,
    width: options.Width = None,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Draw the similarities of pairs over their gold scores."""
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots import similarities

    rows = RowSource(input_paths(files), field, rejects)
    draw(
        lambda inputs: similarities.pairs(inputs, rows.name_in_input(gold), metric),
        rows,
        (*VECTOR_FIELDS, gold),
        PictureOutput(output_path, force, width),
        console,
    )


def heat(
    *,
    metric: options.Metric = "cosine",
    output_path: options.Picture = "-",
    force: options.Force = False,
    width: options.Width = None,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Draw the similarities of all sentences."""
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.plots import similarities

    draw(
        lambda inputs: similarities.heat(inputs, metric),
        RowSource(input_paths(files), field, rejects),
        VECTOR_FIELDS,
        PictureOutput(output_path, force, width),
        console,
    )


def curve(
    *,
    panels: Annotated[
        list[str] | None,
        Option(
            "--show",
            metavar="NAME",
            help="A panel: loss, a term of it, lr, norm or dev; repeatable. [default: all but "
            "norm]",
        ),
    ] = None,
    points: Annotated[
        int,
        Option("--points", metavar="N", min=2, help="Maximum number of points of a line."),
    ] = 100,
    output_path: options.Picture = "-",
    force: options.Force = False,
    width: options.Width = None,
    rejects: options.Rejects = None,
    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILE]...",
            help="Folders of sentkit train, or their steps.jsonl. [default: standard input, also "
            "'-']",
        ),
    ] = None,
    console: Console,
) -> None:
    """Draw the loss, the learning rate and the dev scores of training runs."""
    from sentkit.plots import reports

    logs = [log for path in input_paths(files) for log in reports.logs_of(path)]
    draw(
        lambda inputs: reports.curve(inputs, list(dict.fromkeys(panels or [])), points),
        RowSource(logs, rejects=rejects),
        (),
        PictureOutput(output_path, force, width),
        console,
    )


def sweep(
    *,
    value: Annotated[
        Literal["spearman", "pearson"],
        Option("--value", help="Field of the reports to draw."),
    ] = "spearman",
    output_path: options.Picture = "-",
    force: options.Force = False,
    width: options.Width = None,
    rejects: options.Rejects = None,
    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILE]...",
            help="Reports of sentkit score --gold. [default: standard input, also '-']",
        ),
    ] = None,
    console: Console,
) -> None:
    """Draw scores by layer and readout."""
    from sentkit.plots import reports

    draw(
        lambda inputs: reports.sweep(inputs, value),
        RowSource(input_paths(files), rejects=rejects),
        (),
        PictureOutput(output_path, force, width),
        console,
    )


def draw(
    picture_of: "Callable[[Inputs], Picture]",
    rows: RowSource,
    field_names: FieldNames,
    output: PictureOutput,
    console: Console,
) -> None:
    """Write the picture of the rows. `field_names` are the names that --field can map."""
    output.check()
    with (
        rows.open(console, output, field_names=field_names) as inputs,
        slow(console, "reading the rows"),
    ):
        picture = picture_of(inputs)
    output.write(picture, console)
