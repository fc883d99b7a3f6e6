"""How two encodings of the same rows differ: row by row, and in their neighbours. The widths may differ.

Letters in shapes: b rows of a block, d and e dimensions of both sides, s sampled rows, k neighbours, p pairs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import FIELDS, KINDS, VECTORS, class_of
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.store import fields_of, is_store
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, is_array
from sentkit.metrics.neighbours.corpus import read_table
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.similarity import SIMILARITIES, SMALLEST_NORM, exact, lengths
from sentkit.metrics.sts.correlation import spearman

ROWS_PER_BLOCK = 1024
PAIRS = 100_000  # sampled pairs of sampled rows
LOWEST_SHARE = 0.01  # of the percentile
TIE = 1e-6  # two similarities that differ less are a tie
DROPPED_BITS = 10  # of a float32: a bin holds the distances that agree in the other bits
TEXT_OF = {vector: text for kind in KINDS for vector, text in zip(kind.vectors, kind.texts, strict=True)}

Record = dict[str, Any]


class Distances:
    """A histogram of distances 0 to 2 with bins of equal relative width, 0.01 %, in constant memory."""

    def __init__(self) -> None:
        self.counts = np.zeros(int(self._bins(np.array([2.0]))[0]) + 1, np.int64)

    @staticmethod
    def _bins(distances: Float64) -> NDArray[np.uint32]:
        return distances.astype(np.float32).view(np.uint32) >> np.uint32(DROPPED_BITS)

    def add(self, distances: Float64) -> None:
        np.add.at(self.counts, self._bins(distances), 1)

    def exceeded_by(self, share: float) -> float:
        """The distance that this share of all rows, rounded up, reaches; rounded down to its bin."""
        rows = max(1, math.ceil(share * int(self.counts.sum())))
        reached = np.cumsum(self.counts[::-1])
        place = len(self.counts) - 1 - int(np.searchsorted(reached, rows))
        return float(np.array([place << DROPPED_BITS], np.uint32).view(np.float32)[0])


@dataclass(frozen=True, slots=True)
class Match:
    """A vector of A and the vector of the same row of B."""

    place: int  # among all matches
    row: Row  # of A
    text: str | None
    left: Float32  # (d,)
    right: Float32  # (e,)

    def record(self, key: str | None, **values: float) -> Record:
        names = {} if key is None else {key: self.row.values[key]}
        text = {} if self.text is None else {"text": self.text}
        return {"row": self.row.number, **names, **text, **values}


class RowByRow:
    """The differences of vectors of one width, in constant memory."""

    def __init__(self, worst: int) -> None:
        self.count = self.equal = 0
        self.lowest, self.sum, self.distances = math.inf, 0.0, Distances()
        self.largest = 0.0
        self.ratios = [math.inf, 0.0, 0.0]  # lowest, sum, highest
        self.most, self.worst = worst, list[tuple[float, Match]]()  # the rows that differ most

    def add(self, matches: Sequence[Match], left: Float32, right: Float32) -> None:
        same = (left.view(np.uint32) == right.view(np.uint32)).all(axis=1)
        cosines = np.where(same, 1.0, SIMILARITIES["cosine"](left, right))  # that of two zeros is 0
        self.count += len(matches)
        self.equal += int(same.sum())
        self.lowest, self.sum = min(self.lowest, float(cosines.min())), self.sum + float(cosines.sum())
        self.distances.add(1.0 - cosines)
        self.largest = max(self.largest, float(np.abs(left.astype(np.float64) - right).max()))
        norms = [np.maximum(lengths(side), SMALLEST_NORM) for side in (left, right)]
        ratios = norms[1] / norms[0]
        lowest, total, highest = self.ratios
        self.ratios = [min(lowest, ratios.min()), total + ratios.sum(), max(highest, ratios.max())]
        different = np.flatnonzero(~same)
        chosen = different[np.argsort(cosines[different], kind="stable")[: self.most]]
        self.worst += [(float(cosines[place]), matches[place]) for place in chosen.tolist()]
        self.worst = sorted(self.worst, key=lambda each: (each[0], each[1].place))[: self.most]

    def record(self) -> Record:
        percentile = 1.0 - self.distances.exceeded_by(LOWEST_SHARE)
        lowest, total, highest = map(float, self.ratios)
        return {
            "equal": self.equal,
            "cosine": {"lowest": self.lowest, "p1": percentile, "mean": self.sum / self.count},
            "largest_difference": self.largest,
            "norm_ratio": {"lowest": lowest, "mean": total / self.count, "highest": highest},
        }


class Sample:
    """A random sample of a stream of unknown length; the size and the length determine it."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.matches: list[Match] = []
        self.generator = np.random.Generator(np.random.Philox(0))

    def add(self, matches: Sequence[Match]) -> None:
        room = self.size - len(self.matches)
        self.matches += [copied(match) for match in matches[:room]]
        later = matches[room:]
        self.seen += len(matches)
        slots = self.generator.integers(0, np.arange(self.seen - len(later), self.seen) + 1)
        for place in np.flatnonzero(slots < self.size).tolist():
            self.matches[slots[place]] = copied(later[place])

    def sorted(self) -> list[Match]:
        return sorted(self.matches, key=lambda match: match.place)


def copied(match: Match) -> Match:
    """With own vectors: a part of an array keeps the whole array in memory."""
    return replace(match, left=match.left.copy(), right=match.right.copy())


def neighbours(vectors: Float32, top: int) -> tuple[Indices, Float64]:
    """The `top` other rows closest to each row, best first, with their cosines, (s, k)."""
    searcher, rows, cosines = Searcher(vectors), [], []
    size = searcher.at_once(top + 1)
    for start in range(0, len(vectors), size):
        nearest = searcher.nearest(vectors[start : start + size], top + 1)
        own = nearest.rows == np.arange(start, start + len(nearest.rows))[:, None]
        own[~own.any(axis=1), -1] = True  # equal rows took the place of the row itself
        rows.append(nearest.rows[~own].reshape(-1, top))
        cosines.append(nearest.similarities[~own].reshape(-1, top))
    return np.concatenate(rows), np.concatenate(cosines)


def overlaps(left: Float32, right: Float32, top: int) -> Float64:
    """The share of common neighbours of each row, (s,).

    A neighbour on one side is common if it is at least as close as the last neighbour on the other side, so
    ties do not count as differences. The smaller share of both sides decides.
    """
    (left_rows, left_cosines), (right_rows, right_cosines) = (neighbours(side, top) for side in (left, right))
    own = np.repeat(np.arange(len(left)), top)
    shares = [
        exact("cosine", side, side, (own, rows.ravel())).reshape(rows.shape) >= cosines[:, -1:] - TIE
        for side, rows, cosines in ((left, right_rows, left_cosines), (right, left_rows, right_cosines))
    ]
    return np.minimum(*(share.mean(axis=1) for share in shares))


def sampled_pairs(rows: int) -> tuple[Indices, Indices]:
    """All pairs of different rows, or PAIRS random ones."""
    if rows * (rows - 1) // 2 <= PAIRS:
        return np.triu_indices(rows, 1)
    generator = np.random.Generator(np.random.Philox(1))
    left, right = generator.integers(0, rows, PAIRS), generator.integers(0, rows - 1, PAIRS)
    return left, right + (right >= left)


class Sides:
    """The rows of two files, A and B, which are matched by their order or by a field."""

    def __init__(self, left: Inputs, right: Inputs) -> None:
        self.inputs = [self._own_fields(each) for each in (left, right)]
        self.paths = [each.paths[0] for each in self.inputs]
        self.fields = [fields_of(each, each.paths[0]) for each in self.inputs]
        self.readers = [VectorReader(each) for each in self.inputs]
        self.only = [0, 0]  # rows of A and of B without a match
        self.places = 0

    @staticmethod
    def _own_fields(inputs: Inputs) -> Inputs:
        """Without --field for vectors, if they have no names or standard names."""
        if not (is_store(inputs.paths[0]) or is_array(inputs.paths[0])):
            return inputs
        return replace(
            inputs, fields={our: name for our, name in inputs.fields.items() if our not in VECTORS}
        )

    def by_order(self) -> Iterator[Match]:
        streams = (reader.read(lambda row: row) for reader in self.readers)
        for number, (left, right) in enumerate(zip_longest(*streams)):
            if left is None or right is None:
                place = self.paths[left is not None]
                problem = f"{number} rows, but {self.paths[left is None]} has more"
                raise DataError(problem, source=place, advice="--key FIELD matches rows by a field")
            yield from self.match(left, right)

    def by_key(self, key: str) -> Iterator[Match]:
        """Read A as a stream. The vectors of B are in memory, unless B is a vector file."""
        table = read_table(self.inputs[1], lambda row: row)
        places: dict[str, int] = {}
        for place in range(len(table)):
            row = table.row(place)
            if places.setdefault(class_of(row, key), place) != place:
                raise row.error(f'"{key}" has the value of an earlier row: {class_of(row, key)}')
        seen = np.zeros(len(table), bool)
        for left in self.readers[0].read(lambda row: row):
            place = places.get(class_of(left.row, key), -1)
            if place < 0:
                self.only[0] += 1
                continue
            if seen[place]:
                raise left.row.error(f'"{key}" has the value of an earlier row: {class_of(left.row, key)}')
            seen[place] = True
            right = table.vectors[place : place + 1][0]
            yield from self.match(left, VectorRow(table.row(place), right, table.names))
        self.only[1] = len(table) - int(seen.sum())
        if not seen.any():
            raise DataError(f'no row has a "{key}" of {self.paths[1]}', source=self.paths[0])
        self.readers[1].emb, self.readers[1].width = table.emb, table.vectors.shape[-1]

    def match(self, left: VectorRow, right: VectorRow) -> Iterator[Match]:
        texts = self._texts(left.row, right.row)
        if len(left.vectors) != len(right.vectors):
            problem = f"this row has {len(right.vectors)} vectors, row {left.row.number} of {self.paths[0]}"
            raise right.row.error(f"{problem} has {len(left.vectors)}")
        for name, one, other in zip(self.readers[0].names, left.vectors, right.vectors, strict=True):
            text = texts.get(TEXT_OF[name], texts.get("entry"))
            yield Match(self.places, left.row, text, one, other)
            self.places += 1

    def _texts(self, left: Row, right: Row) -> dict[str, str]:
        """The texts of a row, which must be equal on both sides."""
        texts = {}
        for name in (*FIELDS, "entry"):
            values = [
                row.values.get(fields.get(name, name))
                for row, fields in zip((left, right), self.fields, strict=True)
            ]
            if None not in values and values[0] != values[1]:
                problem = f'"{name}" differs from row {left.number} of {self.paths[0]}'
                raise right.error(problem, advice="compare encodings of the same texts, or use --key FIELD")
            if (text := values[0] if values[1] is None else values[1]) is not None:
                texts[name] = str(text)
        return texts


def difference(left: Inputs, right: Inputs, key: str | None, *, top: int, sample: int, worst: int) -> Record:
    """The report; "worst" has the rows with the lowest cosine, or else with the lowest overlap."""
    sides, taken, count = Sides(left, right), Sample(sample), 0
    rows: RowByRow | None = None
    if key is not None and any(map(is_array, sides.paths)):
        raise UsageError("--key needs rows with fields; .npy has only numbers")
    for block in blocks(sides.by_order() if key is None else sides.by_key(key), ROWS_PER_BLOCK):
        one, other = (np.stack(side) for side in zip(*((m.left, m.right) for m in block), strict=True))
        if one.shape == other.shape:
            rows = rows or RowByRow(worst)
            rows.add(block, one, other)
        taken.add(block)
        count += len(block)
    matches = taken.sorted()
    shares, of_sample = sample_record(matches, top)
    if rows is not None:
        lowest = [match.record(key, cosine=cosine) for cosine, match in rows.worst]
    else:
        order = [place for place in np.argsort(shares, kind="stable")[:worst] if shares[place] < 1.0]
        lowest = [matches[place].record(key, neighbours=float(shares[place])) for place in order]
    names = [
        {"file": readable(path), "encoder": reader.emb, "width": reader.width}
        for path, reader in zip(sides.paths, sides.readers, strict=True)
    ]
    return {
        **dict(zip("ab", names, strict=True)),
        "vectors": count,
        **({} if key is None else {"only_a": sides.only[0], "only_b": sides.only[1]}),
        **({} if rows is None else rows.record()),
        **of_sample,
        **({"worst": lowest} if worst else {}),
    }


def sample_record(matches: Sequence[Match], top: int) -> tuple[Float64, Record]:
    """The overlap of each sampled vector, and the part of the report about the sample."""
    left, right = (np.stack([getattr(match, side) for match in matches]) for side in ("left", "right"))
    top = min(top, len(matches) - 1)
    shares = overlaps(left, right, top) if top else np.empty(0)
    pairs = sampled_pairs(len(matches))
    correlation = spearman(*(exact("cosine", side, side, pairs) for side in (left, right)))
    mean, lowest = (float(shares.mean()), float(shares.min())) if top else (None, None)
    return shares, {
        "neighbours": {"rows": len(shares), "top": top, "mean": mean, "lowest": lowest},
        "similarities": {
            "pairs": len(pairs[0]),
            "spearman": None if math.isnan(correlation) else correlation,
        },
    }
