"""Attention in a batch of sentences: at once, in windows, causal; and rotary positions.

Axes: n tokens; c sentences of at most t tokens, h heads, g heads of keys and values, e numbers of a
head.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.layers import drop
from sentkit.model.transformer.packed import Packed

# query, key, value, mask, causal
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention with plain products, (c, h, q, e). The backward pass is faster for short sentences.

    Scale, mask and softmax use at least float32, independent of the dtype of the products. A mask
    of numbers is added to the scores.
    """
    scores = product(query, key.transpose(-2, -1))  # (c, h, q, t)
    if causal:
        mask = masked_after(mask, key)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if mask is None:
        added = scores.new_zeros((1,), dtype=dtype)
    elif mask.is_floating_point():
        added = mask.to(dtype)
    else:
        added = scores.new_zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    weights = torch.add(added, scores, alpha=query.shape[-1] ** -0.5).softmax(-1)
    return product(drop(weights, dropout).to(value.dtype), value)


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """The attention of torch, (c, h, q, e), which stores no scores."""
    if causal and mask is not None:
        mask = masked_after(mask, key)
        causal = False
    query_heads_per_key = query.shape[1] // key.shape[1]
    # Most of its kernels for a GPU cannot share a head of keys, so each query head gets a copy.
    if query_heads_per_key > 1 and key.device.type != "cpu":
        key = key.repeat_interleave(query_heads_per_key, 1)
        value = value.repeat_interleave(query_heads_per_key, 1)
        query_heads_per_key = 1
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, enable_gqa=query_heads_per_key > 1
    )


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of (c, h, q, i) and (c, g, i, j): h / g consecutive heads of `a` with one head of
    `b`.
    """
    rows = a.reshape(*b.shape[:2], -1, a.shape[-1])
    return (rows @ b).view(*a.shape[:-1], -1)


def masked_after(mask: Tensor | None, key: Tensor) -> Tensor:
    """Return a mask with which a token attends only to itself and the tokens before it."""
    tokens = key.shape[2]
    before = key.new_ones((tokens, tokens), dtype=torch.bool).tril()
    if mask is None:
        return before
    if mask.is_floating_point():
        return mask.masked_fill(~before, -torch.inf)
    return mask & before


def with_bias(
    mask: Tensor | None, bias: Tensor | None, longest: int, positions: Tensor | None
) -> Tensor | None:
    """Return a mask (c, 1, 1, t) with the bias of relative positions, as numbers to add to scores.

    `positions` (c,) are those of one query for each sentence; without them, each token is a query.
    """
    if bias is None:
        return mask
    if positions is None:
        added = bias[None, :, :longest, :longest]
    else:
        added = bias[:, positions, :longest].transpose(0, 1).unsqueeze(2)  # (c, h, 1, t)
    if mask is None:
        return added
    return added.masked_fill(~mask, -torch.inf)


def cosines_and_sines(positions: Tensor, base: float, size: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (n, 1, e / 2) of rotary positions. Angles are float32, as in
    transformers.
    """
    exponents = torch.arange(0, size, 2, device=positions.device).float() / size
    speeds = 1.0 / base**exponents
    angles = positions[:, None, None].float() * speeds
    return angles.cos(), angles.sin()


Norms = Sequence[tuple[nn.Module, int]]  # of heads, and the number of these


def norm_and_rotate(
    values: Tensor, packed: Packed, base: float, size: int, norms: Norms, rows: Tensor | None = None
) -> Tensor:
    """Apply each norm to as many heads of values (n, k), and rotary positions of the rows to these
    heads. `size` are the numbers of a head, `base` is that of the rotary positions.

    A pair of numbers that rotates has one number in each half of a head. Rows after the last
    position are dropped. Without gradients, the values change in place. The base 0 is for encoders
    with other positions.
    """
    if not base:
        return values
    cos, sin = packed.rotations[base]
    if rows is not None:
        cos = cos[rows]
        sin = sin[rows]
    counts = [count for _, count in norms]
    values = values[: len(cos)]
    columns_with_norm, other_columns = values.tensor_split([sum(counts) * size], 1)
    heads = columns_with_norm.unflatten(1, (-1, size))

    # The norms, in at least float32.
    precise = heads.to(torch.promote_types(values.dtype, torch.float32))
    if not all(isinstance(norm, nn.Identity) for norm, _ in norms):
        heads_of_norms = precise.split(counts, 1)
        normed = [norm(heads) for (norm, _), heads in zip(norms, heads_of_norms, strict=True)]
        precise = torch.cat(normed, 1)

    # The rotation.
    first, second = precise.chunk(2, -1)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    if torch.is_grad_enabled():
        turned_heads = torch.cat([turned_first, turned_second], -1).flatten(1)
        return torch.cat([turned_heads.to(values.dtype), other_columns], 1)
    first_half, second_half = heads.chunk(2, -1)  # views of `values`
    first_half.copy_(turned_first)
    second_half.copy_(turned_second)
    return values


def windowed(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int,
    query_positions: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention (c, h, q, e) to the keys that are at most `window` tokens away; 0: to all.

    `query_positions` (c,) are those of one query of each sentence; without them, each token is a
    query. A mask of booleans is (c, 1, 1, t).
    """
    tokens = key.shape[2]
    has_far_keys = bool(window) and tokens > window + 1
    if query_positions is not None and (has_far_keys or causal):
        key_positions = torch.arange(tokens, device=key.device)
        distances = query_positions[:, None, None, None] - key_positions  # (c, 1, 1, t)
        is_near = within(distances, window or tokens, causal=causal)
        if mask is not None:
            is_near = with_itself(is_near & mask, distances)
        return attention(query, key, value, is_near, False)
    if not has_far_keys:
        return attention(query, key, value, mask, causal and query_positions is None)
    if causal:
        return in_causal_bands(attention, query, key, value, mask, window)
    return in_bands(attention, query, key, value, mask, window)


def within(distances: Tensor, window: int, *, causal: bool = False) -> Tensor:
    """Whether a query attends to a key, from the position of the query minus that of the key."""
    farthest_after = 0 if causal else window
    return (distances <= window) & (distances >= -farthest_after)


def with_itself(mask: Tensor, distances: Tensor) -> Tensor:
    """Let each query attend to itself: for a query of the padding, a softmax over nothing is not a
    number.
    """
    return mask | (distances == 0)


def in_bands(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int,
) -> Tensor:
    """Attention to a window on both sides, so that memory grows with the tokens.

    Sentences are cut into m bands of w = `window` queries, whose keys are in three such bands. The
    bands of a sentence become a batch.
    """
    count, _, tokens, _ = key.shape
    bands = -(-tokens // window)
    keys_of_band = 3 * window
    filled = bands * window - tokens  # tokens after the end, for the last band

    # Queries (c m, h, w, e), keys and values (c m, g, 3 w, e).
    query = (
        F.pad(query, (0, 0, 0, filled)).unflatten(2, (bands, window)).transpose(1, 2).flatten(0, 1)
    )

    def band_of_keys(values: Tensor) -> Tensor:
        padded = F.pad(values, (0, 0, window, filled + window))
        return padded.unfold(2, keys_of_band, window).movedim((1, 4), (2, 3)).flatten(0, 1)

    # Masks: the keys that are tokens (c or 1, m, 1, 3 w), and those that are near (w, 3 w).
    is_token = key.new_ones(1, tokens, dtype=torch.bool) if mask is None else mask[:, 0, 0]
    is_token = F.pad(is_token, (window, filled + window)).unfold(1, keys_of_band, window)[
        :, :, None
    ]
    key_positions = torch.arange(keys_of_band, device=key.device) - window
    query_positions = torch.arange(window, device=key.device)
    distances = query_positions[:, None] - key_positions
    mask_of_bands = with_itself(within(distances, window) & is_token, distances).expand(
        count, -1, -1, -1
    )
    mixed = attention(
        query, band_of_keys(key), band_of_keys(value), mask_of_bands.flatten(0, 1)[:, None], False
    )
    return mixed.unflatten(0, (count, bands)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


BAND = 256  # queries


def in_causal_bands(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int,
) -> Tensor:
    """Causal attention to a window, for one band of queries after the other: memory for its scores
    only.
    """
    tokens = key.shape[2]
    positions = torch.arange(tokens, device=key.device)
    bands = []
    for start in range(0, tokens, BAND):
        queries = slice(start, start + BAND)
        keys = slice(max(0, start - window), start + BAND)
        distances = positions[queries, None] - positions[keys]
        band_mask = within(distances, window, causal=True)
        if mask is not None:
            band_mask = with_itself(band_mask & mask[..., keys], distances)
        bands.append(
            attention(query[:, :, queries], key[:, :, keys], value[:, :, keys], band_mask, False)
        )
    return torch.cat(bands, 2)
