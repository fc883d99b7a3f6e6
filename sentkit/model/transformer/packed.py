"""A batch of concatenated sentences without padding, and attention in them: at once, in windows, causal.

Axes: b sentences, n tokens, t tokens in the longest; in attention c sentences of at most t tokens, h heads,
g heads of keys and values, e numbers of a head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.device import drop, to_device

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
    pooled: tuple[tuple[int, int], ...] = ()  # ranges of rows; if there are any, readouts reduce each of them
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
        """The batch that readouts reduce: the ranges `pooled`, or the tokens `read` of each sentence."""
        if not self.is_partial:
            return self
        ids, positions, lengths = self.ids[self.kept], self.positions[self.kept], self.lengths
        if self.pooled:
            return Packed(ids, positions, tuple(end - start for start, end in self.pooled))
        counts = tuple(length - self.skip for length in lengths)
        if self.read is not None:
            counts = tuple(np.add.reduceat(self.read, first_tokens(lengths), dtype=np.int64).tolist())
        return Packed(ids, positions, counts, skipped=self.skip)

    @property
    def is_partial(self) -> bool:
        """Whether readouts do not reduce exactly the sentences."""
        return bool(self.skip or self.pooled or self.read is not None)

    @cached_property
    def kept(self) -> Tensor:
        """Rows of the tokens in `read_part`."""
        if self.pooled:
            return self.to_device(np.concatenate([np.arange(*each) for each in self.pooled]))
        if self.read is not None:
            return self.to_device(np.flatnonzero(self.read))
        own = np.arange(self.tokens) - np.repeat(first_tokens(self.lengths), self.lengths)
        return self.to_device(np.flatnonzero(own >= self.skip))

    @cached_property
    def padded(self) -> Tensor:
        """(n,): row of each token in the padded (b * t). Uses lengths, as views can permute positions."""
        spare = np.arange(len(self.lengths)) * self.longest - first_tokens(self.lengths)
        return self.to_device(np.arange(self.tokens) + np.repeat(spare, self.lengths))

    @cached_property
    def key_mask(self) -> Tensor | None:
        """(b, t): true for tokens that others attend to, false for padding; None without padding."""
        if self.equal:
            return None
        return self.to_device(np.arange(self.longest) < np.array(self.lengths)[:, None])

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
    sequences: Sequence[Sequence[int] | np.ndarray], device: torch.device | str = "cpu", **more: Any
) -> Packed:
    """Return the batch of these token ids. Sentences are never empty, because they contain special tokens."""
    ids = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    return pack_ids(ids, [*map(len, sequences)], device, **more)


def pack_ids(
    ids: np.ndarray,
    sizes: Sequence[int],
    device: torch.device | str = "cpu",
    *,
    at: Sequence[int] | np.ndarray | None = None,
    skip: int = 0,
    second: Sequence[int] | np.ndarray | None = None,
    pooled: Sequence[Sequence[tuple[int, int]]] = (),
) -> Packed:
    """Return the batch of the ids of all sequences in one array; `sizes` are their numbers.

    `second` is the index of the first token of the second segment in each sequence. `pooled` has the ranges
    of each sequence that readouts reduce, one after the other; a sequence without ranges is one range.
    """
    device, lengths = torch.device(device), tuple(sizes)
    assert lengths, "an empty batch"
    assert min(lengths) > skip, "a sentence without tokens to read"
    positions = np.arange(len(ids)) - np.repeat(first_tokens(lengths), lengths)
    return Packed(
        ids=to_device(ids, device),
        positions=to_device(positions, device),
        lengths=lengths,
        at=None if at is None else to_device(np.asarray(at, dtype=np.int64), device),
        skip=skip,
        pooled=rows_of(pooled, lengths, skip) if any(pooled) else (),
        types=None
        if second is None
        else to_device((positions >= np.repeat(second, lengths)).astype(np.int64), device),
    )


def rows_of(
    pooled: Sequence[Sequence[tuple[int, int]]], lengths: tuple[int, ...], skip: int
) -> tuple[tuple[int, int], ...]:
    """Return ranges of rows of the batch from ranges of each sequence."""
    own = [each or [(skip, length)] for each, length in zip(pooled, lengths, strict=True)]
    places = zip(first_tokens(lengths).tolist(), own, strict=True)
    return tuple((first + start, first + end) for first, each in places for start, end in each)


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


Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]  # query, key, value, mask, causal


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """Attention with plain products, (c, h, q, e). The backward pass is faster for short sentences.

    Scale, mask and softmax use at least float32, independent of the dtype of the products. A mask of numbers
    is added to the scores.
    """
    scores = product(query, key.transpose(-2, -1))  # (c, h, q, t)
    mask = masked_after(mask, key) if causal else mask
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if mask is not None and mask.is_floating_point():
        shut = mask.to(dtype)
    else:
        shut = scores.new_zeros((1,) if mask is None else mask.shape, dtype=dtype)
        if mask is not None:
            shut.masked_fill_(~mask, -torch.inf)
    weights = torch.add(shut, scores, alpha=query.shape[-1] ** -0.5).softmax(-1)
    return product(drop(weights, dropout).to(value.dtype), value)


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """The attention of torch, which stores no scores."""
    if causal and mask is not None:
        mask, causal = masked_after(mask, key), False
    shared = query.shape[1] // key.shape[1]
    if shared > 1 and key.device.type != "cpu":  # most of its kernels for a GPU share no heads
        key, value, shared = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1), 1
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=shared > 1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of (c, h, q, i) and (c, g, i, j). h / g heads after each other have the same right side."""
    return (left.reshape(*right.shape[:2], -1, left.shape[-1]) @ right).view(*left.shape[:-1], -1)


def masked_after(mask: Tensor | None, key: Tensor) -> Tensor:
    """Return a mask with which a token attends only to itself and the tokens before it."""
    before = key.new_ones((key.shape[2],) * 2, dtype=torch.bool).tril()
    if mask is None:
        return before
    return mask.masked_fill(~before, -torch.inf) if mask.is_floating_point() else mask & before


def with_bias(
    mask: Tensor | None, bias: Tensor | None, longest: int, places: Tensor | None = None
) -> Tensor | None:
    """Return a mask (c, 1, 1, t) with the bias of relative positions, as numbers to add to scores.

    `places` (c,) are the positions of one query for each sentence; without them, each token is a query.
    """
    if bias is None:
        return mask
    if places is None:
        added = bias[None, :, :longest, :longest]
    else:
        added = bias[:, places, :longest].transpose(0, 1).unsqueeze(2)  # (c, h, 1, t)
    return added if mask is None else added.masked_fill(~mask, -torch.inf)


def ends_of(weight: Tensor, bias: Tensor | None, width: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield weight and bias of the first `width` outputs, and of the others."""
    for part in (slice(0, width), slice(width, None)):
        yield weight[part], None if bias is None else bias[part]


def turns_of(positions: Tensor, base: float, size: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (n, 1, e / 2) of rotary positions. Angles are float32, as in transformers."""
    speeds = 1.0 / base ** (torch.arange(0, size, 2, device=positions.device).float() / size)
    angles = positions[:, None, None].float() * speeds
    return angles.cos(), angles.sin()


Norms = Sequence[tuple[nn.Module, int]]  # of heads, and the number of these


def turned(
    values: Tensor, packed: Packed, base: float, size: int, norms: Norms, rows: Tensor | None = None
) -> Tensor:
    """Apply each norm to as many heads of values (n, k), and rotary positions of the rows to these heads.

    A pair of numbers that rotates has one number in each half of a head. Rows after the last position are
    dropped. Without gradients, the values change in place. The base 0 is for other positions.
    """
    if not base:
        return values
    cos, sin = packed.turns[base]
    if rows is not None:
        cos, sin = cos[rows], sin[rows]
    counts = [count for _, count in norms]
    values = values[: len(cos)]
    chosen, others = values.tensor_split([sum(counts) * size], 1)
    heads = chosen.unflatten(1, (-1, size))
    wide = heads.to(torch.promote_types(values.dtype, torch.float32))
    if not all(isinstance(norm, nn.Identity) for norm, _ in norms):
        wide = torch.cat(
            [norm(each) for (norm, _), each in zip(norms, wide.split(counts, 1), strict=True)], 1
        )
    left, right = wide.chunk(2, -1)
    ends = left * cos - right * sin, right * cos + left * sin
    if torch.is_grad_enabled():
        return torch.cat([torch.cat(ends, -1).flatten(1).to(values.dtype), others], 1)
    for half, end in zip(heads.chunk(2, -1), ends, strict=True):
        half.copy_(end)
    return values


def windowed(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int,
    places: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention (c, h, q, e) to the keys that are at most `window` tokens away; 0: to all.

    Long sentences are cut into bands of `window` queries, whose keys are in three such bands, so that memory
    grows with the tokens. A query of the padding attends to itself, because a softmax over nothing is not a
    number. `places` (c,) are the positions of one query of each sentence. A mask of booleans is (c, 1, 1, t).
    """
    count, _, tokens, _ = key.shape
    long, own = bool(window) and tokens > window + 1, torch.arange(tokens, device=key.device)
    if places is not None and (long or causal):
        at = places[:, None, None, None]
        near = reached(at, own, window or tokens, causal=causal)
        return attention(query, key, value, near if mask is None else (near & mask) | (own == at), False)
    if not long:
        return attention(query, key, value, mask, causal and places is None)
    if causal:
        return in_bands(attention, query, key, value, mask, window)
    bands, width = -(-tokens // window), 3 * window
    after = bands * window - tokens
    # Axes: c sentences, m bands, w queries of a band, 3 w keys; the bands of a sentence become a batch.
    query = F.pad(query, (0, 0, 0, after)).unflatten(2, (bands, window)).transpose(1, 2).flatten(0, 1)
    key, value = (
        F.pad(each, (0, 0, window, after + window))
        .unfold(2, width, window)
        .movedim((1, 4), (2, 3))
        .flatten(0, 1)
        for each in (key, value)
    )  # (c * m, h, 3 w, e)
    real = key.new_ones(1, tokens, dtype=torch.bool) if mask is None else mask[:, 0, 0]
    real = F.pad(real, (window, after + window)).unfold(1, width, window)[:, :, None]  # (c or 1, m, 1, 3 w)
    apart = torch.arange(width, device=key.device) - window - own[:window, None]  # (w, 3 w)
    near = (((apart.abs() <= window) & real) | (apart == 0)).expand(count, -1, -1, -1)
    mixed = attention(query, key, value, near.flatten(0, 1)[:, None], False)
    return mixed.unflatten(0, (count, bands)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def reached(at: Tensor, own: Tensor, window: int, *, causal: bool = False) -> Tensor:
    """Whether the tokens at these positions attend to those at the positions `own`."""
    apart = at - own
    return (apart <= window) & (apart >= (0 if causal else -window))


BAND = 256  # queries


def in_bands(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, window: int
) -> Tensor:
    """Causal attention to a window, for one band of queries after the other: memory for its scores only."""
    tokens, parts = key.shape[2], list[Tensor]()
    places = torch.arange(tokens, device=key.device)
    for start in range(0, tokens, BAND):
        band, near = slice(start, start + BAND), slice(max(0, start - window), start + BAND)
        at, own = places[band, None], places[near]
        seen = reached(at, own, window, causal=True)
        if mask is not None:
            seen = (seen & mask[..., near]) | (own == at)
        parts.append(attention(query[:, :, band], key[:, :, near], value[:, :, near], seen, False))
    return torch.cat(parts, 2)


def with_rows(values: Tensor, rows: int) -> Tensor:
    return F.pad(values, (0, 0, 0, rows - len(values))) if rows > len(values) else values
