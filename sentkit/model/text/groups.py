"""Groups of rows with the tokens of their distinct texts, and counts of them.

The first groups are small, so that output starts early; later groups are large, so that they batch
efficiently. They depend only on the texts, not on the reads of a pipe.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.block import RowBlock, Texts, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock, tokenized

FIRST_GROUP, LAST_GROUP = 32, 8192  # rows
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: RowBlock
    index: Ints  # (n, k), for each row the numbers of its texts in `tokens`
    tokens: TokenBlock  # of the distinct texts

    @property
    def used(self) -> Ints:
        """The numbers of the texts in accepted rows, without duplicates."""
        return np.unique(self.index)

    def take(self, places: Sequence[int] | slice) -> "RowGroup":
        return RowGroup(self.rows.take(places), self.index[places], self.tokens)


@dataclass(frozen=True, slots=True)
class Done(RowGroup):
    vectors: list[NDArray[np.float32]]  # (m, k, d) for each readout: a vector for each text
    owners: Ints | None = None  # (m,), with chunks: the rows of the windows, each of which has a vector

    def take(self, places: Sequence[int] | slice) -> "Done":
        if isinstance(places, slice) and places == slice(None):
            return self
        chosen: Any = places
        owners = None
        if self.owners is not None:
            numbers = np.full(len(self.rows), -1)
            numbers[places] = np.arange(len(numbers[places]))
            owners = numbers[self.owners]
            chosen, owners = owners >= 0, owners[owners >= 0]
        rows = RowGroup.take(self, places)
        return Done(rows.rows, rows.index, self.tokens, [each[chosen] for each in self.vectors], owners)


def prepare(
    blocks: Iterable[RowBlock],
    tokenizer: TextTokenizer,
    rejects: Rejects,
    *,
    refuse_truncation: bool = False,
    largest: int = LAST_GROUP,
) -> Iterator[RowGroup]:
    """Return groups of tokenized rows without duplicate texts. Rows that cannot be read go to `rejects`."""
    parts = groups(blocks, WIDE_GROUP if tokenizer.whole else largest)
    prepared = chain.from_iterable(tokenize(group, tokenizer, rejects, refuse_truncation) for group in parts)
    return iter(list(prepared)) if tokenizer.whole else prepared


def whole_if_small(prepared: Iterator[RowGroup]) -> tuple[Iterator[RowGroup], int | None]:
    """Return the same groups, and the number of tokens of the whole input, or None.

    None: the first group is full, so the input may have more rows, or texts have windows in token states.
    """
    found = list(islice(prepared, 1))
    if not found or len(found[0].rows) < FIRST_GROUP:
        found += islice(prepared, 1)  # waits for input only if the first group had bad or very long rows
        tokens = [tokens for group in found for tokens in group.tokens.take(group.used)]
        if len(found) <= 1 and not any(each.windows and each.windows.pooled for each in tokens):
            return iter(found), sum(len(part.ids) for each in tokens for part in each.parts)
    return chain(found, prepared), None


def groups(blocks: Iterable[RowBlock], largest: int = LAST_GROUP) -> Iterator[RowBlock]:
    """Group rows into blocks of 32, 128, 512, 2048, 8192, 8192 ... rows, or fewer if the texts are long."""
    size, room = FIRST_GROUP, MAX_GROUP_CHARACTERS
    group = empty_block()
    for block in blocks:
        start = 0
        while start < len(block):
            part = block.take(slice(start, start + size - len(group)))
            ends = list(accumulate(map(characters, part.texts)))
            count = min(bisect_left(ends, room) + 1, len(ends))
            group.extend(part.take(slice(0, count)))
            start, room = start + count, room - ends[count - 1]
            if len(group) >= size or room <= 0:
                yield group
                group, room, size = empty_block(), MAX_GROUP_CHARACTERS, min(4 * size, largest)
    if len(group):
        yield group


def characters(texts: Texts) -> int:
    """The number of characters of the texts of a row."""
    return sum(map(len, texts if isinstance(texts[0], str) else map("".join, texts)))


def tokenize(
    rows: RowBlock, tokenizer: TextTokenizer, rejects: Rejects, refuse_truncation: bool
) -> Iterator[RowGroup]:
    """Tokenize the distinct texts of some rows. Rows before one that is an error come first."""
    places: dict[Any, int] = {}
    index = [places.setdefault(text, len(places)) for texts in rows.texts for text in texts]
    tokens = tokenized(tokenizer, list(places))
    by_row = np.array(index, np.int64).reshape(len(rows), -1)
    problems = dict(tokens.problems)
    for place in np.flatnonzero(tokens.truncated).tolist() if refuse_truncation else ():
        count, most = tokens.counts[place], tokens.lengths[place]
        problems.setdefault(place, f"text too long: {count} {tokenizer.unit}, maximum {most}")
    for place, own in enumerate(by_row.tolist()) if problems else ():
        if problem := next((problems[each] for each in own if each in problems), None):
            rows.refuse(place, problem)
    for kept in rejects.sift(rows):
        yield RowGroup(rows, by_row, tokens).take(kept)


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

    def add(self, group: RowGroup) -> int:
        """Add the rows of a group to the counts; return their number of tokens."""
        tokens, index = group.tokens, group.index
        total = tokens.column(lambda each: sum(len(part.ids) for part in each.parts), tokens.lengths)
        none = np.zeros(len(tokens), np.int64)
        unknown = none if tokens.unknown is None else tokens.unknown
        unknown = tokens.column(lambda each: sum(part.unknown for part in each.parts), unknown)
        windows = tokens.column(lambda each: len(each.windows.places) if each.windows else 0, none)[index]
        empty = tokens.column(lambda each: each.empty, (tokens.lengths == 0).astype(np.int64))
        new = np.ones(len(tokens), np.int64)
        new[list(tokens.old)] = 0
        added = int(total[index].sum())
        self.rows += len(group.rows)
        self.texts += int(tokens.column(lambda each: each.vectors, none + 1)[index].sum())
        self.tokens += added
        self.encoded += int((total * new)[index].sum())
        self.reused += int((new[index] == 0).all(axis=1).sum())
        truncated = np.flatnonzero(tokens.truncated[index].any(axis=1))
        if len(truncated):
            self.truncated += len(truncated)
            first = group.rows.row(int(truncated[0]))
            self.first = self.first or f"{first.source}:{first.number}"
        self.split += int((windows > 1).any(axis=1).sum())
        self.windows += int(windows[windows > 1].sum())
        self.unknown += int(unknown[index].sum())
        self.empty += int(empty[index].sum())
        return added

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
