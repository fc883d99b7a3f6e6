"""A batch of concatenated sentences without padding, and its padded forms.

Axes: b sentences, n tokens, t tokens in the longest; c sentences of a group, of at most t tokens; h heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.device import to_device

SMALLEST_FILLED = 64  # tokens
SENTENCES = 16  # the number of sentences is a multiple of it in `Packed.filled`
TILE = 128  # tokens; a GPU gets multiples of it, because it searches kernels for each new number of rows
LEAST_SAVED = 512  # tokens of padding


@dataclass(frozen=True, eq=False)
class Packed:  # no slots: cached_property needs __dict__
    ids: Tensor  # (n,)
    positions: Tensor  # (n,), from 0 in each sentence; the encoder adds its offset
    lengths: tuple[int, ...]  # (b,), on the host, so that shapes need no device sync
    at: Tensor | None = None  # (b,), index of the token for the readout `token`
    skip: int = 0  # prompt tokens at the start of each sentence that readouts exclude
    skipped: int = 0  # tokens that `read_part` removed from the start of each sentence
    causal: bool = False  # a token attends to itself and the tokens before it
    read: np.ndarray | None = None  # (n,) of bool: tokens that readouts reduce; None: all after `skip`
    types: Tensor | None = None  # (n,), segment of each token, 0 or 1; None: all tokens are in the first
    turns: Mapping[float, tuple[Tensor, Tensor]] = field(default_factory=dict)  # see `turns_of`
    bias: Tensor | None = None  # (h, t, t), which attention adds to the scores of a query and a key

    @cached_property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def equal(self) -> bool:
        """True if all sentences have the same length; padding is then a view."""
        return min(self.lengths) == self.longest

    @cached_property
    def starts(self) -> Tensor:
        """(b,): row of the first token of each sentence."""
        return self.to_device(first_tokens(self.lengths))

    @cached_property
    def counts(self) -> Tensor:
        """(b,): number of tokens of each sentence."""
        return self.to_device(np.array(self.lengths))

    @cached_property
    def bounds(self) -> Tensor:
        """(b + 1,), int32: row of the first token of each sentence, and the number of tokens."""
        return self.to_device(np.cumsum((0, *self.lengths), dtype=np.int32))

    @cached_property
    def read_rows(self) -> Tensor:
        """(b,): row of the token `at` of each sentence."""
        assert self.at is not None, "this batch names no token to read"
        return self.starts + self.at

    @cached_property
    def read_part(self) -> "Packed":
        """The batch that readouts reduce: the tokens `read` of each sentence."""
        if self.kept is None:
            return self
        ids, positions, lengths = self.ids[self.kept], self.positions[self.kept], self.lengths
        counts = tuple(length - self.skip for length in lengths)
        if self.read is not None:
            counts = tuple(np.add.reduceat(self.read, first_tokens(lengths), dtype=np.int64).tolist())
        return Packed(ids, positions, counts, skipped=self.skip)

    @cached_property
    def kept(self) -> Tensor | None:
        """Rows of the tokens in `read_part`; None: all of them."""
        if self.read is not None:
            return self.to_device(np.flatnonzero(self.read))
        if not self.skip:
            return None
        own = np.arange(self.tokens) - np.repeat(first_tokens(self.lengths), self.lengths)
        return self.to_device(np.flatnonzero(own >= self.skip))

    @cached_property
    def padded(self) -> Tensor:
        """(n,): row of each token in the padded (b * t). Uses lengths, as views can permute positions."""
        spare = np.arange(len(self.lengths)) * self.longest - first_tokens(self.lengths)
        return self.to_device(np.arange(self.tokens) + np.repeat(spare, self.lengths))

    @cached_property
    def groups(self) -> "Groups":
        """The padding for attention. A GPU gets one group, because it needs time for each operation."""
        on_cpu = self.ids.device.type == "cpu"
        return groups_of(self.lengths, self.causal, self.ids.device, one=not on_cpu)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Convert (n, ...) to (b, t, ...), with `fill` after the end of each sentence."""
        shape = (len(self.lengths), self.longest, *values.shape[1:])
        if self.equal:
            return values.view(shape)
        room = values.new_full((shape[0] * shape[1], *shape[2:]), fill)
        return room.index_copy_(0, self.padded, values).view(shape)

    def unpad(self, values: Tensor) -> Tensor:
        """Convert (b, t, ...) to (n, ...), the inverse of `pad`."""
        flat = values.flatten(0, 1)
        return flat if self.equal else flat.index_select(0, self.padded)

    def filled(self) -> "Packed":
        """The batch with more sentences, for attention: without ids, up to one of few numbers of tokens.

        Empty sentences follow, because dropout of attention depends on the number of sentences.
        """
        lengths = (*self.lengths, *filler(self.lengths, -self.tokens % TILE))
        most = len(self.lengths) + (TILE - 1) // self.longest + 1
        empty = (0,) * (most + -most % SENTENCES - len(lengths))
        return Packed(self.ids, self.positions, lengths + empty, causal=self.causal)

    def to_device(self, values: np.ndarray) -> Tensor:
        return to_device(values, self.ids.device)


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """The sentences of a batch in groups of similar length, longest first, each padded to its longest.

    Attention needs time and memory for the square of the padded length, so one long sentence would be
    expensive for all others. The padding of a sentence is its last token again; the masks exclude it.
    """

    shapes: tuple[tuple[int, int], ...]  # sentences and padded tokens of each group, (c, t)
    masks: tuple[Tensor | None, ...]  # (c, 1, 1, t): true for keys that a token may attend to; None: all
    order: Tensor  # (b,): sentences in the order of the groups
    ranks: Tensor  # (b,): the inverse
    rows: Tensor  # (m,): row of each padded token
    places: Tensor  # (n,): padded token of each row

    def pad(self, values: Tensor) -> list[Tensor]:
        """Convert (n, k) to (c, t, k) of each group. `values` can have more than n rows."""
        sizes = [count * longest for count, longest in self.shapes]
        parts = values.index_select(0, self.rows).split(sizes)
        return [part.view(*shape, -1) for part, shape in zip(parts, self.shapes, strict=True)]

    def unpad(self, parts: Sequence[Tensor]) -> Tensor:
        """Convert (c, t, k) of each group to (n, k), the inverse of `pad`."""
        return torch.cat([part.flatten(0, 1) for part in parts]).index_select(0, self.places)

    def split(self, vectors: Tensor) -> list[Tensor]:
        """Convert (b, k), one vector for each sentence, to (c, 1, k) of each group."""
        parts = vectors.index_select(0, self.order).split([count for count, _ in self.shapes])
        return [part.unsqueeze(1) for part in parts]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Convert (c, 1, k) of each group to (b, k), the inverse of `split`."""
        return torch.cat([part.squeeze(1) for part in parts]).index_select(0, self.ranks)


def groups_of(lengths: tuple[int, ...], causal: bool, device: torch.device, *, one: bool) -> Groups:
    counts = np.array(lengths)
    order = np.arange(len(counts)) if one else np.argsort(-counts, kind="stable")
    sizes = [len(counts)] if one else sizes_of_groups(counts[order].tolist())
    starts, ends = first_tokens(lengths), np.cumsum(sizes)
    places, rows = np.empty(counts.sum(), np.int64), list[np.ndarray]()
    shapes, masks, room = list[tuple[int, int]](), list[Tensor | None](), 0
    for own in np.split(order, ends[:-1]):
        own_counts, longest = counts[own, None], int(counts[own].max())
        column = np.arange(longest)
        real = column < own_counts  # (c, t)
        own_rows = starts[own, None] + np.minimum(column, own_counts - 1)
        places[own_rows[real]] = room + np.flatnonzero(real)
        rows.append(own_rows.ravel())
        shapes.append((len(own), longest))
        room += real.size
        # In causal attention, no token attends to the padding, which follows it.
        none = real.all() or causal
        masks.append(None if none else to_device(real[:, None, None, :], device))
    indexes = order, np.argsort(order), np.concatenate(rows), places
    return Groups(tuple(shapes), tuple(masks), *(to_device(each, device) for each in indexes))


def sizes_of_groups(lengths: Sequence[int]) -> list[int]:
    """Return the number of sentences in each group, from lengths in descending order.

    A group ends before a sentence with at most 3/4 of the tokens of its longest, and at least 16 fewer, if
    this and the shorter sentences then have LEAST_SAVED fewer tokens of padding. A group has a fixed cost.
    """
    sizes = list[int]()
    longest = 0
    for place, length in enumerate(lengths):
        fewer = longest - length
        if not sizes or (fewer >= max(16, longest / 4) and fewer * (len(lengths) - place) >= LEAST_SAVED):
            sizes.append(0)
            longest = length
        sizes[-1] += 1
    return sizes


def pack(
    sequences: Sequence[Sequence[int] | np.ndarray],
    device: torch.device | str = "cpu",
    *,
    at: Sequence[int] | None = None,
    skip: int = 0,
    second: Sequence[int] | None = None,
) -> Packed:
    """Return the batch of these token ids. The others are columns of `TokenBlock`."""
    lengths = np.array([*map(len, sequences)])
    ids = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    own_at, own_second = (None if each is None else np.array(each) for each in (at, second))
    own_skip = np.full(len(lengths), skip) if skip else None
    block = TokenBlock(ids, lengths, lengths, own_at, second=own_second, skip=own_skip)
    return pack_block(block, torch.device(device))


def pack_block(batch: TokenBlock, device: torch.device, spare: Sequence[int] = ()) -> Packed:
    """Return the batch of these texts, and after them sentences of the lengths `spare`.

    Sentences are never empty, because they contain special tokens. All have the same `skip`.
    """
    more, lengths = np.array(spare, np.int64), (*batch.lengths.tolist(), *spare)
    skip = 0 if batch.skip is None else int(batch.skip[0])
    assert lengths, "an empty batch"
    assert min(lengths) > skip, "a sentence without tokens to read"
    ids = np.append(batch.ids, np.full(sum(spare), batch.ids[0])).astype(np.int64)
    positions = np.arange(len(ids)) - np.repeat(first_tokens(lengths), lengths)
    at = types = None
    if batch.at is not None:
        at = to_device(np.append(batch.at, np.zeros(len(more), np.int64)), device)
    if batch.second is not None:
        second = np.append(np.where(batch.second > 0, batch.second, batch.lengths), more)
        types = to_device((positions >= np.repeat(second, lengths)).astype(np.int64), device)
    positions_on_device = to_device(positions, device)
    return Packed(to_device(ids, device), positions_on_device, lengths, at=at, skip=skip, types=types)


def spare_tokens(tokens: int) -> int:
    """Return how many rows to add, so that their number has five binary digits: at most 7 % more.

    oneDNN compiles a kernel for each number of rows and keeps it, which takes milliseconds and memory.
    """
    return -tokens % (1 << tokens.bit_length() - 5) if tokens >= SMALLEST_FILLED else 0


def filler(lengths: Sequence[int], spare: int) -> list[int]:
    """Return the lengths of sentences of this number of tokens, none longer than the longest."""
    full, rest = divmod(spare, max(lengths))
    return [max(lengths)] * full + [rest] * (rest > 0)


def rounded(longest: int) -> int:
    """The room for sentences in a kernel for GPUs, which divides them into tiles."""
    return longest + -longest % TILE


def first_tokens(lengths: tuple[int, ...]) -> np.ndarray:
    return np.cumsum((0, *lengths[:-1]))


def ends_of(weight: Tensor, bias: Tensor | None, width: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield weight and bias of the first `width` outputs, and of the others."""
    for part in (slice(0, width), slice(width, None)):
        yield weight[part], None if bias is None else bias[part]


def with_rows(values: Tensor, rows: int) -> Tensor:
    return F.pad(values, (0, 0, 0, rows - len(values))) if rows > len(values) else values
