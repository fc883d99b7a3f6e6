"""`sentkit mine`: hard negatives for pairs of texts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sentkit.console import Console, RowProgress, reading
from sentkit.errors import DataError
from sentkit.flags import options
from sentkit.flags.comparing import check_device_of_metric, find_device
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths

if TYPE_CHECKING:
    from sentkit.metrics.neighbours.negatives import Miner


def mine(
    *,
    corpus: Annotated[
        str,
        Option(
            "--corpus",
            metavar="FILE",
            help="Texts with vectors; rows can also be pairs or triplets.",
        ),
    ],
    top: Annotated[
        int,
        Option("--top", metavar="K", min=1, help="Maximum number of negatives per pair."),
    ] = 3,
    skip: Annotated[
        int,
        Option(
            "--skip", metavar="N", min=0, help="Do not use the N nearest texts below the margin."
        ),
    ] = 0,
    margin: Annotated[
        float,
        Option(
            "--margin",
            metavar="X",
            help="A negative is less similar to the anchor than s - (1 - X) |s|, with s of the "
            "positive (X times s, if s > 0); a negative X: than s + X.",
        ),
    ] = 0.95,
    judge: Annotated[
        str | None,
        Option(
            "--judge",
            metavar="CROSSENCODER",
            help="Drop candidates whose score with the anchor is above the margin of that of the "
            "positive.",
        ),
    ] = None,
    metric: options.Metric = "cosine",
    triplets: Annotated[
        bool,
        Option("--triplets", help='Write a row with "negative" for each negative.'),
    ] = False,
    output_path: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    device: options.ComparingDevice = "cpu",
    console: Console,
) -> None:
    """Find hard negatives in a corpus for pairs of texts."""
    check_device_of_metric(device, metric)
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.negatives import Candidates, Miner, lines, pair_blocks

    output = Output(output_path, force)
    output.check_rows()
    comparing_device = find_device(device)
    scores_of_judge = None
    if judge is not None:
        scores_of_judge = open_judge(judge, device)
    rows = RowSource(input_paths(files), field, rejects)
    field_names = (*VECTOR_FIELDS, "entry")
    reads = {"--corpus": corpus, "--judge": model_paths(judge)}
    with rows.open(console, output, field_names=field_names, reads=reads) as inputs:
        # The corpus, all of it before the first pair.
        corpus_inputs = inputs.with_paths(corpus)
        with reading(console, corpus_inputs):
            miner = Miner(
                candidates=Candidates(corpus_inputs),
                top=top,
                skip=skip,
                margin=margin,
                metric=metric,
                judge=scores_of_judge,
                device=comparing_device,
            )
        console.warn(*miner.candidates.left_out)

        # The pairs, as many at once as the miner compares.
        progress = RowProgress(console, inputs=inputs)
        with output.open() as file:
            for block in pair_blocks(
                inputs, miner.candidates.table, miner.at_once, replace=replace
            ):
                for pair, negatives in miner.mine(block):
                    file.writelines(lines(pair, negatives, as_triplets=triplets))
                file.flush()  # the reader of a slow pipe gets each block immediately
                progress.add(len(block))
    report_counts(miner, console)


def open_judge(judge: str, device: str) -> Callable[..., Any]:
    """The function that scores pairs of texts. It chooses its device if the CPU compares
    vectors.
    """
    from sentkit.model.checkpoint_model import ClassifierModel

    if device == "cpu":
        device = "auto"
    reranker = ClassifierModel(judge, device, "auto")
    classes = reranker.answers.classes
    if classes:
        problem = f"a classifier of {len(classes)} classes; a judge has one output, a score"
        raise DataError(problem, source=judge)
    return reranker.scorer()


def report_counts(miner: "Miner", console: Console) -> None:
    unused = f"{miner.texts_of_pairs} texts of the pair itself, {miner.above} above the margin"
    if miner.judge is not None:
        unused += f", {miner.judged} above it for the judge"
    console.report(f"{miner.negatives} negatives for {miner.rows} pairs; not used: {unused}")

    if miner.with_zero:
        problem = "have an anchor with a zero vector, as empty texts do, and get no negatives"
        if miner.metric == "cosine":
            problem = "have a zero vector, as empty texts do, so --margin has no meaning for them"
        console.warn(f"{miner.with_zero} of {miner.rows} pairs {problem}")
    problems = list[str]()
    if miner.short:
        problems.append(f"{miner.short} pairs have fewer than {miner.top} negatives")
    if miner.without:
        problems.append(f"{miner.without} pairs have no negatives")
    if problems:
        flags = list[str]()  # that have removed candidates
        if miner.above or miner.judged:
            flags.append("a larger --margin")
        if miner.skip and len(miner.candidates.vectors):
            flags.append("a smaller --skip")
        advice = f"; {' or '.join(flags)} allows more" if flags else ""
        console.warn(f"{', '.join(problems)}{advice}")
