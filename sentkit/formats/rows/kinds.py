"""Kinds of rows: the fields with the texts, the names of their vectors, and the parsers.

The fields of the first row determine the kind of a stream. All later rows must have the same kind.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from shlex import quote
from typing import Any

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.block import Row, RowBlock, Texts
from sentkit.formats.rows.lines import json_type


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    text_names: tuple[str, ...]

    @property
    def vector_names(self) -> tuple[str, ...]:
        """`text` -> `embedding`, `text_a` -> `embedding_a`, `anchor` -> `embedding_anchor`."""
        if self is SENTENCE:
            return ("embedding",)
        return tuple(f"embedding_{side}" for side in self.sides)

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of several texts in flags: a, b, or anchor, positive, negative."""
        if len(self.text_names) == 1:
            return ()
        return tuple(SIDE_OF.get(text, text) for text in self.text_names)


SIDE_OF = {"text_a": "a", "text_b": "b", "negatives": "negative"}
PAIR = Kind("pair", ("text_a", "text_b"))
TRIPLET = Kind("triplet", ("anchor", "positive", "negative"))
POSITIVE = Kind("anchor and positive", ("anchor", "positive"))
SENTENCE = Kind("sentence", ("text",))
NEGATIVES = Kind("anchor, positive and negatives", ("anchor", "positive", "negatives"))
ENTRY = Kind("entry", ("definition",))
KINDS = (PAIR, TRIPLET, POSITIVE, SENTENCE)  # in order of priority
FIELDS = ("text", "text_a", "text_b", "anchor", "positive", "negative")
VECTOR_NAMES = tuple(kind.vector_names for kind in KINDS)  # in order of priority
VECTORS = tuple(dict.fromkeys(name for names in VECTOR_NAMES for name in names))
SIDES = tuple(dict.fromkeys(side for kind in KINDS for side in kind.sides))
SIDE = re.compile(rf"(?:\A|,)({'|'.join(SIDES)})=")
EMBEDDED = frozenset(("_emb", *VECTORS))
LISTS = ("negatives",)  # text fields that hold a list of any length
# fields that training can read
LEARNED = (*FIELDS, *LISTS, "definition", "entry", "label", "score")
ROWS_OF_ADVICE = 100  # rows from which the field of a text is guessed
LONGEST_WORD = 20  # characters
Label = str | int  # the value of a class; also true and false


def holds_vectors(row: Row) -> bool:
    """Whether a row has an `_emb` or a vector field."""
    return not EMBEDDED.isdisjoint(row.values)


def split_by_side(text: str) -> dict[str, str]:
    """Parse `a=query: ,b=passage: ` to a text for each side; {} if the text starts with none.

    Only a side with "=" at the start or after a comma is a side, so the texts can contain commas
    and "=".
    """
    matches = [*SIDE.finditer(text)]
    if not matches or matches[0].start() > 0:
        return {}
    ends = [*(match.start() for match in matches[1:]), len(text)]
    prompts: dict[str, str] = {}
    for match, end in zip(matches, ends, strict=True):
        side = match[1]
        if side in prompts:
            raise UsageError(f'prompts by side: the side "{side}" is given twice')
        prompts[side] = text[match.end() : end]
    # the order of the text is ignored
    return {side: prompts[side] for side in SIDES if side in prompts}


def prompts_of_sides(
    kind: Kind, prompts: Mapping[str, str], sides_of_other_rows: Collection[str] = ()
) -> tuple[str, ...]:
    """The prompt of each text of a kind, from those by side; () if there are none.

    The sides of other rows can have prompts, too.
    """
    if not prompts:
        return ()
    if not kind.sides:
        problem = "a prompt by side needs rows with several texts, but these rows have one text"
        raise UsageError(problem, advice=f"remove {next(iter(prompts))}= from the prompt")
    if not {*kind.sides} <= prompts.keys() <= {*kind.sides, *sides_of_other_rows}:
        sides = " and ".join([", ".join(kind.sides[:-1]), kind.sides[-1]])
        problem = f"prompts by side: these rows have the sides {sides}"
        raise UsageError(problem, advice="name each of them, SIDE= for none, and no others")
    return tuple(prompts[side] for side in kind.sides)


class TextParser:
    """Returns the texts of a row. The first row sets the kind; another kind is an error.

    `one_text` is a flag that needs rows with one text. With `prompts` by side, texts are
    (prompt, text).
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        *,
        one_text: str | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.fields = fields
        self.one_text = one_text
        self.prompts = prompts or {}
        self.likely_text: str | None = None  # for the advice, from the rows of the first error
        # Set by the first good row:
        self.kind: Kind | None = None
        self.names: tuple[str, ...] = ()  # of the text fields in these rows
        self.text_prompts: tuple[str, ...] = ()  # of the texts of a row, if they differ

    @property
    def vector_names(self) -> tuple[str, ...]:
        """The vector names of this stream; those of a sentence before the first row."""
        return (self.kind or SENTENCE).vector_names

    @property
    def text_names(self) -> tuple[str, ...]:
        """The standard names of the text fields; empty before the first row."""
        if self.kind is None:
            return ()
        return self.kind.text_names

    def __call__(self, row: Row, first_rows: Sequence[Mapping[str, Any]] = ()) -> Texts:
        """Parse a row. The advice of an error selects a field that `first_rows` have."""
        row.check_duplicate_names()
        kind = self.kind or self._kind_of(row, first_rows or [row.values])
        names = self.names or tuple(self.fields.get(name, name) for name in kind.text_names)
        texts = tuple(string_value(row, name) for name in names)
        if self.kind is None:  # a rejected row determines nothing
            self.text_prompts = prompts_of_sides(kind, self.prompts)
            self.kind = kind
            self.names = names
        if self.text_prompts:
            return tuple(zip(self.text_prompts, texts, strict=True))
        return texts

    def of_block(self, block: RowBlock) -> None:
        """Set the texts of all rows of a block, and mark bad rows, as a call does for a row."""
        # The first good row sets the kind.
        for index in range(len(block)):
            if self.kind is not None:
                break
            if index in block.error_of_row:
                continue
            try:
                self(block.row(index), block.values[index : index + ROWS_OF_ADVICE])
            except DataError as error:
                block.error_of_row[index] = error
        block.refuse_duplicate_names()

        # One column for each text of a row.
        columns = [[values.get(name) for values in block.values] for name in self.names]
        for name, column in zip(self.names, columns, strict=True):
            refuse_other_types(block, name, column)
        texts: list[Any] = [*zip(*columns, strict=True)]
        if self.text_prompts:
            texts = [tuple(zip(self.text_prompts, row_texts, strict=True)) for row_texts in texts]
        block.texts = texts

    def _kind_of(self, row: Row, first_rows: Sequence[Mapping[str, Any]]) -> Kind:
        # Kinds with a field from --field come first.
        kinds = KINDS if self.one_text is None else (SENTENCE,)
        for kind in sorted(kinds, key=lambda kind: not self.fields.keys() & set(kind.text_names)):
            if all(self.fields.get(name, name) in row.values for name in kind.text_names):
                return kind
        for standard, name in self.fields.items():
            if standard in FIELDS and name not in row.values:
                raise missing_field(row, name, standard)
        missing = 'no "text", no "text_a" and "text_b", no "anchor" and "positive"'
        if self.one_text is not None:
            missing = f'no "text", which {self.one_text} needs'
        if self.likely_text is None:
            self.likely_text = likely_text(first_rows) or "title"
        advice = f"name the field, for example --field {quote(f'text={self.likely_text}')}"
        raise row.error(f"{missing}; this row has {quoted_names(row.values)}", advice=advice)


def refuse_other_types(block: RowBlock, name: str, column: Sequence[object]) -> None:
    """Mark the rows in which the field `name` is not a string."""
    if {*map(type, column)} == {str}:
        return
    for index, value in enumerate(column):
        if not isinstance(value, str) and index not in block.error_of_row:
            block.error_of_row[index] = wrong_field(block.row(index), name, "a string")


def field_of_text(row: Row, fields: Mapping[str, str]) -> str | None:
    """The field that is most like a text; None if the row or --field names one."""
    if not fields.keys().isdisjoint(FIELDS):
        return None
    if any(all(name in row.values for name in kind.text_names) for kind in KINDS):
        return None
    return likely_text([row.values])


def likely_text(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The field of strings with the most letters, then the most characters; None without."""
    letters: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and name not in EMBEDDED:
                letters[name] += letter_count(value)
                characters[name] += len(value)
    return max(characters, key=lambda name: (letters[name], characters[name]), default=None)


def letter_count(text: str) -> int:
    """The number of letters; 0 for a long word in ASCII, such as a URL, a hash or base64."""
    if len(text) > LONGEST_WORD and text.isascii() and " " not in text:
        return 0
    return sum(map(str.isalpha, text))


class EntryParser:
    """Returns the definition of a dictionary row."""

    FIELDS = ("entry", "definition")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.name = fields.get("entry", "entry")
        self.text = fields.get("definition", "definition")

    def __call__(self, row: Row) -> Texts:
        row.check_duplicate_names()
        self.entry(row)
        return (filled_string(row, self.text),)

    def entry(self, row: Row) -> str:
        """The word or phrase that the row defines."""
        return filled_string(row, self.name)


def string_value(row: Row, name: str) -> str:
    """The value of a field that must be a string."""
    value = row.values.get(name)
    if not isinstance(value, str):
        raise wrong_field(row, name, "a string")
    return value


def filled_string(row: Row, name: str) -> str:
    """The value of a field that must be a string and not blank."""
    value = string_value(row, name)
    if not value.strip():
        raise row.error(f'"{name}" is empty')
    return value


def wrong_field(row: Row, name: str, expected: str) -> DataError:
    if name not in row.values:
        return missing_field(row, name)
    return row.error(f'"{name}" is {json_type(row.values[name])}, expected {expected}')


def missing_field(row: Row, name: str, standard: str | None = None) -> DataError:
    """The error for a row without the field `name`, which --field reads as the field `standard`."""
    return row.error(
        f'"{name}" is missing', advice=advice_on_missing(name, standard, tuple(row.values))
    )


@lru_cache(64)  # of many bad rows, which mostly have the same fields
def advice_on_missing(name: str, standard: str | None, present: tuple[str, ...]) -> str:
    """The fields that a row has, and the one with a similar name."""
    present_fields = f"this row has {quoted_names(present)}"
    similar_fields = get_close_matches(name, present, len(present) or 1)
    if not similar_fields:
        return present_fields
    # Of two that are equally similar, such as "text_a" and "text_b", the first of the row.
    similar = max(
        (field for field in present if field in similar_fields),
        key=lambda field: SequenceMatcher(a=field, b=name).ratio(),
    )
    if standard is None:
        return f'did you mean "{similar}"? {present_fields}'
    if similar == standard:
        return f"leave out --field {quote(f'{standard}={name}')}: {present_fields}"
    return f"did you mean --field {quote(f'{standard}={similar}')}? {present_fields}"


def quoted_names(names: Iterable[str]) -> str:
    """The first eight names, for messages."""
    return ", ".join(f'"{name}"' for name in list(names)[:8]) or "nothing"


def class_value(row: Row, name: str) -> str:
    """The class as a string: 1, 1.0 and "1" are one class, because tables contain only strings."""
    value = row.values.get(name)
    if isinstance(value, float) and value.is_integer():
        if abs(value) < 2.0**63:
            return str(int(value))
        # parsed again, because orjson rounds a number of more than 64 bits
        span = row.field_spans()[name]
        return str(int(json.loads(row.line[span.value : span.end])))
    if not isinstance(value, str | int):
        raise wrong_field(row, name, "a string or a whole number")
    if value == "":
        raise row.error(f'"{name}" is empty')
    return class_name(value)


def class_name(value: Label) -> str:
    """The name of a class in reports: the string of its label, as in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def score_value(row: Row, name: str) -> float | None:
    """The number in a field; None if the field is null or blank: the row has no score.

    A string with a number is accepted, because TSV and CSV have only strings. STS 2015 and 2016
    contain pairs with a blank score.
    """
    value = row.values.get(name)
    if isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, str) and "_" not in value:  # float takes 1_000 as a number
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, str):
        raise row.error(f'"{name}" is "{value:.40}", expected a number')
    if name not in row.values or isinstance(value, bool | list | dict):
        raise wrong_field(row, name, "a number")
    if value is not None and not math.isfinite(value):
        raise row.error(f'"{name}" is not a finite number')
    return value


LABELS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}


def label_value(row: Row, name: str) -> float | None:
    """The label 0 or 1 in a field, also false, true or a string; None if it is null or blank."""
    value = row.values.get(name)
    if name not in row.values or isinstance(value, list | dict):
        raise wrong_field(row, name, "0 or 1")
    if value is None:
        return None
    text = str(value).strip()
    if text and text.lower() not in LABELS:
        raise row.error(f'"{name}" is {text[:40]}, expected 0, 1, true or false')
    return LABELS.get(text.lower())
