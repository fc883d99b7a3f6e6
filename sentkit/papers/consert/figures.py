"""Figures of ConSERT: `python -m sentkit.papers.consert.figures FIGURE FILE...`; --help
lists them.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, read_checkpoint
from sentkit.formats.checkpoints.reductions import PLAIN
from sentkit.formats.files import text_of_paths
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import TextParser, class_value, score_value, wrong_field
from sentkit.formats.rows.rows import lists_of_size
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.store import common_field_names
from sentkit.formats.vectors.writers import VectorOutput, output_paths
from sentkit.model.checkpoint_reading import Reading, plan_reading
from sentkit.model.groups import tokenized_groups
from sentkit.model.reading import ReadingOptions
from sentkit.model.runs.writing import Encoding
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    UnsupportedArchitecture,
    architecture_of,
    words_name,
)
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.packed import Packed, first_tokens
from sentkit.model.transformer.transformers_model import load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_weights
from sentkit.papers.figure_command import main, mean_with_deviation, rows_of
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import (
    LABELS,
    NO_VALUES,
    Value,
    grouped,
    means_of_sets,
    report_of,
    series_of,
    value_with_interval,
)

NEIGHBOURS = (3, 5, 7)  # nearest tokens of a mean
MOST_TOKENS = 2000  # drawn tokens
DISTANCE = "distance"
DOT = "dot product"
AXES = {
    "norm": "length of the vector",
    DISTANCE: "distance of k nearest",
    DOT: "dot product of k nearest",
}
FREQUENT = 500  # ranks that are all drawn
EDGES = (1, 100, 500, 5000)  # first ranks of the bins
TOKENS_PER_CHUNK = 256  # whose distances are computed at once
ROWS_PER_BLOCK = 1024
LEFT_OUT = re.compile(r"/out(\d+)(?=/|$)")  # in the label of a space
MOST_TICKS = 7  # of a logarithmic axis, if each number is to have one


def words(paths: Sequence[str], *, model: str = "nano") -> Picture:
    """Word vectors by frequency: lengths, distances and dot products of the 3, 5 and 7 nearest
    tokens.

    The rows are texts, as for "sentkit encode". Their tokens, with the special tokens of each text,
    are counted. The line joins the means of the ranks 1 to 99, 100 to 499, 500 to 4999, and above.
    All tokens up to rank 500 and a random sample of the others are drawn, with 3 nearest tokens.
    The JSON has the tokens with rank and count.
    """
    vectors, counts, tokens = count_words(paths, model)

    # The tokens that are drawn.
    indices = np.arange(len(tokens))
    if len(tokens) > MOST_TOKENS:
        random = np.random.Generator(np.random.Philox(0))
        rarer = random.choice(indices[FREQUENT:], MOST_TOKENS - FREQUENT, replace=False)
        indices = np.concatenate([indices[:FREQUENT], np.sort(rarer)])
    fields = {"token": [tokens[index] for index in indices], "count": counts[indices].tolist()}
    ranks = indices.astype(np.float64) + 1

    # A panel for each kind of value, with its points for the fewest neighbours.
    values_by_name = by_neighbours(vectors, indices)
    x_axis = Axis("rank", "rank of the token", log=True)
    panels = []
    for prefix, label in AXES.items():
        names = [name for name in values_by_name if name.startswith(prefix)]
        points = Series("", ranks, values_by_name[names[0]], faint=True, fields=fields)
        lines = [
            means(ranks, values_by_name[name], f"mean{name.removeprefix(prefix)}") for name in names
        ]
        panels.append(Panel(x_axis, Axis(prefix, label), (points, *lines)))
    return Picture(tuple(panels), height=0.95, columns=3)


def word_statistics(paths: Sequence[str], *, model: str = "nano") -> dict[str, list[float]]:
    """The means of all tokens by bin of ranks: the table of section 1."""
    vectors, _, _ = count_words(paths, model)
    indices = np.arange(len(vectors))
    ranks = np.arange(1.0, len(vectors) + 1)
    values_by_name = by_neighbours(vectors, indices)
    return {name: means(ranks, values).y.tolist() for name, values in values_by_name.items()}


def count_words(paths: Sequence[str], model: str) -> tuple[Float32, Indices, list[str]]:
    """The tokens that occur in the texts, from the most frequent one: vectors, counts and names."""
    checkpoint = read_checkpoint(model)
    inputs = rows_of(paths)
    tokenizer = plan_reading(checkpoint, ReadingOptions()).tokenizer
    counts = np.zeros(0, np.int64)
    parser = TextParser(common_field_names(inputs))
    for block in lists_of_size(inputs.read(parser), ROWS_PER_BLOCK):
        texts = [text for texts_of_row in block for text in texts_of_row]
        ids = np.concatenate([text_tokens.ids for text_tokens in tokenizer(texts)])
        block_counts = np.bincount(ids, minlength=len(counts))
        block_counts[: len(counts)] += counts  # it is longer if the block has a higher id
        counts = block_counts
    token_count = np.count_nonzero(counts)
    order = np.argsort(-counts, kind="stable")[:token_count]  # those that do not occur are last
    if token_count < 2:
        raise DataError(
            f"{token_count} different tokens, expected 2 or more", source=text_of_paths(paths)
        )
    table = word_table(checkpoint)
    if order.max() >= len(table):
        problem = f"token {order.max()} of the tokenizer has no vector; the model has {len(table)}"
        raise DataError(problem, source=checkpoint.name)
    token_of_id = {token_id: token for token, token_id in tokenizer.backend.get_vocab().items()}
    return table[order], counts[order], [token_of_id[token_id] for token_id in order.tolist()]


def word_table(checkpoint: Checkpoint) -> Float32:
    """The vectors of the tokens (v, d), before positions are added and the layer norm is
    applied.
    """
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        table = (
            load_transformers_model(checkpoint.transformer_folder)
            .model.get_input_embeddings()
            .weight
        )
    else:
        tensors = canonical(
            read_weights(checkpoint.transformer_folder, checkpoint.name), architecture
        )
        fit(tensors, architecture, source=checkpoint.name)
        table = tensors[words_name(architecture)]
    return table.numpy(force=True).astype(np.float32, copy=False)


def by_neighbours(vectors: Float32, indices: Indices) -> dict[str, Float64]:
    """The length of each of these tokens, and the means over its nearest tokens: distances, dot
    products.
    """
    all_vectors = vectors.astype(np.float64)
    squares = np.vecdot(all_vectors, all_vectors)
    neighbour_counts = sorted({min(k, len(vectors) - 1) for k in NEIGHBOURS})
    distance_means = {k: np.empty(len(indices)) for k in neighbour_counts}
    dot_means = {k: np.empty(len(indices)) for k in neighbour_counts}
    for start in range(0, len(indices), TOKENS_PER_CHUNK):
        chunk = indices[start : start + TOKENS_PER_CHUNK]
        stop = start + len(chunk)
        rows = np.arange(len(chunk))
        dots = all_vectors[chunk] @ all_vectors.T
        squared_distances = squares[chunk, np.newaxis] + squares - 2 * dots

        # The values of the nearest tokens, without the token itself.
        squared_distances[rows, chunk] = np.inf
        dots[rows, chunk] = -np.inf
        nearest = smallest(squared_distances, neighbour_counts[-1])
        highest = -smallest(-dots, neighbour_counts[-1])
        for k in neighbour_counts:
            distances = np.sqrt(np.maximum(nearest[:, :k], 0))  # rounding can give less than 0
            distance_means[k][start:stop] = distances.mean(axis=1)
            dot_means[k][start:stop] = highest[:, :k].mean(axis=1)
    return {
        "norm": np.sqrt(squares[indices]),
        **{f"{DISTANCE}, k = {k}": means_of_k for k, means_of_k in distance_means.items()},
        **{f"{DOT}, k = {k}": means_of_k for k, means_of_k in dot_means.items()},
    }


def smallest(values: Float64, k: int) -> Float64:
    """The k smallest values of each row in ascending order, (n, k)."""
    return np.sort(np.partition(values, k - 1, axis=1)[:, :k], axis=1)


def means(ranks: Float64, values: Float64, name: str = "mean") -> Series:
    """The mean of each bin of ranks, at the geometric centre of the bin."""
    bin_of_token = np.searchsorted(EDGES, ranks, side="right") - 1
    bins = np.unique(bin_of_token)
    last_ranks = [min(edge - 1, ranks.max()) for edge in (*EDGES[1:], np.inf)]
    centres = [np.sqrt(EDGES[number] * last_ranks[number]) for number in bins]
    bin_means = [values[bin_of_token == number].mean() for number in bins]
    return Series(name, np.array(centres), np.array(bin_means), "line")


class WithoutTokens(TransformerEncoder):
    """An encoder of fp32 that reads all tokens of a text, but its readouts leave some out.

    A text of only such tokens keeps all of them. The space depends on the tokens.
    """

    def __init__(self, checkpoint: Checkpoint, reading: Reading, tokens: str) -> None:
        fitting = [name for name, plain in PLAIN.items() if plain.partial]
        for readout in reading.readouts:
            if any(joined.reduction not in fitting for joined in readout.joined_readouts):
                problem = f'leave_out cannot be used with the readout "{readout.name}"'
                raise UsageError(problem, advice=f"it needs {', '.join(fitting)}, of any layer")
        self.left_out = read_tokens(tokens, reading.tokenizer)
        super().__init__(checkpoint, reading, device="auto", precision="fp32")
        suffix = f"/out{len(self.left_out)}"
        step_hash = digest(["left out", self.left_out])
        # The origin of the vectors of each readout.
        self.spaces = [space.after_step(suffix, step_hash) for space in self.spaces]

    def read_of(self, packed: Packed) -> Packed:
        ids = packed.ids.numpy(force=True)
        starts = first_tokens(packed.lengths)
        token_index = np.arange(len(ids)) - np.repeat(starts, packed.lengths)  # in its text
        is_text = token_index >= packed.prompt_length  # not of a prompt
        is_read = is_text & ~np.isin(ids, self.left_out)
        is_empty = np.add.reduceat(is_read, starts, dtype=np.int64) == 0  # for each text
        return replace(
            packed, is_read=np.where(np.repeat(is_empty, packed.lengths), is_text, is_read)
        )


def read_tokens(path: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of the tokens in a file: one per line, or rows with "token" as `words` writes
    them.
    """

    def id_in_row(row: Row) -> int:
        token = row.values.get("token" if "token" in row.values else "text")
        if not isinstance(token, str):
            raise wrong_field(row, "token", "a string")
        token_id = tokenizer.backend.token_to_id(token)
        if token_id is None:
            raise row.error(f'"{token}" is not a token of the model')
        return token_id

    ids = rows_of([path]).read(id_in_row)
    return sorted(set(ids))


def encode_without(
    path: str,
    tokens: str | None,
    *,
    model: str = "nano",
    readout: str = "mean-last2",
    output: str = "-",
    force: bool = False,
) -> None:
    """Write rows with vectors for figure 4, as `encode` does in fp32, without the tokens in
    a file.
    """
    checkpoint = read_checkpoint(model)
    reading = plan_reading(checkpoint, ReadingOptions(readout=readout))
    if tokens is None:
        encoder = TransformerEncoder(checkpoint, reading, device="auto", precision="fp32")
    else:
        encoder = WithoutTokens(checkpoint, reading, tokens)
    inputs = rows_of([path])
    parser = TextParser({})
    groups = tokenized_groups(inputs.blocks(parser), reading.tokenizer, inputs.rejects)
    form = VectorOutput(force=force, replace=True)
    encoding = Encoding(encoder, reading.tokenizer, parser, form)
    names = [readout.name for readout in reading.readouts]
    paths = output_paths(output, names, form, force=force)
    encoding.to_outputs(groups, paths, lambda rows, tokens: None, inputs.rejects)


def masking(paths: Sequence[str], *, value: str = "spearman") -> Picture:
    """Figure 4: scores by the number of tokens that the mean leaves out, one line for each encoder.

    The rows are reports of "sentkit score --gold" for vectors of `encode_without`. Several
    reports of one encoder and number are those of several data sets: their mean is drawn.
    """

    def score(row: Row) -> tuple[tuple[str, int], Value] | None:
        report = report_of(row, value)
        if report is None:
            return None
        label, score_with_interval = report
        match = LEFT_OUT.search(label)
        left_out_count = int(match[1]) if match else 0
        return (LEFT_OUT.sub("", label), left_out_count), score_with_interval

    scores = [report for report in rows_of(paths).read(score) if report is not None]
    if not any(count for (_, count), _ in scores):
        advice = "encode_without in sentkit.papers.consert.figures leaves tokens out"
        raise DataError("no report has left out tokens", source=text_of_paths(paths), advice=advice)
    means = means_of_sets(grouped(scores), lambda key: f"{key[0]} without {key[1]} tokens")
    series = []
    for encoder in dict.fromkeys(encoder for encoder, _ in means):
        counts = sorted(count for name, count in means if name == encoder)
        series.append(series_of(encoder, {count: means[encoder, count] for count in counts}))
    x_axis = Axis("left_out", "tokens left out", whole=True)
    y_axis = Axis(value, LABELS.get(value, value))
    return Picture((Panel(x_axis, y_axis, tuple(series)),), height=0.7)


def scale(
    paths: Sequence[str], *, x: str, value: str, name: str = "", log: bool = False
) -> Picture:
    """Table 4 and figures 6 and 7: scores by a number, such as the batch size.

    The rows are those of a table with the fields --x and --value, as a sweep of train prints it.
    --name is the field with the name of a line. A band shows the interval or the standard deviation
    if the table has a field such as test_ci95 or test_sd for test. If several rows have one number,
    their mean is drawn, with the standard deviation. Rows without a number, or with "-", are left
    out.
    """

    def point(row: Row) -> tuple[str, tuple[float, Value]] | None:
        if row.values.get(x) in NO_VALUES:
            return None
        number = score_value(row, x)
        if number is None:  # only spaces
            return None
        if log and number <= 0:
            raise row.error(f'"{x}" is {number:g}, but --log needs numbers above 0')
        line = class_value(row, name) if name else ""
        return line, (number, value_with_interval(row, value))

    points = [row_point for row_point in rows_of(paths).read(point) if row_point is not None]
    if not points:
        raise DataError(f'no row has a number in "{x}"', source=text_of_paths(paths))
    series = []
    for line, line_points in grouped(points).items():
        values_by_number = grouped(sorted(line_points, key=itemgetter(0)))
        means = {number: mean_with_deviation(values) for number, values in values_by_number.items()}
        series.append(series_of(line, means))
    ticks: tuple[float, ...] = ()
    if log:
        numbers = sorted({number for _, (number, _) in points})
        if len(numbers) <= MOST_TICKS:
            ticks = tuple(numbers)
    x_axis = Axis(x, x, log=log, ticks=ticks)
    y_axis = Axis(value, LABELS.get(value, value))
    return Picture((Panel(x_axis, y_axis, tuple(series)),), height=0.7)


def views(paths: Sequence[str], *, value: str = "test") -> Picture:
    """Figure 5: the score of each pair of views; a row has the first view, a column the second.

    The rows are those of a table with the fields view_a, view_b and --value, as a sweep of train
    prints it. If several rows have one pair, their mean is drawn. White is the lowest score, black
    the highest.
    """

    def score(row: Row) -> tuple[tuple[str, str], Value]:
        views_of_row = (class_value(row, "view_a"), class_value(row, "view_b"))
        return views_of_row, value_with_interval(row, value)

    cells = {
        views_of_rows: mean_with_deviation(values).value
        for views_of_rows, values in grouped(rows_of(paths).read(score)).items()
    }
    if not cells:
        raise DataError("no rows", source=text_of_paths(paths))
    first_views = tuple(dict.fromkeys(first for first, _ in cells))
    second_views = tuple(dict.fromkeys(second for _, second in cells))
    scores = np.array(
        [[cells.get((first, second), np.nan) for second in second_views] for first in first_views]
    )
    if np.isnan(scores).all():
        raise DataError(f'no row has a number in "{value}"', source=text_of_paths(paths))
    grid = Grid(
        value,
        scores,
        x=np.arange(len(second_views), dtype=np.float64),
        y=np.arange(len(first_views), dtype=np.float64),
        low=float(np.nanmin(scores)),
        high=float(np.nanmax(scores)),
        shown=True,
    )
    x_axis = Axis("view_b", "second view", names=second_views)
    y_axis = Axis("view_a", "first view", names=first_views)
    panel = Panel(x_axis, y_axis, grid=grid, note=LABELS.get(value, value), downward=True)
    return Picture((panel,), height=0.7)


if __name__ == "__main__":
    main(__name__)
