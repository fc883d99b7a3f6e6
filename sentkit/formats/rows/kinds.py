"""Kinds of rows: which members hold the texts, and what their vectors are called.

The members of the first row say which kind a stream is of; every later row must be of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sentkit.errors import DataError
from sentkit.formats.rows.lines import json_type
from sentkit.formats.rows.rows import Row


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    texts: tuple[str, ...]

    @property
    def vectors(self) -> tuple[str, ...]:
        """`text` -> `embedding`, `text_a` -> `embedding_a`, `anchor` -> `embedding_anchor`."""
        if self is SENTENCE:
            return ("embedding",)
        return tuple(f"embedding_{text.removeprefix('text_')}" for text in self.texts)


PAIR = Kind("pair", ("text_a", "text_b"))
TRIPLET = Kind("triplet", ("anchor", "positive", "negative"))
POSITIVE = Kind("anchor and positive", ("anchor", "positive"))
SENTENCE = Kind("sentence", ("text",))
ENTRY = Kind("entry", ("definition",))
KINDS = (PAIR, TRIPLET, POSITIVE, SENTENCE)  # the first that fits
FIELDS = ("text", "text_a", "text_b", "anchor", "positive", "negative")
LEARNED = (*FIELDS, "definition", "entry", "label", "score")  # what training may read


class TextParser:
    """Rows -> their texts. Remembers the kind of the first row; a later row of another kind is refused."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        self.kind: Kind | None = None
        self.names: tuple[str, ...] = ()

    @property
    def vectors(self) -> tuple[str, ...]:
        """What the vectors of this stream are called; of a sentence where no row has come."""
        return (self.kind or SENTENCE).vectors

    @property
    def texts(self) -> tuple[str, ...]:
        """Our names of the texts; none where no row has come."""
        return self.kind.texts if self.kind else ()

    def __call__(self, row: Row) -> tuple[Row, tuple[str, ...]]:
        if self.kind is None:
            self.kind = self._kind_of(row)
            self.names = tuple(self.fields.get(name, name) for name in self.kind.texts)
        row.check_names()
        return row, tuple(self._text(row, name) for name in self.names)

    def _kind_of(self, row: Row) -> Kind:
        # A kind that a --field speaks of is the one that is meant.
        for kind in sorted(KINDS, key=lambda kind: not self.fields.keys() & set(kind.texts)):
            if all(self.fields.get(name, name) in row.values for name in kind.texts):
                return kind
        has = ", ".join(f'"{name}"' for name in list(row.values)[:8]) or "nothing"
        raise row.error(
            f'no "text", no "text_a" and "text_b", no "anchor" and "positive"; this row has {has}',
            advice="say which member is meant, for example --field text=title",
        )

    def _text(self, row: Row, name: str) -> str:
        value = row.values.get(name)
        if isinstance(value, str):
            return value
        raise wrong_member(row, name, "a string")


class EntryParser:
    """Rows of a dictionary -> their definitions."""

    FIELDS = ("entry", "definition")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.name, self.text = (fields.get(name, name) for name in self.FIELDS)

    def __call__(self, row: Row) -> tuple[Row, tuple[str, ...]]:
        row.check_names()
        self.entry(row)
        return row, (filled(row, self.text),)

    def entry(self, row: Row) -> str:
        """What the row defines."""
        return filled(row, self.name)


def filled(row: Row, name: str) -> str:
    """A member that is a string with something in it."""
    value = row.values.get(name)
    if not isinstance(value, str):
        raise wrong_member(row, name, "a string")
    if not value.strip():
        raise row.error(f'"{name}" is empty')
    return value


def wrong_member(row: Row, name: str, expected: str) -> DataError:
    if name not in row.values:
        return row.error(f'"{name}" is missing')
    return row.error(f'"{name}" is {json_type(row.values[name])}, expected {expected}')


def scored(row: Row, name: str) -> float | None:
    """The number in a field. None if it is null or blank: the row has no score.

    A string that spells a number is one: TSV and CSV have only strings, also after a conversion to JSONL.
    STS 2015 and 2016 hold pairs with a blank score.
    """
    value = row.values.get(name)
    if isinstance(value, str):
        value = _number(value)
    if name not in row.values or isinstance(value, str | bool | list | dict):
        raise wrong_member(row, name, "a number")
    if value is not None and not math.isfinite(value):
        raise row.error(f'"{name}" is not a finite number')
    return value


def _number(text: str) -> float | str | None:
    """The text itself if it spells no number. Python would read "1_000" as one."""
    if not text.strip():
        return None
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text
