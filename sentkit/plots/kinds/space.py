"""Vectors in two dimensions (figures 5 and 6 of SG-BERT): one panel per file."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import natural
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_of, scored
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.clusters import keywords
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import Sample, titles
from sentkit.transforms.fitting import check_width
from sentkit.transforms.kinds import moments_of, principal

MOST_LABELS = 20  # labels with a colour
NUMBERED = 60  # at most so many pairs have a number
PERPLEXITY = 30.0
FEWEST = 3  # vectors
CLOSE = 0.04  # of the width of the picture: the vectors of a pair have one number
ROWS_PER_BLOCK = 1024
CLUSTER, NOISE = "cluster", "-1"  # field of `sentkit cluster`, and its value for rows of no cluster
KEYWORDS = 3  # of a cluster in the legend
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    by: str = "tsne"
    label: str | None = None
    gold: str | None = None
    each: int = 20  # with gold: pairs with the highest and with the lowest score
    most: int = 2000  # rows
    perplexity: float | None = None  # None: PERPLEXITY, or less for few vectors
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the picture."""

    vectors: Float64  # (k, d): k is 1 for a sentence, 2 for a pair
    number: int  # of the row in its file
    label: str
    gold: float
    text: str = ""  # if the colours are clusters


def space(inputs: Inputs, options: SpaceOptions, warn: Warn) -> Picture:
    panels = []
    for path, title in zip(inputs.paths, titles(inputs.paths), strict=True):
        items = read_items(inputs, path, options, warn)
        panels.append(panel_of(path, title, items, options, warn))
    return Picture(tuple(panels), height=1.0)


def checked(block: VectorBlock, options: SpaceOptions, names: Sequence[str]) -> VectorBlock:
    """Set the label, the gold score and the text of each row, one of the fields `names`, as its text."""

    def parse(row: Row) -> tuple[str, float | None, str]:
        gold = 0.0 if options.gold is None else scored(row, options.gold)
        label = "" if options.label is None else class_of(row, options.label)
        texts = (row.values.get(name) for name in names if options.label == CLUSTER)
        return label, gold, next((each for each in texts if isinstance(each, str)), "")

    if block.vectors.shape[1] > 2:
        block.rows.refuse_all("this row is a triplet; plot space draws sentences and pairs")
    if options.gold is not None and block.vectors.shape[1] != 2:
        block.rows.refuse_all("--gold needs pairs, but this row is one sentence")
    block.rows.parse(parse)
    return block


def read_items(inputs: Inputs, path: str, options: SpaceOptions, warn: Warn) -> list[Item]:
    """The rows of a file, or a sample of them; with --gold, the pairs with extreme scores."""
    reader, fields = VectorReader(inputs), fields_of(inputs, path)
    names = [fields.get(name, name) for name in ("text", "entry")]

    def items() -> Iterator[Item]:
        for block in reader.blocks_of(path, lambda block: checked(block, options, names)):
            rows = zip(block.vectors.astype(np.float64), block.rows.numbers, block.rows.texts, strict=True)
            for vectors, number, [(label, gold, text)] in rows:
                if gold is not None:
                    yield Item(vectors, number, label, gold, text)

    if options.gold is not None:
        ends = extremes(items(), options.each, options.seed, labelled=options.label is not None)
        check_width(reader.width or 1, path)
        return ends
    sample: Sample[Item] = Sample(options.most, options.seed)
    for item in items():
        sample.add(item)
    check_width(reader.width or 1, path)
    if sample.seen > len(sample.items):
        warn(f"{readable(path)}: the picture has a random sample of {options.most} of {sample.seen} rows")
    return sample.items


def extremes(items: Iterable[Item], count: int, seed: int, *, labelled: bool) -> list[Item]:
    """The pairs with the highest and with the lowest scores, in the order of the rows.

    Of equal scores, random pairs. Unless they are `labelled`, the label is the range of the scores.
    """
    random = np.random.Generator(np.random.Philox(seed))
    ends: list[list[tuple[float, Item]]] = [[], []]
    for block in blocks(items, ROWS_PER_BLOCK):
        drawn = [(float(random.random()), item) for item in block]
        for place, sign in enumerate((1, -1)):
            key = partial(rank, sign)
            ends[place] = heapq.nlargest(count, ends[place] + drawn, key=key)
    kept: dict[int, Item] = {}
    for end in ends:
        chosen = [item for _, item in end if item.number not in kept]
        if chosen:
            low, high = min(item.gold for item in chosen), max(item.gold for item in chosen)
            name = f"score {low:g}" if low == high else f"score {low:g} to {high:g}"
            kept |= {each.number: each if labelled else replace(each, label=name) for each in chosen}
    return [kept[number] for number in sorted(kept)]


def rank(sign: int, drawn: tuple[float, Item]) -> tuple[float, float]:
    return sign * drawn[1].gold, drawn[0]


def panel_of(path: str, title: str, items: Sequence[Item], options: SpaceOptions, warn: Warn) -> Panel:
    count = sum(len(item.vectors) for item in items)
    if count < FEWEST:
        raise DataError(f"{count} vectors, expected {FEWEST} or more", source=readable(path))
    vectors = np.concatenate([item.vectors for item in items])
    if (vectors == vectors[0]).all():
        raise DataError(f"all {count} vectors are equal, so there is nothing to draw", source=readable(path))
    if options.by == "tsne":
        places, axes = tsne(vectors, path, options), ("", "")
    else:
        places, axes = linear(vectors, centred=options.by == "pca")
    size = len(items[0].vectors)
    places = places.reshape(len(items), size, 2)
    numbered = size > 1 and len(items) <= NUMBERED
    close = np.hypot(*(places[:, -1] - places[:, 0]).T) < CLOSE * np.ptp(places, axis=(0, 1)).max()
    series, names = [], names_of_clusters(items) if options.label == CLUSTER else {}
    for name, chosen in grouped([item.label for item in items], path, warn):
        points = [number for number in chosen for _ in range(size)]  # the number of the item of each point
        fields: dict[str, list[object]] = {"row": [items[number].number for number in points]}
        if options.label is not None:
            fields["label"] = [items[number].label for number in points]
        if size > 1:
            fields |= {"pair": [number + 1 for number in points], "side": ["a", "b"] * len(chosen)}
        both = [("" if close[number] else f"{number + 1}", f"{number + 1}") for number in chosen]
        marks = tuple(mark for pair in both for mark in pair) if numbered else ()
        x, y = places[chosen].reshape(-1, 2).T
        faint = name.startswith(OTHERS)
        series.append(
            Series(names.get(name, name), x, y, marks=marks, joined=size, faint=faint, fields=fields)
        )
    return Panel(Axis("x", axes[0]), Axis("y", axes[1]), tuple(series), title=title, square=True)


def names_of_clusters(items: Sequence[Item]) -> dict[str, str]:
    """The number of each cluster with its best keywords in the texts of the picture; not of noise, -1."""
    labels = sorted({item.label for item in items} - {NOISE}, key=natural)
    texts = ((labels.index(item.label), item.text) for item in items if item.label != NOISE)
    words = keywords(texts, len(labels), KEYWORDS)
    return {name: f"{name}: {' '.join(own)}" for name, own in zip(labels, words, strict=True) if own}


OTHERS = "other labels"


def grouped(labels: Sequence[str], path: str, warn: Warn) -> Iterator[tuple[str, list[int]]]:
    """The rows of each label. Rare labels are one group if there are too many labels for a picture."""
    counts = Counter(labels)
    common = [name for name, _ in counts.most_common(MOST_LABELS - 1 if len(counts) > MOST_LABELS else None)]
    if len(counts) > len(common):
        rest = len(counts) - len(common)
        warn(f"{readable(path)}: {len(counts)} labels: the {rest} rarest ones are drawn as one, in grey")
    for name in sorted(common, key=natural):
        yield name, [number for number, label in enumerate(labels) if label == name]
    if len(counts) > len(common):
        chosen = [number for number, label in enumerate(labels) if label not in set(common)]
        yield f"{OTHERS} ({len(counts) - len(common)})", chosen


def linear(vectors: Float64, *, centred: bool) -> tuple[Float64, tuple[str, str]]:
    """The first two principal components (n, 2), or those of the vectors without subtraction of the mean."""
    moments = moments_of(vectors)
    axes = principal(moments, 2, "drawn", centred=centred).axes
    shifted = vectors - moments.mean if centred else vectors
    places = np.zeros((len(vectors), 2))
    places[:, : axes.shape[1]] = shifted @ axes
    name = "component" if centred else "singular vector"
    return places, (f"{name} 1", f"{name} 2")


def tsne(vectors: Float64, path: str, options: SpaceOptions) -> Float64:
    """t-SNE of scikit-learn, in one thread: the result depends on the order of additions."""
    count, perplexity = len(vectors), options.perplexity
    if perplexity is None:
        perplexity = PERPLEXITY if count > PERPLEXITY else (count - 1) / 3
    if perplexity >= count:
        problem = f"--perplexity {perplexity:g} needs more than {count} vectors"
        raise DataError(problem, source=readable(path))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if vectors.shape[1] == 1:
        vectors = np.pad(vectors, ((0, 0), (0, 1)))  # scikit-learn starts with two components
    method = TSNE(2, perplexity=perplexity, init="pca", random_state=options.seed)
    with threadpool_limits(1):
        places: Float64 = method.fit_transform(vectors.astype(np.float32)).astype(np.float64)
    return places
