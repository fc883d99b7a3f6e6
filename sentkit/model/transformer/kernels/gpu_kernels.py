"""Kernels for a GPU in bfloat16, with private operations of torch.

A kernel is used only if it gives the result of plain operations on this GPU. The first computes
attention of all sentences of a batch without padding; for training also its gradient is checked,
and dropout that the backward pass repeats. The second computes the LayerNorm of a sum, for which
torch reads and writes the rows twice as often. The compiler that torch brings along compiles it
when a model is loaded.

Axes: n tokens, b sentences, h heads of queries, g of keys and values, e numbers of a head, d the
width.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.kernels.cuda_operations import compile_kernel, flash_attention
from sentkit.model.transformer.kernels.guard import private_works
from sentkit.model.transformer.packed import Packed, first_tokens, pack, rounded

HALF = (torch.bfloat16,)  # dtypes of the queries, keys and values of a kernel
CHECKED_LENGTHS = (5, 3, 1)  # tokens of the sentences of the check
CHECKED_DROPOUT = 0.5
# Tolerances for bfloat16.
TOLERANCE = 0.02
GRADIENT_TOLERANCE = 0.05

Shape = tuple[int, int, int]  # h, g, e


def packed_attention(
    heads: Sequence[Tensor],
    packed: Packed,
    *,
    single: bool = False,
    dropout: float = 0.0,
    window: int = 0,
) -> Tensor:
    """Attention of queries (n, h, e), keys and values (n, g, e) -> (n, h e).

    `single`: each sentence has one query, (b, h, e) -> (b, h e). `window` is the largest distance
    of a key; 0: all keys.
    """
    query, key, value = heads
    longest = rounded(packed.longest_length)
    if single:
        query_bounds = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
        longest_query = 1
    else:
        query_bounds = packed.cumulative_lengths
        longest_query = longest
    mixed = flash_attention(
        query,
        key,
        value,
        query_bounds,
        packed.cumulative_lengths,
        longest_query,
        longest,
        dropout=dropout,
        causal=packed.causal,
        window=window,
    )
    return mixed.flatten(1)


def by_head(values: Tensor, size: int, *counts: int) -> Sequence[Tensor]:
    """Divide (..., k) into views (..., h, e) of these numbers of heads."""
    return values.unflatten(-1, (-1, size)).split(counts, -2)


def kernel_is_right(
    shape: Shape, device: torch.device, window: int, causal: Sequence[bool], *, trains: bool
) -> bool:
    """Return true if the kernel of attention runs on this device with this size and is right.

    `causal` has the kinds of attention to check. `trains`: also check gradients and dropout.
    """
    devices = [device] if device.type == "cuda" else []
    checked_windows = (0, 1) if window else (0,)

    def all_right() -> bool:
        with (
            torch.random.fork_rng(devices),  # the check of dropout draws numbers
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            return all(
                is_right(shape, device, causal=is_causal, trains=trains, window=checked_window)
                for checked_window in checked_windows
                for is_causal in causal
            )

    return private_works(all_right)


def is_right(
    shape: Shape, device: torch.device, *, causal: bool, trains: bool, window: int = 0
) -> bool:
    """Compare the kernel with plain operations, and for training also the gradients and the
    dropout.
    """
    head_count, key_head_count, head_size = shape
    packed = pack([[0] * length for length in CHECKED_LENGTHS], device)
    packed = Packed(packed.ids, packed.positions, packed.lengths, causal=causal)
    generator = torch.Generator().manual_seed(0)
    columns = (head_count + 2 * key_head_count) * head_size
    values = torch.randn(packed.tokens, columns, generator=generator)
    # queries, keys and values (n, k), and the gradient of the output
    slopes = torch.randn(packed.tokens, head_count * head_size, generator=generator)
    values = values.to(device, HALF[0]).requires_grad_()
    slopes = slopes.to(device, HALF[0])
    heads = by_head(values, head_size, head_count, key_head_count, key_head_count)
    query, key, value = heads
    expected = plain(heads, packed, window)

    # One query of each sentence where the encoder uses it, then all queries.
    if not causal and not window:
        first_rows = packed.starts
        mixed = packed_attention((query[first_rows], key, value), packed, single=True)
        if not agrees(mixed, expected[first_rows], values, slopes[first_rows], trains=trains):
            return False
    mixed = packed_attention(heads, packed, window=window)
    if not agrees(mixed, expected, values, slopes, trains=trains):
        return False
    if not trains:
        return True

    # With the same dropout, the output is a linear function of the values, which has this gradient.
    # So these sums are equal in each sentence and head of the values.
    dropped = packed_attention(heads, packed, dropout=CHECKED_DROPOUT)
    [gradient] = torch.autograd.grad(dropped, values, slopes)
    output_sums = by_sentence(dropped.double() * slopes, packed, key_head_count)
    value_products = (values.double() * gradient)[:, -key_head_count * head_size :]
    value_sums = by_sentence(value_products, packed, key_head_count)
    output_squares = by_sentence(dropped.double() ** 2, packed, key_head_count)
    slope_squares = by_sentence(slopes.double() ** 2, packed, key_head_count)
    largest_sums = (output_squares * slope_squares).sqrt()
    repeats = (output_sums - value_sums).abs() <= TOLERANCE * largest_sums
    return bool(repeats.all()) and not near(dropped, mixed)


def agrees(
    mixed: Tensor, expected: Tensor, values: Tensor, slopes: Tensor, *, trains: bool
) -> bool:
    """Compare two results of the values, and for training also their gradients."""
    if not near(mixed, expected):
        return False
    if not trains:
        return True
    [gradient] = torch.autograd.grad(mixed, values, slopes, retain_graph=True)
    [expected_gradient] = torch.autograd.grad(expected, values, slopes, retain_graph=True)
    return near(gradient, expected_gradient, GRADIENT_TOLERANCE)


def by_sentence(values: Tensor, packed: Packed, heads: int) -> Tensor:
    """Return the sums (b, h) of values (n, d)."""
    sentences = values.split(packed.lengths)
    return torch.stack([rows.unflatten(1, (heads, -1)).sum((0, 2)) for rows in sentences])


def near(result: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> bool:
    return torch.allclose(result.float(), expected.float(), rtol=tolerance, atol=tolerance)


def plain(heads: Sequence[Tensor], packed: Packed, window: int) -> Tensor:
    """The same attention in float32, one sentence after the other."""
    query, key, value = (values.float().transpose(0, 1) for values in heads)  # (h, n, e), (g, n, e)
    queries_of_key = len(query) // len(key)
    key = key.repeat_interleave(queries_of_key, 0)
    value = value.repeat_interleave(queries_of_key, 0)
    bounds = (*first_tokens(packed.lengths).tolist(), packed.tokens)
    mixed = []
    for start, end in pairwise(bounds):
        positions = torch.arange(end - start, device=query.device)
        distances = positions[:, None] - positions
        mask = distances.abs() <= (window or len(positions))
        if packed.causal:
            mask &= distances >= 0
        mixed.append(
            F.scaled_dot_product_attention(
                query[:, start:end], key[:, start:end], value[:, start:end], mask
            )
        )
    return torch.cat(mixed, 1).transpose(0, 1).flatten(1).to(heads[0].dtype)


WIDEST = 4096  # numbers of a row, of which a lane keeps one of 32 in registers
LANES = 32  # of a warp, which has one row
ROWS = 4  # warps of a block

# change (n, d), rows (n, d) -> norm of their sum
AddNorm = Callable[[Tensor, Tensor, nn.LayerNorm], Tensor]

SOURCE = r"""
// Two bfloat16 are in 32 bits, a pair. Eight of them are in a uint4, a pack.
__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// The nearest bfloat16, in the low bits. Of two, the even one.
__device__ unsigned rounded(float value) {
    unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

__device__ float total(float value) {
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

extern "C" __global__ void add_norm(const uint4* change, const uint4* rows, const uint4* weight,
                                    const uint4* bias, uint4* result, int count) {
    const int packs = WIDTH / 8;  // of a row
    const int packs_of_lane = (packs + 31) / 32;
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= count) return;
    const long long start = (long long)row * packs;
    float values[packs_of_lane][8];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < packs_of_lane; i++) {
        const int index = i * 32 + lane;
        uint4 a = make_uint4(0, 0, 0, 0);
        uint4 b = a;
        if (index < packs) {
            a = change[start + index];
            b = rows[start + index];
        }
        const unsigned changes[4] = {a.x, a.y, a.z, a.w};
        const unsigned states[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            values[i][2 * pair] = low(rounded(low(changes[pair]) + low(states[pair])));
            values[i][2 * pair + 1] = low(rounded(high(changes[pair]) + high(states[pair])));
            sum += values[i][2 * pair] + values[i][2 * pair + 1];
        }
    }
    const float mean = total(sum) / WIDTH;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < packs_of_lane; i++)
        if (i * 32 + lane < packs)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float centered = values[i][j] - mean;
                squares += centered * centered;
            }
    const float scale = rsqrtf(total(squares) / WIDTH + EPSILON);
#pragma unroll
    for (int i = 0; i < packs_of_lane; i++) {
        const int index = i * 32 + lane;
        if (index >= packs) continue;
        const uint4 w = weight[index];
        const uint4 b = bias[index];
        const unsigned factors[4] = {w.x, w.y, w.z, w.w};
        const unsigned added[4] = {b.x, b.y, b.z, b.w};
        unsigned normed[4];
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float first = (values[i][2 * pair] - mean) * scale;
            const float second = (values[i][2 * pair + 1] - mean) * scale;
            normed[pair] = rounded(first * low(factors[pair]) + low(added[pair]))
                | rounded(second * high(factors[pair]) + high(added[pair])) << 16;
        }
        result[start + index] = make_uint4(normed[0], normed[1], normed[2], normed[3]);
    }
}
"""


@cache
def add_norm_for(width: int, epsilon: float, device: torch.device) -> AddNorm | None:
    """Return the kernel for rows of this width, or None: it does not work here."""
    if device.type != "cuda" or width % 8 or width > WIDEST:
        return None
    source = f"#define WIDTH {width}\n#define EPSILON {epsilon!r}f\n{SOURCE}"

    @cache
    def kernel() -> Any:
        with torch.cuda.device(device):
            return compile_kernel(source, "add_norm")

    def add_norm(change: Tensor, rows: Tensor, norm: nn.LayerNorm) -> Tensor:
        bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
        inputs = [change, rows, norm.weight.detach(), bias.detach()]
        result = torch.empty_like(rows)
        with torch.cuda.device(device):
            kernel()(
                grid=(-(-len(rows) // ROWS), 1, 1),
                block=(LANES * ROWS, 1, 1),
                args=[*(tensor.contiguous() for tensor in inputs), result, len(rows)],
            )
        return result

    if private_works(lambda: adds_right(add_norm, width, epsilon, device)):
        return add_norm
    return None


def adds_right(add_norm: AddNorm, width: int, epsilon: float, device: torch.device) -> bool:
    """Compare the kernel with the sum and the norm of torch."""
    numbers = torch.randn(2 * ROWS + 4, width, generator=torch.Generator().manual_seed(0))
    change, rows, weight_and_bias = numbers.to(device, torch.bfloat16).split(
        (ROWS + 1, ROWS + 1, 2)
    )
    norm = nn.LayerNorm(width, epsilon, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(weight_and_bias[0])
        norm.bias.copy_(weight_and_bias[1])
        result = add_norm(change, rows, norm)
        expected = norm(change + rows)
    return near(result, expected)
