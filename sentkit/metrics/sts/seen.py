"""The pairs of reports that occur in training rows: as a pair, as two texts, or one of them."""

import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import FIELDS, LISTS, wrong_field
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.fingerprint import short_label, space_of
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, without_vectors
from sentkit.metrics.neighbours.search import Searcher

LEVELS = ("one", "both", "pair")
EXCLUDED = 2  # a report also has the correlation without the pairs from this level on
TEXTS = (*FIELDS, "definition")
ENDS = ".!?\u3002\u061f\u06d4\u0964"  # full stops and question marks that NFKC leaves unchanged


def normal_form(text: str) -> str:
    """The text without differences of Unicode form, case, white space and final punctuation.

    White space is removed, not reduced, because corpora separate punctuation in different ways.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = "".join(text.casefold().split())
    return text.rstrip(ENDS) or text


class PairTexts:
    """The texts of pairs. Texts with an equal normal form have one number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # normal form -> number
        self.left, self.right = array("q"), array("q")  # numbers of the two texts of each pair
        self.partners: defaultdict[int, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self.left)

    def add(self, one: str, other: str) -> tuple[int, int]:
        """Add a pair; return the numbers of its texts."""
        left, right = (self.numbers.setdefault(normal_form(text), len(self.numbers)) for text in (one, other))
        self.left.append(left)
        self.right.append(right)
        self.partners[left].add(right)
        self.partners[right].add(left)
        return left, right

    def find(self, text: str) -> Collection[int]:
        """The number of an equal text, if any. A blank text equals none."""
        form = normal_form(text)
        return (self.numbers[form],) if form and form in self.numbers else ()


class Sightings:
    """The first place in the training rows of each text, and of each pair in one row."""

    def __init__(self, pairs: PairTexts) -> None:
        self.pairs = pairs
        self.of_texts: dict[int, str] = {}
        self.of_pairs: dict[tuple[int, int], str] = {}

    def take(self, row: Row, found: Sequence[Collection[int]]) -> None:
        """Add a training row. `found` has the numbers of the equal texts for each text of the row."""
        if not any(found):
            return
        place = f"{row.source}:{row.number}"
        for at, numbers in enumerate(found):
            others = set[int]().union(*found[at + 1 :])
            for number in numbers:
                self.of_texts.setdefault(number, place)
                for partner in self.pairs.partners[number] & others:
                    self.of_pairs.setdefault((number, partner), place)
                    self.of_pairs.setdefault((partner, number), place)

    def level(self, pair: int) -> int:
        """The place in `LEVELS` plus 1, or 0 if no text of the pair occurs."""
        numbers = self.pairs.left[pair], self.pairs.right[pair]
        return len(LEVELS) if numbers in self.of_pairs else sum(map(self.of_texts.__contains__, numbers))

    def places(self, pair: int) -> list[str]:
        """Where the pair occurs, or where its texts occur."""
        numbers = self.pairs.left[pair], self.pairs.right[pair]
        if numbers in self.of_pairs:
            return [self.of_pairs[numbers]]
        return [self.of_texts[number] for number in numbers if number in self.of_texts]


def texts_of(row: Row, fields: Mapping[str, str]) -> list[str]:
    """All texts of a training row of any kind. A field has its name in `fields`, or its standard name."""
    row.refuse_duplicates()
    texts: list[str] = []
    for standard in (*TEXTS, *LISTS):
        name = fields.get(standard, standard)
        name = name if name in row.values else standard
        if name not in row.values:
            continue
        value = row.values[name]
        if standard in LISTS:
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise wrong_field(row, name, "a list of strings")
            texts += value
        elif not isinstance(value, str):
            raise wrong_field(row, name, "a string")
        else:
            texts.append(value)
    if not texts:
        raise row.error("no text in this row", advice="name the field, for example --field text=title")
    return texts


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
