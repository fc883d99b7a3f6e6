"""Blocks of `Bert` for encoding: the same states as `Block`, without gradients and padding, in less time.

- On a CPU, attention runs over consecutive sentences of equal length. Batches are sorted by length and
  contain few such runs. Its products are small; they use float32.
- On a CPU, fused products use weights in the memory layout of oneDNN, with the bias, the activation and the
  residual in the same operation. These operations of torch are private: if one is absent or fails, or is
  slower on this CPU, plain products run.
- On a GPU in bfloat16, one kernel of torch computes the attention of all sentences, see `flash.py`. If it is
  absent or fails, `Block` runs.

Axes: n tokens, c sentences of t tokens in a run, h heads, d the width, e = d / h.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.bert import ACTIVATIONS, Bert, Block, with_bias
from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.flash import HALF, Kernel, kernel_for_encoding, packed_attention
from sentkit.model.transformer.packed import Packed, spare_tokens
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
        up = make(block.up.weight.detach(), block.up.bias.detach(), bert.architecture.activation)
        down = make(block.down.weight.detach(), block.down.bias.detach())
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
    weight = bert.words.weight
    if weight.dtype not in HALF or bert.architecture.buckets:
        return bert
    kernel = kernel_for_encoding(bert.architecture.heads, bert.width, weight.device)
    if kernel is not None:
        for number, block in enumerate(bert.blocks):
            assert isinstance(block, Block), "blocks are replaced once"
            bert.blocks[number] = CudaBlock(block, bert.architecture.activation, kernel)
    return bert


class InferenceBlock(nn.Module):
    def __init__(self, block: Block, activation: str, make: Callable[..., Product]) -> None:
        super().__init__()
        width = block.mix.out_features
        weight, bias = block.qkv.weight.detach(), block.qkv.bias.detach()
        self.heads = block.heads
        self.query = make(weight[:width], bias[:width])
        self.key_value = make(weight[width:], bias[width:])
        self.mix = make(block.mix.weight.detach(), block.mix.bias.detach())
        self.up = make(block.up.weight.detach(), block.up.bias.detach(), activation)
        self.down = make(block.down.weight.detach(), block.down.bias.detach())
        self.mix_norm, self.norm = block.mix_norm, block.norm

    def forward(self, states: Tensor, packed: Packed, only: Tensor | None = None) -> Tensor:
        """Return X(k) from X(k - 1), (n, d); or (b, d) if `only` selects one row of each sentence."""
        rows = states if only is None else states[only]
        queries, pairs = self.project(states, rows, only)
        attended = self.attend(queries, pairs, packed, only)
        rows = self.mix_norm(self.mix_in(attended, rows))
        return self.norm(self.add_inner(rows))

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the queries of `rows`, which are `states[only]`, and the keys and values of all states."""
        return self.query(rows, None), self.key_value(states, None)

    def mix_in(self, attended: Tensor, rows: Tensor) -> Tensor:
        return self.mix(attended, rows)

    def add_inner(self, rows: Tensor) -> Tensor:
        return self.down(self.up(rows, None), rows)

    def attend(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        return attention_of_runs(queries, pairs, packed, self.heads, only)


class CudaBlock(InferenceBlock):
    """One product for the queries, keys and values of all rows, and one kernel for their attention."""

    def __init__(self, block: Block, activation: str, kernel: Kernel) -> None:
        super().__init__(block, activation, plain_product)
        self.qkv = plain_product(block.qkv.weight.detach(), block.qkv.bias.detach())
        self.kernel = kernel

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        if only is not None:
            return super().project(states, rows, only)
        width = states.shape[1]
        queries, pairs = self.qkv(states, None).split((width, 2 * width), 1)
        return queries, pairs

    def attend(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        return packed_attention(self.kernel, queries, pairs, packed, self.heads, single=only is not None)


def filler(lengths: Sequence[int]) -> list[int]:
    """Return the lengths of sentences that fill a batch to one of few numbers of tokens."""
    longest = max(lengths)
    full, rest = divmod(spare_tokens(sum(lengths)), longest)
    return [longest] * full + [rest] * (rest > 0)


def runs(lengths: tuple[int, ...]) -> Iterator[tuple[slice, slice, int]]:
    """Yield the tokens, the sentences and the number of sentences of each run of equal lengths."""
    token = sentence = 0
    for length, run in groupby(lengths):
        count = sum(1 for _ in run)
        yield slice(token, token + count * length), slice(sentence, sentence + count), count
        token += count * length
        sentence += count


def attention_of_runs(
    queries: Tensor, pairs: Tensor, packed: Packed, heads: int, only: Tensor | None
) -> Tensor:
    """Attention (n, d), (n, 2 d) -> (n, d); `only` is the row of the one query of each sentence: (b, d)."""
    attended, size = torch.empty_like(queries), queries.shape[1] // heads
    places = None if only is None else only - packed.starts
    for tokens, sentences, count in runs(packed.lengths):
        selected = tokens if only is None else sentences
        query = queries[selected].view(count, -1, heads, size).transpose(1, 2)  # (c, h, q, e)
        key, value = pairs[tokens].view(count, -1, 2, heads, size).permute(2, 0, 3, 1, 4)
        longest = key.shape[2]
        mask = with_bias(None, packed.bias, longest, None if places is None else places[sentences])
        long = longest > LONGEST_RUN
        mixed = (F.scaled_dot_product_attention if long else short_attention)(query, key, value, mask)
        attended[selected].view(count, -1, heads, size).copy_(mixed.transpose(1, 2))
    return attended


def short_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention (c, h, q, e) that stores all scores. It computes in float32, or in float64 for float64.

    The mask is added to the scores.

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
        scores.add_(mask)
    weights = scores.exp()
    sums = weights.sum(-1, keepdim=True)
    if bool(((sums > SMALLEST_SUM) & (sums < LARGEST_SUM)).all()):
        return (weights @ value).div_(sums)
    return scores.softmax(-1) @ value


def plain_product(weight: Tensor, bias: Tensor, activation: str = "none") -> Product:
    weight, function = aligned(weight), ACTIVATIONS.get(activation)

    def product(values: Tensor, residual: Tensor | None) -> Tensor:
        result = F.linear(values, weight, bias)
        if function is not None:
            result = function(result)
        return result if residual is None else result.add_(residual)

    return product


def fused_product(weight: Tensor, bias: Tensor, activation: str = "none") -> Product:
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
