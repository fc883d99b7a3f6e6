"""Converts blocks of rows to vectors, in input order and constant memory, and writes both.

Rows are grouped. Each group is deduplicated, and its texts are encoded in batches of similar length. The
first groups are small, so that output starts early; later groups are large, so that they batch efficiently.
Groups and batches depend only on the texts, not on time or threads. The windows of a long text can be in
several batches. `block_writer.py` writes vector folders.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from time import monotonic
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.fingerprint import Spec
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import recorded_fields
from sentkit.model.reuse import OldVectors
from sentkit.model.text.groups import Done, RowGroup, Tally
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock, Tokens
from sentkit.transforms.steps import Step, applied

BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
Arrays = list[NDArray[np.float32]]  # one for each readout


class Encoder(Protocol):
    """Converts batches of tokens to arrays of vectors, and records their origin."""

    specs: list[Spec]  # one for each readout: the origin of its vectors
    width: int
    notes: list[str]  # messages to print after the weights are loaded

    @property
    def steps(self) -> Sequence[Step]: ...  # the operations after the readout

    @property
    def device(self) -> object: ...

    @property
    def precision(self) -> str: ...

    @property
    def budget(self) -> int:
        """Number of tokens in a batch; only a batch of one text can exceed it."""

    @property
    def groups_at_once(self) -> int:
        """The number of groups that threads encode while the caller writes; 0: the caller encodes them."""

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]: ...  # (b, d), of all windows

    def remarks(self, tally: "Tally") -> list[str]:
        """Return the messages to print after the last row."""


def encode_texts(tokens: TokenBlock, encoder: Encoder, budget: int) -> Arrays:
    """Return one (m, d) array for each readout, in the order of the texts and of their windows.

    The encoder does not get a text without tokens. Its vector is zero.
    """
    if not tokens.read.all():
        counts = tokens.column(lambda each: each.vectors, np.ones(len(tokens), np.int64))
        read = encode_texts(tokens.take(np.flatnonzero(tokens.read)), encoder, budget)
        zeros = [np.zeros((counts.sum(), encoder.width), np.float32) for _ in encoder.specs]
        for array, values in zip(zeros, read, strict=bool(read)):
            array[np.repeat(tokens.read, counts)] = values
        return zeros
    if tokens.windows:
        return encode_windows(list(tokens), encoder, budget)
    plan = plan_batches(tokens, budget)
    arrays: Arrays = []
    for batch, states in zip(plan, encoder.encode(map(tokens.take, plan)), strict=True):
        put(arrays, batch, finish(states, encoder.steps), len(tokens))
    return arrays


def encode_windows(tokens: Sequence[Tokens], encoder: Encoder, budget: int) -> Arrays:
    """Do the same for texts of which some have windows.

    The first windows are in the batches that the truncated texts would have. So, if the windows have the
    maximum length, long texts do not change the vectors of other texts, not even by rounding.
    """
    others = [*chain.from_iterable(each.parts[1:] for each in tokens)]
    parts = TokenBlock.of([*tokens, *others])
    first, second = (plan_batches(TokenBlock.of(each), budget) for each in (tokens, others))
    plan = [*first, *(len(tokens) + batch for batch in second)]
    rows = ranges([part.results for part in (*tokens, *others)])
    averaged = any(each.windows is not None and each.windows.weights for each in tokens)
    arrays: Arrays = []
    unfinished: Arrays = []
    for batch, read in zip(plan, encoder.encode(map(parts.take, plan)), strict=True):
        chosen = np.array([*chain.from_iterable(rows[place] for place in batch.tolist())])
        put(arrays, chosen, finish(read, encoder.steps), rows[-1].stop)
        if averaged:
            put(unfinished, chosen, read, rows[-1].stop)
    return join_windows(tokens, rows, arrays, unfinished, encoder) if others else arrays


def join_windows(
    tokens: Sequence[Tokens], rows: Sequence[range], arrays: Arrays, unfinished: Arrays, encoder: Encoder
) -> Arrays:
    """Return the vectors in the order of the texts, with means of windows in place of the windows.

    The operations after the readout apply to the mean, so that it has unit length if the space requires it.
    """
    others = iter(rows[len(tokens) :])
    order: list[int] = []
    averaged: list[tuple[list[int], tuple[float, ...]]] = []
    for each, first in zip(tokens, rows, strict=False):
        own = [*first, *chain.from_iterable(islice(others, len(each.parts) - 1))]
        if each.windows is not None and each.windows.weights:
            averaged.append((own, each.windows.weights))
            own = own[:1]
        order += own
    if averaged:
        means = [
            np.stack([mean_of(values[own], np.array(weights)) for own, weights in averaged])
            for values in unfinished
        ]
        put(arrays, np.array([own[0] for own, _ in averaged]), finish(means, encoder.steps), len(arrays[0]))
    return [values[order] for values in arrays]


def mean_of(vectors: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weighted mean of (k, d), computed in float64; zeros if all weights are 0."""
    mean: NDArray[np.float64] = weights @ vectors / (weights.sum() or 1.0)
    return mean.astype(np.float32)


def put(arrays: Arrays, rows: Ints, vectors: Arrays, count: int) -> None:
    """Write rows of each array. Empty `arrays` are created first, with `count` rows."""
    if not arrays:
        arrays += [np.empty((count, values.shape[1]), np.float32) for values in vectors]
    for array, values in zip(arrays, vectors, strict=True):
        array[rows] = values


def finish(vectors: Arrays, steps: Sequence[Step]) -> Arrays:
    """Apply the operations after the readout: (b, d) -> (b, width)."""
    for step in steps:
        vectors = [applied(step, each) for each in vectors]
    return vectors


def ranges(sizes: Iterable[int]) -> list[range]:
    """Return consecutive ranges of these sizes, from 0."""
    ends = [0, *accumulate(sizes)]
    return [range(start, end) for start, end in pairwise(ends)]


def plan_batches(tokens: TokenBlock, budget: int) -> list[Ints]:
    """Return batches of texts, as their numbers. All texts of a batch have the same `skip`."""
    if tokens.skip is None:
        return batches(tokens.lengths, budget)
    kinds = [np.flatnonzero(tokens.skip == each) for each in dict.fromkeys(tokens.skip.tolist())]
    return [own[batch] for own in kinds for batch in batches(tokens.lengths[own], budget)]


def batches_of(tokens: TokenBlock, budget: int) -> int:
    """Return the number of batches of texts and of their windows."""
    others = [part for place in tokens.windows for part in tokens[place].parts[1:]]
    return len(plan_batches(tokens, budget)) + len(plan_batches(TokenBlock.of(others), budget))


def batches(lengths: Ints, budget: int) -> list[Ints]:
    """Return batches of indexes, longest first, of at most `budget` tokens; a longer text is one batch."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    chosen, start, before = list[Ints](), 0, 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, before + budget, side="right")))
        chosen.append(order[start:stop])
        start, before = stop, int(ends[stop - 1])
    return chosen


def default_budget(device: str) -> int:
    """Return the default number of tokens in a batch: it fits the caches of a CPU or fills a GPU."""
    return BUDGETS["cuda" if device.startswith("cuda") else "cpu"]


T = TypeVar("T")

AHEAD = 2  # groups


def encode_groups(
    prepared: Iterator[RowGroup], encoder: Encoder, budget: int, old: OldVectors | None = None
) -> Iterator[Done]:
    """Encode each group. Threads may encode the next groups while the caller writes the last one."""
    if not encoder.groups_at_once:
        yield from (encode_group(group, encoder, budget, old) for group in ahead(prepared, AHEAD))
        return
    pool = ThreadPoolExecutor(encoder.groups_at_once)
    started = (pool.submit(encode_group, group, encoder, budget, old) for group in prepared)
    try:
        for done in ahead(started, AHEAD):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def encode_group(group: RowGroup, encoder: Encoder, budget: int, old: OldVectors | None) -> Done:
    start, used, known = monotonic(), group.used, group.tokens.old
    if old is not None and known:  # texts with old vectors last
        has_old = np.isin(used, list(known))
        new, copied = used[~has_old], used[has_old]
        vectors, used = encode_texts(group.tokens.take(new), encoder, budget), np.concatenate([new, copied])
        if len(copied):
            places = chain.from_iterable(known[place] for place in copied.tolist())
            vectors = [np.concatenate([*vectors, old.read([*places])])]
    else:
        vectors = encode_texts(group.tokens.take(used), encoder, budget)
    at = np.zeros(len(group.tokens), np.int64)
    counts = group.tokens.column(lambda each: each.vectors, np.ones(len(at), np.int64))[used]
    at[used] = np.cumsum(counts) - counts
    if counts.sum() == len(counts):
        rows, owners = at[group.index], None
    else:  # each window has a vector, and rows have one text
        sizes = np.zeros_like(at)
        sizes[used] = counts
        own = sizes[group.index[:, 0]]
        owners = np.repeat(np.arange(len(own)), own)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(own) - own, own)
        rows = (np.repeat(at[group.index[:, 0]], own) + within)[:, None]
    if rows.shape[1] == 1 and np.array_equal(rows[:, 0], np.arange(len(vectors[0]))):  # all texts differ
        vectors = [each[:, None] for each in vectors]
    else:
        vectors = [each[rows] for each in vectors]
    return Done(group.rows, group.index, group.tokens, vectors, owners, monotonic() - start)


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield the same items. A thread computes up to `depth` items in advance."""
    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next, items, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(pool.submit(next, items, None))
            yield item
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # the thread may wait for input that never arrives


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
    sides: Mapping[str, str] = field(default_factory=dict)  # the prompt of each side, or none
    encoded: Set[str] = frozenset()  # the inputs that store `_emb` and the vectors of their rows separately
    old: OldVectors | None = None  # of --reuse

    @property
    def chunks(self) -> bool:
        return bool(self.windows.get("chunks"))

    def texts(self) -> TextParser:
        return TextParser(self.fields, one_text="a chunk" if self.chunks else None, prompts=self.sides)

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
        report: Report,
        rejects: Rejects,
    ) -> Tally:
        """Write all rows, with one output for each readout. Returns their counts."""
        tally = Tally()
        done = encode_groups(groups, self.encoder, self.budget, self.old)
        first = list(islice(done, 1))  # the first row determines the names of the vectors
        with open_sinks(paths, self.specs(texts), texts.vectors, self.encoder.width, self.form) as sinks:
            for group in chain(first, done):
                self.write(group, sinks, texts.vectors, rejects, tally, report)
        if self.old is not None:
            self.old.count_unneeded()
        return tally

    def write(
        self,
        group: Done,
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
        for places in rejects.sift(rows):
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

    def extra(self, group: Done) -> list[NewFields]:
        """The new fields of each row to write besides the vectors; [] if there are none."""
        if not self.chunks:
            return [token_marks(group.tokens, own) for own in group.index.tolist()] if self.marks else []
        extra: list[NewFields] = []
        for place in group.index[:, 0].tolist():
            for number, (start, end) in enumerate(group.tokens.windows[place].places):
                values = zip(CHUNK, (number, start, end), strict=True)
                extra.append([(name.encode(), b"%d" % value) for name, value in values])
        return extra


def token_marks(tokens: TokenBlock, places: Sequence[int]) -> NewFields:
    """The fields of MARKS; lists for a pair."""
    texts = (
        [str(tokens.counts[place]) for place in places],
        ["true" if tokens.truncated[place] else "false" for place in places],
    )
    values = [f"[{','.join(each)}]" if len(each) > 1 else each[0] for each in texts]
    return [(name.encode(), value.encode()) for name, value in zip(MARKS, values, strict=True)]
