"""Figures of ConSERT: `python -m sentkit.papers.consert.figures FIGURE FILE...`; --help lists them."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, read_checkpoint
from sentkit.formats.checkpoints.readout import PLAIN
from sentkit.formats.files import together
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import TextParser, class_of, scored, wrong_field
from sentkit.formats.rows.rows import blocks
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.writers import VectorOutput, output_paths
from sentkit.model.checkpoint_reading import Reading, plan_reading
from sentkit.model.encoding import tokenized_groups
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import UnsupportedArchitecture, architecture_of, words_name
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.packed import Packed, first_tokens
from sentkit.model.transformer.transformers_model import load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_weights
from sentkit.model.writing import Encoding
from sentkit.papers.figure_command import main, merged, rows_of
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import (
    LABELS,
    MISSING,
    Value,
    by_name,
    means_of_sets,
    report_of,
    series_of,
    value_of,
)

NEIGHBOURS, MOST = (3, 5, 7), 2000  # nearest tokens of a mean; drawn tokens
DISTANCE, DOT = "distance", "dot product"
AXES = {
    "norm": "length of the vector",
    DISTANCE: "distance of k nearest",
    DOT: "dot product of k nearest",
}
FREQUENT = 500  # ranks that are all drawn
EDGES = (1, 100, 500, 5000)  # first ranks of the bins
AT_ONCE, ROWS_PER_BLOCK = 256, 1024  # tokens whose distances are computed at once; rows
LEFT_OUT = re.compile(r"/out(\d+)(?=/|$)")  # in the label of a space
FEW = 7  # at most so many numbers are ticks of a logarithmic axis


def words(paths: Sequence[str], *, model: str = "nano") -> Picture:
    """Word vectors by frequency: lengths, distances and dot products of the 3, 5 and 7 nearest tokens.

    The rows are texts, as for "sentkit encode". Their tokens, with the special tokens of each text, are
    counted. The line joins the means of the ranks 1 to 99, 100 to 499, 500 to 4999, and above. All tokens up
    to rank 500 and a random sample of the others are drawn, with 3 nearest tokens. The JSON has the tokens
    with rank and count.
    """
    vectors, counts, names = count_words(paths, model)
    places = np.arange(len(names))
    if len(names) > MOST:
        random = np.random.Generator(np.random.Philox(0))
        rest = random.choice(places[FREQUENT:], MOST - FREQUENT, replace=False)
        places = np.concatenate([places[:FREQUENT], np.sort(rest)])
    fields = {"token": [names[place] for place in places], "count": counts[places].tolist()}
    ranks = places.astype(np.float64) + 1
    values = by_neighbours(vectors, places)
    panels = []
    for name, label in AXES.items():
        own = {key: each for key, each in values.items() if key.startswith(name)}
        points = Series("", ranks, next(iter(own.values())), faint=True, fields=fields)
        lines = [means(ranks, each, f"mean{key.removeprefix(name)}") for key, each in own.items()]
        x = Axis("rank", "rank of the token", log=True)
        panels.append(Panel(x, Axis(name, label), (points, *lines)))
    return Picture(tuple(panels), height=0.95, columns=3)


def word_statistics(paths: Sequence[str], *, model: str = "nano") -> dict[str, list[float]]:
    """The means of all tokens by bin of ranks: the table of section 1."""
    vectors, _, names = count_words(paths, model)
    ranks = np.arange(1.0, len(names) + 1)
    values = by_neighbours(vectors, np.arange(len(names)))
    return {name: means(ranks, each).y.tolist() for name, each in values.items()}


def count_words(paths: Sequence[str], model: str) -> tuple[Float32, Indices, list[str]]:
    """The tokens that occur in the texts, from the most frequent one: vectors, counts and names."""
    checkpoint, inputs = read_checkpoint(model), rows_of(paths)
    tokenizer = plan_reading(checkpoint, ReadingOptions()).tokenizer
    counts = np.zeros(0, np.int64)
    for block in blocks(inputs.read(TextParser(common_fields(inputs))), ROWS_PER_BLOCK):
        tokens = tokenizer([text for _, texts in block for text in texts])
        own = np.bincount(np.concatenate([each.ids for each in tokens]), minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    if len(order) < 2:
        raise DataError(f"{len(order)} different tokens, expected 2 or more", source=together(paths))
    table = word_table(checkpoint)
    if order.max() >= len(table):
        problem = f"token {order.max()} of the tokenizer has no vector; the model has {len(table)}"
        raise DataError(problem, source=checkpoint.name)
    names = {number: token for token, number in tokenizer.backend.get_vocab().items()}
    return table[order], counts[order], [names[number] for number in order.tolist()]


def word_table(checkpoint: Checkpoint) -> Float32:
    """The vectors of the tokens (v, d), before positions are added and the layer norm is applied."""
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        table = load_transformers_model(checkpoint.transformer).model.get_input_embeddings().weight
    else:
        tensors = canonical(read_weights(checkpoint.transformer, checkpoint.name), architecture)
        fit(tensors, architecture, source=checkpoint.name)
        table = tensors[words_name(architecture)]
    return table.numpy(force=True).astype(np.float32, copy=False)


def by_neighbours(vectors: Float32, places: Indices) -> dict[str, Float64]:
    """The length of each of these tokens, and the means over its nearest tokens: distances, dot products."""
    wide = vectors.astype(np.float64)
    squares = np.vecdot(wide, wide)
    counts = sorted({min(count, len(vectors) - 1) for count in NEIGHBOURS})
    values = {f"{name}, k = {count}": np.empty(len(places)) for name in (DISTANCE, DOT) for count in counts}
    for start in range(0, len(places), AT_ONCE):
        own = places[start : start + AT_ONCE]
        rows, part = np.arange(len(own)), slice(start, start + len(own))
        dots = wide[own] @ wide.T
        apart = squares[own, np.newaxis] + squares - 2 * dots
        apart[rows, own], dots[rows, own] = np.inf, -np.inf  # not the token itself
        near = np.sort(np.partition(apart, counts[-1] - 1, axis=1)[:, : counts[-1]], axis=1)
        high = np.sort(np.partition(-dots, counts[-1] - 1, axis=1)[:, : counts[-1]], axis=1)
        for count in counts:
            values[f"{DISTANCE}, k = {count}"][part] = np.sqrt(np.maximum(near[:, :count], 0)).mean(axis=1)
            values[f"{DOT}, k = {count}"][part] = -high[:, :count].mean(axis=1)
    return {"norm": np.sqrt(squares[places]), **values}


def means(ranks: Float64, values: Float64, name: str = "mean") -> Series:
    """The mean of each bin of ranks, at the geometric centre of the bin."""
    bins = np.searchsorted(EDGES, ranks, side="right") - 1
    present = np.unique(bins)
    last = [min(edge - 1, ranks.max()) for edge in (*EDGES[1:], np.inf)]
    centres = np.array([np.sqrt(EDGES[each] * last[each]) for each in present])
    return Series(name, centres, np.array([values[bins == each].mean() for each in present]), "line")


class WithoutTokens(TransformerEncoder):
    """An encoder of fp32 that reads all tokens of a text, but its readouts leave some out.

    A text of only such tokens keeps all of them. The space depends on the tokens.
    """

    def __init__(self, checkpoint: Checkpoint, reading: Reading, tokens: str) -> None:
        fitting = [name for name, plain in PLAIN.items() if plain.partial]
        for readout in reading.readouts:
            if any(part.reduction not in fitting for part in readout.parts):
                problem = f'leave_out cannot be used with the readout "{readout.name}"'
                raise UsageError(problem, advice=f"it needs {', '.join(fitting)}, of any layer")
        self.left_out = read_tokens(tokens, reading.tokenizer)
        super().__init__(checkpoint, reading, device="auto", precision="fp32")
        step = f"/out{len(self.left_out)}", digest(["left out", self.left_out])
        self.specs = [spec.after(*step) for spec in self.specs]

    def read_of(self, packed: Packed) -> Packed:
        ids, starts = packed.ids.numpy(force=True), first_tokens(packed.lengths)
        own = np.arange(len(ids)) - np.repeat(starts, packed.lengths) >= packed.skip
        read = own & ~np.isin(ids, self.left_out)
        empty = np.add.reduceat(read, starts, dtype=np.int64) == 0
        return replace(packed, read=np.where(np.repeat(empty, packed.lengths), own, read))


def read_tokens(path: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of the tokens in a file: one per line, or rows with "token" as `words` writes them."""

    def token_id(row: Row) -> int:
        token = row.values.get("token" if "token" in row.values else "text")
        if not isinstance(token, str):
            raise wrong_field(row, "token", "a string")
        number = tokenizer.backend.token_to_id(token)
        if number is None:
            raise row.error(f'"{token}" is not a token of the model')
        return number

    return sorted({*rows_of([path]).read(token_id)})


def encode_without(
    path: str, tokens: str | None, *, model: str = "nano", readout: str = "mean-last2", output: str = "-"
) -> None:
    """Write rows with vectors for figure 4, as `encode` does in fp32, without the tokens in a file."""
    checkpoint = read_checkpoint(model)
    reading = plan_reading(checkpoint, ReadingOptions(readout=readout))
    if tokens is None:
        encoder = TransformerEncoder(checkpoint, reading, device="auto", precision="fp32")
    else:
        encoder = WithoutTokens(checkpoint, reading, tokens)
    inputs, texts = rows_of([path]), TextParser({})
    groups = tokenized_groups(inputs.blocks(texts), reading.tokenizer, inputs.rejects)
    form = VectorOutput(force=True, replace=True)
    encoding = Encoding(encoder, reading.tokenizer, texts, form)
    paths = output_paths(output, [each.name for each in reading.readouts], form, force=True)
    encoding.to_outputs(groups, paths, lambda rows, tokens: None, inputs.rejects)


def masking(paths: Sequence[str], *, value: str = "spearman") -> Picture:
    """Figure 4: scores by the number of tokens that the mean leaves out, one line for each encoder.

    The rows are reports of "sentkit score --gold" for vectors of `encode_without`. Several
    reports of one encoder and number are those of several data sets: their mean is drawn.
    """

    def score(row: Row) -> tuple[tuple[str, int], Value] | None:
        if (report := report_of(row, value)) is None:
            return None
        found = LEFT_OUT.search(report[0])
        return (LEFT_OUT.sub("", report[0]), int(found[1]) if found else 0), report[1]

    scores = [each for each in rows_of(paths).read(score) if each is not None]
    if not any(count for (_, count), _ in scores):
        advice = "encode_without in sentkit.papers.consert.figures leaves tokens out"
        raise DataError("no report has left out tokens", source=together(paths), advice=advice)
    means = means_of_sets(by_name(scores), lambda key: f"{key[0]} without {key[1]} tokens")
    series = []
    for encoder in dict.fromkeys(encoder for encoder, _ in means):
        own = {count: each for (name, count), each in means.items() if name == encoder}
        series.append(series_of(encoder, {count: own[count] for count in sorted(own)}))
    axes = Axis("left_out", "tokens left out", whole=True), Axis(value, LABELS.get(value, value))
    return Picture((Panel(*axes, tuple(series)),), height=0.7)


def scale(paths: Sequence[str], *, x: str, value: str, name: str = "", log: bool = False) -> Picture:
    """Table 4 and figures 6 and 7: scores by a number, such as the batch size.

    The rows are those of a table with the fields --x and --value, as a sweep of train prints it. --name is
    the field with the name of a line. A band shows the standard deviation if the table has a field such as
    test_sd for test, or if several rows have one number: their mean is drawn. Rows with "-" as number are
    left out.
    """

    def point(row: Row) -> tuple[str, tuple[float, Value]] | None:
        number = None if row.values.get(x) in MISSING else scored(row, x)
        if number is None:
            return None
        if log and number <= 0:
            raise row.error(f'"{x}" is {number:g}, but --log needs numbers above 0')
        return class_of(row, name) if name else "", (number, value_of(row, value))

    points = [each for each in rows_of(paths).read(point) if each is not None]
    if not points:
        raise DataError(f'no row has a number in "{x}"', source=together(paths))
    series = []
    for line, own in by_name(points).items():
        groups = by_name(sorted(own, key=lambda each: each[0]))
        series.append(series_of(line, {number: merged(each) for number, each in groups.items()}))
    numbers = sorted({number for _, (number, _) in points})
    x_axis = Axis(x, x, log=log, ticks=tuple(numbers) if log and len(numbers) <= FEW else ())
    return Picture((Panel(x_axis, Axis(value, LABELS.get(value, value)), tuple(series)),), height=0.7)


def views(paths: Sequence[str], *, value: str = "test") -> Picture:
    """Figure 5: the score of each pair of views; a row has the first view, a column the second.

    The rows are those of a table with the fields view_a, view_b and --value, as a sweep of train prints it.
    White is the lowest score, black the highest.
    """

    def cell(row: Row) -> tuple[tuple[str, str], float]:
        return (class_of(row, "view_a"), class_of(row, "view_b")), value_of(row, value).value

    cells = dict(rows_of(paths).read(cell))
    if not cells:
        raise DataError("no rows", source=together(paths))
    first, second = (tuple(dict.fromkeys(pair[side] for pair in cells)) for side in (0, 1))
    values = np.array([[cells.get((one, other), np.nan) for other in second] for one in first])
    x, y = np.arange(len(second), dtype=np.float64), np.arange(len(first), dtype=np.float64)
    if np.isnan(values).all():
        raise DataError(f'no row has a number in "{value}"', source=together(paths))
    grid = Grid(value, values, x, y, float(np.nanmin(values)), float(np.nanmax(values)), shown=True)
    axes = Axis("view_b", "second view", names=second), Axis("view_a", "first view", names=first)
    return Picture((Panel(*axes, grid=grid, note=LABELS.get(value, value), downward=True),), height=0.7)


if __name__ == "__main__":
    main(words, masking, scale, views)
