"""Counts what `encode` would do, and estimates bytes, time and memory: `encode --dry-run`.

The number of rows is exact. Other counts of a large input are estimated from a sample of its rows.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

import numpy as np

from sentkit.formats.files import COMPRESSED, is_parquet, is_safetensors
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.tensors import Storage
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.model.encoding import AHEAD, Report, batch_size, plan_batches
from sentkit.model.groups import LAST_GROUP, EncodeStats, RowGroup
from sentkit.model.runs.writing import Encoding
from sentkit.model.text.characters import CharacterTokenizer
from sentkit.model.text.tokens import TokenBlock

MEASURED = 32  # rows of each group that are measured
SECONDS = 5.0  # of the measurement
EXACT = 2048  # first rows, all of which are tokenized
EVERY = 100  # one of so many other rows is tokenized


@dataclass(slots=True)
class Plan(EncodeStats):
    batches: int = 0
    line_bytes: int = 0  # of the rows without vectors, in the output


@dataclass(slots=True)
class ReadCounts:
    """Blocks and rows that were read from the inputs until now."""

    planned_blocks: int = 0
    other_blocks: int = 0  # that are not to be written
    rows_after_first: int = 0  # rows after the first ones, of which some are tokenized
    sampled_rows: int = 0  # these


def plan_of(
    rows_of_blocks: Iterable[Iterator[RowBlock] | None],
    encoding: Encoding,
    rejects: Rejects,
    path: str,
    report: Report,
) -> dict[str, Any]:
    """The counts and estimates, from the tokens of all first rows and of one of EVERY others.

    The rows of a block are None if it is not to be written.
    """
    counts = ReadCounts()
    rows = rows_to_plan(rows_of_blocks, counts)
    # The vectors of word sets are as wide as the vocabulary, which is that of all texts. So all are
    # tokenized, and their bytes and memory are not estimated.
    is_word_set = encoding.tokenizer.needs_all_texts
    every = 1 if is_word_set else EVERY

    # The first rows exactly, and the others by a sample.
    first_rows: list[RowBlock] = []
    rows_left = EXACT
    rest_of_block = empty_block()  # rows of the last block after the first rows
    while rows_left:
        block = next(rows, None)
        if block is None:
            break
        first_rows.append(block.take(slice(0, rows_left)))
        rest_of_block = block.take(slice(rows_left, None))
        rows_left -= len(first_rows[-1])
    plan, groups = count_and_sample(first_rows, encoding, rejects, report)
    exact_rows = plan.rows
    sample = one_of(chain([rest_of_block], rows), every, counts)
    plan_of_others, groups_of_others = count_and_sample(sample, encoding, rejects, report)
    plan_of_others.scale(counts.rows_after_first / max(1, plan_of_others.rows))
    plan_of_others.rows = counts.rows_after_first  # these are counted, all else is an estimate
    plan.join(plan_of_others)

    record: dict[str, Any] = {"rows": plan.rows, "texts": plan.texts}
    if encoding.tokenizer.unit == CharacterTokenizer.unit:  # a server counts the tokens itself
        record["characters"] = plan.tokens
    else:
        record["tokens"] = plan.tokens
        record["truncated"] = plan.truncated
        record["batches"] = plan.batches
    if plan.windows:
        record["split_rows"] = plan.split
        record["windows"] = plan.windows
    if counts.rows_after_first and every > 1:
        record["sampled_rows"] = exact_rows + counts.sampled_rows
    if encoding.reusable is not None:
        record["reused"] = plan.reused
        record["encoded"] = plan.rows - plan.reused
        if not counts.rows_after_first:
            encoding.reusable.count_unneeded()  # otherwise null, because not all texts were read
        record["no_longer_needed"] = encoding.reusable.unneeded
    all_groups = groups + groups_of_others
    if all_groups and not is_word_set:
        record |= estimates(plan, all_groups, encoding, path)
    record["blocks"] = counts.planned_blocks
    record["all_blocks"] = counts.planned_blocks + counts.other_blocks
    return record


def rows_to_plan(
    rows_of_blocks: Iterable[Iterator[RowBlock] | None], counts: ReadCounts
) -> Iterator[RowBlock]:
    """Yield the rows of the planned blocks, and count all blocks."""
    for rows in rows_of_blocks:
        if rows is None:
            counts.other_blocks += 1
        else:
            counts.planned_blocks += 1
            yield from rows


def one_of(blocks: Iterable[RowBlock], every: int, counts: ReadCounts) -> Iterator[RowBlock]:
    """Yield the first of each `every` rows, and count all of them."""
    for block in blocks:
        indices = range(-counts.rows_after_first % every, len(block), every)
        counts.rows_after_first += len(block)
        counts.sampled_rows += len(indices)
        if indices:
            yield block.take(indices)


def count_and_sample(
    blocks: Iterable[RowBlock], encoding: Encoding, rejects: Rejects, report: Report
) -> tuple[Plan, list[RowGroup]]:
    """The counts of all rows, and of each group some rows, whose time and memory are measured."""
    plan = Plan()
    sample: list[RowGroup] = []
    largest_sample = 0  # tokens of the rows of one group
    tokens_of_threads = encoding.tokens_per_batch * encoding.encoder.batches_at_once
    for group in encoding.groups(blocks, rejects):
        tokens = group.tokens
        report(len(group.rows), plan.add(group))

        # The batches, as `encode_texts` makes them: of the first windows, and of the others.
        new_texts = np.setdiff1d(group.accepted_texts, list(group.stored_vectors))
        filled = tokens.take(new_texts[tokens.read_counts[new_texts] > 0])
        later_windows = [
            window for windows in filled.windows.values() for window in windows.later_windows
        ]
        budget = batch_size(filled, encoding.encoder, encoding.tokens_per_batch)
        plan.batches += len(plan_batches(filled, budget))
        plan.batches += len(plan_batches(TokenBlock.of(later_windows), budget))

        # The bytes of the lines, with a newline. With chunks, a row has a line for each vector.
        line_bytes = np.array([len(line) + 1 for line in group.rows.lines])
        plan.line_bytes += int(tokens.vector_counts[group.text_numbers[:, 0]] @ line_bytes)

        # The rows to measure. Rows to encode come before those with stored vectors.
        is_stored = np.isin(group.text_numbers, list(group.stored_vectors)).all(axis=1)
        order = np.argsort(is_stored, kind="stable")
        count = MEASURED
        # In one group, each thread gets a whole batch, because it determines the memory.
        if largest_sample < tokens_of_threads:
            ends = np.cumsum(tokens.read_counts[group.text_numbers].sum(axis=1)[order])
            count = max(MEASURED, int(np.searchsorted(ends, tokens_of_threads)) + 1)
            largest_sample = max(largest_sample, int(ends[:count][-1]))
        sample.append(group.take(order[:count].tolist()))
    return plan, sample


def estimates(
    plan: Plan, sample: list[RowGroup], encoding: Encoding, path: str
) -> dict[str, int | None]:
    """The bytes of the output, the seconds and the memory for all rows."""
    encoder = encoding.encoder
    memory_before = peak_memory()
    [first_group] = encoding.encoded_groups(iter(sample[:1]))  # the first batch is slower

    # Time and memory of the sample.
    largest_first = sorted(
        sample, key=lambda group: int(group.tokens.read_counts.sum()), reverse=True
    )
    encoded = EncodeStats()
    start = monotonic()
    for group in encoding.encoded_groups(iter(largest_first)):
        encoded.add(group)
        if monotonic() - start > SECONDS:
            break
    seconds = (monotonic() - start) * plan.encoded / max(1, encoded.encoded)
    # In a long run, the batches of several threads are largest at the same time.
    slack = SLACK_OF_THREADS if encoder.batches_at_once > 1 else SLACK
    memory_of_run = peak_memory() + slack * (peak_memory() - memory_before)
    memory = round(memory_of_run) + memory_of_rows(plan, encoding)

    total: int | None = None
    is_compressed = is_parquet(path) or Path(path).suffix.lower() in COMPRESSED
    if is_safetensors(path) or not is_compressed:
        bytes_of_text = bytes_of_vector(first_group, encoding, path)
        total = round(plan.line_bytes + bytes_of_text * plan.texts) * len(encoder.spaces)
    record = {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds))}
    faster = encoder.faster_precision()
    if faster is not None:
        faster_seconds = faster.share_of_time * seconds
        record[f"seconds_estimate_{faster.name}"] = max(1, round(faster_seconds))
    return record | {"memory_estimate": memory}


def bytes_of_vector(group: RowGroup, encoding: Encoding, path: str) -> float:
    """Return the mean bytes that a vector adds to the output."""
    encoder = encoding.encoder
    if is_safetensors(path) or path.endswith("/") or len(encoder.spaces) > 1:
        storage = Storage(encoding.vector_output.store or "float32", encoder.width)
        return 8 + storage.columns * int(storage.dtype[-1])
    encode = ENCODINGS[encoding.vector_output.encoding]
    texts = [encode(vector) for vector in chain.from_iterable(group.vectors[0])]
    fields = f'"embedding":,"_emb":"{encoder.spaces[0].name}",'
    return len(b"".join(texts)) / len(texts) + len(fields)


def peak_memory() -> int:
    """The largest memory of this process until now, in bytes."""
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak
    return 1024 * peak


# Measured as the largest memory (VmHWM) of processes.
SLACK = 0.1  # of the memory that the sample needs
SLACK_OF_THREADS = 0.6
# of a row of one text in memory, besides its line and text: Python's objects, token ids
BYTES_OF_ROW = 700
BYTES_OF_WORDS = 80_000_000  # of the words that a tokenizer keeps at most


def memory_of_rows(plan: Plan, encoding: Encoding) -> int:
    """The bytes of the rows that a run has in memory at a time, in addition to the plan's own.

    A group is read ahead, tokenized, encoded by each of the threads, and written.
    """
    encoder = encoding.encoder
    groups = encoder.groups_at_once + max(AHEAD, encoder.groups_at_once) + 2
    rows = min(plan.rows, LAST_GROUP * groups)
    vectors = 4 * encoder.width * len(encoder.spaces)
    line = plan.line_bytes // max(1, plan.rows)
    words = min(BYTES_OF_WORDS, plan.line_bytes // 2)
    return words + rows * (2 * vectors + 2 * line + BYTES_OF_ROW)
