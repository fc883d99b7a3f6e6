"""Vectors in two dimensions, and similarities of all sentences or of pairs over their gold scores."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import natural
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_of, scored
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.store import common_fields, fields_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.clusters import keywords
from sentkit.metrics.gold_pairs import GoldPairs, ScoreOptions, read_gold_pairs
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.pairs import matrix
from sentkit.metrics.statistics import spearman
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles
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
MOST_SENTENCES = 100  # sentences
WITH_NUMBERS = 8  # at most so many sentences have numbers in the cells
FEW = 500  # at most so many pairs are drawn as points
CELLS = 40  # of the density, on each axis
Limits = tuple[tuple[float, float], tuple[float, float]]  # of the gold scores and of the similarities
BANDS = 10  # of gold scores, for the medians
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
    """Figures 5 and 6 of SG-BERT: one panel per file."""
    panels = []
    for path, title in zip(inputs.paths, titles(inputs.paths), strict=True):
        items = read_items(inputs, path, options, warn)
        panels.append(panel_of(path, title, items, options, warn))
    return Picture(tuple(panels), height=1.0)


def read_items(inputs: Inputs, path: str, options: SpaceOptions, warn: Warn) -> list[Item]:
    """The rows of a file, or a sample of them; with --gold, the pairs with extreme scores."""
    reader, fields = VectorReader(inputs), fields_of(inputs, path)
    names = [fields.get(name, name) for name in ("text", "entry")]

    def parse(row: Row) -> tuple[str, float | None, str]:
        """The label, the gold score and the text."""
        gold = 0.0 if options.gold is None else scored(row, options.gold)
        label = "" if options.label is None else class_of(row, options.label)
        texts = (row.values.get(name) for name in names if options.label == CLUSTER)
        return label, gold, next((each for each in texts if isinstance(each, str)), "")

    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] > 2:
            block.rows.refuse_all("this row is a triplet; plot space draws sentences and pairs")
        if options.gold is not None and block.vectors.shape[1] != 2:
            block.rows.refuse_all("--gold needs pairs, but this row is one sentence")
        block.rows.parse(parse)
        return block

    def items() -> Iterator[Item]:
        for block in reader.blocks(check, paths=[path]):
            rows = zip(block.vectors.astype(np.float64), block.rows.numbers, block.rows.texts, strict=True)
            for vectors, number, [(label, gold, text)] in rows:
                yield from [Item(vectors, number, label, gold, text)] if gold is not None else []

    if options.gold is not None:
        found = extremes(items(), options.each, options.seed, labelled=options.label is not None)
    else:
        found, rows = sampled(items(), options.most, options.seed)
        if rows > len(found):
            warn(f"{readable(path)}: the picture has a random sample of {options.most} of {rows} rows")
    check_width(reader.width or 1, path)
    return found


T = TypeVar("T")


def sampled(items: Iterable[T], most: int, seed: int) -> tuple[list[T], int]:
    """A uniform random sample of so many items (algorithm R), in their order, and the number of all items."""
    random, seen, kept = np.random.Generator(np.random.Philox(seed)), 0, list[tuple[int, T]]()
    for seen, item in enumerate(items, start=1):
        if seen <= most:
            kept.append((seen, item))
        elif (place := int(random.integers(0, seen))) < most:
            kept[place] = seen, item
    return [item for _, item in sorted(kept, key=itemgetter(0))], seen


def extremes(items: Iterable[Item], count: int, seed: int, *, labelled: bool) -> list[Item]:
    """The pairs with the highest and the lowest scores, in their order; of equal scores, random pairs."""
    random = np.random.Generator(np.random.Philox(seed))
    ends: list[list[tuple[float, float, Item]]] = [[], []]  # score, random number
    for block in blocks(items, ROWS_PER_BLOCK):
        drawn = [(float(random.random()), item) for item in block]
        for place, sign in enumerate((1, -1)):
            best = [(sign * item.gold, draw, item) for draw, item in drawn]
            ends[place] = heapq.nlargest(count, ends[place] + best, key=itemgetter(0, 1))
    kept: dict[int, Item] = {}
    for end in ends:
        chosen = [item for *_, item in end if item.number not in kept]
        if chosen:
            low, high = min(item.gold for item in chosen), max(item.gold for item in chosen)
            name = f"score {low:g}" if low == high else f"score {low:g} to {high:g}"
            kept |= {each.number: each if labelled else replace(each, label=name) for each in chosen}
    return [kept[number] for number in sorted(kept)]


def panel_of(path: str, title: str, items: Sequence[Item], options: SpaceOptions, warn: Warn) -> Panel:
    count = sum(len(item.vectors) for item in items)
    vectors = np.concatenate([item.vectors for item in items]) if items else np.empty((0, 1))
    if count < FEWEST or (vectors == vectors[0]).all():
        problem = f"{count} vectors, expected {FEWEST} or more that are not all equal"
        raise DataError(problem, source=readable(path))
    if options.by == "tsne":
        places, axes = tsne(vectors, path, options), ("", "")
    else:
        places, axes = linear(vectors, centred=options.by == "pca")
    size = len(items[0].vectors)
    places = places.reshape(len(items), size, 2)
    numbered = size > 1 and len(items) <= NUMBERED
    close = np.hypot(*(places[:, -1] - places[:, 0]).T) < CLOSE * np.ptp(places, axis=(0, 1)).max()
    series, names = [], dict[str, str]()
    if options.label == CLUSTER:  # the best keywords of each cluster in the texts of the picture
        labels = sorted({item.label for item in items} - {NOISE}, key=natural)
        texts = ((labels.index(item.label), item.text) for item in items if item.label != NOISE)
        words = keywords(texts, len(labels), KEYWORDS)
        names = {name: f"{name}: {' '.join(own)}" for name, own in zip(labels, words, strict=True) if own}
    for name, chosen in grouped([item.label for item in items], path, warn):
        points = [number for number in chosen for _ in range(size)]  # the number of the item of each point
        fields: dict[str, list[object]] = {"row": [items[number].number for number in points]}
        if options.label is not None:
            fields["label"] = [items[number].label for number in points]
        if size > 1:
            fields |= {"pair": [number + 1 for number in points], "side": ["a", "b"] * len(chosen)}
        both = [("" if close[number] else f"{number + 1}", f"{number + 1}") for number in chosen]
        look: Any = {"marks": tuple(chain.from_iterable(both)) if numbered else (), "joined": size}
        x, y = places[chosen].reshape(-1, 2).T
        faint = name.startswith(OTHERS)
        series.append(Series(names.get(name, name), x, y, faint=faint, fields=fields, **look))
    return Panel(Axis("x", axes[0]), Axis("y", axes[1]), tuple(series), title=title, square=True)


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


def heat(inputs: Inputs, metric: str) -> Picture:
    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] != 1:
            block.rows.refuse_all("this row has several vectors; plot heat draws sentences")
        return block

    blocks = list(VectorReader(inputs).blocks(check, MOST_SENTENCES + 1))
    if sum(map(len, blocks)) > MOST_SENTENCES:
        source = readable(blocks[-1].rows.sources[-1])
        advice = f"draw a part: sentkit cat FILE --head {MOST_SENTENCES}"
        raise DataError(f"more than {MOST_SENTENCES} sentences", source=source, advice=advice)
    fields = common_fields(inputs)
    lines = list(matrix(blocks, metric=metric))
    names = tuple(
        next((str(row.values[name]) for name in naming_field(row, fields).values()), f"row {row.number}")
        for row, _ in lines
    )
    values = np.array([similarities for _, similarities in lines], np.float64)
    places = np.arange(len(lines), dtype=np.float64)
    low = min(0.0, float(values.min()))
    high = 1.0 if metric == "cosine" else float(values.max())
    numbered = len(lines) <= WITH_NUMBERS
    grid = Grid("similarity", values, places + 1, places, low, high, shown=numbered, label=metric)
    x = Axis("column", "row", whole=True, ticks=tuple(places + 1) if numbered else ())
    y = Axis("text", "", names=names)
    panel = Panel(x, y, grid=grid, note=metric if numbered else "", downward=True)
    if numbered:
        return Picture((panel,), height=0.4)
    return Picture((panel,), height=0.65, is_wide=True)


def pairs(inputs: Inputs, gold: str, metric: str) -> Picture:
    """Figure 1 of ConSERT: one panel per file."""
    options = ScoreOptions(gold, metric=metric)
    files = [read_gold_pairs(inputs, path, options, paired=False) for path in inputs.paths]
    # Equal in all panels.
    limits = widened([each.gold for each in files]), widened([each.similarities for each in files])
    x, y, panels = Axis("gold", "gold score", *limits[0]), Axis("similarity", metric, *limits[1]), []
    for each, title in zip(files, titles(inputs.paths), strict=True):
        correlation = 100 * spearman(each.similarities, each.gold)
        shown = "undefined" if np.isnan(correlation) else f"Spearman {correlation:.1f}"
        many = len(each) > FEW
        drawn = median_line(each) if many else Series("", each.gold, each.similarities)
        grid = density(each, limits) if many else None
        panels.append(Panel(x, y, (drawn,), grid, title, f"{shown}, n = {len(each)}"))
    return Picture(tuple(panels), height=0.9)


def widened(columns: list[Float64]) -> tuple[float, float]:
    """The range of the values, with a small margin."""
    low, high = min(float(each.min()) for each in columns), max(float(each.max()) for each in columns)
    margin = 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def density(pairs: GoldPairs, limits: Limits) -> Grid:
    """The number of pairs in each cell."""
    edges = [np.linspace(low, high, CELLS + 1) for low, high in limits]
    counts, _, _ = np.histogram2d(pairs.gold, pairs.similarities, bins=edges)
    counts = counts.T
    centres = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    shown = np.where(counts > 0, counts, np.nan)
    return Grid("count", shown, centres[0], centres[1], 0.0, float(counts.max()), log=True, label="pairs")


def median_line(pairs: GoldPairs) -> Series:
    """The median similarity and the quartiles of each band of gold scores."""
    edges = np.linspace(pairs.gold.min(), pairs.gold.max(), BANDS + 1)
    bands = np.clip(np.searchsorted(edges, pairs.gold, side="right") - 1, 0, BANDS - 1)
    parts = [pairs.similarities[bands == band] for band in range(BANDS)]
    quartiles = np.array([np.percentile(p, (25, 50, 75)) if len(p) else [np.nan] * 3 for p in parts]).T
    return Series("median", (edges[1:] + edges[:-1]) / 2, quartiles[1], "line", quartiles[::2])
