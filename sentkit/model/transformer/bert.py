"""One transformer for all families of `architecture.py`, over packed sentences.

The families differ only in the values of `Architecture` and the names in `architecture.py`. X(k) are the
token states after block k; X(0) are the states after the embeddings. Axes: b sentences, n tokens, d the
width, h heads; in attention, c sentences of at most t tokens (`Groups`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.architecture import Architecture, buckets_of, stored_layers
from sentkit.model.transformer.flash import HALF, Kernel, kernel_for_training, packed_attention
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


class Block(nn.Module):
    """Self-attention and two dense layers, each with a residual connection and a LayerNorm."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, epsilon = architecture.width, architecture.norm_epsilon
        self.heads = architecture.heads
        self.activation = ACTIVATIONS[architecture.activation]
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mix_norm = nn.LayerNorm(width, epsilon)
        self.up = nn.Linear(width, architecture.inner)
        self.down = nn.Linear(architecture.inner, width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.dropout = Dropout(architecture.dropout)
        self.attention_dropout = architecture.attention_dropout
        self.kernel: Kernel | None = None  # see `attend_packed`

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
        attended = self.attend(states, packed) if only is None else self.attend_only(states, packed, only)
        if only is not None:
            states = states[only]  # (b, d)
        states = self.mix_norm(self.added(self.mix(attended), states))
        if between is not None:
            states = between(states)
        return self.norm(self.added(self.down(self.activation(self.up(states))), states))

    def added(self, change: Tensor, states: Tensor) -> Tensor:
        """Return `states` plus the change after dropout, with the dtype of `states`.

        Under autocast the change is bfloat16 and `states` are float32. The sum stays in float32, because
        bfloat16 sums lose small changes in every block. Dropout follows the cast, because bfloat16 also
        rounds its scale 1 / (1 - p): 1.109 instead of 1.111.
        """
        # In-place addition is safe: the backward pass of a product or dropout does not use the output.
        return self.dropout(change.to(states.dtype)).add_(states)

    def attend(self, states: Tensor, packed: Packed) -> Tensor:
        values = F.linear(states, self.qkv.weight, self.qkv.bias)  # (n, 3 d)
        if self.kernel is not None and packed.bias is None and values.dtype in HALF:
            width = states.shape[-1]
            queries, pairs = values[: packed.tokens].split((width, 2 * width), 1)
            return with_rows(self.packed_attention(self.kernel, queries, pairs, packed), len(states))
        groups = packed.groups
        padded = groups.pad(values)  # (c, t, 3 d) of each group
        mixed = [
            self.attention(with_bias(mask, packed.bias, qkv.shape[1]), *self.by_head(qkv, 3))
            for qkv, mask in zip(padded, groups.masks, strict=True)
        ]
        return with_rows(groups.unpad(mixed), len(states))

    def attend_only(self, states: Tensor, packed: Packed, only: Tensor) -> Tensor:
        """Return the attention output of the rows `only`, one for each sentence, (b, d)."""
        width = states.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        queries = F.linear(states[only], weight[:width], bias[:width])  # (b, d)
        pairs = F.linear(states, weight[width:], bias[width:])  # (n, 2 d)
        if self.kernel is not None and packed.bias is None and pairs.dtype in HALF:
            return self.packed_attention(self.kernel, queries, pairs[: packed.tokens], packed, single=True)
        groups = packed.groups
        places = groups.split((only - packed.starts)[:, None])  # (c, 1, 1), in their sentences
        parts = zip(groups.split(queries), groups.pad(pairs), groups.masks, places, strict=True)
        return groups.join(
            [
                self.attention(
                    with_bias(mask, packed.bias, pair.shape[1], place.flatten()),
                    *self.by_head(query, 1),
                    *self.by_head(pair, 2),  # (c, 1 or t, d)
                )
                for query, pair, mask, place in parts
            ]
        )

    def packed_attention(
        self, kernel: Kernel, queries: Tensor, pairs: Tensor, packed: Packed, *, single: bool = False
    ) -> Tensor:
        dropout = self.attention_dropout if self.training else 0.0
        return packed_attention(kernel, queries, pairs, packed, self.heads, single=single, dropout=dropout)

    def by_head(self, values: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (c, t, parts * d) into `parts` views (c, h, t, d / h)."""
        return values.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def attention(self, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Depends on the mode, not on gradients: a training pass without gradients must draw the same dropout.
        if self.training:
            mixed = plain_attention(query, key, value, mask, self.attention_dropout)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (c, h, t, d / h)
        return mixed.transpose(1, 2).flatten(2)  # (c, t, d)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
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


def with_rows(values: Tensor, rows: int) -> Tensor:
    return F.pad(values, (0, 0, 0, rows - len(values))) if rows > len(values) else values


def attend_packed(model: nn.Module, device: torch.device) -> None:
    """Let all blocks of a model in training on a GPU attend without padding, where the kernel is right."""
    kernel = cache(kernel_for_training)
    for block in model.modules():
        if isinstance(block, Block):
            block.kernel = kernel(block.heads, block.norm.normalized_shape[0], device)


class Bert(nn.Module):
    def __init__(self, architecture: Architecture, *, pooler: bool = False) -> None:
        super().__init__()
        narrow, width = architecture.embedding_width, architecture.width
        self.architecture = architecture
        self.words = table(architecture.vocabulary, narrow)
        self.positions = table(architecture.positions, narrow)
        self.types = table(architecture.types, narrow) if architecture.types else None
        self.norm = nn.LayerNorm(narrow, architecture.norm_epsilon)
        self.dropout = Dropout(architecture.dropout)
        self.projection = nn.Linear(narrow, width) if narrow != width else None
        self.relative = table(architecture.buckets, architecture.heads) if architecture.buckets else None
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.depth))
        self.pooler = nn.Linear(width, width) if pooler else None
        self.convolution: Convolution | None = None

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
        packed = self.with_bias(packed)
        if states.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            states = with_rows(states, packed.tokens + spare_tokens(packed.tokens))
        for number, block in enumerate(blocks, start=1):
            one = only if number == len(blocks) else None
            states = block(states, packed, one)
            yield states[: packed.tokens] if one is None else states

    def embed(self, packed: Packed) -> Tensor:
        assert packed.longest <= self.max_tokens, "a sentence longer than the encoder's positions"
        table = self.positions.weight
        if self.types is not None and packed.types is None:
            table = table + self.types.weight[0]  # every token belongs to the first segment
        rows = packed.positions + self.architecture.position_offset
        states = self.words(packed.ids) + F.embedding(rows, table)
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
        for kind in ("weight", "bias"):
            parts = [state.pop(f"blocks.{block}.{part}.{kind}") for part in FUSED]
            state[f"blocks.{block}.qkv.{kind}"] = torch.cat(parts)
    return state


def split(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `fuse`."""
    parts = dict(state)
    for name in [name for name in state if ".qkv." in name]:
        for part, piece in zip(FUSED, parts.pop(name).chunk(3), strict=True):
            parts[name.replace("qkv", part)] = piece
    return parts
