"""`sentkit mine`: hard negatives for pairs of texts."""

from typing import TYPE_CHECKING, Annotated

from sentkit.console import Console, RowProgress, reading
from sentkit.errors import DataError
from sentkit.flags import Range, options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.metrics.neighbours.negatives import Miner


def mine(
    *,
    corpus: str,
    top: Annotated[int, Range(min=1)] = 3,
    skip: Annotated[int, Range(min=0)] = 0,
    margin: float = 0.95,
    judge: str | None = None,
    metric: options.Metric = "cosine",
    triplets: bool = False,
    output: options.OutputFlags,
    replace: bool = False,
    row_flags: RowFlags,
    comparing: options.ComparingFlags,
    console: Console,
) -> None:
    """Find hard negatives in a corpus for pairs of texts.

    Flags:
      --corpus FILE: Texts with vectors; rows can also be pairs or triplets.
      --top K: Maximum number of negatives per pair.
      --skip N: Do not use the N nearest texts below the margin.
      --margin X: A negative is less similar to the anchor than s - (1 - X) |s|, with s of the positive (X
          times s, if s > 0); a negative X: than s + X.
      --judge CROSSENCODER: Drop candidates whose score with the anchor is above the margin of that of the
          positive.
      --triplets: Write a row with "negative" for each negative.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.negatives import Candidates, Miner, lines, pair_blocks

    output.check_rows()
    device, scores = comparing.find(), None
    if judge is not None:  # without a device that compares vectors, it chooses one
        from sentkit.model.checkpoint_model import ClassifierModel

        own = "auto" if comparing.device == "cpu" else comparing.device
        reranker = ClassifierModel(judge, own, "auto")
        if classes := reranker.answers.classes:
            problem = f"a classifier of {len(classes)} classes; a judge has one output, a score"
            raise DataError(problem, source=judge)
        scores = reranker.scorer()
    reads = {"--corpus": corpus, "--judge": options.model_paths(judge) if judge else None}
    with row_flags.open(console, output, known=(*VECTOR_FIELDS, "entry"), reads=reads) as inputs:
        with reading(console, stored := inputs.other(corpus)):
            miner = Miner(
                candidates=Candidates(stored),
                top=top,
                skip=skip,
                margin=margin,
                metric=metric,
                judge=scores,
                device=device,
            )
        console.warn(*miner.candidates.left_out)
        progress = RowProgress(console, inputs=inputs)
        with output.open() as out:
            for block in pair_blocks(inputs, miner.candidates.table, miner.at_once, replace=replace):
                for pair, negatives in miner.mine(block):
                    out.writelines(lines(pair, negatives, triplets=triplets))
                out.flush()  # the reader of a slow pipe gets each block immediately
                progress.add(len(block))
    report(miner, console)


def report(miner: "Miner", console: Console) -> None:
    unused = f"not used: {miner.own_texts} texts of the pair itself, {miner.above} above the margin"
    unused += f", {miner.judged} above it for the judge" if miner.judge else ""
    console.report(f"{miner.negatives} negatives for {miner.rows} pairs; {unused}")
    if miner.short or miner.without:
        few = {f"fewer than {miner.top} negatives": miner.short, "no negatives": miner.without}
        problem = ", ".join(f"{pairs} pairs have {what}" for what, pairs in few.items() if pairs)
        console.warn(f"{problem}; a larger --margin or a smaller --skip allows more")
