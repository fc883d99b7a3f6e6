"""What `encode --dry-run` predicts: counts, and from a short measurement the bytes, the time and the memory.

The number of rows is exact. Other counts of a large input are estimated from a sample of its rows.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

import numpy as np

from sentkit.formats.files import COMPRESSED, is_parquet
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.tensors import Storage
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.model.encoding import AHEAD, LAST_GROUP, Report, RowGroup, Tally, encode_groups, plan_batches
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.writing import Encoding

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
    for group in encoding.groups(blocks, rejects):
        tokens = group.tokens
        report(len(group.rows), plan.add(group))
        read = tokens.take(np.flatnonzero(tokens.sizes))
        others = TokenBlock.of([part for each in read.windows.values() for part in each.others])
        plan.batches += sum(len(plan_batches(each, encoding.budget)) for each in (read, others))
        sizes = np.array([len(line) + 1 for line in group.rows.lines])
        plan.line_bytes += int(tokens.vectors[group.index[:, 0]] @ sizes)
        known = np.isin(group.index, list(group.old)).all(axis=1)
        to_encode_first = np.argsort(known, kind="stable").tolist()
        sample.append(group.take(to_encode_first[:MEASURED]))
    return plan, sample


def plan_of(
    parts: Iterable[Iterator[RowBlock]], encoding: Encoding, rejects: Rejects, path: str, report: Report
) -> dict[str, Any]:
    """The counts and estimates: the first rows are tokenized, and one of EVERY others counts for them."""
    number = count(1)  # of the next part
    rest = chain.from_iterable(part for part, _ in zip(parts, number, strict=False))
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
    return {**record, "blocks": next(number) - 1}


def estimates(plan: Plan, sample: list[RowGroup], encoding: Encoding, path: str) -> dict[str, int | None]:
    """The bytes of the output, the seconds and the memory for all rows."""
    encoder = encoding.encoder
    encode = partial(encode_groups, encoder=encoder, budget=encoding.budget, old=encoding.old)
    for _ in encode(iter(sample[:1])):
        pass  # the first batch is slower
    start, done, text_bytes, vectors = monotonic(), Tally(), 0, 0
    for group in encode(iter(sample)):
        done.add(group)
        for vector in chain.from_iterable(group.vectors[0]) if not is_store(path) else ():
            vectors += 1
            text_bytes += len(ENCODINGS[encoding.form.encoding](vector))
        if monotonic() - start > SECONDS:
            break
    seconds = (monotonic() - start) * plan.encoded / max(1, done.encoded)
    total: int | None = None
    if is_store(path) or path.endswith("/") or len(encoder.specs) > 1:
        storage = Storage(encoding.form.store or "float32", encoder.width)
        each: float = 8 + storage.columns * int(storage.dtype[-1])
    else:
        each = text_bytes / max(1, vectors) + len(f'"embedding":,"_emb":"{encoder.specs[0].emb}",')
    if is_store(path) or not (is_parquet(path) or Path(path).suffix.lower() in COMPRESSED):
        total = round(plan.line_bytes + each * plan.texts) * len(encoder.specs)
    rows = min(plan.rows, LAST_GROUP) * (encoder.groups_at_once + AHEAD + 1)  # at a time
    memory = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    memory += rows * (4 * encoder.width * len(encoder.specs) + 2 * plan.line_bytes // max(1, plan.rows))
    return {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds)), "memory_estimate": memory}
