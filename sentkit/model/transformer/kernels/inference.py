"""Blocks of `Bert` for encoding: the same states as `Block`, without gradients and padding, in less
time.

- On a CPU, attention runs over consecutive sentences of equal length. Batches are sorted by length
  and contain few such runs. Its products are small; they use float32. Those of layers are in
  `matmul.py`.
- On a GPU in bfloat16, one kernel of torch computes the attention of all sentences, see
  `gpu_kernels.py`. If it is absent or fails, `Block` runs. Norms of sums are one kernel.
- With integers, the inputs of a product are multiplied by factors that differ between the columns,
  and the weights are divided by them. So columns with large values do not determine the rounding of
  the others (SmoothQuant, arXiv 2211.10438). After the activation of the inner layer, few columns
  have much larger values than the others and cause most of the error. They stay in floating point,
  in their own products. The scales, and the loss of vectors, come from the texts of the package.
  These are always the same, so a checkpoint always has the same scales. They differ in length,
  subject, style and language, and none of them is from a data set.

Axes: n tokens, c sentences of t tokens in a run, h heads, d the width, e = d / h; k inputs of a
product.
"""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.checkpoint_reading import max_length
from sentkit.model.groups import Arrays
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.attention import (
    blockwise_attention,
    masked_after,
    product,
    windowed,
    with_bias,
)
from sentkit.model.transformer.bert import Bert, Block
from sentkit.model.transformer.kernels.gpu_kernels import (
    HALF,
    AddNorm,
    add_norm_for,
    by_head,
    kernel_is_right,
    packed_attention,
)
from sentkit.model.transformer.kernels.matmul import (
    LARGEST_INPUT,
    Int8Matmul,
    Integers,
    Matmul,
    centered,
    detached,
    float_matmul,
)
from sentkit.model.transformer.packed import Packed, ends_of, pack

# tokens; longer sentences use the blockwise attention of torch, which stores no scores
LONGEST_RUN = 256
# Inner values of so many tokens stay in the cache until the second layer reads them. All tokens of
# a batch at once take 1.15 x the time for nano, and 1.02 x for all-MiniLM-L6-v2. In bfloat16, the
# preparation of the weights for each product costs more than this saves.
CACHED_TOKENS = 1024
# Of exponentials. Below the first, float32 has lost digits; above the second, products with values
# overflow.
SMALLEST_SUM = 1e-30
LARGEST_SUM = 1e30

NORMS = ("input_norm", "query_norm", "key_norm", "mix_norm", "inner_norm", "norm")


def replace_blocks(bert: Bert, make: Callable[..., Block]) -> Bert:
    for number, block in enumerate(bert.blocks):
        bert.blocks[number] = make(block)
    return bert


def prepare_for_cpu(bert: Bert) -> Bert:
    """Replace the blocks of an encoder that is only read, on a CPU. This releases the blocks'
    weights.
    """
    return replace_blocks(
        bert, lambda block: InferenceBlock(block, bert.architecture.activation, float_matmul)
    )


def prepare_for_cuda(bert: Bert) -> Bert:
    """Replace the blocks of an encoder that is only read, on a GPU in bfloat16, if its kernel works
    there.
    """
    architecture = bert.architecture
    device = bert.words.weight.device
    if bert.words.weight.dtype not in HALF or architecture.buckets:
        return bert
    heads = (architecture.heads, architecture.key_heads, architecture.head_size)
    window = max(architecture.attention_windows, default=0)
    if not kernel_is_right(heads, device, window, [architecture.causal], trains=False):
        return bert
    add_norm = add_norm_for(architecture.width, architecture.norm_epsilon, device)
    return replace_blocks(bert, lambda block: CudaBlock(block, architecture.activation, add_norm))


class InferenceBlock(Block):
    def __init__(self, block: Block, activation: str, make_matmul: Callable[..., Matmul]) -> None:
        self.copy_sizes_and_norms(block)
        query_weights, key_value_weights = ends_of(*detached(block.qkv), block.mix.in_features)
        inner_weights, gate_weights = ends_of(*detached(block.up), block.down.in_features)
        self.query = make_matmul(*query_weights)
        self.key_value = make_matmul(*key_value_weights)
        self.mixed = make_matmul(*detached(block.mix))
        self.inner = make_matmul(*inner_weights, activation)
        self.gate: Matmul | None = None  # of blocks with gates
        if len(gate_weights[0]):
            self.gate = make_matmul(*gate_weights)
        self.outer = make_matmul(*detached(block.down))

    def copy_sizes_and_norms(self, block: Block) -> None:
        """Use the sizes and the norms of a block as they are, and none of its weights."""
        nn.Module.__init__(self)
        for name in ("heads", "key_heads", "head_size", "attention_window", "rotary_base", *NORMS):
            setattr(self, name, getattr(block, name))

    def attend(self, states: Tensor, packed: Packed, query_rows: Tensor | None) -> Tensor:
        query_states = states
        if query_rows is not None:
            query_states = states[query_rows]
        queries, keys_and_values = self.project(states, query_states, query_rows)
        queries, keys_and_values = self.with_positions(queries, keys_and_values, packed, query_rows)
        return self.attend_projected(queries, keys_and_values, packed, query_rows)

    def project(
        self, states: Tensor, query_states: Tensor, query_rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries of `query_states`, which are `states[query_rows]`, and the keys and
        values of all.
        """
        return self.query(query_states, None), self.key_value(states, None)

    def add_mixed(self, attended: Tensor, states: Tensor) -> Tensor:
        return self.mixed(attended, states)

    def add_inner(self, inputs: Tensor, states: Tensor) -> Tensor:
        if inputs.device.type != "cpu" or inputs.dtype == torch.bfloat16:
            return self.add_inner_at_once(inputs, states)
        chunks: list[Tensor] = []
        for start in range(0, len(inputs), CACHED_TOKENS):
            tokens = slice(start, start + CACHED_TOKENS)
            chunks.append(self.add_inner_at_once(inputs[tokens], states[tokens]))
        return torch.cat(chunks)

    def add_inner_at_once(self, inputs: Tensor, states: Tensor) -> Tensor:
        inner = self.inner(inputs, None)
        if self.gate is not None:
            inner = inner.mul_(self.gate(inputs, None))
        return self.outer(inner, states)

    def attend_projected(
        self, queries: Tensor, keys_and_values: Tensor, packed: Packed, query_rows: Tensor | None
    ) -> Tensor:
        """Attention (n, h e), (n, 2 g e) -> (n, h e), in runs of sentences of equal length.

        `query_rows` (b,) is the row of one query of each sentence.
        """
        attended = torch.empty_like(queries)
        query_positions: Tensor | None = None
        if query_rows is not None:
            query_positions = query_rows - packed.starts
        next_token = 0
        next_sentence = 0
        for length, run in groupby(packed.lengths):
            count = sum(1 for _ in run)
            tokens = slice(next_token, next_token + count * length)
            sentences = slice(next_sentence, next_sentence + count)
            next_token = tokens.stop
            next_sentence = sentences.stop

            # Queries (c, h, q, e), and keys and values (c, g, t, e) of the run.
            rows_of_run = tokens
            positions: Tensor | None = None
            if query_positions is not None:
                rows_of_run = sentences
                positions = query_positions[sentences]
            query = queries[rows_of_run].view(count, -1, self.heads, self.head_size).transpose(1, 2)
            keys_and_values_of_run = keys_and_values[tokens]
            by_part = keys_and_values_of_run.view(count, -1, 2, self.key_heads, self.head_size)
            key, value = by_part.permute(2, 0, 3, 1, 4)

            keys_of_query = length
            if self.attention_window:
                # a window has keys on both sides of its query
                keys_of_query = min(length, 2 * self.attention_window)
            attention = short_attention if keys_of_query <= LONGEST_RUN else blockwise_attention
            mask = with_bias(None, packed.bias, length, positions)
            mixed = windowed(
                attention,
                query,
                key,
                value,
                mask,
                self.attention_window,
                positions,
                causal=packed.causal,
            )
            attended_of_run = attended[rows_of_run].view(count, -1, self.heads, self.head_size)
            attended_of_run.copy_(mixed.transpose(1, 2))  # a view, so this fills `attended`
        return attended


class CudaBlock(InferenceBlock):
    """One product for queries, keys and values, a kernel for attention, and one for the norm of a
    sum.
    """

    def __init__(self, block: Block, activation: str, add_norm: AddNorm | None) -> None:
        super().__init__(block, activation, float_matmul)
        self.joined = float_matmul(*detached(block.qkv))
        if add_norm is not None and isinstance(block.mix_norm, nn.LayerNorm):
            self.mixed = with_norm(self.mixed, block.mix_norm, add_norm)
            self.mix_norm = nn.Identity()
        if add_norm is not None and isinstance(block.norm, nn.LayerNorm):
            self.outer = with_norm(self.outer, block.norm, add_norm)
            self.norm = nn.Identity()

    def attend(self, states: Tensor, packed: Packed, query_rows: Tensor | None) -> Tensor:
        if query_rows is None or not packed.causal:
            return super().attend(states, packed, query_rows)
        # the kernel lets one query attend to all keys
        return super().attend(states, packed, None)[query_rows]

    def project(
        self, states: Tensor, query_states: Tensor, query_rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if query_rows is not None:
            return super().project(states, query_states, query_rows)
        columns = [self.heads * self.head_size, 2 * self.key_heads * self.head_size]
        queries, keys_and_values = self.joined(states, None).split(columns, 1)
        return queries, keys_and_values

    def attend_projected(
        self, queries: Tensor, keys_and_values: Tensor, packed: Packed, query_rows: Tensor | None
    ) -> Tensor:
        # The kernel counts the window from the last query.
        if query_rows is not None and self.attention_window:
            return super().attend_projected(queries, keys_and_values, packed, query_rows)
        [query] = by_head(queries, self.head_size, self.heads)
        key, value = by_head(keys_and_values, self.head_size, self.key_heads, self.key_heads)
        return packed_attention(
            (query, key, value), packed, single=query_rows is not None, window=self.attention_window
        )


def with_norm(matmul: Matmul, norm: nn.LayerNorm, add_norm: AddNorm) -> Matmul:
    def normed(values: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None, "the norm follows a residual connection"
        return add_norm(matmul(values, None), residual, norm)

    return normed


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention (c, h, q, e) that stores all scores. It computes in float32, or in float64 for
    float64.

    A mask of numbers is added to the scores.

    For products of bfloat16, oneDNN compiles and keeps a kernel for each shape, and there are many
    shapes. The softmax of torch first subtracts the maximum of each row, and is slow for short
    rows. Scores of trained encoders are far below 88, where exponentials overflow. If a sum is not
    usable, softmax runs.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    # Products copy tensors that are not contiguous; the results of these casts are contiguous.
    query = query.to(dtype, memory_format=torch.contiguous_format)
    key = key.to(dtype, memory_format=torch.contiguous_format)
    value = value.to(dtype, memory_format=torch.contiguous_format)
    scores = product(query, key.transpose(-2, -1)).mul_(query.shape[-1] ** -0.5)
    if causal:
        mask = masked_after(mask, key)
    if mask is not None and mask.is_floating_point():
        scores = scores.add_(mask)
    elif mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)
    weights = scores.exp()
    sums = weights.sum(-1, keepdim=True)
    are_usable = (sums > SMALLEST_SUM) & (sums < LARGEST_SUM)
    if bool(are_usable.all()):
        return product(weights, value).div_(sums)
    return product(scores.softmax(-1), value)


# How much of the ranges of states and of attended values the weights take over, from 0 to 1.
SHARE_OF_STATES = 0.8
SHARE_OF_ATTENDED = 0.5
# Of the largest range: columns that are nearly 0 in the calibration texts can be larger elsewhere.
SMALLEST_RANGE = 1e-3
HEADROOM = 1.4  # inner values can be larger than those of the calibration texts
FLOAT_COLUMNS = 128  # inner columns in floating point, for each COLUMNS_PER_SHARE columns
COLUMNS_PER_SHARE = 1536
LARGEST_UNSIGNED = 255


class Recorder:
    """A layer in floating point that records the range of each of its inputs, with 0."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight = weight
        self.bias = bias
        self.activation = activation
        self.matmul = float_matmul(weight, bias, activation)
        self.minima = torch.zeros(weight.shape[1])
        self.maxima = torch.zeros(weight.shape[1])

    def __call__(self, values: Tensor, residual: Tensor | None) -> Tensor:
        self.minima = self.minima.minimum(values.amin(0))
        self.maxima = self.maxima.maximum(values.amax(0))
        return self.matmul(values, residual)

    @property
    def largest(self) -> Tensor:
        """The largest absolute value of each input (k,)."""
        return self.maxima.maximum(-self.minima)


class Int8Block(InferenceBlock):
    def __init__(self, block: InferenceBlock) -> None:
        """The layers of `block` are Recorders."""
        self.copy_sizes_and_norms(block)
        query = cast(Recorder, block.query)
        key_value = cast(Recorder, block.key_value)
        mix = cast(Recorder, block.mixed)
        up = cast(Recorder, block.inner)
        gate = cast(Recorder | None, block.gate)
        down = cast(Recorder, block.outer)

        # Attention.
        factors = factors_of(
            key_value.largest, torch.cat([query.weight, key_value.weight]), SHARE_OF_STATES
        )
        self.query = integer_matmul(query, factors)
        self.key_value = integer_matmul(key_value, factors)
        self.mixed = integer_matmul(mix, factors_of(mix.largest, mix.weight, SHARE_OF_ATTENDED))

        # The inner columns with the largest values, which stay in floating point, and the others.
        inner = len(up.weight)
        shares = math.ceil(inner / COLUMNS_PER_SHARE)
        large_count = min(FLOAT_COLUMNS * shares, inner // 2)  # at most half of them
        order = down.largest.argsort(descending=True, stable=True)
        # Both in the order of the weights in memory.
        large = order[:large_count].sort().values
        small = order[large_count:].sort().values

        # The two dense layers.
        self.up_factors = factors_of(up.largest, up.weight, SHARE_OF_STATES)
        self.inner_columns: PlainInner | GatedInner
        if gate is None:
            self.inner_columns = PlainInner(up, down, self.up_factors, large, small)
        else:
            self.inner_columns = GatedInner(up, gate, down, self.up_factors, large, small)
        self.down_large = float_matmul(down.weight[:, large], down.bias)

    def add_inner(self, inputs: Tensor, states: Tensor) -> Tensor:
        integers = centered(inputs, self.up_factors)
        large, small = self.inner_columns(integers, states.dtype)
        sums = self.down_large(large, states)
        return self.inner_columns.down_small.to_float(small, states.dtype, sums)


class PlainInner:
    """The inner columns of a block without gates: the large ones in floating point, the small ones
    as integers. The product of these with `down_small` is the rest of the second dense layer.
    """

    def __init__(
        self, up: Recorder, down: Recorder, factors: Tensor, large: Tensor, small: Tensor
    ) -> None:
        self.up_small = int8_rows(up, small, factors)
        self.up_large = int8_rows(up, large, factors)
        self.scale, self.zero = unsigned_scale(down.minima[small], down.maxima[small])
        self.down_small = Int8Matmul(down.weight[:, small], None)

    def __call__(self, inputs: Integers, dtype: torch.dtype) -> tuple[Tensor, Integers]:
        large = self.up_large.to_float(inputs, dtype)
        return large, self.up_small.to_integers(inputs, self.scale, self.zero)


class GatedInner:
    """The inner columns of a block with gates, as those of `PlainInner`.

    No integer kernel multiplies values by their gates, so the products are floating point, and are
    rounded.
    """

    def __init__(
        self,
        up: Recorder,
        gate: Recorder,
        down: Recorder,
        factors: Tensor,
        large: Tensor,
        small: Tensor,
    ) -> None:
        self.up_small = int8_rows(up, small, factors)
        self.up_large = int8_rows(up, large, factors)
        self.gate_small = int8_rows(gate, small, factors)
        self.gate_large = int8_rows(gate, large, factors)
        self.down_factors = factors_of(
            down.largest[small], down.weight[:, small], SHARE_OF_ATTENDED
        )
        self.down_small = Int8Matmul(down.weight[:, small] / self.down_factors, None)

    def __call__(self, inputs: Integers, dtype: torch.dtype) -> tuple[Tensor, Integers]:
        large = self.up_large.to_float(inputs, dtype)
        large.mul_(self.gate_large.to_float(inputs, dtype))
        gates = self.gate_small.to_float(inputs, dtype)
        small = self.up_small.to_float(inputs, dtype).mul_(gates)
        return large, centered(small, self.down_factors)


def int8_rows(layer: Recorder, rows: Tensor, factors: Tensor) -> Int8Matmul:
    """Return the layer with only these outputs, for inputs that are multiplied by the factors."""
    bias = None if layer.bias is None else layer.bias[rows]
    return Int8Matmul(layer.weight[rows] / factors, bias, layer.activation)


def integer_matmul(layer: Recorder, factors: Tensor) -> Matmul:
    int8 = Int8Matmul(layer.weight / factors, layer.bias)
    return lambda values, residual: int8.to_float(centered(values, factors), values.dtype, residual)


def factors_of(largest: Tensor, weight: Tensor, share: float) -> Tensor:
    """Return the factors (k,) of inputs: the largest absolute input becomes LARGEST_INPUT.

    `largest` (k,) are the largest absolute inputs, and `weight` is (m, k). With a share of 0 the
    factors make the ranges of the weights equal, with 1 those of the inputs.
    """
    columns = weight.abs().amax(0)
    columns = columns.clamp_min(SMALLEST_RANGE * columns.max() + 1e-30)
    largest = largest.clamp_min(SMALLEST_RANGE * largest.max() + 1e-30)
    factors = columns ** (1 - share) / largest**share
    factors *= LARGEST_INPUT / (factors * largest).max()
    return factors


def unsigned_scale(minima: Tensor, maxima: Tensor) -> tuple[float, int]:
    """Return the scale and the zero point of unsigned integers for values in these ranges."""
    low = HEADROOM * float(minima.min())
    high = HEADROOM * float(maxima.max())
    scale = max((high - low) / LARGEST_UNSIGNED, 1e-30)
    return scale, round(-low / scale)


def use_int8(
    bert: Bert, checkpoint: Checkpoint, tokenizer: Tokenizer, run: Callable[[TokenBlock], Arrays]
) -> tuple[list[dict[str, float]], int]:
    """Replace the blocks of an encoder in float32. Only the checkpoint determines the scales.

    Returns the loss of each readout, which is the lowest and the mean cosine with the vectors
    before, and the number of texts. `run` encodes them.
    """
    path = Path(__file__).with_name("int8_texts.txt")
    texts = path.read_text(encoding="utf-8").splitlines()

    def usable_tokens(tokenizer: Tokenizer) -> TokenBlock:
        tokens = tokenizer(texts)
        return tokens.take([index for index in range(len(tokens)) if index not in tokens.problems])

    # The vectors before.
    tokens = usable_tokens(tokenizer)
    exact = run(tokens)
    check_finite([torch.from_numpy(vectors) for vectors in exact], checkpoint.name)

    # The tokenizer of the checkpoint, because that of the caller can have a prompt or another
    # length.
    tokenizer_for_scales = Tokenizer(
        checkpoint,
        max_length=max_length(checkpoint, None),
        lowercase=checkpoint.declaration.lowercase,
    )
    sequences = [text.ids for text in usable_tokens(tokenizer_for_scales)]
    use_integers(bert, pack(sorted(sequences, key=len)), checkpoint.name)

    losses = []
    for exact_vectors, rounded_vectors in zip(exact, run(tokens), strict=True):
        cosines = cosines_of_rows(
            exact_vectors.astype(np.float64), rounded_vectors.astype(np.float64)
        )
        losses.append(
            {"lowest": round(float(cosines.min()), 4), "mean": round(float(cosines.mean()), 4)}
        )
    return losses, len(tokens)


def cosines_of_rows(a: Float64, b: Float64) -> Float64:
    """Return the cosine of each row of a (n, d) with that of b; 0 for a row of zeros."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: Float64 = (a * b).sum(1) / np.where(norms == 0, 1.0, norms)
    return cosines


def use_integers(bert: Bert, packed: Packed, name: str) -> None:
    """Replace the blocks by those with the ranges of this batch; all other operations are in
    float32.
    """
    replace_blocks(
        bert, lambda block: InferenceBlock(block, bert.architecture.activation, Recorder)
    )
    with torch.inference_mode():
        *_, last = bert.states(packed)
        check_finite([last], name)
    replace_blocks(bert, Int8Block)


def check_finite(arrays: Sequence[Tensor], name: str) -> None:
    if not arrays or not all(bool(values.isfinite().all()) for values in arrays):
        problem = "the model has no finite vectors for the texts of the package, which int8 needs"
        raise DataError(problem, source=name, advice="use --precision fp32")
