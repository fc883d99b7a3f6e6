"""Which texts of pairs occur in training rows: the pair, two texts, or one of them."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import NoRowsError
from sentkit.formats.files import shown_path
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import FIELDS, LISTS, string_value, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import field_names_of

LEVELS = ("one", "both", "pair")  # level 1: one text occurs; 2: both; 3: both in one row
BOTH_TEXTS = 2
SAME_PAIR = 3
EXCLUDED = BOTH_TEXTS  # a report also has the correlation without the pairs from this level on
TEXTS = (*FIELDS, "definition")
ENDS = ".!?\u3002\u061f\u06d4\u0964"  # full stops and question marks that NFKC leaves unchanged


def normal_form(text: str) -> str:
    """The text without differences of Unicode form, case, final punctuation and (all) white
    space.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = "".join(text.casefold().split())
    return text.rstrip(ENDS) or text


class SeenPairs:
    """Pairs of texts by normal form, and the first place in training rows of each text and of each
    pair.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """`paths` are the training rows for `read`."""
        self.paths = paths
        self.rows = 0  # training rows read so far
        self.numbers: dict[str, int] = {}  # normal form -> number
        self.pairs: list[tuple[int, int]] = []
        self.partners: defaultdict[int, set[int]] = defaultdict(set)
        # The file and line of the first occurrence.
        self.text_locations: dict[int, str] = {}
        self.pair_locations: dict[tuple[int, int], str] = {}

    def add(self, text_a: str, text_b: str) -> None:
        """Add a pair."""
        a = self.numbers.setdefault(normal_form(text_a), len(self.numbers))
        b = self.numbers.setdefault(normal_form(text_b), len(self.numbers))
        self.pairs.append((a, b))
        self.partners[a].add(b)
        self.partners[b].add(a)

    def take(self, row: Row, texts: Iterable[str]) -> None:
        """Take the texts of a training row. A blank text equals none."""
        location = f"{row.source}:{row.number}"
        numbers = [self.numbers.get(form) if form else None for form in map(normal_form, texts)]
        for i, number in enumerate(numbers):
            if number is None:
                continue
            self.text_locations.setdefault(number, location)
            for partner in self.partners[number].intersection(numbers[i + 1 :]):
                self.pair_locations.setdefault((number, partner), location)
                self.pair_locations.setdefault((partner, number), location)

    def read(self, inputs: Inputs) -> None:
        """Read the training rows. `inputs` are the files of the pairs."""
        for path in self.paths:
            source = inputs.with_paths(path)
            fields = field_names_of(source, path)

            def parse(row: Row, fields: Mapping[str, str] = fields) -> tuple[Row, list[str]]:
                return row, texts_of(row, fields)

            is_empty = True
            for row, texts in source.read(parse, path):
                self.take(row, texts)
                self.rows += 1
                is_empty = False
            if is_empty:
                raise NoRowsError([path])

    def level(self, pair: int) -> int:
        """The index in `LEVELS` plus 1, or 0 if no text of the pair occurs."""
        numbers = self.pairs[pair]
        if numbers in self.pair_locations:
            return len(LEVELS)
        return sum(number in self.text_locations for number in numbers)

    def places(self, pair: int) -> list[str]:
        """Where the pair occurs, or where its texts occur."""
        numbers = self.pairs[pair]
        if numbers in self.pair_locations:
            return [self.pair_locations[numbers]]
        return [self.text_locations[number] for number in numbers if number in self.text_locations]

    def record(self, levels: NDArray[np.int8]) -> dict[str, object]:
        """How many pairs of one report occur in the training rows."""
        counts = {name: int((levels == LEVELS.index(name) + 1).sum()) for name in reversed(LEVELS)}
        return {"files": list(map(shown_path, self.paths)), "rows": self.rows, **counts}


ADVICE_ON_FIELD = "name the field, for example --field text=title"


def texts_of(
    row: Row, fields: Mapping[str, str], advice_on_field: str = ADVICE_ON_FIELD
) -> list[str]:
    """All texts of a training row of any kind. A field has its name in `fields`, or its standard
    name. The error about a row without a text has the advice.
    """
    row.check_duplicate_names()
    texts: list[str] = []
    for standard in (*TEXTS, *LISTS):
        name = fields.get(standard, standard)
        if name not in row.values:
            name = standard
        if name not in row.values:
            continue
        value = row.values[name]
        if standard in LISTS:
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise wrong_field(row, name, "a list of strings")
            texts += value
        else:
            texts.append(string_value(row, name))
    if not texts:
        raise row.error("no text in this row", advice=advice_on_field)
    return texts
