"""Attention in a batch of sentences: at once, in windows, causal; and rotary positions.

Axes: n tokens; c sentences of at most t tokens, h heads, g heads of keys and values, e numbers of a head.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.device import drop
from sentkit.model.transformer.packed import Packed

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


def with_bias(mask: Tensor | None, bias: Tensor | None, longest: int, places: Tensor | None) -> Tensor | None:
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
        parts = zip(norms, wide.split(counts, 1), strict=True)
        wide = torch.cat([norm(each) for (norm, _), each in parts], 1)
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
