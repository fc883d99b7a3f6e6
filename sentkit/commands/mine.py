"""`sentkit mine`: hard negatives for pairs of texts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from sentkit.console import Console, RowProgress, reading
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Named, Range

if TYPE_CHECKING:
    from sentkit.metrics.neighbours.negatives import MiningCounts, MiningOptions

MARGINS = {"relative": 0.95, "absolute": 0.05}  # by default


@dataclass(frozen=True)
class SelectionFlags:
    """The selection of negatives.

    --margin-kind: absolute: less similar than s - X.
    --top K: Maximum number of negatives per pair.
    --skip N: Do not use the N nearest texts below the margin.
    --margin X: A negative is less similar to the anchor than s - (1 - X) |s|, with s of the positive (X times
        s, if s > 0). [default: 0.95; absolute: 0.05]
    """

    top: Annotated[int, Range(min=1)] = 3
    skip: Annotated[int, Range(min=0)] = 0
    margin: float | None = None
    kind: Annotated[Literal["relative", "absolute"], Named("--margin-kind")] = "relative"
    metric: options.Metric = "cosine"

    def options(self) -> "MiningOptions":
        from sentkit.metrics.neighbours.negatives import MiningOptions

        margin = MARGINS[self.kind] if self.margin is None else self.margin
        return MiningOptions(self.top, self.skip, margin, self.kind == "relative", self.metric)


def mine(
    *,
    corpus: str,
    selection: SelectionFlags,
    triplets: bool = False,
    output: options.OutputFlags,
    replace: bool = False,
    row_flags: RowFlags,
    comparing: options.ComparingFlags,
    run: options.RunFlags,
) -> None:
    """Find hard negatives in a corpus for pairs of texts.

    \b
    Examples:
      sentkit encode pairs.jsonl | sentkit mine --corpus titles.safetensors
      sentkit mine a.safetensors --corpus a.safetensors --triplets
      sentkit mine a.safetensors --corpus b.safetensors --skip 5 --margin 0.9

    Most used: [FILE]... --corpus --top --skip --margin --triplets -o

    Rows have the vectors of two texts: "anchor" and "positive", or "text_a" and "text_b",
    which the output calls "anchor" and "positive". The command removes the vectors and
    adds "negatives", the K texts of the corpus with the most similar vectors to the
    anchor, best first; "sentkit train contrast" reads such rows. Other fields are
    unchanged. A row with "negative" or "negatives" is an error without --replace.

    Flags:
      --corpus FILE: Texts with vectors; rows can also be pairs or triplets.
      --triplets: Write a row with "negative" for each negative.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.neighbours.negatives import Candidates, Miner, lines, pair_blocks

    console = run.console("mine")
    mining = selection.options()
    output.check_rows()
    device = comparing.find()
    reads = {"--corpus": corpus}
    with row_flags.open(console, output, known=(*VECTOR_FIELDS, "entry"), reads=reads) as inputs:
        with reading(console, stored := inputs.other(corpus)):
            miner = Miner(Candidates(stored), mining, device)
        console.warn(*miner.candidates.left_out)
        progress = RowProgress(console)
        progress.share = inputs.meter.share
        with output.open() as out:
            for block in pair_blocks(inputs, miner.candidates.table, miner.at_once, replace=replace):
                for pair, negatives in miner.mine(block):
                    out.writelines(lines(pair, negatives, triplets=triplets))
                out.flush()  # the reader of a slow pipe gets each block immediately
                progress.add(len(block))
        progress.done()
    report(miner.counts, mining, console)


def report(counts: "MiningCounts", mining: "MiningOptions", console: Console) -> None:
    unused = f"not used: {counts.own_texts} texts of the pair itself, {counts.above} above the margin"
    console.report(f"{counts.negatives} negatives for {counts.rows} pairs; {unused}")
    if counts.short or counts.without:
        few = {f"fewer than {mining.top} negatives": counts.short, "no negatives": counts.without}
        problem = ", ".join(f"{pairs} pairs have {what}" for what, pairs in few.items() if pairs)
        margin = "a larger --margin" if mining.relative else "a smaller --margin"
        console.warn(f"{problem}; {margin} or a smaller --skip allows more")
