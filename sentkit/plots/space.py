"""Vectors in two dimensions: by t-SNE, principal components or singular vectors."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeVar

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import natural
from sentkit.errors import DataError
from sentkit.formats.files import shown_path
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_value, score_value
from sentkit.formats.rows.rows import Inputs, lists_of_size
from sentkit.formats.vectors.store import field_names_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.clusters import keywords
from sentkit.metrics.zero_vectors import ZeroVectorCounter
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import titles
from sentkit.transforms.fitting import check_width
from sentkit.transforms.kinds import moments_of, principal

MOST_LABELS = 20  # labels with a colour
MOST_NUMBERED = 60  # pairs with numbers; of more, none has one
PERPLEXITY = 30.0
LARGEST_EXPONENT = 20  # of the largest number of vectors that t-SNE gets as they are
FEWEST_VECTORS = 3
CLOSE = 0.04  # of the width of the picture: the vectors of a pair have one number
ROWS_PER_BLOCK = 1024
CLUSTER = "cluster"  # the field of `sentkit cluster`,
NOISE = "-1"  # and its value for rows of no cluster
KEYWORDS = 3  # of a cluster in the legend
RARE_LABELS = "other labels"
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    by: str = "tsne"
    label: str | None = None
    has_clusters: bool = False  # the label is the field of `sentkit cluster`
    gold: str | None = None
    extreme_count: int = 20  # with gold: pairs with the highest and with the lowest score
    sample_size: int = 2000  # rows
    perplexity: float | None = None  # None: PERPLEXITY, or less for few vectors
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the picture."""

    vectors: Float64  # (k, d): k is 1 for a sentence, 2 for a pair
    number: int  # of the row in its file
    label: str
    gold: float  # 0 without --gold
    text: str = ""  # if the colours are clusters


def space(inputs: Inputs, options: SpaceOptions, warn: Warn) -> Picture:
    """Figures 5 and 6 of SG-BERT: one panel per file."""
    panels = []
    for path, title in zip(inputs.paths, titles(inputs.paths), strict=True):
        items = read_items(inputs, path, options, warn)
        panels.append(draw_items(path, title, items, options, warn))
        zero_vectors = ZeroVectorCounter("rows")
        zero_vectors.add(np.array([item.vectors for item in items], np.float32))
        zero_vectors.warn(inputs, path)
    return Picture(tuple(panels), height=1.0)


def read_items(inputs: Inputs, path: str, options: SpaceOptions, warn: Warn) -> list[Item]:
    """The rows of a file, or a sample of them; with --gold, the pairs with extreme scores."""
    reader = VectorReader(inputs)
    items = items_of(reader, inputs, path, options)
    if options.gold is None:
        chosen, row_count = sampled(items, options.sample_size, options.seed)
        if row_count > len(chosen):
            warn(
                f"{shown_path(path)}: the picture has a random sample of {options.sample_size} of"
                f" {row_count} rows"
            )
    else:
        has_labels = options.label is not None
        chosen = extremes(items, options.extreme_count, options.seed, has_labels=has_labels)
    check_width(reader.width or 1, path)
    return chosen


def items_of(
    reader: VectorReader, inputs: Inputs, path: str, options: SpaceOptions
) -> Iterator[Item]:
    """The rows of a file; with --gold, those that have a score."""
    fields = field_names_of(inputs, path)  # standard name -> name in the rows
    text_fields = [fields.get(name, name) for name in ("text", "entry")]

    def parse(row: Row) -> tuple[str, float | None, str]:
        """The label, the gold score and the text."""
        gold: float | None = 0.0  # without --gold
        if options.gold is not None:
            gold = score_value(row, options.gold)  # None: the row is left out
        label = ""
        if options.label is not None:
            label = class_value(row, options.label)
        if options.has_clusters:
            for name in text_fields:
                text = row.values.get(name)
                if isinstance(text, str):
                    return label, gold, text
        return label, gold, ""

    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] > 2:
            block.rows.refuse_all("this row is a triplet; plot space draws sentences and pairs")
        if options.gold is not None and block.vectors.shape[1] != 2:
            block.rows.refuse_all("--gold needs pairs, but this row is one sentence")
        block.rows.parse(parse)
        return block

    for block in reader.blocks(check, paths=[path]):
        rows = zip(
            block.vectors.astype(np.float64), block.rows.numbers, block.rows.parsed, strict=True
        )
        for vectors, number, (label, gold, text) in rows:
            if gold is not None:
                yield Item(vectors, number, label, gold, text)


T = TypeVar("T")


def sampled(items: Iterable[T], size: int, seed: int) -> tuple[list[T], int]:
    """A uniform random sample of so many items (algorithm R), in their order, and the number of all
    items.
    """
    random = np.random.Generator(np.random.Philox(seed))
    sample: list[tuple[int, T]] = []
    count = 0
    for count, item in enumerate(items, start=1):
        if count <= size:
            sample.append((count, item))
        else:
            index = int(random.integers(0, count))
            if index < size:
                sample[index] = (count, item)
    sample.sort(key=itemgetter(0))
    return [item for _, item in sample], count


def extremes(items: Iterable[Item], count: int, seed: int, *, has_labels: bool) -> list[Item]:
    """The pairs with the highest and the lowest scores, in their order; of equal scores, random
    pairs.

    Without labels, the scores of each of the two groups become its label.
    """
    random = np.random.Generator(np.random.Philox(seed))
    highest: list[tuple[float, float, Item]] = []  # score, random number
    lowest: list[tuple[float, float, Item]] = []  # negative score, random number
    for block in lists_of_size(items, ROWS_PER_BLOCK):
        draws = [float(random.random()) for _ in block]
        highest += [(item.gold, draw, item) for draw, item in zip(draws, block, strict=True)]
        highest = heapq.nlargest(count, highest, key=itemgetter(0, 1))
        lowest += [(-item.gold, draw, item) for draw, item in zip(draws, block, strict=True)]
        lowest = heapq.nlargest(count, lowest, key=itemgetter(0, 1))

    items_by_number: dict[int, Item] = {}
    for ranking in (highest, lowest):
        # Of few pairs, some have a high and a low score at once.
        group = [item for _, _, item in ranking if item.number not in items_by_number]
        if not has_labels:
            group = with_scores_as_label(group)
        items_by_number |= {item.number: item for item in group}
    return [items_by_number[number] for number in sorted(items_by_number)]


def with_scores_as_label(items: Sequence[Item]) -> list[Item]:
    if not items:
        return []
    low = min(item.gold for item in items)
    high = max(item.gold for item in items)
    label = f"score {low:g}"
    if high > low:
        label += f" to {high:g}"
    return [replace(item, label=label) for item in items]


def draw_items(
    path: str, title: str, items: Sequence[Item], options: SpaceOptions, warn: Warn
) -> Panel:
    """The panel of a file: a series of points for each label."""
    points, axis_labels = project(path, items, options)
    name_of_label = {}  # in the legend, if it differs
    if options.has_clusters:
        name_of_label = cluster_names(items)

    # Numbers at the vectors of few pairs: at the second only, if both are close to each other.
    side_count = points.shape[1]  # vectors of an item: 1, or 2 of a pair
    marks: list[tuple[str, ...]] = [()] * len(items)
    if side_count > 1 and len(items) <= MOST_NUMBERED:
        distances = np.hypot(*(points[:, -1] - points[:, 0]).T)
        picture_width = np.ptp(points, axis=(0, 1)).max()
        is_close = distances < CLOSE * picture_width
        marks = [
            ("" if is_close[index] else f"{index + 1}", f"{index + 1}")
            for index in range(len(items))
        ]

    series = []
    for label, indices in group_by_label([item.label for item in items], path, warn):
        item_of_point = [index for index in indices for _ in range(side_count)]
        fields: dict[str, list[object]] = {"row": [items[index].number for index in item_of_point]}
        if options.label is not None:
            fields["label"] = [items[index].label for index in item_of_point]
        if side_count > 1:
            fields["pair"] = [index + 1 for index in item_of_point]
            fields["side"] = ["a", "b"] * len(indices)
        x, y = points[indices].reshape(-1, 2).T
        series.append(
            Series(
                name_of_label.get(label, label),
                x,
                y,
                marks=tuple(mark for index in indices for mark in marks[index]),
                joined=side_count,
                faint=label.startswith(RARE_LABELS),
                fields=fields,
            )
        )
    x_axis = Axis("x", axis_labels[0])
    y_axis = Axis("y", axis_labels[1])
    return Panel(x_axis, y_axis, tuple(series), title=title, has_equal_units=True)


def project(
    path: str, items: Sequence[Item], options: SpaceOptions
) -> tuple[Float64, tuple[str, str]]:
    """The points of the vectors, (items, vectors of an item, 2), and the labels of the axes."""
    no_vectors = np.empty((0, 1))  # if there are no items
    vectors = np.concatenate([item.vectors for item in items] or [no_vectors])
    if len(vectors) < FEWEST_VECTORS or (vectors == vectors[0]).all():
        count = "1 vector" if len(vectors) == 1 else f"{len(vectors)} vectors"
        problem = f"{count}, expected {FEWEST_VECTORS} or more that are not all equal"
        raise DataError(problem, source=shown_path(path))
    if options.by == "tsne":
        points = tsne(vectors, path, options)
        axis_labels = ("", "")  # the numbers of t-SNE have no meaning
    else:
        points, axis_labels = linear(vectors, centred=options.by == "pca")
    return points.reshape(len(items), -1, 2), axis_labels


def cluster_names(items: Sequence[Item]) -> dict[str, str]:
    """The number of each cluster, with its best keywords in the texts of the picture."""
    labels = sorted({item.label for item in items} - {NOISE}, key=natural)
    texts = ((labels.index(item.label), item.text) for item in items if item.label != NOISE)
    words_of_labels = keywords(texts, len(labels), KEYWORDS)
    return {
        label: f"{label}: {' '.join(words)}"
        for label, words in zip(labels, words_of_labels, strict=True)
        if words
    }


def group_by_label(labels: Sequence[str], path: str, warn: Warn) -> Iterator[tuple[str, list[int]]]:
    """The rows of each label. Rare labels are one group if there are too many labels for a
    picture.
    """
    counts = Counter(labels)
    common = [*counts]
    if len(counts) > MOST_LABELS:
        common = [label for label, _ in counts.most_common(MOST_LABELS - 1)]
    rare_count = len(counts) - len(common)
    if rare_count:
        warn(
            f"{shown_path(path)}: {len(counts)} labels: the {rare_count} rarest ones are drawn as "
            f"one, in grey"
        )
    for name in sorted(common, key=natural):
        yield name, [index for index, label in enumerate(labels) if label == name]
    if rare_count:
        yield (
            f"{RARE_LABELS} ({rare_count})",
            [index for index, label in enumerate(labels) if label not in common],
        )


def linear(vectors: Float64, *, centred: bool) -> tuple[Float64, tuple[str, str]]:
    """The first two principal components (n, 2), or those of the vectors without subtraction of the
    mean.
    """
    moments = moments_of(vectors)
    # (d, 2), or (d, 1) if all vectors are on a line
    directions, _, _ = principal(moments, 2, "drawn", centred=centred)
    name = "singular vector"
    if centred:
        name = "component"
        vectors = vectors - moments.mean
    points = np.zeros((len(vectors), 2))
    points[:, : directions.shape[1]] = vectors @ directions
    return points, (f"{name} 1", f"{name} 2")


def tsne(vectors: Float64, path: str, options: SpaceOptions) -> Float64:
    """t-SNE of scikit-learn, in one thread: the result depends on the order of additions."""
    count = len(vectors)
    perplexity = options.perplexity
    # scikit-learn uses the 3 x perplexity + 1 nearest vectors, but at most all others. Few vectors
    # get the perplexity for which these are all others. Below 1, some points would be equal.
    if perplexity is None:
        perplexity = PERPLEXITY if count > PERPLEXITY else max(1.0, (count - 1) / 3)
    if perplexity >= count:
        problem = f"--perplexity {perplexity:g} needs more than {count} vectors"
        raise DataError(problem, source=shown_path(path))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # The picture does not depend on the scale, but scikit-learn finds no perplexity for extreme
    # distances, and too large ones end the process. A power of two changes no digits.
    _, exponent = np.frexp(np.abs(vectors).max())
    if abs(exponent) > LARGEST_EXPONENT:
        vectors = np.ldexp(vectors, -exponent)
    if vectors.shape[1] == 1:
        vectors = np.pad(vectors, ((0, 0), (0, 1)))  # scikit-learn starts with two components
    method = TSNE(2, perplexity=perplexity, init="pca", random_state=options.seed)
    with threadpool_limits(1):
        # scikit-learn keeps distances and points as float32, whatever it gets.
        points = method.fit_transform(vectors.astype(np.float32))
    result: Float64 = points.astype(np.float64)
    return result
