"""Converts rows to rows with vectors, in input order and constant memory.

Rows are read in groups. Each group is deduplicated and split into batches of texts of similar length.
The first groups are small, so that output starts early; later groups are large, so that they batch
efficiently. Groups and batches depend only on the input, not on time or threads. A thread reads and
tokenizes the next groups while the model computes the current one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.rows import Rejects, Row
from sentkit.model.text.tokenizer import Tokens

T = TypeVar("T")

FIRST_GROUP, LAST_GROUP = 32, 8192  # rows
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long
AHEAD = 2  # groups
BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
Encode = Callable[[Sequence[Tokens]], list[NDArray[np.float32]]]  # a batch -> (b, d) for each readout
TextRow = tuple[Row, tuple[str, ...]]


class TextTokenizer(Protocol):
    @property
    def unit(self) -> str: ...  # "words" or "tokens", for messages

    @property
    def whole(self) -> bool: ...  # all texts must be read before encoding starts

    def __call__(self, texts: Sequence[str]) -> list[Tokens]: ...


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
    vectors: list[NDArray[np.float32]]  # (k, d) for each readout


def prepare(
    rows: Iterable[TextRow],
    tokenizer: TextTokenizer,
    rejects: Rejects,
    *,
    refuse_truncation: bool = False,
    largest: int = LAST_GROUP,
) -> Iterator[RowGroup]:
    """Return groups of tokenized rows without duplicate texts. Rows that cannot be read go to `rejects`."""
    if tokenizer.whole:
        groups_of_rows = groups(rows, WIDE_GROUP)
        return iter([tokenize(group, tokenizer, rejects, refuse_truncation) for group in groups_of_rows])
    return (tokenize(group, tokenizer, rejects, refuse_truncation) for group in groups(rows, largest))


def groups(
    rows: Iterable[tuple[T, tuple[str, ...]]], largest: int = LAST_GROUP
) -> Iterator[list[tuple[T, tuple[str, ...]]]]:
    """Group rows into lists of 32, 128, 512, 2048, 8192, 8192 ... rows, or fewer if the texts are long."""
    size = FIRST_GROUP
    group: list[tuple[T, tuple[str, ...]]] = []
    characters = 0
    for item in rows:
        group.append(item)
        characters += sum(map(len, item[1]))
        if len(group) >= size or characters >= MAX_GROUP_CHARACTERS:
            yield group
            group, characters, size = [], 0, min(4 * size, largest)
    if group:
        yield group


def tokenize(
    group: Sequence[TextRow], tokenizer: TextTokenizer, rejects: Rejects, refuse_truncation: bool
) -> RowGroup:
    places = {text: place for place, text in enumerate(dict.fromkeys(t for _, ts in group for t in ts))}
    tokens = tokenizer(list(places))
    kept = []
    for row, texts in group:
        own = [places[text] for text in texts]
        problem = next((tokens[place].problem for place in own if tokens[place].problem), None)
        truncated = next(
            (tokens[place] for place in own if refuse_truncation and tokens[place].truncated), None
        )
        if problem is not None:
            rejects.add(row.line, row.error(problem))
        elif truncated is not None:
            problem = f"text too long: {truncated.count} {tokenizer.unit}, maximum {len(truncated.ids)}"
            rejects.add(row.line, row.error(problem), truncated=True)
        else:
            kept.append((row, own))
    return RowGroup(kept, tokens)


@dataclass(slots=True)
class Tally:
    """Counts of rows, texts and tokens for final messages, progress and dry runs."""

    rows: int = 0
    texts: int = 0
    tokens: int = 0
    truncated: int = 0  # rows with a truncated text
    unknown: int = 0  # words or tokens without a vector
    empty: int = 0  # texts without tokens

    def add(self, rows: Iterable[Sequence[Tokens]]) -> int:
        """Add rows, each given by the tokens of its texts, to the counts; return their number of tokens."""
        before = self.tokens
        for row in rows:
            self.rows += 1
            self.texts += len(row)
            self.tokens += sum(len(tokens.ids) for tokens in row)
            self.truncated += any(tokens.truncated for tokens in row)
            self.unknown += sum(tokens.unknown for tokens in row)
            self.empty += sum(not tokens.ids for tokens in row)
        return self.tokens - before

    def join(self, other: "Tally") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def encode_groups(prepared: Iterator[RowGroup], encode: Encode, budget: int) -> Iterator[list[Done]]:
    for group in ahead(prepared, AHEAD):
        used = group.used
        vectors = encode_texts(group.of(used), encode, budget)
        where = {place: i for i, place in enumerate(used)}
        yield [
            Done(row, group.of(own), [values[[where[place] for place in own]] for values in vectors])
            for row, own in group.rows
        ]


def encode_texts(tokens: Sequence[Tokens], encode: Encode, budget: int) -> list[NDArray[np.float32]]:
    """Return one (m, d) array for each readout, in the order of the texts."""
    arrays: list[NDArray[np.float32]] = []
    for batch in batches([len(each.ids) for each in tokens], budget):
        vectors = encode([tokens[place] for place in batch])
        if not arrays:
            arrays = [np.empty((len(tokens), values.shape[1]), np.float32) for values in vectors]
        for array, values in zip(arrays, vectors, strict=True):
            array[batch] = values
    return arrays


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes, longest first, of at most `budget` tokens; a longer text is one batch."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # the sort is stable
    chosen: list[list[int]] = []
    room = 0
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
