"""The pairs of reports that occur in training rows: as a pair, as two texts, or one of them."""

import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import FIELDS, LISTS, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import fields_of

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


@dataclass(slots=True)
class SeenPairs:
    """The pairs of all reports, and where they occur in training rows.

    Memory grows with the pairs, not with the training rows.
    """

    paths: Sequence[str]  # of the training rows
    texts: PairTexts = field(default_factory=PairTexts)
    rows: int = 0  # training rows
    sightings: Sightings = field(init=False)

    def __post_init__(self) -> None:
        self.sightings = Sightings(self.texts)

    def check(self, row: Row, names: Sequence[str]) -> None:
        """Refuse a pair that `add` cannot add. `names` are the fields of its texts."""
        for name in names:
            if not isinstance(row.values.get(name), str):
                raise wrong_field(row, name, "a string")

    def add(self, row: Row, names: Sequence[str]) -> None:
        """Add a checked pair of a report."""
        one, other = (row.values[name] for name in names)
        self.texts.add(one, other)

    def of_pairs(self, first: int, count: int) -> "Seen":
        """The levels of the pairs of one report."""
        levels = np.array([self.sightings.level(pair) for pair in range(first, first + count)], np.int8)
        return Seen(tuple(self.paths), self.rows, levels)

    def read(self, inputs: Inputs) -> None:
        """Read the training rows. `inputs` are the files of the pairs."""
        for path in self.paths:
            source, before = inputs.other(path), self.rows
            for _ in source.read_file(path, partial(self._take, fields_of(source, path))):
                self.rows += 1
            if self.rows == before:
                raise NoRowsError([path])

    def _take(self, fields: Mapping[str, str], row: Row) -> None:
        self.sightings.take(row, [self.texts.find(text) for text in texts_of(row, fields)])


@dataclass(frozen=True, slots=True)
class Seen:
    """How many pairs of one report occur in the training rows."""

    files: tuple[str, ...]
    rows: int
    levels: NDArray[np.int8]  # of each pair

    def record(self) -> dict[str, object]:
        counts = {name: int((self.levels == LEVELS.index(name) + 1).sum()) for name in reversed(LEVELS)}
        return {"files": list(map(readable, self.files)), "rows": self.rows, **counts}
