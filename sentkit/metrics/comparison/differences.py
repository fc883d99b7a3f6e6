"""How two encodings of the same rows differ: row by row, and in their neighbours. The widths may
differ.

Letters in shapes: d and e dimensions of both sides, s sampled rows, k neighbours, p pairs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError
from sentkit.formats.files import shown_path
from sentkit.formats.vectors.vectors import in_blocks_of_size
from sentkit.metrics.comparison.matches import (
    VECTORS_PER_BLOCK,
    Matches,
    Record,
    Sides,
    SidesOfModel,
    joined_matches,
)
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.similarity import SIMILARITIES, SMALLEST_NORM, exact_similarities, lengths
from sentkit.metrics.statistics import spearman

PAIRS = 100_000  # sampled pairs of sampled rows
LOWEST_SHARE = 0.01  # of the percentile
OVERFLOW = "half precision gives such vectors if it overflows; use bf16 or fp32"
TIE = 1e-6  # two similarities that differ less are a tie


class Lowest:
    """The rows of a stream with the lowest keys; of equal keys, the first rows."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.limit = math.inf  # rows with this key or a higher one are not among the lowest
        self.keys = list[Float64]()  # of each block
        self.blocks = list[Matches]()

    def add(self, keys: Float64, matches: Matches) -> None:
        chosen = np.flatnonzero(keys < self.limit)
        self.keys.append(keys[chosen])
        self.blocks.append(matches[chosen])
        if sum(map(len, self.keys)) > 2 * self.size:
            lowest_keys, lowest = self.result()
            self.keys = [lowest_keys]
            self.blocks = [lowest]
            self.limit = lowest_keys.max(initial=-math.inf)

    def result(self) -> tuple[Float64, Matches]:
        """The keys and the rows, in the order of the stream."""
        keys = np.concatenate(self.keys)
        lowest = np.sort(np.argsort(keys, kind="stable")[: self.size])
        return keys[lowest], joined_matches(self.blocks)[lowest]


class RowByRow:
    """The differences of vectors of one width; in memory are a cosine and a ratio of lengths for
    each.
    """

    def __init__(self, worst: int) -> None:
        """`worst` is the number of the rows that differ most, which stay in memory."""
        self.worst = Lowest(worst)
        self.equal = 0
        self.largest = 0.0  # difference of two numbers
        self.cosines = list[Float64]()
        # length of B by that of A; NaN of a zero and another vector
        self.ratios = list[Float64]()

    def add(self, matches: Matches) -> None:
        is_equal = (matches.a.view(np.uint32) == matches.b.view(np.uint32)).all(axis=1)
        cosines = SIMILARITIES["cosine"](matches.a, matches.b)
        cosines = np.where(is_equal, 1.0, cosines)  # that of two zeros is 0
        lengths_a = np.maximum(lengths(matches.a), SMALLEST_NORM)
        lengths_b = np.maximum(lengths(matches.b), SMALLEST_NORM)
        # The ratio of two zeros is 1, and that of a zero and another vector is undefined.
        has_ratio = (lengths_a > SMALLEST_NORM) == (lengths_b > SMALLEST_NORM)
        differences = np.abs(matches.a.astype(np.float64) - matches.b)
        different = np.flatnonzero(~is_equal)
        self.cosines.append(cosines)
        self.ratios.append(np.where(has_ratio, lengths_b / lengths_a, np.nan))
        self.equal += int(is_equal.sum())
        self.largest = max(self.largest, float(differences.max()))
        self.worst.add(cosines[different], matches[different])

    def record(self) -> Record:
        cosines = np.concatenate(self.cosines)
        ratios = np.concatenate(self.ratios)
        ratios = ratios[~np.isnan(ratios)]
        norm_ratio: Record = dict.fromkeys(("lowest", "mean", "highest"))
        if len(ratios):
            norm_ratio["lowest"] = float(ratios.min())
            norm_ratio["mean"] = float(ratios.mean())
            norm_ratio["highest"] = float(ratios.max())
        # The first percentile, of distances: float32 has more digits near 0 than near 1.
        distances = (1.0 - cosines).astype(np.float32)
        rank = len(distances) - max(1, math.ceil(LOWEST_SHARE * len(distances)))
        percentile = 1.0 - float(np.partition(distances, rank)[rank])
        return {
            "equal": self.equal,
            "cosine": {
                "lowest": float(cosines.min()),
                "p1": percentile,
                "mean": float(cosines.mean()),
            },
            "largest_difference": self.largest,
            "norm_ratio": norm_ratio,
        }


class RepeatCounter:
    """Counts the vectors of both sides that occur more than once; in memory are two hashes for
    each row.
    """

    def __init__(self) -> None:
        self.hashes_a = [np.empty(0, np.uint64)]  # of each block
        self.hashes_b = [np.empty(0, np.uint64)]

    def add(self, matches: Matches) -> None:
        self.hashes_a.append(hashes(matches.a))
        self.hashes_b.append(hashes(matches.b))

    def counts(self) -> tuple[int, int]:
        """The number of vectors of A, and of B, that are equal to another one of this side."""
        return repeated(np.concatenate(self.hashes_a)), repeated(np.concatenate(self.hashes_b))


def hashes(vectors: Float32) -> NDArray[np.uint64]:
    """A hash of the bits of each vector, (n, d) -> (n,)."""
    random = np.random.Generator(np.random.Philox(2))
    factors = random.integers(0, 2**64, vectors.shape[1], np.uint64)
    sums: NDArray[np.uint64] = vectors.view(np.uint32).astype(np.uint64) @ factors  # modulo 2**64
    return sums


def repeated(values: NDArray[np.uint64]) -> int:
    """The number of values that occur more than once."""
    _, counts = np.unique(values, return_counts=True)
    return int(counts[counts > 1].sum())


def neighbours(vectors: Float32, top: int) -> tuple[Indices, Float64]:
    """The `top` other rows closest to each row, best first, with their cosines, (s, k)."""
    # Of equal rows, the first ones are the nearest: the others would only be candidates.
    candidates = first_copies(vectors, top + 1)
    searcher = Searcher(vectors[candidates])
    rows = list[Indices]()
    cosines = list[Float64]()
    size = searcher.queries_at_once(top + 1)
    for start in range(0, len(vectors), size):
        nearest_candidates, similarities = searcher.nearest(vectors[start : start + size], top + 1)
        nearest = candidates[nearest_candidates]
        is_itself = nearest == np.arange(start, start + len(nearest))[:, None]
        is_itself[~is_itself.any(axis=1), -1] = True  # equal rows are in front of the row itself
        rows.append(nearest[~is_itself].reshape(-1, top))
        cosines.append(similarities[~is_itself].reshape(-1, top))
    return np.concatenate(rows), np.concatenate(cosines)


def first_copies(vectors: Float32, count: int) -> Indices:
    """The rows that are among the first `count` rows with their vector, in order."""
    _, group_of_row = np.unique(hashes(vectors), return_inverse=True)
    by_group = np.argsort(group_of_row, kind="stable")
    groups = group_of_row[by_group]
    first_of_group = np.searchsorted(groups, groups)
    copies_before = np.arange(len(vectors)) - first_of_group
    return np.sort(by_group[copies_before < count])


def overlaps(a: Float32, b: Float32, top: int) -> Float64:
    """The share of common neighbours of each row, (s,).

    A neighbour on one side is common if it is at least as close as the last neighbour on the other
    side, so ties do not count as differences. The smaller share of both sides decides.
    """
    rows_a, cosines_a = neighbours(a, top)
    rows_b, cosines_b = neighbours(b, top)
    rows = np.repeat(np.arange(len(a)), top)
    # In one space, the cosines of the neighbours of the other space.
    of_b_in_a = exact_similarities("cosine", a, a, (rows, rows_b.ravel())).reshape(rows_b.shape)
    of_a_in_b = exact_similarities("cosine", b, b, (rows, rows_a.ravel())).reshape(rows_a.shape)
    shares_of_b = (of_b_in_a >= cosines_a[:, -1:] - TIE).mean(axis=1)
    shares_of_a = (of_a_in_b >= cosines_b[:, -1:] - TIE).mean(axis=1)
    return np.minimum(shares_of_b, shares_of_a)


@dataclass(frozen=True, slots=True)
class Difference:
    record: Record
    sample: Matches  # random rows
    examples: Matches  # rows that differ most, and random ones in equal number
    rows: int  # vectors of A with a match
    repeated_a: int  # vectors of A that are equal to that of another row; 0 without examples
    repeated_b: int
    cosines: Float64 | None = None  # of each vector, if both sides have one width
    ratios: Float64 | None = None  # of their lengths, B by A


def difference(
    sides: Sides, key: str | None, *, top: int, sample: int, worst: int, examples: int = 0
) -> Difference:
    """The report, and `examples`, vectors: half of them differ most, and the others are random.

    "worst" in the report has the rows with the lowest cosine, or else with the lowest overlap.
    """
    # One pass: a random sample, and the differences row by row if both sides have one width.
    random = np.random.Generator(np.random.Philox(0))
    lowest_draws = Lowest(sample)
    row_by_row: RowByRow | None = None
    repeats = RepeatCounter()
    count = 0
    for block in in_blocks_of_size(sides.matches(key), joined_matches, VECTORS_PER_BLOCK):
        if block.a.shape == block.b.shape:
            if row_by_row is None:
                row_by_row = RowByRow(max(worst, examples // 2))
            row_by_row.add(block)
        if examples:
            repeats.add(block)
        lowest_draws.add(random.random(len(block)), block)
        count += len(block)
    if not count:
        raise error_of_no_vectors(sides)
    _, sampled = lowest_draws.result()
    shares, sample_fields = sample_record(sampled, top)

    # The rows that differ, most different first: by their cosine, or by their overlap.
    if row_by_row is not None:
        measure = "cosine"
        values, different = row_by_row.worst.result()
    else:
        measure = "neighbours"
        not_shared = np.flatnonzero(shares < 1.0)
        values = shares[not_shared]
        different = sampled[not_shared]
    order = np.argsort(values, kind="stable")
    values = values[order]
    different = different[order]

    # The report. The readers know space and width, and `sides.only`, after the pass over all rows.
    record: Record = {}
    for side, path, reader in zip("ab", sides.paths, sides.readers, strict=True):
        record[side] = {
            "file": shown_path(path),
            "encoder": reader.space_name,
            "width": reader.width,
        }
    record["vectors"] = count
    if key is not None:
        record |= {"only_a": sides.only[0], "only_b": sides.only[1]}
    if row_by_row is not None:
        record |= row_by_row.record()
    record |= sample_fields
    if worst:
        record["worst"] = [
            {**label, measure: float(value)}
            for label, value in zip(different.labels[:worst], values[:worst], strict=True)
        ]

    # The examples. Without cosines, it is not known which rows differ most.
    most_different = different[:0]
    cosines = None
    ratios = None
    if row_by_row is not None:
        most_different = different[: examples // 2]
        cosines = np.concatenate(row_by_row.cosines)
        ratios = np.concatenate(row_by_row.ratios)
    random_rows = spread_rows(sampled, most_different, examples - len(most_different))
    repeated_a, repeated_b = repeats.counts()
    return Difference(
        record=record,
        sample=sampled,
        examples=joined_matches([most_different, random_rows]),
        rows=count,
        repeated_a=repeated_a,
        repeated_b=repeated_b,
        cosines=cosines,
        ratios=ratios,
    )


def error_of_no_vectors(sides: Sides) -> DataError:
    """Why no vectors of the two sides can be compared."""
    path = sides.paths[0]
    if isinstance(sides, SidesOfModel) and sides.missing:
        advice = OVERFLOW if sides.has_not_finite else None
        return DataError("all vectors are zero or not finite", source=path, advice=advice)
    return DataError("all texts are blank", source=path)


def spread_rows(sampled: Matches, excluded: Matches, count: int) -> Matches:
    """At most `count` of the sampled rows, at equal distances, without the excluded ones."""
    excluded_labels = list(excluded.labels)
    candidates = list[int]()
    if count:
        candidates = [i for i, label in enumerate(sampled.labels) if label not in excluded_labels]
    step = max(1, len(candidates) // max(1, count))
    return sampled[np.array(candidates[::step][:count], np.intp)]


SAME = 5e-4  # largest distance of the cosine of vectors of one text; other programs also round
# Rows that show another order, and their share of those that can show it.
FEWEST_MOVED = 3
SHARE_MOVED = 0.1
# Share of different rows of B among the matched ones. Below it, A repeats the vectors of some rows,
# such as the first ones of batches of two (0.5).
SHARE_DISTINCT = 0.75
ONE_KIND = 0.9  # share of the moved rows that have the same shift, or are mirrored at one row


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Another order of the rows of A. Row `row` of A has the vector of row `row_of_vector` of B."""

    kind: str  # shifted, reversed or permuted
    row: int
    row_of_vector: int
    from_row: bool  # the rows before `row` are in order
    aligned: Matches | None  # vectors of A, and those of the rows of B that they have

    @property
    def name(self) -> str:
        shift = self.row - self.row_of_vector
        names = {
            "shifted": f"rows shifted by {shift:+}",
            "reversed": "rows in reversed order",
            "permuted": "rows in another order",
        }
        return names[self.kind]

    @property
    def example(self) -> str:
        text = f"row {self.row} has the vector of row {self.row_of_vector}"
        return f"{text}; the rows before it are in order" if self.from_row else text


def find_row_order(sample: Matches, count: int) -> RowOrder | None:
    """The other order in which the rows of A are, found by the nearest row of B; None if there is
    none.

    `sample` are random ones of `count` rows. A row of B counts only if no other row is as near to
    it, because equal texts have equal vectors. Of the rows of a sample, those of both sides have a
    match by chance, so that an order of many rows is found, too.
    """
    if sample.a.shape != sample.b.shape or len(sample) < FEWEST_MOVED:
        return None
    row_numbers = np.array([label["row"] for label in sample.labels])

    # The rows of A that have the vector of a row of B whose nearest other row is farther.
    _, cosines_of_others = neighbours(sample.b, 1)
    is_distinct = cosines_of_others[:, 0] < 1.0 - SAME
    nearest, cosines = nearest_rows_of_b(sample)
    matched = np.flatnonzero((cosines >= 1.0 - SAME) & is_distinct[nearest])
    rows = row_numbers[matched]
    rows_of_vectors = row_numbers[nearest[matched]]

    # A row has a match if it and the row with its vector are both in the sample.
    expected_matches = int(is_distinct.sum()) * len(sample) / count
    moved_count = int(np.count_nonzero(rows != rows_of_vectors))
    if moved_count < max(FEWEST_MOVED, SHARE_MOVED * expected_matches):
        return None
    if len(np.unique(rows_of_vectors)) < SHARE_DISTINCT * len(rows_of_vectors):
        return None  # A repeats vectors

    aligned_b = sample[nearest[matched]]
    aligned = Matches(aligned_b.labels, sample.a[matched], aligned_b.b)
    return order_of_rows(rows, rows_of_vectors, aligned)


def nearest_rows_of_b(sample: Matches) -> tuple[Indices, Float64]:
    """The nearest row of B for each row of A, of equal ones the first, with their cosines, (s,)."""
    candidates = first_copies(sample.b, 1)
    searcher = Searcher(sample.b[candidates])
    size = searcher.queries_at_once(1)
    blocks = [searcher.nearest(sample.a[i : i + size], 1) for i in range(0, len(sample), size)]
    nearest = candidates[np.concatenate([rows[:, 0] for rows, _ in blocks])]
    cosines = np.concatenate([similarities[:, 0] for _, similarities in blocks])
    return nearest, cosines


def order_of_rows(
    rows: Indices, rows_of_vectors: Indices, aligned: Matches | None = None
) -> RowOrder:
    """The order in which rows have the vectors of other rows, with an example."""
    moved = rows != rows_of_vectors
    shifts = rows - rows_of_vectors
    sums = rows + rows_of_vectors  # of rows in reversed order, all are equal
    kind = "permuted"
    if share_of_commonest(shifts[moved]) >= ONE_KIND:
        kind = "shifted"
    elif share_of_commonest(sums[moved]) >= ONE_KIND:
        kind = "reversed"
    first = np.flatnonzero(moved)[rows[moved].argmin()]
    if kind == "shifted":
        first = commonest_first(shifts, moved)
    before = ~moved & (rows < rows[first])
    return RowOrder(
        kind=kind,
        row=int(rows[first]),
        row_of_vector=int(rows_of_vectors[first]),
        from_row=kind == "shifted" and bool(before.any()),
        aligned=aligned,
    )


def share_of_commonest(values: Indices) -> float:
    _, counts = np.unique(values, return_counts=True)
    return float(counts.max() / len(values))


def commonest_first(shifts: Indices, moved: NDArray[np.bool_]) -> np.intp:
    """The first of the moved rows that have the most frequent shift."""
    values, counts = np.unique(shifts[moved], return_counts=True)
    return np.flatnonzero(moved & (shifts == values[counts.argmax()]))[0]


SAME_LENGTH = 2e-3  # largest difference of the logarithms of lengths, by rounding


def common_factor(lowest: float, highest: float) -> float | None:
    """The factor between lengths whose ratios are from `lowest` to `highest`; None if they
    differ.
    """
    if lowest <= 0 or math.log(highest / lowest) > SAME_LENGTH:
        return None
    return math.sqrt(lowest * highest)


def sample_record(matches: Matches, top: int) -> tuple[Float64, Record]:
    """The overlap of each sampled vector, and the fields of the report about the sample."""
    count = len(matches)
    top = min(top, count - 1)
    shares = np.empty(0)
    mean = None
    lowest = None
    if top:
        shares = overlaps(matches.a, matches.b, top)
        mean = float(shares.mean())
        lowest = float(shares.min())

    # All pairs of the sample, or random ones.
    if count * (count - 1) // 2 <= PAIRS:
        first, second = np.triu_indices(count, 1)
    else:
        random = np.random.Generator(np.random.Philox(1))
        first = random.integers(0, count, PAIRS)
        second = random.integers(0, count - 1, PAIRS)
        second = second + (second >= first)  # another row than the first
    pairs = (first, second)
    similarities_a = exact_similarities("cosine", matches.a, matches.a, pairs)
    similarities_b = exact_similarities("cosine", matches.b, matches.b, pairs)
    correlation = spearman(similarities_a, similarities_b)
    return shares, {
        "neighbours": {"rows": len(shares), "top": top, "mean": mean, "lowest": lowest},
        "similarities": {
            "pairs": len(first),
            "spearman": None if math.isnan(correlation) else correlation,
        },
    }
