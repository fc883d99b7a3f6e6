"""Write a row again with another text, or with a variant of its text; other bytes stay."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from sentkit.errors import UsageError
from sentkit.formats.rows.block import Row, put_fields
from sentkit.formats.rows.kinds import PAIR, holds_vectors, missing_field, string_value


class OneText:
    """Reads the field "text", or its name from --field. The field `keep` receives the old text."""

    FIELDS = ("text",)

    def __init__(
        self, fields: Mapping[str, str], keep: str | None = None, *, replace: bool = False
    ) -> None:
        self.name = fields.get("text", "text")
        self.keep = keep
        self.replace = replace
        if keep == self.name:
            raise UsageError(
                f"--keep {keep}: this field gets the new text", advice="choose another name"
            )

    def __call__(self, row: Row) -> tuple[str]:
        row.check_duplicate_names()
        text = string_value(row, self.name)
        if self.keep is not None:
            row.check_absent([self.keep], replace=self.replace)
        return (text,)

    def put(self, row: Row, text: str | None) -> bytes:
        """The line of the row with a new text. None keeps the old text."""
        span = row.field_spans()[self.name]
        old_text = row.line[span.value : span.end]
        new_text = old_text if text is None else orjson.dumps(text)
        new_fields = [(self.name.encode(), new_text)]
        if self.keep is not None:
            new_fields.append((self.keep.encode(), old_text))
        return row.add(new_fields, replace=True)


RECORD = "augment"  # the field with the record of earlier runs


class Sentence(NamedTuple):
    row: Row
    text: str
    views: tuple[int, ...]  # view numbers of earlier runs on this row
    operations: int  # number of operations in these runs


class VariantRows:
    """Reads sentences and returns lines with their variants."""

    def __init__(self, name: str, *, replace: bool) -> None:
        """`name` is the text field. `replace`: it gets the variant; else rows become pairs."""
        if name == RECORD:
            problem = f'the field "{name}" is reserved for the record of sentkit augment'
            raise UsageError(f'--field "text={name}": {problem}', advice="choose another field")
        self.name = name
        self.replace = replace
        self.member = name if replace else PAIR.text_names[1]
        self.pair_fields = [
            field for field in PAIR.text_names if field != name
        ]  # that a pair needs
        self.with_vectors = 0

    def read(self, row: Row) -> Sentence:
        if self.name not in row.values:
            raise missing_field(row, self.name, "text")
        text = string_value(row, self.name)
        if not self.replace:
            present = next((field for field in self.pair_fields if field in row.values), None)
            if present is not None:
                advice = f'use --replace to overwrite "{self.name}"'
                raise row.error(f'field "{present}" already exists', advice=advice)
        self.with_vectors += holds_vectors(row)
        row.check_duplicate_names()
        runs = row.values.get(RECORD, [])
        if not isinstance(runs, list) or not all(map(is_run, runs)):
            advice = "rename or remove this field"
            raise row.error(f'"{RECORD}" is not a record of sentkit augment', advice=advice)
        return Sentence(
            row=row,
            text=text,
            views=tuple(run["view"] for run in runs),
            operations=sum(len(run["ops"]) for run in runs),
        )

    def line(self, sentence: Sentence, variant: str, run: Mapping[str, Any]) -> bytes:
        """The line and newline, with the variant and with this run at the end of its record."""
        row = sentence.row
        name = self.name
        if not self.replace:
            row = row.with_standard_names({"text_a": self.name})
            name = "text_a"
        spans = row.field_spans()

        # The variant replaces the text, or follows it as "text_b".
        text = orjson.dumps(variant)
        if not self.replace:
            old_text = row.line[spans[name].value : spans[name].end]
            text = old_text + b',"text_b":' + text

        # The runs before this one keep their bytes.
        runs = b"["
        if RECORD in spans:
            without_bracket = row.line[spans[RECORD].value : spans[RECORD].end - 1]
            runs = without_bracket.rstrip()
            if sentence.views:
                runs += b","
        runs += orjson.dumps({"member": self.member, **run}) + b"]"
        return put_fields(row.line, [(name.encode(), text), (RECORD.encode(), runs)], spans) + b"\n"


def is_run(value: object) -> bool:
    """Whether a value is the record of a run of sentkit augment, as far as it is read."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("view"), int)
        and isinstance(value.get("ops"), list)
    )
