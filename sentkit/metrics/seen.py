"""The pairs of reports that occur in training rows: as a pair, as two texts, or one of them."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import FIELDS, LISTS, string_in, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import fields_of

LEVELS = ("one", "both", "pair")
EXCLUDED = 2  # a report also has the correlation without the pairs from this level on
TEXTS = (*FIELDS, "definition")
ENDS = ".!?\u3002\u061f\u06d4\u0964"  # full stops and question marks that NFKC leaves unchanged


def normal_form(text: str) -> str:
    """The text without differences of Unicode form, case, final punctuation and (all) white space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = "".join(text.casefold().split())
    return text.rstrip(ENDS) or text


class SeenPairs:
    """Pairs of texts by normal form, and the first place in training rows of each text and of each pair."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """`paths` are the training rows for `read`."""
        self.paths, self.rows = paths, 0
        self.numbers: dict[str, int] = {}  # normal form -> number
        self.pairs: list[tuple[int, int]] = []
        self.partners: defaultdict[int, set[int]] = defaultdict(set)
        self.of_texts: dict[int, str] = {}
        self.of_pairs: dict[tuple[int, int], str] = {}

    def add(self, one: str, other: str) -> None:
        """Add a pair."""
        left, right = (self.numbers.setdefault(normal_form(text), len(self.numbers)) for text in (one, other))
        self.pairs.append((left, right))
        self.partners[left].add(right)
        self.partners[right].add(left)

    def take(self, row: Row, texts: Iterable[str]) -> None:
        """Take the texts of a training row. A blank text equals none."""
        found = [self.numbers.get(form) if form else None for form in map(normal_form, texts)]
        for at, number in enumerate(found):
            if number is not None:
                place = f"{row.source}:{row.number}"
                self.of_texts.setdefault(number, place)
                for partner in self.partners[number].intersection(found[at + 1 :]):
                    self.of_pairs.setdefault((number, partner), place)
                    self.of_pairs.setdefault((partner, number), place)

    def read(self, inputs: Inputs) -> None:
        """Read the training rows. `inputs` are the files of the pairs."""
        for path in self.paths:
            source, before = inputs.other(path), self.rows
            fields = fields_of(source, path)

            def parse(row: Row, fields: Mapping[str, str] = fields) -> tuple[Row, list[str]]:
                return row, texts_of(row, fields)

            for row, texts in source.read(parse, path):
                self.take(row, texts)
                self.rows += 1
            if self.rows == before:
                raise NoRowsError([path])

    def level(self, pair: int) -> int:
        """The place in `LEVELS` plus 1, or 0 if no text of the pair occurs."""
        numbers = self.pairs[pair]
        return len(LEVELS) if numbers in self.of_pairs else sum(map(self.of_texts.__contains__, numbers))

    def places(self, pair: int) -> list[str]:
        """Where the pair occurs, or where its texts occur."""
        numbers = self.pairs[pair]
        if numbers in self.of_pairs:
            return [self.of_pairs[numbers]]
        return [self.of_texts[number] for number in numbers if number in self.of_texts]

    def record(self, levels: NDArray[np.int8]) -> dict[str, object]:
        """How many pairs of one report occur in the training rows."""
        counts = {name: int((levels == LEVELS.index(name) + 1).sum()) for name in reversed(LEVELS)}
        return {"files": list(map(readable, self.paths)), "rows": self.rows, **counts}


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
        else:
            texts.append(string_in(row, name))
    if not texts:
        raise row.error("no text in this row", advice="name the field, for example --field text=title")
    return texts
