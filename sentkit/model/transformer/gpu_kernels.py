"""Kernels for a GPU in bfloat16, with private operations of torch.

A kernel is used only if it gives the result of plain operations here. The first computes attention of all
sentences of a batch without padding; for training also its gradient is checked, and dropout that the backward
pass repeats. The second computes the LayerNorm of a sum, for which torch reads and writes the rows twice as
often. The compiler that torch brings along compiles it when a model is loaded.

Axes: n tokens, b sentences, h heads of queries, g of keys and values, e numbers of a head, d the width.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.packed import Packed, first_tokens, pack, rounded

HALF = (torch.bfloat16,)  # dtypes of the queries, keys and values of a kernel
CHECKED = (5, 3, 1)  # tokens of the sentences of the check
DROPOUT = 0.5  # of the check
NEAR, NEAR_GRADIENT = 0.02, 0.05  # for bfloat16

Shape = tuple[int, int, int]  # h, g, e


def packed_attention(
    heads: Sequence[Tensor], packed: Packed, *, single: bool = False, dropout: float = 0.0, window: int = 0
) -> Tensor:
    """Attention of queries (n, h, e), keys and values (n, g, e) -> (n, h e).

    `single`: each sentence has one query, (b, h, e) -> (b, h e). `window` is the largest distance
    of a key; 0: all keys.
    """
    query, key, value = heads
    bounds, longest = packed.bounds, rounded(packed.longest)
    if single:
        bounds, longest = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device), 1
    sizes = bounds, packed.bounds, longest, rounded(packed.longest)
    near = {"window_size_left": window, "window_size_right": 0 if packed.causal else window} if window else {}
    operation: Any = torch.ops.aten._flash_attention_forward
    mixed: Tensor = operation(query, key, value, *sizes, dropout, packed.causal, False, **near)[0]
    return mixed.flatten(1)


def by_head(values: Tensor, size: int, *counts: int) -> Sequence[Tensor]:
    """Divide (..., k) into views (..., h, e) of these numbers of heads."""
    return values.unflatten(-1, (-1, size)).split(counts, -2)


def works(shape: Shape, device: torch.device, window: int, causal: Sequence[bool], *, trains: bool) -> bool:
    """Return true if the kernel of attention runs on this device with this size and is right."""
    devices = [device] if device.type == "cuda" else []
    with (
        suppress(AttributeError, RuntimeError, TypeError),
        torch.random.fork_rng(devices),  # the check of dropout draws numbers
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        check = partial(is_right, shape, device, trains=trains)
        return all(check(causal=each, window=size) for size in range(min(window, 1) + 1) for each in causal)
    return False


def is_right(shape: Shape, device: torch.device, *, causal: bool, trains: bool, window: int = 0) -> bool:
    heads, key_heads, size = shape
    columns = (heads + 2 * key_heads) * size, heads * size
    packed = pack([[0] * length for length in CHECKED], device)
    packed = Packed(packed.ids, packed.positions, packed.lengths, causal=causal)
    generator = torch.Generator().manual_seed(0)
    values, slopes = (torch.randn(packed.tokens, each, generator=generator) for each in columns)
    values, slopes = values.to(device, HALF[0]).requires_grad_(), slopes.to(device, HALF[0])
    parts = query, key, value = by_head(values, size, heads, key_heads, key_heads)
    whole, expected = values, plain(parts, packed, window)
    for single in (False,) if causal or window else (True, False):
        rows: Any = packed.starts if single else slice(None)
        whole = packed_attention((query[rows], key, value), packed, single=single, window=window)
        if not near(whole, expected[rows]):
            return False
        if trains:
            both = whole, expected[rows]
            [ours], [theirs] = (torch.autograd.grad(each, values, slopes[rows], True) for each in both)
            if not near(ours, theirs, NEAR_GRADIENT):
                return False
    if not trains:
        return True
    dropped = packed_attention(parts, packed, dropout=DROPOUT)
    [of_dropped] = torch.autograd.grad(dropped, values, slopes)
    # With the same dropout, the output is a linear function of the values, which has this gradient. So these
    # sums are equal in each sentence and head of the values.
    output = by_sentence(dropped.double() * slopes, packed, key_heads)
    linear = by_sentence((values.double() * of_dropped)[:, -key_heads * size :], packed, key_heads)
    one, other = (by_sentence(each.double() ** 2, packed, key_heads) for each in (dropped, slopes))
    repeats = (output - linear).abs() <= NEAR * (one * other).sqrt()
    return bool(repeats.all()) and not near(dropped, whole)


def by_sentence(values: Tensor, packed: Packed, heads: int) -> Tensor:
    """Return the sums (b, h) of values (n, d)."""
    return torch.stack([each.unflatten(1, (heads, -1)).sum((0, 2)) for each in values.split(packed.lengths)])


def near(found: Tensor, expected: Tensor, tolerance: float = NEAR) -> bool:
    return torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def plain(heads: Sequence[Tensor], packed: Packed, window: int) -> Tensor:
    """The same attention in float32, one sentence after the other."""
    query, key, value = (each.float().transpose(0, 1) for each in heads)  # (h, n, e), (g, n, e)
    key, value = (each.repeat_interleave(len(query) // len(key), 0) for each in (key, value))
    ends = (*first_tokens(packed.lengths).tolist(), packed.tokens)
    mixed = []
    for start, end in pairwise(ends):
        q, k, v = (each[:, start:end] for each in (query, key, value))
        places = torch.arange(end - start, device=query.device)
        apart = places[:, None] - places
        mask = (apart.abs() <= (window or len(places))) & (apart >= (0 if packed.causal else -len(places)))
        mixed.append(F.scaled_dot_product_attention(q, k, v, mask))
    return torch.cat(mixed, 1).transpose(0, 1).flatten(1).to(heads[0].dtype)


WIDEST = 4096  # numbers of a row, of which a lane keeps one of 32 in registers
LANES, ROWS = 32, 4  # of a warp, which has one row; warps of a block

AddNorm = Callable[[Tensor, Tensor, nn.LayerNorm], Tensor]  # change (n, d), rows (n, d) -> norm of their sum

SOURCE = r"""
// Two bfloat16 are in 32 bits, and eight of them in a uint4.
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
    const int each = WIDTH / 8, parts = (each + 31) / 32;
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= count) return;
    const long long start = (long long)row * each;
    float values[parts][8], sum = 0, squares = 0;
#pragma unroll
    for (int part = 0; part < parts; part++) {
        const int at = part * 32 + lane;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (at < each) { a = change[start + at]; b = rows[start + at]; }
        const unsigned one[4] = {a.x, a.y, a.z, a.w}, other[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            values[part][2 * pair] = low(rounded(low(one[pair]) + low(other[pair])));
            values[part][2 * pair + 1] = low(rounded(high(one[pair]) + high(other[pair])));
            sum += values[part][2 * pair] + values[part][2 * pair + 1];
        }
    }
    const float mean = total(sum) / WIDTH;
#pragma unroll
    for (int part = 0; part < parts; part++)
        if (part * 32 + lane < each)
#pragma unroll
            for (int place = 0; place < 8; place++) {
                const float apart = values[part][place] - mean;
                squares += apart * apart;
            }
    const float scale = rsqrtf(total(squares) / WIDTH + EPSILON);
#pragma unroll
    for (int part = 0; part < parts; part++) {
        const int at = part * 32 + lane;
        if (at >= each) continue;
        const uint4 w = weight[at], b = bias[at];
        const unsigned factors[4] = {w.x, w.y, w.z, w.w}, added[4] = {b.x, b.y, b.z, b.w};
        unsigned made[4];
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float one = (values[part][2 * pair] - mean) * scale;
            const float other = (values[part][2 * pair + 1] - mean) * scale;
            made[pair] = rounded(one * low(factors[pair]) + low(added[pair]))
                | rounded(other * high(factors[pair]) + high(added[pair])) << 16;
        }
        result[start + at] = make_uint4(made[0], made[1], made[2], made[3]);
    }
}
"""


@cache
def add_norm_for(width: int, epsilon: float, device: torch.device) -> AddNorm | None:
    """Return the kernel for rows of this width, or None: it does not work here."""
    if device.type != "cuda" or width % 8 or width > WIDEST:
        return None
    source = f"#define WIDTH {width}\n#define EPSILON {epsilon!r}f\n{SOURCE}"
    with suppress(ImportError, AttributeError, RuntimeError, TypeError, OSError):  # another torch or GPU
        with torch.cuda.device(device):
            kernel = compiled(source)

        def add_norm(change: Tensor, rows: Tensor, norm: nn.LayerNorm) -> Tensor:
            result, count = torch.empty_like(rows), len(rows)
            bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
            tensors = [each.contiguous() for each in (change, rows, norm.weight.detach(), bias.detach())]
            with torch.cuda.device(device):
                grid, block = (-(-count // ROWS), 1, 1), (LANES * ROWS, 1, 1)
                kernel(grid=grid, block=block, args=[*tensors, result, count])
            return result

        return add_norm if adds_right(add_norm, width, epsilon, device) else None
    return None


def compiled(source: str) -> Any:
    """Return the function of this source. It can be called with a grid, a block and arguments.

    `torch.cuda._compile_kernel` does the same, and first imports the tools for extensions, which takes long.
    """
    loader: Any = import_module("torch.cuda._utils")
    compiler, program, size = loader._get_nvrtc_library(), ctypes.c_void_p(), ctypes.c_size_t()

    def call(name: str, *arguments: Any) -> None:
        if getattr(compiler, f"nvrtc{name}")(*arguments):
            raise RuntimeError(f"NVRTC: {name} failed")

    major, minor = torch.cuda.get_device_capability()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major}{minor}".encode())
    call("CreateProgram", ctypes.byref(program), source.encode(), b"add_norm.cu", 0, None, None)
    call("CompileProgram", program, 1, options)
    call("GetCUBINSize", program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    call("GetCUBIN", program, binary)
    call("DestroyProgram", ctypes.byref(program))
    return loader._cuda_load_module(binary.raw, ["add_norm"])["add_norm"]


def adds_right(add_norm: AddNorm, width: int, epsilon: float, device: torch.device) -> bool:
    numbers = torch.randn(2 * ROWS + 4, width, generator=torch.Generator().manual_seed(0))
    change, rows, (weight, bias) = numbers.to(device, torch.bfloat16).split((ROWS + 1, ROWS + 1, 2))
    norm = nn.LayerNorm(width, epsilon, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
        found, expected = add_norm(change, rows, norm), norm(change + rows)
    return torch.allclose(found.float(), expected.float(), rtol=NEAR, atol=NEAR)
