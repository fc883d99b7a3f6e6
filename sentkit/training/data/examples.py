"""Converts rows to training examples: texts and an optional label or score."""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import (
    ENTRY,
    LISTS,
    PAIR,
    Kind,
    advice_on_missing,
    class_of,
    filled,
    prompts_of_sides,
    scored,
    string_in,
    wrong_field,
)
from sentkit.formats.vectors.vectors import VectorBlock, one_vector
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TextTokenizer, Tokens


@dataclass(frozen=True, slots=True)
class Labels:
    """The field "label", a string or a whole number. A row is omitted if its label maps to None."""

    numbers: Mapping[str, int | None]
    why: str = "the method does not use their label"

    def __call__(self, row: Row, name: str) -> float | None:
        label = class_of(row, name)
        if label not in self.numbers:
            known = ", ".join(f'"{word}"' for word in [*self.numbers][:8])
            raise row.error(f'"{name}" is "{label[:40]}"', advice=f"available: {known}")
        number = self.numbers[label]
        return None if number is None else float(number)


@dataclass(slots=True)
class Classes:
    """The field "label", a string or a whole number. The rows determine the set of labels."""

    numbers: dict[str, int] = field(default_factory=dict)
    why: str = ""  # no row is omitted

    def __call__(self, row: Row, name: str) -> float | None:
        return float(self.numbers.setdefault(class_of(row, name), len(self.numbers)))

    def sort(self, targets: MutableSequence[float]) -> tuple[str, ...]:
        """Return the labels of these targets in order, and renumber the targets in that order."""
        names = list(self.numbers)
        labels = sorted({names[int(number)] for number in targets}, key=in_order)
        places = {label: place for place, label in enumerate(labels)}
        for row, number in enumerate(targets):
            targets[row] = float(places[names[int(number)]])
        return tuple(labels)


def in_order(label: str) -> tuple[bool, int, str]:
    """Return a sort key: whole numbers by value, then other labels by alphabet."""
    try:
        return False, int(label), label
    except ValueError:
        return True, 0, label


@dataclass(frozen=True, slots=True)
class Scores:
    """The field "score", a number. Its absolute value is at most `limit`, the setting `scale`."""

    limit: float | None = None
    why: str = "they have no score"

    def __call__(self, row: Row, name: str) -> float | None:
        value = scored(row, name)
        if value is not None and self.limit is not None and abs(value) > self.limit:
            problem = f'"{name}" is {value:g}, outside the scale of {self.limit:g}'
            raise row.error(problem, advice=f"use --set scale={abs(value):g}")
        return None if value is None else float(value)


SAID_OF_PAIRS = ("label", "score")  # fields with the relation of the two texts
NLI = {"contradiction": 0, "entailment": 1, "neutral": 2}


class Target(Protocol):
    """Converts the target field of a row to a number, or to None to omit the row; `why` explains it."""

    @property
    def why(self) -> str: ...

    def __call__(self, row: Row, name: str) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Reads:
    """The kinds of rows that a method reads and the field that it learns to predict."""

    kinds: tuple[Kind, ...]
    target_field: str | None = None
    target: Target | None = None
    varied: bool = False  # rows with one target for all are refused
    # The columns of the corpus: numbers of texts with their tokenizers; none: each text by the tokenizer of
    # the base. A text can have several columns, such as one for each template.
    columns: tuple[tuple[int, Tokenizer], ...] = ()
    # The tokenizer of a second encoder. Each text then has two columns, the first by the base's tokenizer.
    second: TextTokenizer | None = None
    # Replaces `columns`: takes the texts of many rows and returns the columns, one for each text of a row.
    tokenize: Callable[[Sequence[tuple[str, ...]]], list[Sequence[Tokens]]] | None = None
    vectors: bool = False  # each row also has the vector of a teacher


@dataclass(frozen=True, slots=True)
class Example:
    row: Row
    texts: tuple[str, ...]  # the texts of a list are last
    target: float | None


class ExampleParser:
    """Converts rows to examples, or to None for omitted rows. The first row determines the kind."""

    def __init__(
        self,
        method: str,
        reads: Reads,
        fields: Mapping[str, str],
        prompts: Mapping[str, str] | None = None,  # by side
        others: Collection[str] = (),  # sides of the rows of --dev
    ) -> None:
        self.method, self.reads, self.fields = method, reads, fields
        self.by_side, self.others = prompts or {}, others
        self.kind: Kind | None = None
        self.prompts: tuple[str, ...] = ()  # of the texts of a row, if they differ; the last is of all others
        self.unread: tuple[str, ...] = ()  # label or score fields of the first row that are ignored

    def __call__(self, row: Row) -> Example | None:
        row.refuse_duplicates()
        kind, field = self.kind or self._kind_of(row), self.reads.target_field
        texts = tuple(text for name in kind.texts for text in self._texts(row, name, kind))
        read = self.reads.target
        target = None if read is None or field is None else read(row, self._theirs(field))
        if self.kind is None:  # a rejected row determines nothing
            self.prompts = prompts_of_sides(kind, self.by_side, self.others)
            self.kind = kind
            if kind is PAIR and self.reads.target_field is None:
                self.unread = tuple(name for name in map(self._theirs, SAID_OF_PAIRS) if name in row.values)
        if read is None or field is None:
            return Example(row, texts, None)
        return None if target is None else Example(row, texts, target)

    def rows(self, row: Row) -> tuple[Row, tuple[Example | None]]:
        """The example as the text of a row, for `Inputs.blocks`."""
        return row, (self(row),)

    def with_vectors(self, block: VectorBlock) -> VectorBlock:
        """Mark bad rows, and set the example as the text of the others, for `VectorReader.blocks`."""
        one_vector(block)
        for place in np.flatnonzero(~block.vectors.any(axis=(1, 2))).tolist():
            block.rows.refuse(place, "the vector is 0, so it has no direction")
        block.rows.parse(self)
        return block

    def _theirs(self, name: str) -> str:
        return self.fields.get(name, name)

    def _kind_of(self, row: Row) -> Kind:
        # Prefer kinds with a text field that --field renames.
        meant = sorted(self.reads.kinds, key=lambda kind: not self.fields.keys() & set(kind.texts))
        for kind in meant:
            if all(self._theirs(name) in row.values for name in kind.texts):
                return kind

        wants = ", or ".join(quoted(map(self._theirs, kind.texts)) for kind in meant)
        missing = next(name for name in meant[0].texts if self._theirs(name) not in row.values)
        advice = f"name the field, for example --field {missing}=title, which applies to all files"
        if missing in self.fields:
            advice = advice_on_missing(self.fields[missing], missing, tuple(row.values))
            advice = f"{advice}; --field applies to all files"
        has = quoted([*row.values][:8]) or "nothing"
        raise row.error(f"{self.method} needs {wants}; this row has {has}", advice=advice)

    def _texts(self, row: Row, field: str, kind: Kind) -> list[str]:
        name = self._theirs(field)
        if field not in LISTS:
            return [filled(row, name) if kind is ENTRY else string_in(row, name)]
        texts = row.values.get(name)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise wrong_field(row, name, "a list of strings")
        return texts


def quoted(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)
