"""Write rows with a variant of their sentence, as a pair or in place of the sentence.

The field `augment` records the random choices: a list with one object per run, in order.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from sentkit.errors import UsageError
from sentkit.formats.rows import splice
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import PAIR, holds_vectors, wrong_field

RECORD = "augment"
Runs = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Sentence:
    row: Row
    text: str
    spans: splice.Spans | None  # None: a plain row that is not parsed yet
    views: tuple[int, ...] = ()  # view numbers of earlier runs on this row
    operations: int = 0  # number of operations in these runs


class VariantRows:
    """Reads sentences and returns lines with their variants."""

    def __init__(self, name: str, *, replace: bool) -> None:
        if name == RECORD:
            raise UsageError(
                f'--field "text={name}": the field "{name}" is reserved for the record of sentkit augment',
                advice="choose another field",
            )
        self.name, self.replace = name, replace
        self.member = name if replace else PAIR.texts[1]
        self.taken = [each for each in PAIR.texts if each != name]  # field names that a pair needs
        self.with_vectors = 0
        # In a plain row, only the field matches, because the name starts with a letter, a digit or "_".
        self.pattern = None
        if name.isprintable() and '"' not in name and (name[0].isalnum() or name[0] == "_"):
            self.pattern = re.compile(rb'"%b"(\s*:\s*)("[^"]*")' % re.escape(name.encode()))

    def read(self, row: Row) -> Sentence:
        text = row.values.get(self.name)
        if self.name not in row.values:
            advice = "name the field, for example --field text=title"
            raise row.error(f'"{self.name}" is missing', advice=advice)
        if not isinstance(text, str):
            raise wrong_field(row, self.name, "a string")
        if not self.replace and (present := next((name for name in self.taken if name in row.values), None)):
            advice = f'use --replace to overwrite "{self.name}"'
            raise row.error(f'field "{present}" already exists', advice=advice)
        self.with_vectors += holds_vectors(row)
        sentence = Sentence(row, text, None if row.plain else row.spans())
        if RECORD in row.values:
            runs = runs_of(row)
            sentence.views = tuple(run["view"] for run in runs)
            sentence.operations = sum(len(run["ops"]) for run in runs)
        return sentence

    def line(self, sentence: Sentence, variant: str, run: Mapping[str, Any]) -> bytes:
        """The line with the variant and with this run at the end of its record. Includes the newline."""
        line, spans = sentence.row.line, sentence.spans
        record = orjson.dumps({"member": self.member, **run})
        if RECORD in sentence.row.values:
            spans = splice.spans_of(line) if spans is None else spans
            runs = line[spans[RECORD].value : spans[RECORD].end - 1].rstrip()
            joint = b"," if sentence.views else b""
            line = splice.put(line, [(RECORD.encode(), b"%b%b%b]" % (runs, joint, record))], spans)
            spans, last = splice.spans_of(line), b"}\n"
        else:
            last = b',"augment":[%b]}\n' % record
        start, name, value, end = self._place(line, spans)
        new = orjson.dumps(variant)
        if self.replace:
            return b"%b%b%b%b" % (line[:value], new, line[end:-1], last)
        return b'%b"text_a"%b,"text_b":%b%b%b' % (line[:start], line[name:end], new, line[end:-1], last)

    def _place(self, line: bytes, spans: splice.Spans | None) -> tuple[int, int, int, int]:
        """Positions in the sentence field: start, end of the name, start of the value, end."""
        match = self.pattern.search(line) if self.pattern is not None and spans is None else None
        if match is not None:
            return match.start(), match.start(1), match.start(2), match.end()
        start, value, end = (splice.spans_of(line) if spans is None else spans)[self.name]
        return start, splice.end_of_string(line, start), value, end


def runs_of(row: Row) -> Runs:
    """The runs in the record of a row; can be empty."""
    runs = row.values[RECORD]
    if not isinstance(runs, list) or not all(
        isinstance(run, dict) and isinstance(run.get("view"), int) and isinstance(run.get("ops"), list)
        for run in runs
    ):
        raise row.error(
            f'"{RECORD}" is not a record of sentkit augment',
            advice="rename or remove this field",
        )
    return runs
