"""How two encodings of the same rows differ: row by row, and in their neighbours. The widths may differ.

Letters in shapes: b rows of a block, d and e dimensions of both sides, s sampled rows, k neighbours, p pairs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row, RowBlock, Texts, block_of
from sentkit.formats.rows.kinds import (
    FIELDS,
    KINDS,
    VECTORS,
    TextParser,
    class_of,
    missing_field,
    string_in,
)
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, is_array, resized
from sentkit.formats.vectors.vectors import joined as joined_rows
from sentkit.metrics.neighbours.corpus import read_table
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.similarity import SIMILARITIES, SMALLEST_NORM, exact, lengths
from sentkit.metrics.statistics import spearman

VECTORS_PER_BLOCK, ENCODED_ROWS = 1024, 8192
PAIRS = 100_000  # sampled pairs of sampled rows
LOWEST_SHARE = 0.01  # of the percentile
TIE = 1e-6  # two similarities that differ less are a tie
TEXT_OF = {vector: text for kind in KINDS for vector, text in zip(kind.vectors, kind.texts, strict=True)}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Matches:
    """Vectors of A, and the vectors of the same rows of B."""

    labels: NDArray[np.object_]  # (m,): records with the row of A, its key and its text
    left: Float32  # (m, d)
    right: Float32  # (m, e)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, places: slice | Indices) -> "Matches":
        return Matches(self.labels[places], self.left[places], self.right[places])


def joined(parts: Sequence[Matches]) -> Matches:
    columns = zip(*((part.labels, part.left, part.right) for part in parts), strict=True)
    return Matches(*map(np.concatenate, columns))


class Lowest:
    """The rows of a stream with the lowest keys; of equal keys, the first rows."""

    def __init__(self, size: int) -> None:
        self.size, self.limit = size, math.inf  # of the keys
        self.parts = list[tuple[Float64, Matches]]()

    def add(self, keys: Float64, matches: Matches) -> None:
        places = np.flatnonzero(keys < self.limit)
        self.parts.append((keys[places], matches[places]))
        if sum(len(keys) for keys, _ in self.parts) > 2 * self.size:
            self.parts = [self.kept()]
            self.limit = self.parts[0][0].max(initial=-math.inf)

    def kept(self) -> tuple[Float64, Matches]:
        """The keys and the rows, in the order of the stream."""
        every, parts = zip(*self.parts, strict=True)
        keys, matches = np.concatenate(every), joined(parts)
        places = np.sort(np.argsort(keys, kind="stable")[: self.size])
        return keys[places], matches[places]


class RowByRow:
    """The differences of vectors of one width; in memory are a cosine and a ratio of lengths for each."""

    def __init__(self, worst: int) -> None:
        """`worst` is the number of the rows that differ most, which are kept."""
        self.worst, self.equal, self.largest = Lowest(worst), 0, 0.0
        self.cosines, self.ratios = list[Float64](), list[Float64]()

    def add(self, matches: Matches) -> None:
        left, right = matches.left, matches.right
        same = (left.view(np.uint32) == right.view(np.uint32)).all(axis=1)
        cosines = np.where(same, 1.0, SIMILARITIES["cosine"](left, right))  # that of two zeros is 0
        norms = [np.maximum(lengths(side), SMALLEST_NORM) for side in (left, right)]
        different = np.flatnonzero(~same)
        self.cosines.append(cosines)
        self.ratios.append(norms[1] / norms[0])
        self.equal += int(same.sum())
        self.largest = max(self.largest, float(np.abs(left.astype(np.float64) - right).max()))
        self.worst.add(cosines[different], matches[different])

    def record(self) -> Record:
        cosines, ratios = np.concatenate(self.cosines), np.concatenate(self.ratios)
        distances = (1.0 - cosines).astype(np.float32)
        place = len(distances) - max(1, math.ceil(LOWEST_SHARE * len(distances)))
        percentile = 1.0 - float(np.partition(distances, place)[place])
        lowest, mean, highest = (float(each(ratios)) for each in (np.min, np.mean, np.max))
        return {
            "equal": self.equal,
            "cosine": {"lowest": float(cosines.min()), "p1": percentile, "mean": float(cosines.mean())},
            "largest_difference": self.largest,
            "norm_ratio": {"lowest": lowest, "mean": mean, "highest": highest},
        }


def neighbours(vectors: Float32, top: int) -> tuple[Indices, Float64]:
    """The `top` other rows closest to each row, best first, with their cosines, (s, k)."""
    searcher, rows, cosines = Searcher(vectors), [], []
    size = searcher.at_once(top + 1)
    for start in range(0, len(vectors), size):
        near, alike = searcher.nearest(vectors[start : start + size], top + 1)
        own = near == np.arange(start, start + len(near))[:, None]
        own[~own.any(axis=1), -1] = True  # equal rows took the place of the row itself
        rows.append(near[~own].reshape(-1, top))
        cosines.append(alike[~own].reshape(-1, top))
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


class Sides:
    """The rows of two files, A and B, which are matched by their order or by a field."""

    def __init__(self, left: Inputs, right: Inputs) -> None:
        self.inputs = []
        for each in (left, right):  # vectors of files have no names or standard names, without --field
            apart = each.vector_file(each.paths[0]) is not None or is_array(each.paths[0])
            fields = {our: name for our, name in each.fields.items() if not (apart and our in VECTORS)}
            self.inputs.append(replace(each, fields=fields))
        self.paths = [each.paths[0] for each in self.inputs]
        self.fields = [fields_of(each, each.paths[0]) for each in self.inputs]
        self.readers = [VectorReader(each) for each in self.inputs]
        self.only = [0, 0]  # rows of A and of B without a match

    def matches(self, key: str | None) -> Iterator[Matches]:
        if key is not None:
            yield from self.by_key(key)
            return
        streams = [resized(reader.blocks(), joined_rows, VECTORS_PER_BLOCK) for reader in self.readers]
        rows = 0
        for left, right in zip_longest(*streams, fillvalue=()):
            size = min(len(left), len(right))
            rows += size
            if size:
                yield self.match(left[:size], right[:size])
            if len(left) != len(right):
                longer = int(len(right) > size)
                problem = f"{rows} rows, but {self.paths[longer]} has more"
                advice = "--key FIELD matches rows by a field"
                raise DataError(problem, source=self.paths[1 - longer], advice=advice)

    def by_key(self, key: str) -> Iterator[Matches]:
        """Read A as a stream. The vectors of B are in memory, unless B is a vector file."""
        if any(map(is_array, self.paths)):
            raise UsageError("--key needs rows with fields; .npy has only numbers")
        table = read_table(self.inputs[1])
        places: dict[str, int] = {}
        for place, row in enumerate(table.every_row()):
            if places.setdefault(class_of(row, key), place) != place:
                raise duplicate_key(row, key)
        seen = np.zeros(len(table), bool)
        for left in self.readers[0].blocks():
            chosen, found = list[int](), list[int]()
            for number, row in enumerate(left.rows):
                place = places.get(class_of(row, key), -1)
                if place < 0:
                    self.only[0] += 1
                    continue
                if seen[place]:
                    raise duplicate_key(row, key)
                seen[place] = True
                chosen.append(number)
                found.append(place)
            if chosen:
                rows = block_of(map(table.row, found))
                right = VectorBlock(rows, table.vectors[np.array(found)], table.names)
                yield self.match(left.take(chosen), right, key)
        self.only[1] = len(table) - int(seen.sum())
        if not seen.any():
            raise DataError(f'no row has a "{key}" of {self.paths[1]}', source=self.paths[0])
        self.readers[1].emb, self.readers[1].width = table.emb, table.vectors.shape[-1]

    def match(self, left: VectorBlock, right: VectorBlock, key: str | None = None) -> Matches:
        """The vectors of the same rows, whose texts must be equal on both sides."""
        counts = [block.vectors.shape[1] for block in (left, right)]
        if counts[0] != counts[1]:
            first, source = left.rows.numbers[0], self.paths[0]
            problem = f"this row has {counts[1]} vectors, row {first} of {source} has {counts[0]}"
            raise right.rows.row(0).error(problem)
        texts = dict[str, list[str | None]]()
        for name in (*FIELDS, "entry"):
            one, other = (
                [values.get(fields.get(name, name)) for values in block.rows.values]
                for block, fields in zip((left, right), self.fields, strict=True)
            )
            for place, pair in enumerate(zip(one, other, strict=True) if one != other else ()):
                if None not in pair and pair[0] != pair[1]:
                    problem = f'"{name}" differs from row {left.rows.numbers[place]} of {self.paths[0]}'
                    advice = "compare encodings of the same texts, or use --key FIELD"
                    raise right.rows.row(place).error(problem, advice=advice)
            columns = (b if a is None else a for a, b in zip(one, other, strict=True))
            texts[name] = [None if text is None else str(text) for text in columns]
        labels = list[Record]()
        for place, (number, values) in enumerate(zip(left.rows.numbers, left.rows.values, strict=True)):
            names = {"row": number} if key is None else {"row": number, key: values[key]}
            for name in self.readers[0].names:
                own, entry = texts[TEXT_OF[name]][place], texts["entry"][place]
                text = entry if own is None else own
                labels.append(names if text is None else {**names, "text": text})
        vectors = (side.reshape(-1, side.shape[2]) for side in (left.vectors, right.vectors))
        return Matches(np.array(labels, object), *vectors)


class SidesOfModel(Sides):
    """The rows of a file, A, and the vectors that a model computes of their texts, B."""

    def __init__(
        self,
        left: Inputs,
        name: str,
        encode: Callable[[RowBlock], Float32],
        texts: Inputs | None = None,
    ) -> None:
        """`encode` gets rows with their texts and returns the vectors (n, k, e).

        `texts` are rows with the texts of A in the same order; without them, the rows of A have their texts.
        """
        super().__init__(left, left)
        self.paths[1], self.encode, self.blank = name, encode, 0
        self.texts = texts

    def matches(self, key: str | None) -> Iterator[Matches]:
        texts = iter(()) if self.texts is None else rows_with_texts(self.texts)
        for left in resized(self.readers[0].blocks(), joined_rows, ENCODED_ROWS):
            names = [TEXT_OF[name] for name in self.readers[0].names]
            if self.texts is None:
                left.rows.texts = [tuple(self.text_of(row, name) for name in names) for row in left.rows]
            else:
                left = replace(left, rows=self.rows_of_texts(left.rows, names, texts))
            filled = [place for place, own in enumerate(left.rows.texts) if all(map(str.strip, own))]
            self.blank += len(left) - len(filled)
            if filled:
                kept = left.take(filled)
                yield self.match(kept, replace(kept, vectors=self.encode(kept.rows)))
        if next(texts, None) is not None:
            assert self.texts is not None
            raise DataError(f"fewer rows than {self.texts.paths[0]}", source=self.paths[0])

    def rows_of_texts(
        self, rows: RowBlock, names: Sequence[str], texts: Iterator[tuple[Row, Texts]]
    ) -> RowBlock:
        """The rows of A with the next texts, of which each vector needs one."""
        assert self.texts is not None
        new = list[Row]()
        texts_of_rows = list[Texts]()
        for row in rows:
            text_row, texts_of_row = next(texts, (None, ()))
            if text_row is None:
                problem = f"fewer rows than {self.paths[0]}"
                raise DataError(problem, source=self.texts.paths[0])
            if len(texts_of_row) != len(names):
                problem = f"this row has {len(texts_of_row)} texts, row {row.number} of {row.source} has"
                raise text_row.error(f"{problem} {len(names)} vectors")
            theirs = (self.fields[0].get(name, name) for name in names)
            values = row.values | dict(zip(theirs, texts_of_row, strict=True))
            new.append(Row(row.line, values, row.source, row.number, row.raw))
            texts_of_rows.append(texts_of_row)
        block = block_of(new)
        block.texts = texts_of_rows
        return block

    def text_of(self, row: Row, name: str) -> str:
        """The text of a vector, or the entry of the row."""
        own, entry = (self.fields[0].get(each, each) for each in (name, "entry"))
        for field in (own, entry):
            if row.values.get(field) is not None:
                return string_in(row, field)
        if not any(isinstance(value, str) for name, value in row.values.items() if name != "_emb"):
            advice = "name a file with the texts of these rows: --texts FILE"
            raise row.error("this row has no text, which the model needs", advice=advice)
        raise missing_field(row, own, name)


def rows_with_texts(inputs: Inputs) -> Iterator[tuple[Row, Texts]]:
    """The rows of the inputs, each with its texts."""
    for block in inputs.blocks(TextParser(inputs.fields)):
        yield from zip(block, block.texts, strict=True)


def duplicate_key(row: Row, key: str) -> DataError:
    return row.error(f'"{key}" has the value of an earlier row: {class_of(row, key)}')


@dataclass(frozen=True, slots=True)
class Difference:
    record: Record
    sample: Matches  # random rows
    kept: Matches  # rows that differ most, and random ones in equal number
    rows: int  # vectors of A with a match


def difference(
    sides: Sides, key: str | None, *, top: int, sample: int, worst: int, kept: int = 0
) -> Difference:
    """The report, and `kept` vectors: half of them differ most, and the others are random.

    "worst" in the report has the rows with the lowest cosine, or else with the lowest overlap.
    """
    taken, count, random = Lowest(sample), 0, np.random.Generator(np.random.Philox(0))
    rows: RowByRow | None = None
    for block in resized(sides.matches(key), joined, VECTORS_PER_BLOCK):
        if block.left.shape == block.right.shape:
            rows = rows or RowByRow(max(worst, kept // 2))
            rows.add(block)
        taken.add(random.random(len(block)), block)
        count += len(block)
    if not count:
        raise DataError("all texts are blank", source=sides.paths[0])
    _, sampled = taken.kept()
    shares, of_sample = sample_record(sampled, top)
    near = np.flatnonzero(shares < 1.0)
    keys, listed, name = shares[near], sampled[near], "neighbours"
    if rows is not None:
        (keys, listed), name = rows.worst.kept(), "cosine"
    order = np.argsort(keys, kind="stable")
    lowest = [{**listed.labels[place], name: float(keys[place])} for place in order[:worst]]
    names = [
        {"file": readable(path), "encoder": reader.emb, "width": reader.width}
        for path, reader in zip(sides.paths, sides.readers, strict=True)
    ]
    chosen = listed[order[: kept // 2 if rows else 0]]
    known, left = [*chosen.labels], kept - len(chosen)
    others = [place for place, label in enumerate(sampled.labels) if kept and label not in known]
    others = others[:: max(1, len(others) // max(1, left))][:left]
    record = {
        **dict(zip("ab", names, strict=True)),
        "vectors": count,
        **({} if key is None else {"only_a": sides.only[0], "only_b": sides.only[1]}),
        **({} if rows is None else rows.record()),
        **of_sample,
        **({"worst": lowest} if worst else {}),
    }
    return Difference(record, sampled, joined([chosen, sampled[np.array(others, np.intp)]]), count)


SAME = 5e-4  # largest distance of the cosine of vectors of one text; other programs also round
FEWEST_MOVED, SHARE_MOVED = 3, 0.1  # rows that show another order, and their share of those that can show it
ONE_KIND = 0.9  # share of the moved rows that have the same shift, or are mirrored at one row


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Another order of the rows of A. Row `row` of A has the vector of row `row_of_vector` of B."""

    kind: str  # shifted, reversed or permuted
    row: int
    row_of_vector: int
    from_row: bool  # the rows before `row` are in order
    factor: float | None  # length of A by length of B, if it is the same for all rows

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


def row_order(sample: Matches, count: int) -> RowOrder | None:
    """The other order in which the rows of A are, found by the nearest row of B; None if there is none.

    `sample` are random ones of `count` rows. A row of B counts only if no other row is as near to it, because
    equal texts have equal vectors. Of the rows of a sample, those of both sides have a match by chance, so
    that an order of many rows is found, too.
    """
    if sample.left.shape != sample.right.shape or len(sample) < FEWEST_MOVED:
        return None
    lines = np.array([label["row"] for label in sample.labels])
    _, cosines_of_others = neighbours(sample.right, 1)
    is_distinct = cosines_of_others[:, 0] < 1.0 - SAME

    # The nearest row of B for each row of A.
    searcher = Searcher(sample.right)
    size = searcher.at_once(1)
    blocks = [searcher.nearest(sample.left[i : i + size], 1) for i in range(0, len(sample), size)]
    nearest = np.concatenate([rows[:, 0] for rows, _ in blocks])
    cosines = np.concatenate([similarities[:, 0] for _, similarities in blocks])
    matched = np.flatnonzero((cosines >= 1.0 - SAME) & is_distinct[nearest])
    a = lines[matched]
    b = lines[nearest[matched]]

    moved = a != b
    can_match = int(is_distinct.sum()) * len(sample) / count
    if moved.sum() < max(FEWEST_MOVED, SHARE_MOVED * can_match):
        return None
    kind = "permuted"
    if share_of_commonest((a - b)[moved]) >= ONE_KIND:
        kind = "shifted"
    elif share_of_commonest((a + b)[moved]) >= ONE_KIND:
        kind = "reversed"
    first = commonest_first(a - b, moved) if kind == "shifted" else np.flatnonzero(moved)[a[moved].argmin()]
    ratios = lengths(sample.left[matched]) / np.maximum(
        lengths(sample.right[nearest[matched]]), SMALLEST_NORM
    )
    before = ~moved & (a < a[first])
    return RowOrder(
        kind=kind,
        row=int(a[first]),
        row_of_vector=int(b[first]),
        from_row=kind == "shifted" and bool(before.any()),
        factor=common_factor(float(ratios.min()), float(ratios.max())),
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
    """The factor between lengths whose ratios are from `lowest` to `highest`; None if they differ."""
    if lowest <= 0 or math.log(highest / lowest) > SAME_LENGTH:
        return None
    return math.sqrt(lowest * highest)


def sample_record(matches: Matches, top: int) -> tuple[Float64, Record]:
    """The overlap of each sampled vector, and the part of the report about the sample."""
    left, right = matches.left, matches.right
    top = min(top, len(matches) - 1)
    shares = overlaps(left, right, top) if top else np.empty(0)
    count = len(matches)
    if count * (count - 1) // 2 <= PAIRS:
        pairs = np.triu_indices(count, 1)
    else:  # random ones
        random = np.random.Generator(np.random.Philox(1))
        first, second = random.integers(0, count, PAIRS), random.integers(0, count - 1, PAIRS)
        pairs = first, second + (second >= first)
    correlation = spearman(*(exact("cosine", side, side, pairs) for side in (left, right)))
    mean, lowest = (float(shares.mean()), float(shares.min())) if top else (None, None)
    return shares, {
        "neighbours": {"rows": len(shares), "top": top, "mean": mean, "lowest": lowest},
        "similarities": {
            "pairs": len(pairs[0]),
            "spearman": None if math.isnan(correlation) else correlation,
        },
    }
