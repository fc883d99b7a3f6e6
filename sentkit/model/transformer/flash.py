"""Attention of all sentences of a batch in one kernel, without padding, on a GPU in bfloat16.

The operation of torch is private. A kernel is used only if it gives the result of plain attention here; for
training also its gradient, and dropout that the backward pass repeats.

Axes: n tokens, b sentences, h heads, d the width, e = d / h.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sentkit.model.transformer.packed import Packed, first_tokens, pack, rounded

HALF = (torch.bfloat16,)  # dtypes of the queries, keys and values of a kernel
CHECKED = (5, 3, 1)  # tokens of the sentences of the check
DROPOUT = 0.5  # of the check
NEAR, NEAR_GRADIENT = 0.02, 0.05  # for bfloat16

Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, (n, h, e)
# Bounds of the sentences and the most tokens of one: of queries and of keys
Sizes = tuple[Tensor, Tensor, int, int]
Kernel = Callable[[Heads, Sizes, float, bool, int], Tensor]  # with dropout, causal and window -> (n, h, e)


def flash(heads: Heads, sizes: Sizes, dropout: float, causal: bool, window: int) -> Tensor:
    operation: Any = torch.ops.aten._flash_attention_forward
    near = {"window_size_left": window, "window_size_right": window} if window else {}
    mixed: Tensor = operation(*heads, *sizes, dropout, causal, False, **near)[0]
    return mixed


def varlen(heads: Heads, sizes: Sizes, dropout: float, causal: bool, window: int) -> Tensor:
    """The same kernel behind a documented function. It has no dropout, and its import takes seconds."""
    from torch.nn.attention.varlen import varlen_attn

    assert not dropout, "only for encoding"
    near = (window or -1, 0 if causal else window or -1)
    (query, key, value), (bounds, key_bounds, longest, longest_key) = heads, sizes
    mixed = varlen_attn(query, key, value, bounds, key_bounds, longest, longest_key, window_size=near)
    assert isinstance(mixed, Tensor), "no other outputs are requested"
    return mixed


def packed_attention(
    kernel: Kernel,
    heads: Sequence[Tensor],
    packed: Packed,
    *,
    single: bool = False,
    dropout: float = 0.0,
    window: int = 0,
) -> Tensor:
    """Attention of queries, keys and values (n, h, e) -> (n, d); `single`: one query of a sentence, (b, d).

    `window` is the largest distance of a key; 0: all keys.
    """
    query, key, value = heads
    bounds, longest = packed.bounds, rounded(packed.longest)
    if single:
        bounds, longest = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device), 1
    sizes = bounds, packed.bounds, longest, rounded(packed.longest)
    return kernel((query, key, value), sizes, dropout, packed.causal, window).flatten(1)


def by_head(values: Tensor, parts: int, heads: int) -> Sequence[Tensor]:
    """Divide (n, parts * d) into `parts` views (n, h, e)."""
    return values.unflatten(1, (parts, heads, -1)).unbind(1)


def kernel_for_encoding(heads: int, width: int, device: torch.device, window: int = 0) -> Kernel | None:
    sizes = heads, width, device, window
    return next((each for each in (flash, varlen) if works(each, *sizes, trains=False)), None)


def kernel_for_training(heads: int, width: int, device: torch.device) -> Kernel | None:
    return flash if works(flash, heads, width, device, 0, trains=True) else None


def works(kernel: Kernel, heads: int, width: int, device: torch.device, window: int, *, trains: bool) -> bool:
    """Return true if the kernel runs on this device with this size and gives the right result."""
    devices = [device] if device.type == "cuda" else []
    with (
        suppress(ImportError, AttributeError, RuntimeError, TypeError),
        torch.random.fork_rng(devices),  # the check of dropout draws numbers
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        check = partial(is_right, kernel, heads, width, device, trains=trains)
        return (
            check(causal=False)
            and (not trains or check(causal=True))
            and (not window or check(causal=False, window=1))
        )
    return False


def is_right(
    kernel: Kernel,
    heads: int,
    width: int,
    device: torch.device,
    *,
    causal: bool,
    trains: bool,
    window: int = 0,
) -> bool:
    packed = pack([[0] * length for length in CHECKED], device)
    packed = Packed(packed.ids, packed.positions, packed.lengths, causal=causal)
    generator = torch.Generator().manual_seed(0)
    values, slopes = (torch.randn(packed.tokens, parts * width, generator=generator) for parts in (3, 1))
    values, slopes = values.to(device, HALF[0]).requires_grad_(), slopes.to(device, HALF[0])
    parts = query, key, value = by_head(values, 3, heads)
    whole, expected = values, plain(parts, packed, window)
    for single in (False,) if causal or window else (True, False):
        rows: Any = packed.starts if single else slice(None)
        whole = packed_attention(kernel, (query[rows], key, value), packed, single=single, window=window)
        if not near(whole, expected[rows]):
            return False
        if trains:
            both = whole, expected[rows]
            [ours], [theirs] = (torch.autograd.grad(each, values, slopes[rows], True) for each in both)
            if not near(ours, theirs, NEAR_GRADIENT):
                return False
    if not trains:
        return True
    dropped = packed_attention(kernel, parts, packed, dropout=DROPOUT)
    [of_dropped] = torch.autograd.grad(dropped, values, slopes)
    # With the same dropout, the output is a linear function of the values, which has this gradient. So these
    # sums are equal in each sentence and head.
    output = by_sentence(dropped.double() * slopes, packed, heads)
    linear = by_sentence((values.double() * of_dropped)[:, 2 * width :], packed, heads)
    one, other = (by_sentence(each.double() ** 2, packed, heads) for each in (dropped, slopes))
    repeats = (output - linear).abs() <= NEAR * (one * other).sqrt()
    return bool(repeats.all()) and not near(dropped, whole)


def by_sentence(values: Tensor, packed: Packed, heads: int) -> Tensor:
    """Return the sums (b, h) of values (n, d)."""
    return torch.stack([each.unflatten(1, (heads, -1)).sum((0, 2)) for each in values.split(packed.lengths)])


def near(found: Tensor, expected: Tensor, tolerance: float = NEAR) -> bool:
    return torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def plain(heads: Sequence[Tensor], packed: Packed, window: int) -> Tensor:
    """The same attention in float32, one sentence after the other."""
    query, key, value = (each.float().transpose(0, 1) for each in heads)  # (h, n, e)
    ends = (*first_tokens(packed.lengths).tolist(), packed.tokens)
    mixed = []
    for start, end in pairwise(ends):
        q, k, v = (each[:, start:end] for each in (query, key, value))
        places = torch.arange(end - start, device=query.device)
        mask = (places[:, None] - places).abs() <= window if window else None
        mixed.append(F.scaled_dot_product_attention(q, k, v, mask, is_causal=packed.causal))
    return torch.cat(mixed, 1).transpose(0, 1).flatten(1).to(heads[0].dtype)
