"""Converts rows to rows with vectors, in input order and constant memory, and writes them.

Rows are read in groups. Each group is deduplicated, and its texts are encoded in batches of similar length.
The first groups are small, so that output starts early; later groups are large, so that they batch
efficiently. Groups and batches depend only on the texts, not on time or threads. The windows of a long text
can be in several batches. `block_writer.py` writes vector folders.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain, compress, islice, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Rejects, Row
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.fingerprint import Spec
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import recorded_fields
from sentkit.model.reuse import OldVectors
from sentkit.model.text.tokens import TextTokenizer, Tokens, tokenized
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

    def encode(self, batches: Iterable[Sequence[Tokens]]) -> Iterator[Arrays]: ...  # (b, d), of all windows

    def remarks(self, tally: "Tally") -> list[str]:
        """Return the messages to print after the last row."""


def encode_texts(tokens: Sequence[Tokens], encoder: Encoder, budget: int) -> Arrays:
    """Return one (m, d) array for each readout, in the order of the texts and of their windows.

    The encoder does not get a text without tokens. Its vector is zero.
    """
    read = [each.read for each in tokens]
    if not all(read):
        found = encode_texts([*compress(tokens, read)], encoder, budget)
        spans = ranges(each.vectors for each in tokens)
        filled = [*chain.from_iterable(compress(spans, read))]
        arrays = [np.zeros((spans[-1].stop, encoder.width), np.float32) for _ in encoder.specs]
        for array, values in zip(arrays, found, strict=bool(found)):
            array[filled] = values
        return arrays
    parts, plan = plan_batches(tokens, budget)
    rows = ranges([part.results for part in parts])
    averaged = any(each.windows is not None and each.windows.weights for each in tokens)
    arrays = []
    unfinished: Arrays = []
    for batch, states in zip(plan, encoder.encode([parts[k] for k in batch] for batch in plan), strict=True):
        chosen = [*chain.from_iterable(rows[place] for place in batch)]
        put(arrays, chosen, finish(states, encoder.steps), rows[-1].stop)
        if averaged:
            put(unfinished, chosen, states, rows[-1].stop)
    return join_windows(tokens, rows, arrays, unfinished, encoder) if len(parts) > len(tokens) else arrays


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
        put(arrays, [own[0] for own, _ in averaged], finish(means, encoder.steps), len(arrays[0]))
    return [values[order] for values in arrays]


def mean_of(vectors: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weighted mean of (k, d), computed in float64; zeros if all weights are 0."""
    mean: NDArray[np.float64] = weights @ vectors / (weights.sum() or 1.0)
    return mean.astype(np.float32)


def put(arrays: Arrays, rows: Sequence[int], vectors: Arrays, count: int) -> None:
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


def plan_batches(tokens: Sequence[Tokens], budget: int) -> tuple[list[Tokens], list[list[int]]]:
    """Return the sequences that the model reads, and batches of their indexes.

    The first windows are in the batches that the truncated texts would have. So, if the windows have the
    maximum length, long texts do not change the vectors of other texts, not even by rounding. All texts of a
    batch have prompts of equal length, if readouts exclude the prompt.
    """
    parts = [*tokens, *chain.from_iterable(each.parts[1:] for each in tokens)]
    kinds: dict[tuple[bool, int], list[int]] = {}
    for place, each in enumerate(parts):
        kinds.setdefault((place >= len(tokens), each.skip), []).append(place)
    return parts, [
        [own[place] for place in batch]
        for own in kinds.values()
        for batch in batches([len(parts[place].ids) for place in own], budget)
    ]


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes, longest first, of at most `budget` tokens; a longer text is one batch."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # the sort is stable
    chosen, room = list[list[int]](), 0
    for place in order:
        if not chosen or lengths[place] > room:
            chosen.append([])
            room = budget
        chosen[-1].append(place)
        room -= lengths[place]
    return chosen


def default_budget(device: str) -> int:
    """Return the default number of tokens in a batch: it fits the caches of a CPU or fills a GPU."""
    return BUDGETS["cuda" if device.startswith("cuda") else "cpu"]


T = TypeVar("T")

FIRST_GROUP, LAST_GROUP = 32, 8192  # rows
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long
AHEAD = 2  # groups
# The texts of a row; or one item, of the texts of a pair; or an item of a prompt and a text for each text.
Texts = tuple[str, ...] | tuple[tuple[str, ...], ...]
TextRow = tuple[Row, Texts]


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: list[tuple[Row, list[int]]]  # each row with the indexes of its texts in `tokens`
    tokens: list[Tokens]  # of the distinct texts

    @property
    def used(self) -> list[int]:
        """The indexes of the texts in accepted rows, without duplicates."""
        return sorted({place for _, own in self.rows for place in own})

    def of(self, places: Sequence[int]) -> list[Tokens]:
        return [self.tokens[place] for place in places]


@dataclass(frozen=True, slots=True)
class Done:
    row: Row
    tokens: list[Tokens]  # one for each of the row's texts
    vectors: list[NDArray[np.float32]]  # (k, d) for each readout; with chunks, one for each window


def prepare(
    rows: Iterable[TextRow],
    tokenizer: TextTokenizer,
    rejects: Rejects,
    *,
    refuse_truncation: bool = False,
    largest: int = LAST_GROUP,
) -> Iterator[RowGroup]:
    """Return groups of tokenized rows without duplicate texts. Rows that cannot be read go to `rejects`."""
    parts = groups(rows, WIDE_GROUP if tokenizer.whole else largest)
    prepared = (tokenize(group, tokenizer, rejects, refuse_truncation) for group in parts)
    return iter(list(prepared)) if tokenizer.whole else prepared


def whole_if_small(prepared: Iterator[RowGroup]) -> tuple[Iterator[RowGroup], int | None]:
    """Return the same groups, and the number of tokens of the whole input, or None.

    None: the first group is full, so the input may have more rows, or texts have windows in token states.
    """
    found = list(islice(prepared, 1))
    if not found or len(found[0].rows) < FIRST_GROUP:
        found += islice(prepared, 1)  # waits for input only if the first group had bad or very long rows
        tokens = [tokens for group in found for tokens in group.of(group.used)]
        if len(found) <= 1 and not any(each.windows and each.windows.pooled for each in tokens):
            return iter(found), sum(len(part.ids) for each in tokens for part in each.parts)
    return chain(found, prepared), None


def groups(rows: Iterable[tuple[T, Texts]], largest: int = LAST_GROUP) -> Iterator[list[tuple[T, Texts]]]:
    """Group rows into lists of 32, 128, 512, 2048, 8192, 8192 ... rows, or fewer if the texts are long."""
    size = FIRST_GROUP
    group: list[tuple[T, Texts]] = []
    characters = 0
    for item in rows:
        group.append(item)
        characters += sum(len("".join(text)) for text in item[1])
        if len(group) >= size or characters >= MAX_GROUP_CHARACTERS:
            yield group
            group, characters, size = [], 0, min(4 * size, largest)
    if group:
        yield group


def tokenize(
    group: Sequence[TextRow], tokenizer: TextTokenizer, rejects: Rejects, refuse_truncation: bool
) -> RowGroup:
    places = {text: place for place, text in enumerate(dict.fromkeys(t for _, ts in group for t in ts))}
    tokens = tokenized(tokenizer, list(places))
    kept = []
    for row, texts in group:
        own = [places[text] for text in texts]
        problem = next((tokens[place].problem for place in own if tokens[place].problem), None)
        truncated = next(
            (tokens[place] for place in own if refuse_truncation and tokens[place].truncated), None
        )
        if problem is not None:
            rejects.add(row.input_line, row.error(problem))
        elif truncated is not None:
            problem = f"text too long: {truncated.count} {tokenizer.unit}, maximum {len(truncated.ids)}"
            rejects.add(row.input_line, row.error(problem))
        else:
            kept.append((row, own))
    return RowGroup(kept, tokens)


@dataclass(slots=True)
class Tally:
    """Counts of rows, texts and tokens for final messages, progress and dry runs."""

    rows: int = 0
    texts: int = 0  # or windows, if each has its vector
    tokens: int = 0
    truncated: int = 0  # rows with a truncated text
    split: int = 0  # rows with a text of several windows
    windows: int = 0  # windows of these texts
    unknown: int = 0  # words or tokens without a vector
    empty: int = 0  # texts or windows without tokens
    reused: int = 0  # rows with only old vectors
    encoded: int = 0  # tokens of texts without an old vector
    first: str = ""  # the place of the first truncated row

    def add(self, rows: Iterable[tuple[Row, Sequence[Tokens]]]) -> int:
        """Add rows with the tokens of their texts to the counts; return their number of tokens."""
        before = self.tokens
        for source, row in rows:
            parts = [part for tokens in row for part in tokens.parts]
            windows = [len(each.windows.places) for each in row if each.windows is not None]
            self.rows += 1
            self.texts += sum(tokens.vectors for tokens in row)
            self.tokens += sum(len(part.ids) for part in parts)
            self.encoded += sum(len(part.ids) for tokens in row if not tokens.old for part in tokens.parts)
            self.reused += all(tokens.old for tokens in row)
            if any(tokens.truncated for tokens in row):
                self.truncated += 1
                self.first = self.first or f"{source.source}:{source.number}"
            self.split += any(count > 1 for count in windows)
            self.windows += sum(count for count in windows if count > 1)
            self.unknown += sum(part.unknown for part in parts)
            self.empty += sum(tokens.empty for tokens in row)
        return self.tokens - before

    def truncation(self, limit: int | None, unit: str) -> list[str]:
        """Return the message about truncated rows, if there are any."""
        if not self.truncated:
            return []
        advice = "encode --on-truncate mark marks each in its row, error refuses them"
        count = f"{self.truncated} of {self.rows} rows were truncated to {limit} {unit}"
        return [f"{count}, the first is {self.first} ({advice})"]

    def without_tokens(self, problem: str = "are empty") -> list[str]:
        """Return the message about texts whose vectors are zero, if there are any."""
        message = f"{self.empty:,} of {self.texts:,} texts {problem}: their vectors are zero"
        return [message] if self.empty else []

    def scale(self, factor: float) -> None:
        """Multiply all counts."""
        for each in fields(self):
            if each.name != "first":
                setattr(self, each.name, round(factor * getattr(self, each.name)))

    def join(self, other: "Tally") -> None:
        first = self.first or other.first
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.first = first


def encode_groups(
    prepared: Iterator[RowGroup], encoder: Encoder, budget: int, old: OldVectors | None = None
) -> Iterator[list[Done]]:
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


def encode_group(group: RowGroup, encoder: Encoder, budget: int, old: OldVectors | None) -> list[Done]:
    used = sorted(group.used, key=lambda place: bool(group.tokens[place].old))  # texts with old vectors last
    tokens = group.of(used)
    vectors = encode_texts([each for each in tokens if not each.old], encoder, budget)
    if old is not None and tokens[-1:] and tokens[-1].old:
        copied = old.read([*chain.from_iterable(each.old for each in tokens)])
        vectors = [np.concatenate([*vectors, copied])]
    where = dict(zip(used, ranges(each.vectors for each in tokens), strict=True))
    return [
        Done(row, group.of(own), [values[[*chain(*map(where.__getitem__, own))]] for values in vectors])
        for row, own in group.rows
    ]


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
        tally: Tally,
        report: Report,
        rejects: Rejects,
    ) -> None:
        """Write all rows, with one output for each readout."""
        done = encode_groups(groups, self.encoder, self.budget, self.old)
        first = next(done, [])  # the first row determines the names of the vectors
        with open_sinks(paths, self.specs(texts), texts.vectors, self.encoder.width, self.form) as sinks:
            for group in chain([first], done):
                written = self.write(group, sinks, texts.vectors, rejects)
                report(len(group), tally.add((each.row, each.tokens) for each in written))
        if self.old is not None:
            self.old.count_unneeded()

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

        written = list(rejects.each(group, write, lambda done: done.row.input_line))
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
        for number, (start, end) in enumerate(tokens.windows.places):
            values = dict(zip(CHUNK, (number, start, end), strict=True))
            yield (
                slice(number, number + 1),
                [(name.encode(), b"%d" % value) for name, value in values.items()],
            )


def token_marks(tokens: Sequence[Tokens]) -> NewFields:
    """The fields of MARKS; lists for a pair."""
    texts = [str(each.count) for each in tokens], ["true" if each.truncated else "false" for each in tokens]
    values = [f"[{','.join(each)}]" if len(each) > 1 else each[0] for each in texts]
    return [(name.encode(), value.encode()) for name, value in zip(MARKS, values, strict=True)]
