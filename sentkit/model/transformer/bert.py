"""One transformer for all families of `architecture.py`, over packed sentences.

The families differ only in the values of `Architecture` and the names in `architecture.py`. X(k) are the
token states after block k; X(0) are the states after the embeddings. Axes: b sentences, n tokens, d the
width, h heads; in attention, c sentences of at most t tokens (`Groups`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.small_encoder import buckets_of
from sentkit.model.transformer.architecture import Architecture, stored_layers
from sentkit.model.transformer.gpu_kernels import HALF, Kernel, by_head, kernel_for_training, packed_attention
from sentkit.model.transformer.graphs import Graphs, Run
from sentkit.model.transformer.packed import Packed, spare_tokens
from sentkit.model.transformer.readouts import Convolution
from sentkit.model.transformer.weights import aligned

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,  # for poolers
}
FUSED = ("query", "key", "value")  # one product instead of three: `qkv`


class Dropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.p) if self.training else values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set values to 0 with the probability `rate`, and multiply the others by 1 / (1 - rate).

    The CPU kernel of torch needs four times as long. The seed is a draw of torch, so that the state of its
    generator determines all dropout. The numbers do not depend on threads.
    """
    if not rate:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    count, kind = values.numel(), np.float64 if values.dtype == torch.float64 else np.float32
    seed = int(torch.empty((), dtype=torch.int64).random_())
    numbers = np.random.SFC64(seed).random_raw((count + 1) // 2).view(np.int32)[:count]
    kept = (numbers >= round(rate * 2**32) - 2**31).view(np.uint8)
    factors = np.multiply(kept, kind(1 / (1 - rate)), dtype=kind).reshape(values.shape)
    return values * torch.from_numpy(factors).to(values.dtype)


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def gate(values: Tensor) -> Tensor:
        inner, gates = values.chunk(2, -1)
        return activation(inner) * gates

    return gate


def make_norm(architecture: Architecture, width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, architecture.norm_epsilon, bias=architecture.kind.biases)


class Block(nn.Module):
    """Self-attention and two dense layers, each with a residual connection, and the norms of the family."""

    def __init__(self, architecture: Architecture, number: int = 0) -> None:
        super().__init__()
        width, linear = architecture.width, partial(nn.Linear, bias=architecture.kind.biases)
        modules = architecture.modules(number)

        def norm(name: str) -> nn.Module:
            return make_norm(architecture, width) if name in modules else nn.Identity()

        self.heads, self.size = architecture.heads, width // architecture.heads
        self.window = architecture.windows[number] if architecture.windows else 0
        self.base = architecture.bases[number] if architecture.bases else 0.0
        activation = ACTIVATIONS[architecture.activation]
        self.activation = gated(activation) if architecture.kind.gated else activation
        self.input_norm = norm("input_norm")
        self.qkv = linear(width, 3 * width)
        self.mix = linear(width, width)
        self.mix_norm = norm("mix_norm")
        self.inner_norm = norm("inner_norm")
        self.up = linear(width, architecture.expanded)
        self.down = linear(architecture.inner, width)
        self.norm = norm("norm")
        self.mix_dropout, self.inner_dropout, self.dropout = map(Dropout, architecture.dropouts)
        self.attention_dropout = architecture.attention_dropout
        self.kernel: Kernel | None = None  # for training on a GPU

    def forward(
        self,
        states: Tensor,
        packed: Packed,
        only: Tensor | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return X(k) from X(k - 1), (n, d); or (b, d) if `only` selects one row of each sentence.

        `between` changes the states after the attention, as the cross-attention of a decoder does. `states`
        can have more than n rows: the result has them too, and their values have no meaning.
        """
        inputs = self.input_norm(states)
        attended = self.attend(inputs, packed) if only is None else self.attend_only(inputs, packed, only)
        if only is not None:
            states = states[only]  # (b, d)
        states = self.mix_norm(self.added(self.mix(attended), states, self.mix_dropout))
        if between is not None:
            states = between(states)
        inner = self.inner_dropout(self.activation(self.up(self.inner_norm(states))))
        return self.norm(self.added(self.down(inner), states, self.dropout))

    def added(self, change: Tensor, states: Tensor, dropout: nn.Module) -> Tensor:
        """Return `states` plus the change after dropout, with the dtype of `states`.

        Under autocast the change is bfloat16 and `states` are float32. The sum stays in float32, because
        bfloat16 sums lose small changes in every block. Dropout follows the cast, because bfloat16 also
        rounds its scale 1 / (1 - p): 1.109 instead of 1.111.
        """
        # In-place addition is safe: the backward pass of a product or dropout does not use the output.
        result: Tensor = dropout(change.to(states.dtype)).add_(states)
        return result

    def attend(self, states: Tensor, packed: Packed) -> Tensor:
        values = F.linear(states, self.qkv.weight, self.qkv.bias)  # (n, 3 d)
        values = self.rotated(values, packed.positions, 2)
        if (kernel := self.kernel_for(values, packed)) is not None:
            parts = by_head(values[: packed.tokens], 3, self.heads)
            return with_rows(packed_attention(kernel, parts, packed, dropout=self.rate), len(states))
        groups = packed.groups
        padded = groups.pad(values)  # (c, t, 3 d) of each group
        mixed = [
            self.attention(with_bias(mask, packed.bias, qkv.shape[1]), *self.by_head(qkv, 3))
            for qkv, mask in zip(padded, groups.masks, strict=True)
        ]
        return with_rows(groups.unpad(mixed), len(states))

    def attend_only(self, states: Tensor, packed: Packed, only: Tensor) -> Tensor:
        """Return the attention output of the rows `only`, one for each sentence, (b, d)."""
        query, pair = ends_of(self.qkv.weight, self.qkv.bias, states.shape[-1])
        queries = self.rotated(F.linear(states[only], *query), packed.positions[only], 1)  # (b, d)
        pairs = self.rotated(F.linear(states, *pair), packed.positions, 1)  # (n, 2 d)
        if (kernel := self.kernel_for(pairs, packed)) is not None:
            own = *by_head(queries, 1, self.heads), *by_head(pairs[: packed.tokens], 2, self.heads)
            return packed_attention(kernel, own, packed, single=True, dropout=self.rate)
        groups = packed.groups
        places = groups.split((only - packed.starts)[:, None])  # (c, 1, 1), in their sentences
        parts = zip(groups.split(queries), groups.pad(pairs), groups.masks, places, strict=True)
        return groups.join(
            [
                self.attention(
                    with_bias(mask, packed.bias, pair.shape[1], place.flatten()),
                    *self.by_head(query, 1),
                    *self.by_head(pair, 2),  # (c, 1 or t, d)
                    places=place.flatten(),
                )
                for query, pair, mask, place in parts
            ]
        )

    def kernel_for(self, values: Tensor, packed: Packed) -> Kernel | None:
        """The kernel for these values, if it has no bias of relative positions and no window to add."""
        return self.kernel if packed.bias is None and not self.window and values.dtype in HALF else None

    @property
    def rate(self) -> float:
        """The rate of dropout of attention weights."""
        return self.attention_dropout if self.training else 0.0

    def by_head(self, values: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (c, t, parts * d) into `parts` views (c, h, t, d / h)."""
        return values.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def rotated(self, values: Tensor, positions: Tensor, parts: int) -> Tensor:
        columns = parts * self.heads * self.size
        return rotated(values, positions, self.base, columns, self.size) if self.base else values

    def attention(
        self, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *, places: Tensor | None = None
    ) -> Tensor:
        """Return the mixed values (c, q, d). `places` (c,) are those of one query for each sentence."""
        # Depends on the mode, not on gradients: a training pass without gradients must draw the same dropout.
        if self.training:
            kernel: Attention = partial(plain_attention, dropout=self.attention_dropout)
        else:
            kernel = F.scaled_dot_product_attention  # (c, h, q, d / h)
        mixed = windowed(kernel, query, key, value, mask, self.window, places)
        return mixed.transpose(1, 2).flatten(2)


Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # query, key, value, mask


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """Attention with plain products, (b, h, t, d / h). The backward pass is faster for short sentences.

    Scale, mask and softmax use at least float32, independent of the dtype of the products. A mask of numbers
    is added to the scores.
    """
    scores = query @ key.transpose(-2, -1)  # (b, h, t, t)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if mask is not None and mask.is_floating_point():
        shut = mask.to(dtype)
    else:
        shut = scores.new_zeros((1,) if mask is None else mask.shape, dtype=dtype)
        if mask is not None:
            shut.masked_fill_(~mask, -torch.inf)
    weights = torch.add(shut, scores, alpha=query.shape[-1] ** -0.5).softmax(-1)
    return drop(weights, dropout).to(value.dtype) @ value


def with_bias(
    mask: Tensor | None, bias: Tensor | None, longest: int, places: Tensor | None = None
) -> Tensor | None:
    """Return a mask (c or 1, 1, t or 1, t) with the bias of relative positions, as numbers to add to scores.

    `places` (c,) are the positions of one query for each sentence; without them, each token is a query.
    """
    if bias is None:
        return mask
    if places is None:
        added = bias[None, :, :longest, :longest]
    else:
        added = bias[:, places, :longest].transpose(0, 1).unsqueeze(2)  # (c, h, 1, t)
    return added if mask is None else added.masked_fill(~mask, -torch.inf)


def ends_of(weight: Tensor, bias: Tensor | None, width: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield weight and bias of the first `width` outputs, and of the others."""
    for part in (slice(0, width), slice(width, None)):
        yield weight[part], None if bias is None else bias[part]


def rotated(values: Tensor, positions: Tensor, base: float, columns: int, size: int) -> Tensor:
    """Rotate the first columns of values (n, k), heads of this size, by their positions (n,).

    A pair of numbers that rotates has one number in each half of a head. Angles are float32, as in
    transformers. Rows after the last position are dropped.
    """
    speeds = 1.0 / base ** (torch.arange(0, size, 2, device=values.device).float() / size)
    angles = positions[:, None].float() * speeds
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]  # (n, 1, size / 2)
    chosen, others = values[: len(positions)].tensor_split([columns], 1)
    left, right = (
        chosen.unflatten(1, (-1, size)).to(torch.promote_types(values.dtype, torch.float32)).chunk(2, -1)
    )
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1).flatten(1)
    return torch.cat([turned.to(values.dtype), others], 1)


def windowed(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int,
    places: Tensor | None = None,
) -> Tensor:
    """Attention (c, h, q, e) to the keys that are at most `window` tokens away; 0: to all.

    Long sentences are cut into bands of `window` queries, whose keys are in three such bands, so that memory
    grows with the tokens. A query of the padding attends to itself, because a softmax over nothing is not a
    number. `places` (c,) are the positions of one query for each sentence. A mask of booleans
    is (c or 1, 1, 1 or t, t).
    """
    count, _, tokens, _ = key.shape
    if not window or tokens <= window + 1:
        return attention(query, key, value, mask)
    own = torch.arange(tokens, device=key.device)
    if places is not None or (mask is not None and mask.shape[2] > 1):  # one query, or a decoder
        at = own[:, None] if places is None else places[:, None, None, None]
        near = (own - at).abs() <= window
        if mask is not None:
            near = (near & mask) | (own == at)
        return attention(query, key, value, near)
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
    mixed = attention(query, key, value, near.flatten(0, 1)[:, None])
    return mixed.unflatten(0, (count, bands)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def with_rows(values: Tensor, rows: int) -> Tensor:
    return F.pad(values, (0, 0, 0, rows - len(values))) if rows > len(values) else values


def attend_packed(model: nn.Module, device: torch.device) -> None:
    """Let all blocks of a model in training on a GPU attend without padding, where the kernel is right.

    Short passes of blocks that use nothing else of a batch run as graphs.
    """
    kernel = cache(kernel_for_training)
    for module in model.modules():
        if isinstance(module, Block):
            module.kernel = kernel(module.heads, module.heads * module.size, device)
    for module in model.modules():
        if isinstance(module, Bert):
            shape, blocks = module.architecture, cast(Sequence[Block], module.blocks)
            plain = not (shape.windows or shape.bases or shape.buckets)
            if plain and all(block.kernel is not None for block in blocks):
                module.graphs = Graphs(blocks)


def stop_graphs(model: nn.Module) -> bool:
    """Run without graphs from now on. Return true if this frees memory."""
    graphs = [each.graphs for each in model.modules() if isinstance(each, Bert) and each.graphs is not None]
    active = [each for each in graphs if each.chains]
    for each in active:
        each.stop()
    return bool(active)


class Bert(nn.Module):
    def __init__(self, architecture: Architecture, *, pooler: bool = False) -> None:
        super().__init__()
        narrow, width = architecture.embedding_width, architecture.width
        self.architecture = architecture
        self.words = table(architecture.vocabulary, narrow)
        self.positions = None if architecture.kind.rotary else table(architecture.positions, narrow)
        self.types = table(architecture.types, narrow) if architecture.types else None
        self.norm = make_norm(architecture, narrow)
        self.dropout = Dropout(architecture.dropout)
        self.projection = nn.Linear(narrow, width) if narrow != width else None
        self.relative = table(architecture.buckets, architecture.heads) if architecture.buckets else None
        self.blocks = nn.ModuleList(Block(architecture, number) for number in range(architecture.depth))
        self.pooler = nn.Linear(width, width) if pooler else None
        self.convolution: Convolution | None = None
        self.graphs: Graphs | None = None  # for training on a GPU

    @property
    def depth(self) -> int:
        return self.architecture.depth

    @property
    def width(self) -> int:
        return self.architecture.width

    @property
    def max_tokens(self) -> int:
        return self.architecture.max_tokens

    @property
    def has_pooler(self) -> bool:
        return self.pooler is not None

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Callable[[Tensor], Tensor] | None = None,
        only: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0), X(1) .. X(deepest), each (n, d), and compute each state on demand.

        `disturb` changes X(0) before the first use. `only` selects one row of each sentence: the last block
        computes only these rows, and the last state is (b, d).
        """
        blocks = self.blocks if deepest is None else self.blocks[:deepest]
        states = self.embed(packed)
        if disturb is not None:
            states = disturb(states)
        yield states
        packed = whole = self.with_bias(packed)
        run: Run | None = None
        lowered = torch.is_autocast_enabled(states.device.type)
        if self.graphs is not None and lowered:
            whole = packed.filled()
            states = with_rows(states, whole.tokens)
            run = self.graphs.runner(len(blocks) - (only is not None), whole, states)
        elif states.device.type == "cpu" and lowered:
            states = with_rows(states, packed.tokens + spare_tokens(packed.tokens))
        for number, block in enumerate(blocks):
            if only is not None and number == len(blocks) - 1:
                yield block(states, packed, only)
                return
            states = block(states, whole) if run is None else run(number, states)
            result = states[: packed.tokens]
            yield result if run is None or result.requires_grad else result.clone()

    def embed(self, packed: Packed) -> Tensor:
        assert packed.longest <= self.max_tokens, "a sentence longer than the encoder's positions"
        states = self.words(packed.ids)
        if self.positions is not None:
            table = self.positions.weight
            if self.types is not None and packed.types is None:
                table = table + self.types.weight[0]  # every token belongs to the first segment
            states = states + F.embedding(packed.positions + self.architecture.position_offset, table)
        if packed.types is not None:
            assert self.types is not None, "an encoder without segments"
            states = states + self.types(packed.types)
        states = self.dropout(self.norm(states))
        if self.projection is not None:
            states = self.projection(states).to(states.dtype)  # products are bfloat16 under autocast
        return states  # (n, d)

    def with_bias(self, packed: Packed) -> Packed:
        """Return the batch with the bias of relative positions, which all blocks use."""
        if self.relative is None:
            return packed
        rows = packed.to_device(buckets_of(packed.longest))
        return replace(packed, bias=self.relative(rows).permute(2, 0, 1).contiguous())

    def pooled(self, vectors: Tensor) -> Tensor:
        """Apply the pooler to one vector for each sentence, (b, d) -> (b, d)."""
        assert self.pooler is not None, "this encoder has no pooler"
        return ACTIVATIONS[self.architecture.pooler_activation](self.pooler(vectors))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights and biases of all layers. A layer can compute its weight, as with LoRA."""
        for name, module in self.named_modules():
            for kind in ("weight", "bias"):
                value = getattr(module, kind, None)
                if value is not None:
                    yield f"{name}.{kind}", value

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the weights under the Hugging Face names that AutoModel reads."""
        state = split(dict(self.weights()))
        return {
            name: state[f"{layer.ours}.{name.rpartition('.')[2]}"].detach().clone()
            for layer in stored_layers(self.architecture, pooler=self.has_pooler)
            for name in layer.shapes()
        }


def table(rows: int, width: int) -> nn.Embedding:
    # nn.Embedding(rows, width) draws random numbers. On the meta device this causes imports of two seconds.
    return nn.Embedding.from_pretrained(torch.zeros(rows, width), freeze=False)


def load_bert(tensors: Mapping[str, Tensor], architecture: Architecture) -> Bert:
    """Return the encoder in evaluation mode, with weights from `canonical` that `fit` accepts."""
    pooler = any(name.startswith("pooler.") for name in tensors)
    state = {
        f"{layer.ours}.{name.rpartition('.')[2]}": tensors[name]
        for layer in stored_layers(architecture, pooler=pooler)
        for name in layer.shapes()
    }
    for name in state.keys() & {"pooler.weight", "projection.weight"}:
        state[name] = aligned(state[name])
    with torch.device("meta"):  # the real weights follow, so allocate and draw nothing
        bert = Bert(architecture, pooler=pooler)
    bert.load_state_dict(fuse(state, architecture.depth), assign=True)
    return bert.requires_grad_().eval()


def fuse(state: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Join queries, keys and values of each block into one matrix; this removes the parts from `state`."""
    for block in range(depth):
        for kind in ("weight", "bias") if f"blocks.{block}.query.weight" in state else ():
            parts = [state.pop(f"blocks.{block}.{part}.{kind}") for part in FUSED]
            state[f"blocks.{block}.qkv.{kind}"] = torch.cat(parts)
    return state


def split(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same weights with the parts that `fuse` has joined."""
    parts = dict(state)
    for name in [name for name in state if ".qkv." in name]:
        for part, piece in zip(FUSED, parts[name].chunk(3), strict=True):
            parts[name.replace("qkv", part)] = piece
    return parts
