"""Writes rows with their vectors to outputs, and adds the fields of `--on-truncate`.

`encode --dry-run` counts instead, and estimates bytes, time and memory. The number of rows is exact. Other
counts of a large input are estimated from a sample of its rows.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import COMPRESSED, is_parquet, is_safetensors
from sentkit.formats.rows.block import NewFields, RowBlock, empty_block
from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.store import recorded_fields
from sentkit.formats.vectors.tensors import Storage
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.formats.vectors.writers import VectorOutput, VectorWriter, open_writers, refuse_existing_fields
from sentkit.model.encoding import (
    AHEAD,
    LAST_GROUP,
    Report,
    RowGroup,
    Tally,
    TokenEncoder,
    encode_groups,
    plan_batches,
    tokenized_groups,
)
from sentkit.model.text.tokens import TextTokenizer, TokenBlock

if TYPE_CHECKING:
    from sentkit.model.reuse import OldVectors

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
    old: "OldVectors | None" = None  # of --reuse

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
        with open_writers(paths, self.specs(texts), texts.vectors, encoder.width, self.form) as sinks:
            for group in chain(first, done):
                self.write(group, sinks, texts.vectors, rejects, tally, report)
        if self.old is not None:
            self.old.count_unneeded()
        return tally

    def write(
        self,
        group: RowGroup,
        sinks: Sequence[VectorWriter],
        names: Sequence[str],
        rejects: Rejects,
        tally: Tally,
        report: Report,
    ) -> None:
        """Write a group to all sinks, and count the rows that were written. All sinks get the same rows."""
        rows = self.without_old(group.rows, names)
        extra = self.extra(group)
        owners = range(len(rows)) if group.owners is None else group.owners.tolist()
        lines = rows if group.owners is None else replace(rows.take(owners), bad={})
        for sink, vectors in zip(sinks, group.vectors, strict=True):
            sink.check(lines, vectors, [name.decode() for name, _ in extra[0]] if extra else ())
        for place, error in lines.bad.items():
            rows.bad.setdefault(owners[place], error)
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
        refuse_existing_fields(rows, sorted(others), replace=self.form.replace)
        for place, row in enumerate(rows):
            gone = set(others)
            if "_emb" in row.values or row.source in self.encoded:
                # The fields that `encode` added describe the old vectors.
                gone |= {*MARKS, *(CHUNK if row.values.keys() >= set(CHUNK) else ())}
            if not gone.isdisjoint(row.values):
                try:
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


MEASURED = 32  # rows of each group that are measured
SECONDS = 5.0  # of the measurement
EXACT, EVERY = 2048, 100  # the first rows are tokenized, and one of 100 others


@dataclass(slots=True)
class Plan(Tally):
    batches: int = 0
    line_bytes: int = 0  # of the rows without vectors, in the output


def counted(
    blocks: Iterable[RowBlock], encoding: Encoding, rejects: Rejects, report: Report
) -> tuple[Plan, list[RowGroup]]:
    """The counts of all rows, and some of them to measure."""
    plan, sample = Plan(), list[RowGroup]()
    full = 0  # tokens of the sample
    for_threads = encoding.budget * encoding.encoder.batches_at_once
    for group in encoding.groups(blocks, rejects):
        tokens = group.tokens
        report(len(group.rows), plan.add(group))
        read = tokens.take(np.flatnonzero(tokens.sizes))
        others = TokenBlock.of([part for each in read.windows.values() for part in each.others])
        plan.batches += sum(len(plan_batches(each, encoding.budget)) for each in (read, others))
        sizes = np.array([len(line) + 1 for line in group.rows.lines])
        plan.line_bytes += int(tokens.vectors[group.index[:, 0]] @ sizes)
        known = np.isin(group.index, list(group.old)).all(axis=1)
        to_encode_first = np.argsort(known, kind="stable")
        rows = to_encode_first[:MEASURED]
        # Once, each thread gets a whole batch, because it determines the memory.
        if full < for_threads:
            ends = np.cumsum(tokens.sizes[group.index].sum(axis=1)[to_encode_first])
            rows = to_encode_first[: max(MEASURED, int(np.searchsorted(ends, for_threads)) + 1)]
            full = max(full, int(ends[len(rows) - 1]))
        sample.append(group.take(rows.tolist()))
    return plan, sample


PLANNED, OTHER = "planned", "other"  # blocks


def rows_of_blocks(parts: Iterable[Iterator[RowBlock] | None], blocks: Counter[str]) -> Iterator[RowBlock]:
    """Yield the rows of the planned blocks, and count all blocks."""
    for part in parts:
        blocks[OTHER if part is None else PLANNED] += 1
        if part is not None:
            yield from part


def plan_of(
    parts: Iterable[Iterator[RowBlock] | None],
    encoding: Encoding,
    rejects: Rejects,
    path: str,
    report: Report,
) -> dict[str, Any]:
    """The counts and estimates: the first rows are tokenized, and one of EVERY others counts for them.

    A block is None if it is not to be written.
    """
    blocks = Counter[str]()
    rest = rows_of_blocks(parts, blocks)
    first, held = list[RowBlock](), empty_block()
    every = 1 if encoding.tokenizer.whole else EVERY
    left, passed = EXACT, 0  # rows
    while left and (block := next(rest, None)) is not None:
        first.append(block.take(slice(0, left)))
        held, left = block.take(slice(left, None)), left - len(first[-1])

    def chosen() -> Iterator[RowBlock]:
        nonlocal passed
        for block in chain([held], rest):
            places = range(-passed % every, len(block), every)
            passed += len(block)
            if places:
                yield block.take(places)

    plan, sample = counted(first, encoding, rejects, report)
    exact = plan.rows
    others, more = counted(chosen(), encoding, rejects, report)
    others.scale(passed / max(1, others.rows))
    others.rows = passed
    plan.join(others)
    record = {name: getattr(plan, name) for name in ("rows", "texts", "tokens", "truncated", "batches")}
    if plan.windows:
        record |= {"split_rows": plan.split, "windows": plan.windows}
    if passed and every > 1:
        record["sampled_rows"] = exact + -(-passed // every)
    if encoding.old is not None:
        record |= {"reused": plan.reused, "encoded": plan.rows - plan.reused}
        if not passed:
            encoding.old.count_unneeded()
        record["no_longer_needed"] = encoding.old.unneeded
    if sample + more and not encoding.tokenizer.whole:
        record |= estimates(plan, sample + more, encoding, path)
    return {**record, "blocks": blocks[PLANNED], "all_blocks": blocks[PLANNED] + blocks[OTHER]}


def estimates(plan: Plan, sample: list[RowGroup], encoding: Encoding, path: str) -> dict[str, int | None]:
    """The bytes of the output, the seconds and the memory for all rows."""
    encoder = encoding.encoder
    memory_before = peak_memory()
    encode = partial(encode_groups, encoder=encoder, budget=encoding.budget, old=encoding.old)
    [first] = encode(iter(sample[:1]))  # the first batch is slower
    start, done = monotonic(), Tally()
    largest_first = sorted(sample, key=lambda group: int(group.tokens.sizes.sum()), reverse=True)
    for group in encode(iter(largest_first)):
        done.add(group)
        if monotonic() - start > SECONDS:
            break
    seconds = (monotonic() - start) * plan.encoded / max(1, done.encoded)
    total: int | None = None
    if is_safetensors(path) or path.endswith("/") or len(encoder.specs) > 1:
        storage = Storage(encoding.form.store or "float32", encoder.width)
        each: float = 8 + storage.columns * int(storage.dtype[-1])
    else:
        texts = [*map(ENCODINGS[encoding.form.encoding], chain.from_iterable(first.vectors[0]))]
        each = len(b"".join(texts)) / len(texts) + len(f'"embedding":,"_emb":"{encoder.specs[0].emb}",')
    if is_safetensors(path) or not (is_parquet(path) or Path(path).suffix.lower() in COMPRESSED):
        total = round(plan.line_bytes + each * plan.texts) * len(encoder.specs)
    # Batches of several threads are largest at the same time in a long run, but not always in the sample.
    slack = SLACK_OF_THREADS if encoder.batches_at_once > 1 else SLACK
    memory = round(peak_memory() + slack * (peak_memory() - memory_before)) + memory_of_rows(plan, encoding)
    return {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds)), "memory_estimate": memory}


def peak_memory() -> int:
    """The largest memory of this process until now, in bytes."""
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


# Measured as the largest memory (VmHWM) of processes.
SLACK = 0.1  # of the memory that the sample needs
SLACK_OF_THREADS = 0.6
BYTES_OF_ROW = 700  # of a row of one text in memory, besides its line and text: Python's objects, token ids
BYTES_OF_WORDS = 80_000_000  # of the words that a tokenizer keeps at most


def memory_of_rows(plan: Plan, encoding: Encoding) -> int:
    """The bytes of the rows that a run has in memory at a time, besides those that the plan itself had.

    A group is read ahead, tokenized, encoded by each of the threads, and written.
    """
    encoder = encoding.encoder
    groups = encoder.groups_at_once + AHEAD + 2
    rows = min(plan.rows, LAST_GROUP * groups)
    vectors = 4 * encoder.width * len(encoder.specs)
    line = plan.line_bytes // max(1, plan.rows)
    words = min(BYTES_OF_WORDS, plan.line_bytes // 2)
    return words + rows * (2 * vectors + 2 * line + BYTES_OF_ROW)
