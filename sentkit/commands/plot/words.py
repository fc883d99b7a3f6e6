"""`sentkit plot words`: word vectors by the frequency of their tokens."""

from typing import TYPE_CHECKING, Annotated

import typer

from sentkit.console import RowProgress, slow
from sentkit.errors import DataError
from sentkit.flags import options
from sentkit.flags.plots import PlotFlags
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.formats.checkpoints.folders import Checkpoint
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots.kinds.words import Words

ROWS_PER_BLOCK = 1024


def words(
    *,
    model: options.Model = "nano",
    neighbours: Annotated[
        int, typer.Option("-k", "--neighbours", min=1, metavar="K", help="Nearest tokens of a distance.")
    ] = 3,
    sample: Annotated[int, typer.Option(min=3, metavar="N", help="Maximum number of tokens.")] = 2000,
    seed: options.Seed = 0,
    output: PlotFlags,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Draw the word vectors of a model by the frequency of their tokens.

    \b
    Examples:
      sentkit plot words titles.txt -o words.svg
      sentkit plot words pairs.jsonl -m CHECKPOINT --json

    Most used: [FILE]... -m --sample -o --width

    The rows are texts, as for "sentkit encode". Their tokens, with the special tokens
    of each text, are counted. The picture has two panels: the lengths of the word
    vectors, and their mean distance to the K nearest of all counted tokens, as in the
    table of BERT-flow and ConSERT. The line joins the means of the ranks 1 to 99, 100
    to 499, 500 to 4999, and above. All tokens up to rank 500 and a random sample of the
    others are drawn. The word vectors are those before positions and layer norm.

    In the JSON, the tokens have their text, rank and count.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.plots.kinds import words as kind

    console = run.console("plot words")
    output.check()
    checkpoint = read_checkpoint(model)
    word_options = kind.WordOptions(neighbours, sample, seed)
    with row_flags.open(console, output, known=FIELDS, reads={"-m": options.model_paths(model)}) as inputs:
        found = count_words(checkpoint, inputs, RowProgress(console))
        with slow(console, "computing the distances"):
            picture = kind.words(found, word_options)
    output.write(picture, console)


def count_words(checkpoint: "Checkpoint", inputs: "Inputs", progress: RowProgress) -> "Words":
    """Count the tokens of all texts, and return those that occur with their vectors."""
    import numpy as np

    from sentkit.formats.files import together
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import blocks
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.checkpoint.word_table import word_table
    from sentkit.model.reading import ReadingOptions, plan_reading
    from sentkit.plots.kinds.words import Words

    tokenizer, progress.share = plan_reading(checkpoint, ReadingOptions()).tokenizer, inputs.meter.share
    counts = np.zeros(0, np.int64)
    for block in blocks(inputs.read(TextParser(common_fields(inputs))), ROWS_PER_BLOCK):
        tokens = tokenizer([text for _, texts in block for text in texts])
        own = np.bincount(np.concatenate([each.ids for each in tokens]), minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
        progress.add(len(block), sum(len(each.ids) for each in tokens))
    progress.done()
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    if len(order) < 2:
        problem = f"{len(order)} different tokens, expected 2 or more"
        raise DataError(problem, source=together(inputs.paths))
    names = {number: token for token, number in tokenizer.backend.get_vocab().items()}
    table = word_table(checkpoint)
    if order.max() >= len(table):
        problem = f"token {order.max()} of the tokenizer has no vector; the model has {len(table)}"
        raise DataError(problem, source=checkpoint.name)
    return Words(table[order], counts[order], [names[number] for number in order.tolist()])
