"""Blocks of `Bert` for encoding: the same states as `Block`, without gradients and padding, in less time.

- On a CPU, attention runs over consecutive sentences of equal length. Batches are sorted by length and
  contain few such runs. Its products are small; they use float32. Those of layers are in `products.py`.
- On a GPU in bfloat16, one kernel of torch computes the attention of all sentences, see `gpu_kernels.py`. If
  it is absent or fails, `Block` runs. Norms of sums are one kernel.
- With integers, the inputs of a product are multiplied by factors that differ between the columns, and the
  weights are divided by them. So columns with large values do not determine the rounding of the others
  (SmoothQuant, arXiv 2211.10438). After the activation of the inner layer, few columns have much larger
  values than the others and cause most of the error. They stay in floating point, in their own products. The
  scales, and the loss of vectors, come from the texts of the package. These are always the same, so a
  checkpoint always has the same scales. They differ in length, subject, style and language, and none of them
  is from a data set.

Axes: n tokens, c sentences of t tokens in a run, h heads, d the width, e = d / h; k inputs of a product.
"""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.checkpoint_reading import max_length
from sentkit.model.encoding import Arrays
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.attention import (
    blockwise_attention,
    masked_after,
    product,
    turned,
    windowed,
    with_bias,
)
from sentkit.model.transformer.bert import Bert, Block
from sentkit.model.transformer.gpu_kernels import (
    HALF,
    AddNorm,
    add_norm_for,
    by_head,
    packed_attention,
    works,
)
from sentkit.model.transformer.packed import Packed, ends_of, pack
from sentkit.model.transformer.products import (
    LARGEST,
    Int8Product,
    Product,
    centered,
    detached,
    fused_product,
    fused_products_work,
    plain_product,
)

LONGEST_RUN = 256  # tokens; longer sentences use the blockwise attention of torch, which stores no scores
# Of exponentials. Below the first, float32 has lost digits; above the second, products with values overflow.
SMALLEST_SUM, LARGEST_SUM = 1e-30, 1e30


NORMS = ("input_norm", "query_norm", "key_norm", "mix_norm", "inner_norm", "norm")


def replace_blocks(bert: Bert, make: Callable[..., Block]) -> Bert:
    for number, block in enumerate(bert.blocks):
        bert.blocks[number] = make(block)
    return bert


def prepare_for_cpu(bert: Bert, products: str | None = None) -> Bert:
    """Replace the blocks of an encoder that is only read, on a CPU. This releases the blocks' weights."""
    usable = products != "plain" and fused_products_work(bert.words.weight.dtype)
    make = fused_product if usable else plain_product
    return replace_blocks(bert, lambda block: InferenceBlock(block, bert.architecture.activation, make))


def prepare_for_cuda(bert: Bert) -> Bert:
    """Replace the blocks of an encoder that is only read, on a GPU in bfloat16, if its kernel works there."""
    shape, device = bert.architecture, bert.words.weight.device
    if bert.words.weight.dtype not in HALF or shape.buckets:
        return bert
    heads, window = (shape.heads, shape.key_heads, shape.head_size), max(shape.windows, default=0)
    if not works(heads, device, window, [shape.causal], trains=False):
        return bert
    add_norm = add_norm_for(shape.width, shape.norm_epsilon, device)
    return replace_blocks(bert, lambda block: CudaBlock(block, shape.activation, add_norm))


class InferenceBlock(Block):
    def __init__(self, block: Block, activation: str, make: Callable[..., Product]) -> None:
        self.take(block)
        ends = ends_of(*detached(block.qkv), block.mix.in_features)
        self.query, self.key_value = (make(*each) for each in ends)
        self.mixed = make(*detached(block.mix))
        inner, gates = ends_of(*detached(block.up), block.down.in_features)
        self.inner, self.gates = make(*inner, activation), [make(*gates)] if len(gates[0]) else []
        self.outer = make(*detached(block.down))

    def take(self, block: Block) -> None:
        """Use the sizes and the norms of a block as they are, and none of its weights."""
        nn.Module.__init__(self)
        for name in ("heads", "key_heads", "size", "window", "base", *NORMS):
            setattr(self, name, getattr(block, name))

    def attend(self, states: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        queries, pairs = self.project(states, states if only is None else states[only], only)
        queries = turned(queries, packed, self.base, self.size, [(self.query_norm, self.heads)], only)
        pairs = turned(pairs, packed, self.base, self.size, [(self.key_norm, self.key_heads)])
        return self.attend_pairs(queries, pairs, packed, only)

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the queries of `rows`, which are `states[only]`, and the keys and values of all states."""
        return self.query(rows, None), self.key_value(states, None)

    def add_mixed(self, attended: Tensor, states: Tensor) -> Tensor:
        return self.mixed(attended, states)

    def add_inner(self, inputs: Tensor, states: Tensor) -> Tensor:
        inner = self.inner(inputs, None)
        for gate in self.gates:
            inner = inner.mul_(gate(inputs, None))
        return self.outer(inner, states)

    def attend_pairs(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        """Attention (n, h e), (n, 2 g e) -> (n, h e), in runs of sentences of equal length.

        `only` (b,) is the row of one query of each sentence.
        """
        attended, heads, key_heads, size = torch.empty_like(queries), self.heads, self.key_heads, self.size
        places = None if only is None else only - packed.starts
        token = sentence = 0
        for length, run in groupby(packed.lengths):
            count = sum(1 for _ in run)
            tokens, sentences = slice(token, token + count * length), slice(sentence, sentence + count)
            token, sentence = tokens.stop, sentences.stop
            selected = tokens if only is None else sentences
            query = queries[selected].view(count, -1, heads, size).transpose(1, 2)  # (c, h, q, e)
            key, value = pairs[tokens].view(count, -1, 2, key_heads, size).permute(2, 0, 3, 1, 4)
            at = None if places is None else places[sentences]
            short = min(length, 2 * self.window or length) <= LONGEST_RUN
            kernel = short_attention if short else blockwise_attention
            mask = with_bias(None, packed.bias, length, at)
            mixed = windowed(kernel, query, key, value, mask, self.window, at, causal=packed.causal)
            attended[selected].view(count, -1, heads, size).copy_(mixed.transpose(1, 2))
        return attended


class CudaBlock(InferenceBlock):
    """One product for queries, keys and values, a kernel for attention, and one for the norm of a sum."""

    def __init__(self, block: Block, activation: str, add_norm: AddNorm | None) -> None:
        super().__init__(block, activation, plain_product)
        self.joined = plain_product(*detached(block.qkv))
        if add_norm is not None and isinstance(block.mix_norm, nn.LayerNorm):
            self.mixed, self.mix_norm = with_norm(self.mixed, block.mix_norm, add_norm), nn.Identity()
        if add_norm is not None and isinstance(block.norm, nn.LayerNorm):
            self.outer, self.norm = with_norm(self.outer, block.norm, add_norm), nn.Identity()

    def attend(self, states: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        if only is None or not packed.causal:
            return super().attend(states, packed, only)
        return super().attend(states, packed, None)[only]  # the kernel lets one query attend to all keys

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        if only is not None:
            return super().project(states, rows, only)
        counts = self.heads, 2 * self.key_heads
        queries, pairs = self.joined(states, None).split([count * self.size for count in counts], 1)
        return queries, pairs

    def attend_pairs(self, queries: Tensor, pairs: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        if only is not None and self.window:  # the kernel counts the window from the last query
            return super().attend_pairs(queries, pairs, packed, only)
        pair = by_head(pairs, self.size, self.key_heads, self.key_heads)
        parts = *by_head(queries, self.size, self.heads), *pair
        return packed_attention(parts, packed, single=only is not None, window=self.window)


def with_norm(product: Product, norm: nn.LayerNorm, add_norm: AddNorm) -> Product:
    def normed(values: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None, "the norm follows a residual connection"
        return add_norm(product(values, None), residual, norm)

    return normed


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
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
    scores = product(query, key.transpose(-2, -1)).mul_(query.shape[-1] ** -0.5)
    mask = masked_after(mask, key) if causal else mask
    if mask is not None:
        scores = scores.add_(mask) if mask.is_floating_point() else scores.masked_fill_(~mask, -torch.inf)
    weights = scores.exp()
    sums = weights.sum(-1, keepdim=True)
    if bool(((sums > SMALLEST_SUM) & (sums < LARGEST_SUM)).all()):
        return product(weights, value).div_(sums)
    return product(scores.softmax(-1), value)


STATES, MIXED = 0.8, 0.5  # parts of the ranges of states and of attended values that weights take over
# A part of the largest range: columns that are nearly 0 in the calibration texts can be larger elsewhere.
LEAST = 1e-3
HEADROOM = 1.4  # inner values can be larger than those of the calibration texts
APART = 128  # inner columns in floating point, for each 1,536 columns
LEVELS = 255  # the largest unsigned integer


class Recorder:
    """A product in floating point that records the range of each of its inputs, and 0."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight, self.bias, self.activation = weight, bias, activation
        self.product = plain_product(weight, bias, activation)

    def __call__(self, values: Tensor, residual: Tensor | None) -> Tensor:
        self.least, self.most = values.amin(0).clamp_max(0), values.amax(0).clamp_min(0)
        return self.product(values, residual)

    @property
    def largest(self) -> Tensor:
        return self.most.maximum(-self.least)


class Int8Block(InferenceBlock):
    def __init__(self, block: InferenceBlock, make: Callable[[Tensor, Tensor | None], Product]) -> None:
        """The products of `block` are Recorders; `make` makes one in floating point."""
        self.take(block)
        products: Any = block.query, block.key_value, block.mixed, block.inner, block.outer, *block.gates
        query, pairs, mix, up, down, *gates = products
        factors = factors_of(pairs.largest, torch.cat([query.weight, pairs.weight]), STATES)
        self.query, self.key_value = (integer_product(each, factors) for each in (query, pairs))
        self.mixed = integer_product(mix, factors_of(mix.largest, mix.weight, MIXED))
        self.up_factors = factors_of(up.largest, up.weight, STATES)
        inner = len(up.weight)
        count = min(APART * math.ceil(inner / 1536), inner // 2)  # of the columns in floating point
        order = down.largest.argsort(descending=True, stable=True)
        large, rest = order[:count].sort().values, order[count:].sort().values
        self.parts = [  # the inner values and their gates, each as those of few large columns and the rest
            [
                Int8Product(
                    each.weight[c] / self.up_factors,
                    None if each.bias is None else each.bias[c],
                    each.activation,
                )
                for c in (rest, large)
            ]
            for each in (up, *gates)
        ]
        self.down_large = make(down.weight[:, large], down.bias)
        if gates:  # integers only for the products of values and gates, which are floating point
            self.down_factors = factors_of(down.largest[rest], down.weight[:, rest], MIXED)
            self.down_rest = Int8Product(down.weight[:, rest] / self.down_factors, None)
        else:
            self.scale, self.zero = unsigned_scale(down.least[rest], down.most[rest])
            self.down_rest = Int8Product(down.weight[:, rest], None)

    def add_inner(self, inputs: Tensor, states: Tensor) -> Tensor:
        integers, dtype = centered(inputs, self.up_factors), states.dtype
        [(up_rest, up_large), *gates] = self.parts
        large = up_large.to_float(integers, dtype)
        if gates:
            [(gate_rest, gate_large)] = gates
            large.mul_(gate_large.to_float(integers, dtype))
            values = up_rest.to_float(integers, dtype).mul_(gate_rest.to_float(integers, dtype))
            rest = centered(values, self.down_factors)
        else:
            rest = up_rest.to_integers(integers, self.scale, self.zero)
        return self.down_rest.to_float(rest, dtype, self.down_large(large, states))


def integer_product(layer: Recorder, factors: Tensor) -> Product:
    product = Int8Product(layer.weight / factors, layer.bias)
    return lambda values, residual: product.to_float(centered(values, factors), values.dtype, residual)


def factors_of(largest: Tensor, weight: Tensor, share: float) -> Tensor:
    """Return the factors (k,) of inputs: the largest absolute input becomes LARGEST.

    `largest` (k,) are the largest absolute inputs, and `weight` is (m, k). With a share of 0 the factors
    make the ranges of the weights equal, with 1 those of the inputs.
    """
    columns = weight.abs().amax(0)
    largest, columns = (each.clamp_min(LEAST * each.max() + 1e-30) for each in (largest, columns))
    factors = columns ** (1 - share) / largest**share
    factors *= LARGEST / (factors * largest).max()
    return factors


def unsigned_scale(least: Tensor, most: Tensor) -> tuple[float, int]:
    """Return the scale and the zero point of unsigned integers for values in these ranges."""
    low, high = HEADROOM * float(least.min()), HEADROOM * float(most.max())
    scale = max((high - low) / LEVELS, 1e-30)
    return scale, round(-low / scale)


def use_int8(
    bert: Bert, checkpoint: Checkpoint, tokenizer: Tokenizer, run: Callable[[TokenBlock], Arrays]
) -> tuple[list[dict[str, float]], int]:
    """Replace the blocks of an encoder in float32. Only the checkpoint determines the scales.

    Returns the loss of each readout, which is the lowest and the mean cosine with the vectors before, and the
    number of texts. `run` encodes them.
    """
    texts = Path(__file__).with_name("int8_texts.txt").read_text(encoding="utf-8").splitlines()

    def usable(tokenizer: Tokenizer) -> TokenBlock:
        tokens = tokenizer(texts)
        return tokens.take([place for place in range(len(tokens)) if place not in tokens.problems])

    own, losses = usable(tokenizer), []
    exact = run(own)
    check_finite([torch.from_numpy(vectors) for vectors in exact], checkpoint.name)
    limit, lowercase = max_length(checkpoint, None), checkpoint.declared.lowercase
    of_scales = usable(Tokenizer(checkpoint, max_length=limit, lowercase=lowercase))
    use_integers(bert, pack(sorted((each.ids for each in of_scales), key=len)), checkpoint.name)
    for pair in zip(exact, run(own), strict=True):
        left, right = (each.astype(np.float64) for each in pair)
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(1) / np.where(norms == 0, 1.0, norms)
        losses.append({"lowest": round(float(cosines.min()), 4), "mean": round(float(cosines.mean()), 4)})
    return losses, len(own)


def use_integers(bert: Bert, packed: Packed, name: str) -> None:
    """Replace the blocks by those with the ranges of this batch; all other operations are in float32."""
    replace_blocks(bert, lambda block: InferenceBlock(block, bert.architecture.activation, Recorder))
    with torch.inference_mode():
        *_, last = bert.states(packed)
        check_finite([last], name)
    make = fused_product if fused_products_work(torch.float32) else plain_product
    replace_blocks(bert, lambda block: Int8Block(block, make))


def check_finite(values: Sequence[Tensor], name: str) -> None:
    if not values or not all(bool(each.isfinite().all()) for each in values):
        problem = "the model has no finite vectors for the texts of the package, which int8 needs"
        raise DataError(problem, source=name, advice="use --precision fp32")
