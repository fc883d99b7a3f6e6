"""Encodes groups of rows and writes them with their vectors; `block_writer.py` does so for vector folders."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import recorded_fields
from sentkit.model import Encoder
from sentkit.model.text.stream import Done, RowGroup, Tally, TextTokenizer, encode_groups
from sentkit.model.text.tokens import Tokens

MARKS = ("n_tokens", "truncated")  # fields that `marks` adds
CHUNK = ("chunk", "start", "end")  # fields of a window that is a row

Report = Callable[[int, int], None]  # rows and tokens since the last report


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings that determine the vectors and the fields of a row."""

    encoder: Encoder
    tokenizer: TextTokenizer
    fields: Mapping[str, str]
    budget: int  # tokens in a batch
    form: VectorOutput
    refuse_truncation: bool = False
    marks: bool = False  # add the fields of MARKS
    windows: Mapping[str, Any] = field(default_factory=dict)  # recorded settings; empty without windows
    encoded: Set[str] = frozenset()  # the inputs that store `_emb` and the vectors of their rows separately

    @property
    def chunks(self) -> bool:
        """Whether each window of a text is a row."""
        return bool(self.windows.get("chunks"))

    def texts(self) -> TextParser:
        return TextParser(self.fields, one_text="--chunks" if self.chunks else None)

    def specs(self, texts: TextParser) -> list[dict[str, Any]]:
        """The specs of the vector files; the first row has set the names of the texts."""
        named = {name: self.fields[name] for name in texts.texts if name in self.fields}
        recorded = {"fields": recorded_fields(named)} if recorded_fields(named) else {}
        return [{**spec.full, **recorded, **self.windows} for spec in self.encoder.specs]

    def to_outputs(
        self,
        groups: Iterator[RowGroup],
        texts: TextParser,
        paths: Sequence[str],
        tally: Tally,
        report: Report,
        rejects: Rejects,
    ) -> None:
        """Write all rows, with one output for each readout."""
        done = encode_groups(groups, self.encoder, self.budget)
        first = next(done, [])  # the first row determines the names of the vectors
        with open_sinks(paths, self.specs(texts), texts.vectors, self.encoder.width, self.form) as sinks:
            for group in chain([first], done):
                written = self.write(group, sinks, texts.vectors, rejects)
                report(len(group), tally.add(each.tokens for each in written))

    def write(
        self, group: Sequence[Done], sinks: Sequence[Sink], names: Sequence[str], rejects: Rejects
    ) -> list[Done]:
        """Write a group to all sinks; return the rows that were written. All sinks get the same rows."""
        others = EMBEDDED.difference(names, ["_emb"])  # vectors that the new `_emb` would not describe

        def write(done: Done) -> Done:
            row = done.row
            if not others.isdisjoint(row.values):
                row.check_absent(sorted(others), replace=self.form.replace)
                row = row.without(others)
            if "_emb" in row.values or row.source in self.encoded:
                # The fields that `encode` added describe the old vectors.
                row = row.without({*MARKS, *(CHUNK if row.values.keys() >= set(CHUNK) else ())})
            ready = [
                sink.prepare(row, vectors[own], extra)
                for own, extra in self.outputs(done)
                for sink, vectors in zip(sinks, done.vectors, strict=True)
            ]
            for put in ready:
                put()
            return done

        written = list(rejects.each(group, write, lambda done: done.row))
        for sink in sinks:
            sink.flush()
        return written

    def outputs(self, done: Done) -> Iterator[tuple[slice, NewFields]]:
        """The rows to write for an input row: the place of their vectors, and their new fields."""
        if not self.chunks:
            yield slice(None), token_marks(done.tokens) if self.marks else ()
            return
        [tokens] = done.tokens
        assert tokens.windows is not None, "with chunks, each text has windows"
        counts = tokens.windows.counts(tokens)
        for number, (start, end) in enumerate(tokens.windows.places):
            values = dict(zip(CHUNK, (number, start, end), strict=True))
            new = [(name.encode(), str(value).encode()) for name, value in values.items()]
            marks = marks_of([counts[number]], [False]) if self.marks else ()
            yield slice(number, number + 1), [*new, *marks]


def token_marks(tokens: Sequence[Tokens]) -> NewFields:
    return marks_of([each.count for each in tokens], [each.truncated for each in tokens])


def marks_of(counts: Sequence[int], truncated: Sequence[bool]) -> NewFields:
    """The fields of MARKS; lists for a pair."""
    texts = [str(count) for count in counts], ["true" if each else "false" for each in truncated]
    values = [f"[{','.join(each)}]" if len(each) > 1 else each[0] for each in texts]
    return [(name.encode(), value.encode()) for name, value in zip(MARKS, values, strict=True)]
