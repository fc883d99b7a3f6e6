"""What `encode --dry-run` predicts: counts, and from a short measurement the bytes, the time and the memory.

The number of rows is exact. Other counts of a large input are estimated from a sample of its rows.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

import numpy as np

from sentkit.formats.files import COMPRESSED, is_parquet
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.folder_check import describe_input
from sentkit.formats.vectors.folders import BLOCK_BYTES, Block, VectorFolder, is_vector_folder
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.tensors import Storage
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.model.encoding import (
    AHEAD,
    LAST_GROUP,
    Report,
    RowGroup,
    Tally,
    batches_of,
    encode_groups,
)
from sentkit.model.writing import Encoding

MEASURED = 32  # rows of each group that are measured
SECONDS = 5.0  # of the measurement
EXACT, EVERY = 2048, 100  # the first rows are tokenized, and one of 100 others


@dataclass(slots=True)
class Plan:
    """Counts of the rows that were tokenized, and some of them to measure."""

    encoding: Encoding
    rejects: Rejects
    report: Report
    tally: Tally = field(default_factory=Tally)
    batches: int = 0
    line_bytes: int = 0  # of the rows without vectors, in the output
    sample: list[RowGroup] = field(default_factory=list)

    def add(self, blocks: Iterable[RowBlock]) -> None:
        for group in self.encoding.groups(blocks, self.rejects):
            tokens = group.tokens
            self.report(len(group.rows), self.tally.add(group))
            self.batches += batches_of(tokens.take(np.flatnonzero(tokens.read)), self.encoding.budget)
            copies = tokens.column(lambda each: each.vectors, np.ones(len(tokens), np.int64))
            sizes = np.array([len(line) + 1 for line in group.rows.lines])
            self.line_bytes += int(copies[group.index[:, 0]] @ sizes)
            known = [all(place in tokens.old for place in own) for own in group.index.tolist()]
            to_encode_first = sorted(range(len(known)), key=known.__getitem__)
            self.sample.append(group.take(to_encode_first[:MEASURED]))

    def add_sample(self, blocks: Iterable[RowBlock], rows: Callable[[], int]) -> None:
        """Add the counts of a sample; `rows` is the number of rows that it stands for, after the last one."""
        sample = Plan(self.encoding, self.rejects, self.report)
        sample.add(blocks)
        factor = rows() / max(1, sample.tally.rows)
        sample.tally.scale(factor)
        sample.tally.rows = rows()
        self.tally.join(sample.tally)
        self.batches += round(sample.batches * factor)
        self.line_bytes += round(sample.line_bytes * factor)
        self.sample += sample.sample

    def measured(self, path: str) -> dict[str, int | None]:
        """Estimates for all rows: the bytes of the output, the seconds and the memory."""
        encoding, encoder = self.encoding, self.encoding.encoder
        encode = partial(encode_groups, encoder=encoder, budget=encoding.budget, old=encoding.old)
        for _ in encode(iter(self.sample[:1])):
            pass  # the first batch is slower
        start, done, text_bytes, vectors = monotonic(), Tally(), 0, 0
        for group in encode(iter(self.sample)):
            done.add(group)
            for vector in chain.from_iterable(group.vectors[0]) if not is_store(path) else ():
                vectors += 1
                text_bytes += len(ENCODINGS[encoding.form.encoding](vector))
            if monotonic() - start > SECONDS:
                break
        seconds = (monotonic() - start) * self.tally.encoded / max(1, done.encoded)
        total: int | None = None
        if is_store(path) or path.endswith("/") or len(encoder.specs) > 1:
            storage = Storage(encoding.form.store or "float32", encoder.width)
            each: float = 8 + storage.columns * int(storage.dtype[-1])
        else:
            names = f'"embedding":,"_emb":"{encoder.specs[0].emb}",'
            each = text_bytes / max(1, vectors) + len(names)
        if is_store(path) or not (is_parquet(path) or Path(path).suffix.lower() in COMPRESSED):
            total = round(self.line_bytes + each * self.tally.texts) * len(encoder.specs)
        rows = min(self.tally.rows, LAST_GROUP) * (encoder.groups_at_once + AHEAD + 1)  # at a time
        memory = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        of_row = 4 * encoder.width * len(encoder.specs) + 2 * self.line_bytes // max(1, self.tally.rows)
        estimates = {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds))}
        return {**estimates, "memory_estimate": memory + rows * of_row}

    def record(self) -> dict[str, Any]:
        counts = {"rows": self.tally.rows, "texts": self.tally.texts, "tokens": self.tally.tokens}
        counts |= {"truncated": self.tally.truncated, "batches": self.batches}
        if self.tally.windows:
            counts |= {"split_rows": self.tally.split, "windows": self.tally.windows}
        return counts


def plan_of(
    blocks: Iterable[RowBlock], encoding: Encoding, rejects: Rejects, path: str, report: Report
) -> dict[str, Any]:
    """The counts and estimates: the first rows are tokenized, and one of EVERY others counts for them."""
    plan, rest = Plan(encoding, rejects, report), iter(blocks)
    every = 1 if encoding.tokenizer.whole else EVERY
    held, passed = empty_block(), 0  # the rows of the last block that are not among the first; other rows

    def first() -> Iterator[RowBlock]:
        nonlocal held
        left = EXACT
        while left and (block := next(rest, None)) is not None:
            held = block.take(slice(left, None))
            yield block.take(slice(0, left))
            left -= min(left, len(block))

    def chosen() -> Iterator[RowBlock]:
        nonlocal passed
        for block in chain([held], rest):
            places = range(-passed % every, len(block), every)
            passed += len(block)
            if places:
                yield block.take(places)

    plan.add(first())
    exact = plan.tally.rows
    plan.add_sample(chosen(), lambda: passed)
    record, whole = plan.record(), passed == 0 or every == 1
    if not whole:
        record["sampled_rows"] = exact + -(-passed // every)
    if encoding.old is not None:
        record |= {"reused": plan.tally.reused, "encoded": plan.tally.rows - plan.tally.reused}
        if whole:
            encoding.old.count_unneeded()
        record["no_longer_needed"] = encoding.old.unneeded
    if plan.sample and not encoding.tokenizer.whole:
        record |= plan.measured(path)
    return record


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
            for block, part in folder.parts(inputs, number, each):
                if has(block.index) and block.name not in done:
                    blocks.append(block)
                    yield from chain.from_iterable(inputs.parsed(rows, texts) for rows in part.blocks(inputs))

    return rows(), blocks
