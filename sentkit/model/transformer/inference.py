"""Blocks of `Bert` for encoding: the same states as `Block`, without gradients and padding, in less time.

- On a CPU, attention runs over consecutive sentences of equal length. Batches are sorted by length and
  contain few such runs. Its products are small; they use float32.
- On a CPU, fused products use weights in the memory layout of oneDNN, with the bias, the activation and the
  residual in the same operation. These operations of torch are private: if one is absent or fails, or is
  slower on this CPU, plain products run.
- On a GPU in bfloat16, one kernel of torch computes the attention of all sentences, see `gpu_kernels.py`. If
  it is absent or fails, `Block` runs. Norms of sums are one kernel.

Axes: n tokens, c sentences of t tokens in a run, h heads, d the width, e = d / h.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.bert import ACTIVATIONS, Bert, Block, rotated, windowed, with_bias
from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.gpu_kernels import (
    HALF,
    AddNorm,
    Kernel,
    add_norm_for,
    by_head,
    kernel_for_encoding,
    packed_attention,
)
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.weights import aligned

FUSED_ACTIVATIONS = {  # name and algorithm of the activation in oneDNN
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "none": ("none", ""),
}
LONGEST_RUN = 256  # tokens; longer sentences use the blockwise attention of torch, which stores no scores
# Of exponentials. Below the first, float32 has lost digits; above the second, products with values overflow.
SMALLEST_SUM, LARGEST_SUM = 1e-30, 1e30

Product = Callable[[Tensor, Tensor | None], Tensor]  # (n, in) and optional residual (n, out) -> (n, out)


CLEAR = 1.5  # a ratio of two times that is not noise
MEASURED = 1 << 16  # weights; products of fewer weights are too short to be measured
ROWS = 96  # of a measured product


def gain_of_plain_products(bert: Bert) -> float:
    """Return how many times as fast plain products are as fused ones, for the shapes of this encoder.

    It is 0 where the blocks are too small, and infinite where fused products do not work.
    """
    dtype, block = bert.words.weight.dtype, bert.blocks[0]
    assert isinstance(block, Block), "the blocks are not replaced yet"
    if not fused_products_work(dtype):
        return float("inf")
    if block.up.weight.numel() < MEASURED:
        return 0.0
    values = torch.ones(ROWS, bert.width, dtype=dtype)

    def both(make: Callable[..., Product]) -> Callable[[], Tensor]:
        up = make(*divided(block.up, block.down.in_features)[0], bert.architecture.activation)
        down = make(*detached(block.down))
        return lambda: down(up(values, None), values)

    return speed_ratio(both(plain_product), both(fused_product))


def plain_is_faster(gain: float) -> bool:
    """Choose plain products if they are `gain` times as fast as fused ones; noise does not change the choice.

    The last bits of vectors depend on the choice. Measured are gains of 0.7 to 0.95 with AVX512, 0.93 to 1.25
    with AVX2 only, and 2.5 with SSE only, so only a clear result overrides the instruction set.
    """
    fused_are_usual = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return gain > (CLEAR if fused_are_usual else 1 / CLEAR)


def prepare_for_cpu(bert: Bert, products: str | None = None) -> Bert:
    """Replace the blocks of an encoder that is only read, on a CPU. This releases the blocks' weights."""
    usable = products != "plain" and fused_products_work(bert.words.weight.dtype)
    make = fused_product if usable else plain_product
    for number, block in enumerate(bert.blocks):
        assert isinstance(block, Block), "blocks are replaced once"
        bert.blocks[number] = InferenceBlock(block, bert.architecture.activation, make)
    return bert


def prepare_for_cuda(bert: Bert) -> Bert:
    """Replace the blocks of an encoder that is only read, on a GPU in bfloat16, if its kernel works there.

    The kernel adds no bias of relative positions.
    """
    shape, device = bert.architecture, bert.words.weight.device
    if bert.words.weight.dtype not in HALF or shape.buckets:
        return bert
    kernel = kernel_for_encoding(shape.heads, shape.width, device, max(shape.windows, default=0))
    if kernel is not None:
        add_norm = add_norm_for(shape.width, shape.norm_epsilon, device)
        for number, block in enumerate(bert.blocks):
            assert isinstance(block, Block), "blocks are replaced once"
            bert.blocks[number] = CudaBlock(block, bert.architecture.activation, kernel, add_norm)
    return bert


class InferenceBlock(nn.Module):
    def __init__(self, block: Block, activation: str, make: Callable[..., Product]) -> None:
        super().__init__()
        (self.query, self.key_value) = (make(*each) for each in divided(block.qkv, block.mix.out_features))
        self.mix = make(*detached(block.mix))
        up, *gates = divided(block.up, block.down.in_features)
        self.up, self.gates = make(*up, activation), [make(*each) for each in gates]
        self.down = make(*detached(block.down))
        self.take(block)

    def take(self, block: "Block | InferenceBlock") -> None:
        """Use the other parts of a block as they are."""
        self.heads: int = block.heads
        self.size: int = block.size
        self.window: int = block.window
        self.base: float = block.base
        self.input_norm: nn.Module = block.input_norm
        self.mix_norm: nn.Module = block.mix_norm
        self.inner_norm: nn.Module = block.inner_norm
        self.norm: nn.Module = block.norm

    def forward(self, states: Tensor, packed: Packed, only: Tensor | None = None) -> Tensor:
        """Return X(k) from X(k - 1), (n, d); or (b, d) if `only` selects one row of each sentence."""
        rows, positions, inputs = states, packed.positions, self.input_norm(states)
        if only is not None:
            rows, positions = states[only], positions[only]
        queries, pairs = self.project(inputs, inputs if only is None else inputs[only], only)
        if self.base:
            queries = rotated(queries, positions, self.base, queries.shape[1], self.size)
            pairs = rotated(pairs, packed.positions, self.base, queries.shape[1], self.size)
        attended = self.attend(queries, pairs, packed, only)
        rows = self.mix_norm(self.mix_in(attended, rows))
        result: Tensor = self.norm(self.add_inner(self.inner_norm(rows), rows))
        return result

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the queries of `rows`, which are `states[only]`, and the keys and values of all states."""
        return self.query(rows, None), self.key_value(states, None)

    def mix_in(self, attended: Tensor, rows: Tensor) -> Tensor:
        return self.mix(attended, rows)

    def add_inner(self, inputs: Tensor, rows: Tensor) -> Tensor:
        """Return `rows` plus the result of the two dense layers for the inputs."""
        inner = self.up(inputs, None)
        for gate in self.gates:
            inner = inner.mul_(gate(inputs, None))
        return self.down(inner, rows)

    def attend(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        return attention_of_runs(queries, pairs, packed, self.heads, only, self.window)


class CudaBlock(InferenceBlock):
    """One product for the queries, keys and values of all rows, and one kernel for their attention.

    Another kernel adds a residual and computes the norm of the sum, in families with norms there.
    """

    def __init__(self, block: Block, activation: str, kernel: Kernel, add_norm: AddNorm | None) -> None:
        super().__init__(block, activation, plain_product)
        self.qkv = plain_product(*detached(block.qkv))
        self.kernel = kernel
        if add_norm is not None and isinstance(block.mix_norm, nn.LayerNorm):
            self.mix, self.mix_norm = with_norm(self.mix, block.mix_norm, add_norm), nn.Identity()
        if add_norm is not None and isinstance(block.norm, nn.LayerNorm):
            self.down, self.norm = with_norm(self.down, block.norm, add_norm), nn.Identity()

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        if only is not None:
            return super().project(states, rows, only)
        width = states.shape[1]
        queries, pairs = self.qkv(states, None).split((width, 2 * width), 1)
        return queries, pairs

    def attend(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        if only is not None and self.window:  # the kernel counts the window from the last query
            return super().attend(queries, pairs, packed, only)
        parts, single = (*by_head(queries, 1, self.heads), *by_head(pairs, 2, self.heads)), only is not None
        return packed_attention(self.kernel, parts, packed, single=single, window=self.window)


def with_norm(product: Product, norm: nn.LayerNorm, add_norm: AddNorm) -> Product:
    def normed(values: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None, "the norm follows a residual connection"
        return add_norm(product(values, None), residual, norm)

    return normed


def runs(lengths: tuple[int, ...]) -> Iterator[tuple[slice, slice, int]]:
    """Yield the tokens, the sentences and the number of sentences of each run of equal lengths."""
    token = sentence = 0
    for length, run in groupby(lengths):
        count = sum(1 for _ in run)
        yield slice(token, token + count * length), slice(sentence, sentence + count), count
        token += count * length
        sentence += count


def attention_of_runs(
    queries: Tensor, pairs: Tensor, packed: Packed, heads: int, only: Tensor | None, window: int = 0
) -> Tensor:
    """Attention (n, d), (n, 2 d) -> (n, d); `only` is the row of the one query of each sentence: (b, d)."""
    attended, size = torch.empty_like(queries), queries.shape[1] // heads
    places = None if only is None else only - packed.starts
    for tokens, sentences, count in runs(packed.lengths):
        selected = tokens if only is None else sentences
        query = queries[selected].view(count, -1, heads, size).transpose(1, 2)  # (c, h, q, e)
        key, value = pairs[tokens].view(count, -1, 2, heads, size).permute(2, 0, 3, 1, 4)
        longest, at = key.shape[2], None if places is None else places[sentences]
        kernel = short_attention if longest <= LONGEST_RUN or window else F.scaled_dot_product_attention
        mixed = windowed(kernel, query, key, value, with_bias(None, packed.bias, longest, at), window, at)
        attended[selected].view(count, -1, heads, size).copy_(mixed.transpose(1, 2))
    return attended


def short_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention (c, h, q, e) that stores all scores. It computes in float32, or in float64 for float64.

    A mask of numbers is added to the scores.

    For products of bfloat16, oneDNN compiles and keeps a kernel for each shape, and here are many shapes.
    The softmax of torch first subtracts the maximum of each row, and is slow for short rows. Scores of
    trained encoders are far below 88, where exponentials overflow. If a sum is not usable, softmax runs.
    """
    precise = torch.promote_types(query.dtype, torch.float32)
    # Products copy tensors that are not contiguous; the result of this cast is contiguous.
    query, key, value = (
        each.to(precise, memory_format=torch.contiguous_format) for each in (query, key, value)
    )
    scores = (query @ key.transpose(-2, -1)).mul_(query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.add_(mask) if mask.is_floating_point() else scores.masked_fill_(~mask, -torch.inf)
    weights = scores.exp()
    sums = weights.sum(-1, keepdim=True)
    if bool(((sums > SMALLEST_SUM) & (sums < LARGEST_SUM)).all()):
        return (weights @ value).div_(sums)
    return scores.softmax(-1) @ value


def detached(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def divided(layer: nn.Linear, outputs: int) -> list[tuple[Tensor, Tensor | None]]:
    """Return weight and bias of the first outputs, and of the others if there are any."""
    weight, bias = detached(layer)
    ends = [(0, outputs), (outputs, len(weight))]
    return [(weight[a:b], None if bias is None else bias[a:b]) for a, b in ends if a < b]


def plain_product(weight: Tensor, bias: Tensor | None, activation: str = "none") -> Product:
    weight, function = aligned(weight), ACTIVATIONS.get(activation)

    def product(values: Tensor, residual: Tensor | None) -> Tensor:
        result = F.linear(values, weight, bias)
        if function is not None:
            result = function(result)
        return result if residual is None else result.add_(residual)

    return product


def fused_product(weight: Tensor, bias: Tensor | None, activation: str = "none") -> Product:
    name, algorithm = FUSED_ACTIVATIONS[activation]
    linear: Any = torch.ops.mkldnn._linear_pointwise
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def product(values: Tensor, residual: Tensor | None) -> Tensor:
        if residual is not None:
            return linear.binary(values, residual, ordered, bias, "add")
        return linear(values, ordered, bias, name, [], algorithm)

    return product


def fused_products_work(dtype: torch.dtype) -> bool:
    """Return true if the private operations exist here and give the result of plain products."""
    generator = torch.Generator().manual_seed(0)
    weight, values, bias = (torch.randn(s, generator=generator).to(dtype) for s in [(8, 16), (3, 16), (8,)])
    try:
        for activation, residual in (("gelu", None), ("none", torch.ones(3, 8, dtype=dtype))):
            fused = fused_product(weight, bias, activation)(values, residual)
            plain = plain_product(weight, bias, activation)(values, residual)
            if not torch.allclose(fused, plain, rtol=0.02, atol=0.02):
                return False
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
    return True
