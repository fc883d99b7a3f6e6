"""Rows become vectors, in input order and constant memory.

Blocks of rows are joined to groups. The texts of a group are tokenized, each distinct text once, and encoded
in batches of similar length. The first groups are small, so that output starts early; later groups are large,
so that they batch efficiently. Groups and batches depend only on the texts, not on the reads of a pipe, time
or threads. The windows of a long text can be in several batches.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.fingerprint import Space
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock, places_of_parts, tokenized
from sentkit.transforms.steps import Step, applied

if TYPE_CHECKING:
    from sentkit.model.checkpoint_reading import Reading
    from sentkit.model.reuse import OldVectors

T = TypeVar("T")
U = TypeVar("U")
Arrays = list[NDArray[np.float32]]  # one for each readout
Report = Callable[[int, int], None]  # rows and tokens since the last report

FIRST_GROUP, LAST_GROUP = 32, 8192  # rows
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long
BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
AHEAD = 2  # groups


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: RowBlock
    index: Ints  # (n, k), for each row the numbers of its texts in `tokens`
    tokens: TokenBlock  # of the distinct texts
    old: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # --reuse: places of vectors, by text
    vectors: Arrays = field(default_factory=list)  # (m, k, d): a vector for each text; [] before encoding
    owners: Ints | None = None  # (m,), with chunks: the rows of the windows, each of which has a vector
    seconds: float = 0.0  # in which the model encoded the group

    @property
    def used(self) -> Ints:
        """The numbers of the texts in accepted rows, without duplicates."""
        return np.unique(self.index)

    def take(self, places: Sequence[int] | slice) -> "RowGroup":
        if isinstance(places, slice) and places == slice(None):
            return self
        chosen: Any = places
        owners = None
        if self.owners is not None:
            numbers = np.full(len(self.rows), -1)
            numbers[places] = np.arange(len(numbers[places]))
            owners = numbers[self.owners]
            chosen, owners = owners >= 0, owners[owners >= 0]
        vectors = [each[chosen] for each in self.vectors]
        own = replace(self, rows=self.rows.take(places), index=self.index[places])
        return replace(own, vectors=vectors, owners=owners)


def tokenized_groups(
    blocks: Iterable[RowBlock],
    tokenizer: TextTokenizer,
    rejects: Rejects,
    *,
    on_truncate: str = "warn",
    largest: int = LAST_GROUP,
) -> Iterator[RowGroup]:
    """Return groups of rows with the tokens of their distinct texts. Bad rows go to `rejects`."""
    parts = grouped(blocks, WIDE_GROUP if tokenizer.whole else largest)
    groups = chain.from_iterable(tokenize_group(rows, tokenizer, rejects, on_truncate) for rows in parts)
    return iter(list(groups)) if tokenizer.whole else groups


def whole_if_small(groups: Iterator[RowGroup]) -> tuple[Iterator[RowGroup], int | None]:
    """Return the same groups, and the number of tokens of the whole input, or None.

    None: the first group is full, so the input may have more rows.
    """
    found = list(islice(groups, 1))
    if not found or len(found[0].rows) < FIRST_GROUP:
        found += islice(groups, 1)  # waits for input only if the first group had bad or very long rows
        used = [group.tokens.take(group.used) for group in found]
        if len(found) <= 1:
            return iter(found), sum(int(tokens.sizes.sum()) for tokens in used)
    return chain(found, groups), None


def grouped(blocks: Iterable[RowBlock], largest: int = LAST_GROUP) -> Iterator[RowBlock]:
    """Group rows into blocks of 32, 128, 512, 2048, 8192, 8192 ... rows, or fewer if the texts are long."""
    size, room = FIRST_GROUP, MAX_GROUP_CHARACTERS
    group = empty_block()
    for block in blocks:
        start = 0
        while start < len(block):
            part = block.take(slice(start, start + size - len(group)))
            texts: Iterable[Any] = chain.from_iterable(part.texts)
            if not isinstance(part.texts[0][0], str):
                texts = map("".join, texts)
            characters = np.array([*map(len, texts)]).reshape(len(part), -1).sum(axis=1)  # of each row
            ends = np.cumsum(characters)
            count = min(int(np.searchsorted(ends, room)) + 1, len(part))
            group.extend(part if count == len(part) else part.take(slice(0, count)))
            start, room = start + count, room - int(ends[count - 1])
            if len(group) >= size or room <= 0:
                yield group
                group, room, size = empty_block(), MAX_GROUP_CHARACTERS, min(4 * size, largest)
    if len(group):
        yield group


def tokenize_group(
    rows: RowBlock, tokenizer: TextTokenizer, rejects: Rejects, on_truncate: str
) -> Iterator[RowGroup]:
    """Tokenize the distinct texts of some rows. Rows before one that is an error come first."""
    places: dict[Any, int] = {}
    index = [places.setdefault(text, len(places)) for texts in rows.texts for text in texts]
    tokens = tokenized(tokenizer, list(places))
    by_row = np.array(index, np.int64).reshape(len(rows), -1)
    problems = dict(tokens.problems)
    if on_truncate == "error":
        for number in np.flatnonzero(tokens.truncated).tolist():
            count, most = tokens.counts[number], tokens.lengths[number]
            problems.setdefault(number, f"text too long: {count} {tokenizer.unit}, maximum {most}")
    for place, own in enumerate(by_row.tolist()) if problems else ():
        if problem := next((problems[each] for each in own if each in problems), None):
            rows.refuse(place, problem)
    for kept in rejects.good_places(rows):
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
    seconds: float = 0.0  # in which the model encoded groups
    first: str = ""  # the place of the first truncated row

    def add(self, group: RowGroup) -> int:
        """Add the rows of a group to the counts; return their number of tokens."""
        tokens, index = group.tokens, group.index
        none, vectors = np.zeros(len(tokens), np.int64), tokens.vectors
        total = tokens.sizes[index]  # (n, k), of each text of a row
        windows = tokens.column(none, lambda each: len(each.places))[index]
        unknown = none if tokens.unknown is None else tokens.unknown
        unknown = tokens.column(unknown, lambda each: sum(part.unknown for part in each.others))
        empty = tokens.column(
            (tokens.lengths == 0).astype(np.int64), lambda each: sum(not part.ids for part in each.others)
        )
        empty = np.where(vectors == 1, tokens.sizes == 0, empty)  # a mean is empty if all windows are
        is_new = ~np.isin(index, list(group.old))
        added = int(total.sum())
        self.rows += len(group.rows)
        self.texts += int(vectors[index].sum())
        self.tokens += added
        self.encoded += int(total[is_new].sum())
        self.reused += int((~is_new).all(axis=1).sum())
        truncated = np.flatnonzero(tokens.truncated[index].any(axis=1))
        if len(truncated):
            self.truncated += len(truncated)
            first = group.rows.row(int(truncated[0]))
            self.first = self.first or f"{first.source}:{first.number}"
        self.split += int((windows > 1).any(axis=1).sum())
        self.windows += int(windows[windows > 1].sum())
        self.unknown += int(unknown[index].sum())
        self.empty += int(empty[index].sum())
        self.seconds += group.seconds
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


class TokenEncoder:
    """Converts batches of tokens to arrays of vectors, and records their origin."""

    specs: list[Space]  # one for each readout: the origin of its vectors
    width: int
    notes: list[str]  # messages to print after the weights are loaded
    reading: "Reading"
    steps: Sequence[Step]  # the operations after the readout
    device: Any = "cpu"
    precision: str = "fp32"
    budget: int  # number of tokens in a batch; only a batch of one text can exceed it

    @property
    def batches_at_once(self) -> int:
        """The number of batches that threads compute at the same time."""
        return 1

    @property
    def groups_at_once(self) -> int:
        """The number of groups that threads encode while the caller writes; 0: the caller encodes them."""
        return 0

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        """Yield the vectors (b, d) of each batch, of all windows."""
        raise NotImplementedError

    def remarks(self, tally: Tally) -> list[str]:
        """Return the messages to print after the last row."""
        return tally.truncation(self.reading.tokenizer.max_length, "tokens") + tally.without_tokens()


def encode_groups(
    groups: Iterator[RowGroup], encoder: TokenEncoder, budget: int, old: "OldVectors | None" = None
) -> Iterator[RowGroup]:
    """Encode each group. Threads may encode the next groups while the caller writes the last one."""
    encode = partial(encode_group, encoder=encoder, budget=budget, old=old)
    return computed_ahead(encode, groups, encoder.groups_at_once)


def computed_ahead(function: Callable[[T], U], items: Iterator[T], threads: int) -> Iterator[U]:
    """Yield the results for items in order. A thread reads items ahead; with `threads`, these compute."""
    if not threads:
        yield from map(function, ahead(items, AHEAD))
        return
    pool = ThreadPoolExecutor(threads)
    try:
        for result in ahead((pool.submit(function, item) for item in items), AHEAD):
            yield result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def encode_group(group: RowGroup, encoder: TokenEncoder, budget: int, old: "OldVectors | None") -> RowGroup:
    start, tokens, used = monotonic(), group.tokens, group.used
    is_old = np.isin(used, list(group.old))
    new, copied = used[~is_old], used[is_old]
    vectors = encode_texts(tokens.take(new), encoder, budget)
    if old is not None and len(copied):
        places = chain.from_iterable(group.old[text] for text in copied.tolist())
        vectors = [np.concatenate([*vectors, old.read([*places])])]
    used = np.concatenate([new, copied])  # in the order of `vectors`
    first = np.zeros(len(tokens), np.int64)  # of the vectors of each text
    first[used] = np.cumsum(tokens.vectors[used]) - tokens.vectors[used]
    rows, owners = first[group.index], None
    if (tokens.vectors[used] != 1).any():  # each window has a vector, and rows have one text
        counts = tokens.vectors[group.index[:, 0]]
        owners = np.repeat(np.arange(len(counts)), counts)
        rows = places_of_parts(rows[:, 0], counts)[:, None]
    if rows.shape[1] == 1 and np.array_equal(rows[:, 0], np.arange(len(vectors[0]))):  # all texts differ
        vectors = [each[:, None] for each in vectors]
    else:
        vectors = [each[rows] for each in vectors]
    return replace(group, vectors=vectors, owners=owners, seconds=monotonic() - start)


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


def encode_texts(tokens: TokenBlock, encoder: TokenEncoder, budget: int) -> Arrays:
    """Return one (m, d) array for each readout, in the order of the texts and of their windows."""
    if not tokens.sizes.all():
        read = encode_texts(tokens.take(np.flatnonzero(tokens.sizes)), encoder, budget)
        zeros = [np.zeros((tokens.vectors.sum(), encoder.width), np.float32) for _ in encoder.specs]
        for array, values in zip(zeros, read, strict=bool(read)):
            array[np.repeat(tokens.sizes > 0, tokens.vectors)] = values
        return zeros
    if tokens.windows:
        return encode_windows(tokens, encoder, budget)
    plan = plan_batches(tokens, budget)
    arrays: Arrays = []
    for batch, states in zip(plan, encoder.encode(map(tokens.take, plan)), strict=True):
        put(arrays, batch, finish(states, encoder.steps), len(tokens))
    return arrays


def encode_windows(tokens: TokenBlock, encoder: TokenEncoder, budget: int) -> Arrays:
    """Do the same for texts of which some have windows.

    The first windows are in the batches that the truncated texts would have. So, if the windows have the
    maximum length, long texts do not change the vectors of other texts, not even by rounding. The operations
    after the readout apply to the mean of windows, so that it has unit length if the space requires it.
    """
    windows_of_texts = tokens.windows.values()
    others = [*chain.from_iterable(windows.others for windows in windows_of_texts)]
    all_windows = TokenBlock.of([*tokens, *others])
    first_batches = plan_batches(tokens, budget)
    other_batches = [len(tokens) + batch for batch in plan_batches(TokenBlock.of(others), budget)]
    batches_of_windows = first_batches + other_batches

    # The vectors of all windows, before and after the operations.
    read: Arrays = []
    finished: Arrays = []
    arrays_of_batches = encoder.encode(map(all_windows.take, batches_of_windows))
    for batch, arrays in zip(batches_of_windows, arrays_of_batches, strict=True):
        put(read, batch, arrays, len(all_windows))
        put(finished, batch, finish(arrays, encoder.steps), len(all_windows))

    # All windows of a text, one after the other.
    texts_of_others = np.repeat([*tokens.windows], [len(windows.others) for windows in windows_of_texts])
    texts = np.append(np.arange(len(tokens)), texts_of_others)
    order = np.argsort(texts, kind="stable")
    weights = {text: np.array(windows.weights) for text, windows in tokens.windows.items() if windows.weights}
    if not weights:
        return [vectors[order] for vectors in finished]

    # The means of windows, in float64; zeros if all weights are 0.
    ends = np.cumsum(np.bincount(texts))
    means: Arrays = []
    for vectors in read:
        means_of_texts = []
        for text, shares in weights.items():
            indices = order[ends[text] - len(shares) : ends[text]]
            means_of_texts.append(shares @ vectors[indices] / (shares.sum() or 1.0))
        means.append(np.array(means_of_texts, np.float32))
    vectors_of_texts = [vectors[: len(tokens)] for vectors in finished]
    for vectors, vectors_of_means in zip(vectors_of_texts, finish(means, encoder.steps), strict=True):
        vectors[[*weights]] = vectors_of_means
    return vectors_of_texts


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


def plan_batches(tokens: TokenBlock, budget: int) -> list[Ints]:
    """Return batches of texts, as their numbers. All texts of a batch have the same `skip`."""
    if tokens.skip is None:
        return batches(tokens.lengths, budget)
    kinds = [np.flatnonzero(tokens.skip == each) for each in dict.fromkeys(tokens.skip.tolist())]
    return [own[batch] for own in kinds for batch in batches(tokens.lengths[own], budget)]


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
