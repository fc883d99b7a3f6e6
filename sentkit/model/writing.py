"""Writes rows with their vectors to outputs, and adds the fields of `--on-truncate`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.rows.block import NewFields, RowBlock
from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import recorded_fields
from sentkit.model.encoding import Report, RowGroup, Tally, TokenEncoder, encode_groups, tokenized_groups
from sentkit.model.reuse import OldVectors
from sentkit.model.text.tokens import TextTokenizer

MARKS = ("n_tokens", "truncated")  # fields that `marks` adds
CHUNK = ("chunk", "start", "end")  # fields of a window that is a row


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings that determine the vectors and the fields of a row."""

    encoder: TokenEncoder
    tokenizer: TextTokenizer
    texts: TextParser
    form: VectorOutput
    batch_tokens: int | None = None  # None: the budget of the encoder
    on_truncate: str = "warn"  # "mark" adds the fields of MARKS
    windows: Mapping[str, Any] = field(default_factory=dict)  # recorded settings; empty without windows
    encoded: Set[str] = frozenset()  # the inputs that store `_emb` and the vectors of their rows separately
    old: OldVectors | None = None  # of --reuse

    @property
    def budget(self) -> int:
        """The number of tokens in a batch."""
        return self.batch_tokens or self.encoder.budget

    def groups(self, blocks: Iterable[RowBlock], rejects: Rejects) -> Iterator[RowGroup]:
        """The rows in groups, with their tokens, and with the places of their old vectors."""
        return self.known(tokenized_groups(blocks, self.tokenizer, rejects, on_truncate=self.on_truncate))

    def known(self, groups: Iterator[RowGroup]) -> Iterator[RowGroup]:
        """The same groups with the places of their old vectors."""
        return groups if self.old is None else map(self.old.found_in, groups)

    def specs(self, texts: TextParser) -> list[dict[str, Any]]:
        """The specs of the vector files; the first row has set the names of the texts."""
        fields = recorded_fields({name: texts.fields.get(name, name) for name in texts.texts})
        recorded = {"fields": fields} if fields else {}
        return [{**spec.full, **recorded, **self.windows} for spec in self.encoder.specs]

    def counts(self, tally: Tally) -> Iterator[str]:
        """The messages about windows, and about rows with old vectors."""
        if self.windows:
            split = f"{tally.split} of {tally.rows} rows were split"
            split += f" into {tally.windows} windows" if tally.windows else ""
            split += f", {tally.texts} rows were written" if self.windows["chunks"] else ""
            yield f"{split} (--window {self.windows['window']}:{self.windows['stride']})"
        if self.old is not None:
            unneeded = "" if self.old.unneeded is None else f", no longer needed: {self.old.unneeded:,}"
            yield f"reused rows: {tally.reused:,}, encoded: {tally.rows - tally.reused:,}{unneeded}"

    def to_outputs(
        self, groups: Iterator[RowGroup], paths: Sequence[str], report: Report, rejects: Rejects
    ) -> Tally:
        """Write all rows, with one output for each readout. Returns their counts."""
        tally, encoder, texts = Tally(), self.encoder, self.texts
        done = encode_groups(self.known(groups), encoder, self.budget, self.old)
        first = list(islice(done, 1))  # the first row determines the names of the vectors
        with open_sinks(paths, self.specs(texts), texts.vectors, encoder.width, self.form) as sinks:
            for group in chain(first, done):
                self.write(group, sinks, texts.vectors, rejects, tally, report)
        if self.old is not None:
            self.old.count_unneeded()
        return tally

    def write(
        self,
        group: RowGroup,
        sinks: Sequence[Sink],
        names: Sequence[str],
        rejects: Rejects,
        tally: Tally,
        report: Report,
    ) -> None:
        """Write a group to all sinks, and count the rows that were written. All sinks get the same rows."""
        rows = self.without_old(group.rows, names)
        extra = self.extra(group)
        lines = rows if group.owners is None else rows.take(group.owners.tolist())
        lines.bad = dict(rows.bad) if group.owners is None else {}
        for sink, vectors in zip(sinks, group.vectors, strict=True):
            sink.check(lines, vectors, [name.decode() for name, _ in extra[0]] if extra else ())
        for place, error in lines.bad.items():
            rows.bad.setdefault(place if group.owners is None else int(group.owners[place]), error)
        for places in rejects.good_places(rows):
            own = group.take(places)
            kept = own.rows if own.owners is None else own.rows.take(own.owners.tolist())
            new = self.extra(own) if extra and own is not group else extra
            for sink, vectors in zip(sinks, own.vectors, strict=True):
                sink.write(kept, vectors, new)
            report(len(own.rows), tally.add(own))
        for sink in sinks:
            sink.flush()

    def without_old(self, rows: RowBlock, names: Sequence[str]) -> RowBlock:
        """The rows without the fields of old vectors. Old vectors of other names make a row bad."""
        others = EMBEDDED.difference(names, ["_emb"])  # vectors that the new `_emb` would not describe
        stored = not self.encoded.isdisjoint(rows.sources)
        if not stored and all(map(EMBEDDED.isdisjoint, rows.values)):
            return rows
        for place, row in enumerate(rows):
            try:
                gone = set[str]()
                if not others.isdisjoint(row.values):
                    row.check_absent(sorted(others), replace=self.form.replace)
                    gone |= others
                if "_emb" in row.values or row.source in self.encoded:
                    # The fields that `encode` added describe the old vectors.
                    gone |= {*MARKS, *(CHUNK if row.values.keys() >= set(CHUNK) else ())}
                if not gone.isdisjoint(row.values):
                    left = row.without(gone)
                    rows.lines[place], rows.values[place] = left.line, left.values
            except DataError as error:
                rows.bad[place] = error
        return rows

    def extra(self, group: RowGroup) -> list[NewFields]:
        """The new fields of each row to write besides the vectors; [] if there are none."""
        extra, tokens = list[NewFields](), group.tokens
        for places in group.index.tolist() if self.on_truncate == "mark" else ():
            counts = [str(tokens.counts[place]) for place in places]
            truncated = ["true" if tokens.truncated[place] else "false" for place in places]
            values = (f"[{','.join(each)}]" if len(each) > 1 else each[0] for each in (counts, truncated))
            extra.append([(name.encode(), value.encode()) for name, value in zip(MARKS, values, strict=True)])
        if not self.windows.get("chunks"):
            return extra
        for place in group.index[:, 0].tolist():
            for number, (start, end) in enumerate(tokens.windows[place].places):
                chunk = zip(CHUNK, (number, start, end), strict=True)
                extra.append([(name.encode(), b"%d" % value) for name, value in chunk])
        return extra
