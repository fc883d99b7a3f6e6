"""The pairs of reports that occur in the training rows of the encoder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import wrong_field
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.fingerprint import short_label, space_of
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, without_vectors
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.sts.seen_texts import LEVELS, PairTexts, Sightings, texts_of

ROWS_PER_BLOCK = 512  # training rows that are compared at once with all texts of the pairs


@dataclass(slots=True)
class SeenPairs:
    """The pairs of all reports, and where they occur in training rows.

    Memory grows with the pairs, not with the training rows.
    """

    paths: Sequence[str]  # of the training rows
    threshold: float | None = None  # minimum cosine of texts that are nearly equal
    keep_rows: bool = False
    texts: PairTexts = field(default_factory=PairTexts)
    vectors: list[Float32] = field(default_factory=list)  # of each text
    space: tuple[str, str | None] | None = None  # the first file of pairs, with its `_emb`
    kept: list[Row] = field(default_factory=list)  # the row of each pair, without vectors
    rows: int = 0  # training rows
    exact: Sightings = field(init=False)
    near: Sightings = field(init=False)

    def __post_init__(self) -> None:
        self.exact, self.near = Sightings(self.texts), Sightings(self.texts)

    def check(self, row: VectorRow, names: Sequence[str], emb: str | None) -> None:
        """Refuse a pair that `add` cannot add. `names` are the fields of its texts."""
        for name in names:
            if not isinstance(row.row.values.get(name), str):
                raise wrong_field(row.row, name, "a string")
        if self.threshold is not None:
            self._check_space(row, emb)

    def add(self, row: VectorRow, names: Sequence[str]) -> None:
        """Add a checked pair of a report."""
        one, other = (row.row.values[name] for name in names)
        numbers = self.texts.add(one, other)
        if self.threshold is not None:
            for number, vector in zip(numbers, row.vectors, strict=True):
                if number == len(self.vectors):
                    self.vectors.append(vector)
        if self.keep_rows:
            self.kept.append(without_vectors(row.row, row.names))

    def _check_space(self, row: VectorRow, emb: str | None) -> None:
        """Refuse vectors of two spaces, or two lengths."""
        if self.space is None:
            self.space = row.row.source, emb
        file, first = self.space
        same = emb == first if emb is None or first is None else space_of(emb) == space_of(first)
        if not same:
            problem = f"these vectors are {short_label(emb)}, the vectors of {file} are {short_label(first)}"
            raise row.row.error(problem, advice="--seen-threshold needs vectors of one encoder")
        if self.vectors and row.vectors.shape[1] != len(self.vectors[0]):
            width, wanted = row.vectors.shape[1], len(self.vectors[0])
            raise row.row.error(f"this vector has {width} numbers, the vectors of {file} have {wanted}")

    def of_pairs(self, first: int, count: int) -> "Seen":
        """The levels of the pairs of one report."""
        pairs = range(first, first + count)
        levels, exact = (
            np.array([each.level(pair) for pair in pairs], np.int8) for each in (self.near, self.exact)
        )
        return Seen(tuple(self.paths), self.rows, self.threshold, levels, exact)

    def read(self, inputs: Inputs) -> None:
        """Read the training rows. `inputs` are the files of the pairs."""
        reader = VectorReader(inputs)
        for path in self.paths:
            source, before = inputs.other(path), self.rows
            fields = fields_of(source, path)
            if self.threshold is None:
                for _ in source.read_file(path, partial(self._take, fields)):
                    self.rows += 1
            else:
                reader.inputs = source
                self._compare(reader.read_file(path, partial(self._take_vectors, fields, reader)))
            if self.rows == before:
                raise NoRowsError([path])

    def _take(self, fields: Mapping[str, str], row: Row) -> None:
        equal = [self.texts.find(text) for text in texts_of(row, fields)]
        self.exact.take(row, equal)
        self.near.take(row, equal)

    def _take_vectors(self, fields: Mapping[str, str], reader: VectorReader, row: VectorRow) -> VectorRow:
        self._check_space(row, reader.emb)
        self._take(fields, row.row)
        return row

    def _compare(self, rows: Iterator[VectorRow]) -> None:
        """Find the texts with vectors near those of the training rows."""
        assert self.threshold is not None
        searcher = Searcher(np.array(self.vectors), "cosine")
        for block in blocks(rows, ROWS_PER_BLOCK):
            reached = searcher.reaching(np.concatenate([row.vectors for row in block]), self.threshold)
            for row in block:
                self.near.take(row.row, [next(reached).rows.tolist() for _ in row.vectors])
            self.rows += len(block)

    def lines(self) -> Iterator[bytes]:
        """A JSON line for each pair with a seen text: its row, and where it occurs."""
        for pair, row in enumerate(self.kept):
            level, exact = self.near.level(pair), self.exact.level(pair)
            if level:
                sightings = self.exact if exact == level else self.near
                record = {
                    "file": readable(row.source),
                    "line": row.number,
                    "seen": LEVELS[level - 1],
                    "exact": exact == level,
                    "at": list(map(readable, sightings.places(pair))),
                    "row": orjson.Fragment(row.line),
                }
                yield orjson.dumps(record) + b"\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """How many pairs of one report occur in the training rows."""

    files: tuple[str, ...]
    rows: int
    threshold: float | None
    levels: NDArray[np.int8]  # of each pair
    exact: NDArray[np.int8]  # without near texts

    def record(self) -> dict[str, object]:
        exact = {} if self.threshold is None else {"exact": counts(self.exact)}
        return {
            "files": list(map(readable, self.files)),
            "rows": self.rows,
            "threshold": self.threshold,
            **counts(self.levels),
            **exact,
        }


def counts(levels: NDArray[np.int8]) -> dict[str, int]:
    """The number of pairs of each level, the highest level first."""
    return {name: int((levels == LEVELS.index(name) + 1).sum()) for name in reversed(LEVELS)}
