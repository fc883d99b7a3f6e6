"""LayerNorm of a sum in one kernel, in bfloat16 on a GPU: torch reads and writes the rows twice as often.

The compiler that torch brings along compiles the kernel when a model is loaded. The kernel is used only if it
gives the result of plain operations here.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 4096  # numbers of a row, of which a lane keeps one of 32 in registers
LANES, ROWS = 32, 4  # of a warp, which has one row; warps of a block
NEAR = 0.02  # for bfloat16, and numbers of about 1

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
                kernel(
                    grid=(-(-count // ROWS), 1, 1),
                    block=(LANES * ROWS, 1, 1),
                    args=[*tensors, result, count],
                )
            return result

        return add_norm if is_right(add_norm, width, epsilon, device) else None
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


def is_right(add_norm: AddNorm, width: int, epsilon: float, device: torch.device) -> bool:
    numbers = torch.randn(2 * ROWS + 4, width, generator=torch.Generator().manual_seed(0))
    change, rows, (weight, bias) = numbers.to(device, torch.bfloat16).split((ROWS + 1, ROWS + 1, 2))
    norm = nn.LayerNorm(width, epsilon, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
        found, expected = add_norm(change, rows, norm), norm(change + rows)
    return torch.allclose(found.float(), expected.float(), rtol=NEAR, atol=NEAR)
