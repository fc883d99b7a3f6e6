"""Converts rows to training examples: texts and an optional label or score."""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import (
    ENTRY,
    LISTS,
    NEGATIVES,
    PAIR,
    Kind,
    advice_on_missing,
    class_value,
    filled_string,
    prompts_of_sides,
    score_value,
    string_value,
    wrong_field,
)
from sentkit.formats.vectors.vectors import VectorBlock, one_vector
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TextTokenizer, Tokens
from sentkit.training.settings import format_value


@dataclass(frozen=True, slots=True)
class Labels:
    """The field "label", a string or a whole number. A row is omitted if its label maps to None."""

    numbers: Mapping[str, int | None]
    why: str = "a label that the method does not use"

    def __call__(self, row: Row, name: str) -> float | None:
        label = class_value(row, name)
        if label not in self.numbers:
            labels = ", ".join(f'"{label}"' for label in list(self.numbers)[:8])
            raise row.error(f'"{name}" is "{label[:40]}"', advice=f"available: {labels}")
        number = self.numbers[label]
        if number is None:
            return None
        return float(number)


@dataclass(slots=True)
class Classes:
    """The field "label", a string or a whole number. The rows determine the set of labels."""

    numbers: dict[str, int] = field(default_factory=dict)
    why: str = ""  # no row is omitted

    def __call__(self, row: Row, name: str) -> float | None:
        label = class_value(row, name)
        return float(self.numbers.setdefault(label, len(self.numbers)))

    def sort(self, targets: MutableSequence[float]) -> tuple[str, ...]:
        """Return the labels of these targets in order, and renumber the targets in that order."""
        label_of_number = list(self.numbers)
        used_labels = {label_of_number[int(number)] for number in targets}
        sorted_labels = sorted(used_labels, key=sort_key_of_label)
        new_numbers = {label: float(number) for number, label in enumerate(sorted_labels)}
        for row, number in enumerate(targets):
            targets[row] = new_numbers[label_of_number[int(number)]]
        return tuple(sorted_labels)


def sort_key_of_label(label: str) -> tuple[bool, int, str]:
    """Return a sort key: whole numbers by value, then other labels by alphabet."""
    try:
        return False, int(label), label
    except ValueError:
        return True, 0, label


@dataclass(frozen=True, slots=True)
class Scores:
    """The field "score", a number. Its absolute value is at most `limit`, the setting `scale`."""

    limit: float | None = None
    why: str = "no score"

    def __call__(self, row: Row, name: str) -> float | None:
        value = score_value(row, name)
        if value is not None and self.limit is not None and abs(value) > self.limit:
            scale = format_value(self.limit)
            problem = f'"{name}" is {format_value(value)}, outside the scale of {scale}'
            raise row.error(problem, advice=f"use --set scale={format_value(abs(value))}")
        if value is None:
            return None
        return float(value)


FIELDS_OF_RELATIONS = ("label", "score")  # how the two texts of a pair are related
NLI = {"contradiction": 0, "entailment": 1, "neutral": 2}


class Target(Protocol):
    """Converts the target field of a row to a number, or to None to omit the row; `why` explains
    it.
    """

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
    # The columns of the corpus: numbers of texts with their tokenizers; none: each text by the
    # tokenizer of the base. A text can have several columns, such as one for each template.
    columns: tuple[tuple[int, Tokenizer], ...] = ()
    # The tokenizer of a guide, or of a comparison of texts. `Batch.second_texts` then has all texts
    # by this tokenizer, and only `Batch.texts`, by that of the base, count as tokens of the run.
    second_tokenizer: TextTokenizer | None = None
    # Replaces `columns`: takes the texts of many rows and returns the columns, one for each text of
    # a row. It adds no prompts.
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
        method: str,  # in messages: its name, or a flag
        reads: Reads,
        fields: Mapping[str, str],  # names of --field: field -> its name in the rows
        prompts: Mapping[str, str] | None = None,  # by side
        dev_sides: Collection[str] = (),  # sides of the rows of --dev
    ) -> None:
        self.method = method
        self.reads = reads
        self.fields = fields
        self.prompt_of_side = prompts or {}
        self.dev_sides = dev_sides

        # What the first good row determines.
        self.kind: Kind | None = None
        # The prompt of each text of a row, empty without prompts of sides. The last one is that of
        # all further texts of a list.
        self.prompts: tuple[str, ...] = ()
        # Fields of texts that are not those of the kind; a row that has one is of another kind.
        self.further_fields: tuple[str, ...] = ()
        # "label" or "score" of this row, if the method does not read it; for a warning
        self.ignored_fields: tuple[str, ...] = ()

    def __call__(self, row: Row) -> Example | None:
        row.check_duplicate_names()
        kind = self.kind or self._kind_of(row)
        further_fields = self.further_fields
        if self.kind is None:
            further_fields = self._further_fields(kind)
        for name in further_fields:
            if row.values.get(name):
                problem = f'has "{name}", which the first row does not have'
                if self.kind is None:
                    problem = f'has "{name}" beside "{self._name_in_rows(kind.text_names[-1])}"'
                advice = "all rows need it, or none"
                if NEGATIVES in self.reads.kinds:
                    negatives = self._name_in_rows("negatives")
                    advice = f'write all negatives as "{negatives}": ["..."] in every row'
                    advice += "; the list can be empty"
                raise row.error(problem, advice=advice)
        texts: list[str] = []
        for text_field in kind.text_names:
            texts += self._texts(row, text_field, kind)
        target_field = self.reads.target_field
        predicts_target = self.reads.target is not None and target_field is not None
        target = None
        if self.reads.target is not None and target_field is not None:
            target = self.reads.target(row, self._name_in_rows(target_field))

        # Set the kind after all checks, because a rejected row determines nothing.
        if self.kind is None:
            self.prompts = prompts_of_sides(kind, self.prompt_of_side, self.dev_sides)
            self.kind = kind
            self.further_fields = further_fields
            if kind is PAIR and target_field is None:
                names = [self._name_in_rows(field) for field in FIELDS_OF_RELATIONS]
                self.ignored_fields = tuple(name for name in names if name in row.values)
        if predicts_target and target is None:
            return None
        return Example(row, tuple(texts), target)

    def with_vectors(self, block: VectorBlock) -> VectorBlock:
        """Mark bad rows, and parse the others, for `VectorReader.blocks`."""
        one_vector(block)
        block.rows.parse(self)
        is_zero = ~block.vectors.any(axis=(1, 2))
        for row in np.flatnonzero(is_zero).tolist():
            example = block.rows.parsed[row]
            # That of an empty text, which is skipped, is always 0.
            if example is not None and all(map(str.strip, example.texts)):
                block.rows.refuse(row, "the vector is 0, so it has no direction")
        return block

    def _further_fields(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of text fields that this kind lacks, of the kinds of the method that
        begin with the same two fields, such as anchor and positive.
        """
        fields = [
            field
            for other in self.reads.kinds
            if other.text_names[:2] == kind.text_names[:2]
            for field in other.text_names
            if field not in kind.text_names
        ]
        return tuple(map(self._name_in_rows, fields))

    def _name_in_rows(self, field: str) -> str:
        return self.fields.get(field, field)

    def _kind_of(self, row: Row) -> Kind:
        # Prefer kinds with a text field that --field renames.
        kinds = sorted(
            self.reads.kinds, key=lambda kind: not self.fields.keys() & set(kind.text_names)
        )
        for kind in kinds:
            if all(self._name_in_rows(field) in row.values for field in kind.text_names):
                return kind

        # Name the texts of all kinds, and give advice for the first missing one of the likeliest
        # kind.
        needs = ", or ".join(quoted(map(self._name_in_rows, kind.text_names)) for kind in kinds)
        missing = next(
            field for field in kinds[0].text_names if self._name_in_rows(field) not in row.values
        )
        advice = f"name the field, for example --field {missing}=title, which applies to all files"
        if missing in self.fields:
            advice = advice_on_missing(self.fields[missing], missing, tuple(row.values))
            advice = f"{advice}; --field applies to all files"
        names = quoted(list(row.values)[:8]) or "nothing"
        raise row.error(f"{self.method} needs {needs}; this row has {names}", advice=advice)

    def _texts(self, row: Row, field: str, kind: Kind) -> list[str]:
        name = self._name_in_rows(field)
        if field in LISTS:
            texts = row.values.get(name)
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise wrong_field(row, name, "a list of strings")
            return texts
        if kind is ENTRY:
            return [filled_string(row, name)]
        return [string_value(row, name)]


def quoted(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)
