"""What `encode --dry-run` predicts: counts, and from a short measurement the bytes, the time and the memory.

The number of rows is exact. Other counts of a large input are estimated from a sample of its rows.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any, Protocol

import numpy as np

from sentkit.formats.files import COMPRESSED, is_parquet
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.parts import row_ranges
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.folder_settings import describe_input
from sentkit.formats.vectors.folders import BLOCK_BYTES, Block, VectorFolder, is_vector_folder
from sentkit.formats.vectors.sinks import VectorOutput
from sentkit.formats.vectors.storage import Storage
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.model import Model
from sentkit.model.encoding import AHEAD, Encoder, batches_of, encode_groups
from sentkit.model.reuse import OldVectors
from sentkit.model.text.groups import LAST_GROUP, RowGroup, Tally
from sentkit.model.text.tokens import TokenBlock, Tokens

PER_GROUP, AT_ONCE = 32, 32  # rows of each group that are measured, and of a measured group
SECONDS = 5.0  # of the measurement
EXACT, EVERY = 2048, 100  # the first rows are tokenized, and one of 100 others


class Progress(Protocol):
    def add(self, rows: int, tokens: int = 0) -> None: ...

    def done(self) -> None: ...


@dataclass(slots=True)
class Plan:
    prepared: Callable[[Iterable[RowBlock]], Iterator[RowGroup]]
    budget: int
    tally: Tally = field(default_factory=Tally)
    batches: int = 0
    line_bytes: int = 0  # of the rows without vectors, in the output
    sample: list[RowGroup] = field(default_factory=list)

    def read(self, blocks: Iterator[RowBlock], report: Callable[[int, int], None], every: int) -> int:
        """Tokenize the first rows and one of `every` others, which counts for all of them.

        Returns the number of rows that were tokenized.
        """
        rest, passed, others = empty_block(), 0, Plan(self.prepared, self.budget)

        def first() -> Iterator[RowBlock]:
            nonlocal rest
            left = EXACT
            while left and (block := next(blocks, None)) is not None:
                own, rest = block.take(slice(0, left)), block.take(slice(left, None))
                left -= len(own)
                yield own

        def chosen() -> Iterator[RowBlock]:
            nonlocal passed
            for block in chain([rest], blocks):
                places = range(-passed % every, len(block), every)
                passed += len(block)
                if places:
                    yield block.take(places)

        self.add(first(), report)
        exact = self.tally.rows
        others.add(chosen(), report)
        if others.tally.rows:
            others.tally.scale(passed / others.tally.rows)
            others.tally.rows = passed
            self.batches += round(others.batches * passed / -(-passed // every))
            self.line_bytes += round(others.line_bytes * passed / -(-passed // every))
            self.tally.join(others.tally)
            self.sample += others.sample
        return exact + -(-passed // every)

    def add(self, blocks: Iterable[RowBlock], report: Callable[[int, int], None]) -> None:
        for group in self.prepared(blocks):
            tokens = group.tokens
            report(len(group.rows), self.tally.add(group))
            self.batches += batches_of(tokens.take(np.flatnonzero(tokens.read)), self.budget)
            copies = tokens.column(lambda each: each.vectors, np.ones(len(tokens), np.int64))
            sizes = np.array([len(line) + 1 for line in group.rows.lines])
            self.line_bytes += int(copies[group.index[:, 0]] @ sizes)
            known = [all(place in tokens.old for place in own) for own in group.index.tolist()]
            chosen = sorted(range(len(known)), key=known.__getitem__)[:PER_GROUP]  # rows to encode first
            self.sample.append(group.take(chosen))

    def sampled(self) -> Iterator[RowGroup]:
        """The sample in groups, evenly from all of the input."""
        places = [(group, row) for group in self.sample for row in range(len(group.rows))]
        step = -(-len(places) // AT_ONCE)
        for first in range(step):
            rows, index, old = empty_block(), list[list[int]](), dict[int, tuple[int, ...]]()
            texts = list[Tokens]()
            for group, row in places[first::step]:
                own = group.index[row].tolist()
                old |= {
                    len(texts) + k: group.tokens.old[place]
                    for k, place in enumerate(own)
                    if place in group.tokens.old
                }
                index.append([*range(len(texts), len(texts) + len(own))])
                texts += [group.tokens[place] for place in own]
                rows.extend(group.rows.take([row]))
            yield RowGroup(rows, np.array(index), replace(TokenBlock.of(texts), old=old))

    def measured(
        self, encoder: Encoder, budget: int, path: str, form: VectorOutput, old: OldVectors | None
    ) -> dict[str, int | None]:
        """Estimates for all rows: the bytes of the output and the seconds."""
        for _ in encode_groups(iter([next(self.sampled())]), encoder, budget, old):
            pass  # the first batch is slower
        start, done, text_bytes, vectors = monotonic(), Tally(), 0, 0
        for group in encode_groups(self.sampled(), encoder, budget, old):
            done.add(group)
            for vector in chain.from_iterable(group.vectors[0]):
                vectors += 1
                text_bytes += len(ENCODINGS[form.encoding](vector)) if not is_store(path) else 0
            if monotonic() - start > SECONDS:
                break
        seconds = (monotonic() - start) * self.tally.encoded / max(1, done.encoded)
        each: float | None = text_bytes / max(1, vectors) + len(
            f'"embedding":,"_emb":"{encoder.specs[0].emb}",'
        )
        if is_store(path) or path.endswith("/") or len(encoder.specs) > 1:
            storage = Storage(form.store or "float32", encoder.width)
            each = 8 + storage.columns * int(storage.dtype[-1])
        elif is_parquet(path) or Path(path).suffix.lower() in COMPRESSED:
            each = None
        total = (
            None if each is None else round(self.line_bytes + each * self.tally.texts) * len(encoder.specs)
        )
        rows = min(self.tally.rows, LAST_GROUP) * (encoder.groups_at_once + AHEAD + 1)  # at a time
        memory = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory += rows * (
            4 * encoder.width * len(encoder.specs) + 2 * self.line_bytes // max(1, self.tally.rows)
        )
        estimates = {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds))}
        return {**estimates, "memory_estimate": memory}

    def record(self) -> Mapping[str, Any]:
        counts = {"rows": self.tally.rows, "texts": self.tally.texts, "tokens": self.tally.tokens}
        counts |= {"truncated": self.tally.truncated, "batches": self.batches}
        if self.tally.windows:
            counts |= {"split_rows": self.tally.split, "windows": self.tally.windows}
        return counts


def rows_of_blocks(
    inputs: Inputs,
    texts: TextParser,
    path: str,
    block_bytes: int | None,
    has: Callable[[int], bool],
    skip: bool,
) -> tuple[Iterator[RowBlock], list[Block]]:
    """The rows of the blocks that a command would write, and a list that gets these blocks.

    `skip`: the existing blocks of the folder are not written again.
    """
    existing = VectorFolder(path) if is_vector_folder(path) else None
    own = existing.block_bytes if existing and block_bytes is None else block_bytes or BLOCK_BYTES
    folder = VectorFolder.planned(path, [describe_input(inputs, each) for each in inputs.paths], own)
    done = existing.existing()[0] if existing and skip else set()
    blocks: list[Block] = []

    def rows() -> Iterator[RowBlock]:
        for number, each in enumerate(inputs.paths):
            if folder.length(number) is None:
                ranges = row_ranges(inputs, each, folder.block_rows, by_line=True)
                parts = (
                    (folder.block_at(number, part.start, part.stop - part.start), part) for part in ranges
                )
            else:
                parts = ((block, folder.part(block, each)) for block in folder.blocks(number))  # type: ignore
            for block, part in parts:
                if has(block.index) and block.name not in done:
                    blocks.append(block)
                    yield from chain.from_iterable(inputs.parsed(rows, texts) for rows in part.blocks(inputs))

    return rows(), blocks


def plan_of(
    rows: Iterator[RowBlock],
    prepared: Callable[[Iterable[RowBlock]], Iterator[RowGroup]],
    model: Model,
    path: str,
    form: VectorOutput,
    batch_tokens: int | None,
    progress: Progress,
    encoder: Encoder | None,
    old: OldVectors | None,
) -> dict[str, Any]:
    """The counts and estimates. The encoder is loaded if it is None and an estimate needs it."""
    plan = Plan(prepared, batch_tokens or model.budget)
    sampled = plan.read(rows, progress.add, 1 if model.tokenizer.whole else EVERY)
    progress.done()
    record = dict(plan.record())
    whole = sampled >= plan.tally.rows
    if not whole:
        record["sampled_rows"] = sampled
    if old is not None:
        record |= {"reused": plan.tally.reused, "encoded": plan.tally.rows - plan.tally.reused}
        if whole:
            old.count_unneeded()
        record["no_longer_needed"] = old.unneeded
    if plan.sample and not model.tokenizer.whole:
        encoder = encoder or model.encoder(None)
        record |= plan.measured(encoder, batch_tokens or encoder.budget, path, form, old)
    return record
