"""One transformer for all families of `families.py`, over packed sentences.

The families differ only in the values of `Architecture` and the names in `families.py`. X(k) are the
token states after block k; X(0) are the states after the embeddings. Axes: b sentences, n tokens, d the
width, h heads; in attention, c sentences of at most t tokens (`Groups`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.small_encoder import buckets_of
from sentkit.model.transformer.architecture import Architecture, stored_tensors
from sentkit.model.transformer.attention import (
    Attention,
    blockwise_attention,
    plain_attention,
    turned,
    turns_of,
    windowed,
    with_bias,
)
from sentkit.model.transformer.kernels.gpu_kernels import HALF, by_head, packed_attention, works
from sentkit.model.transformer.kernels.graphs import Graphs, Run
from sentkit.model.transformer.layers import ACTIVATIONS, Dropout, gated, make_norm
from sentkit.model.transformer.packed import Packed, ends_of, spare_tokens, with_rows
from sentkit.model.transformer.readouts import Convolution
from sentkit.model.transformer.weights import aligned


class Block(nn.Module):
    """Self-attention and two dense layers, each with a residual connection, and the norms of the family."""

    def __init__(self, architecture: Architecture, number: int = 0) -> None:
        super().__init__()
        modules, shapes = architecture.modules(number), architecture.shapes

        def norm(name: str) -> nn.Module:
            return make_norm(architecture, *shapes[name]) if name in modules else nn.Identity()

        def linear(name: str) -> nn.Linear:
            outputs, inputs = shapes[name]
            return nn.Linear(inputs, outputs, bias=architecture.kind.has_bias(name))

        self.heads, self.key_heads = architecture.heads, architecture.key_heads
        self.size = architecture.head_size
        self.window = architecture.windows[number] if architecture.windows else 0
        self.base = architecture.bases[number] if architecture.bases else 0.0
        activation = ACTIVATIONS[architecture.activation]
        self.activation = gated(activation) if architecture.kind.gated else activation
        self.input_norm = norm("input_norm")
        self.qkv = linear("qkv")
        self.query_norm, self.key_norm = norm("query_norm"), norm("key_norm")
        self.mix = linear("mix")
        self.mix_norm = norm("mix_norm")
        self.inner_norm = norm("inner_norm")
        self.up = linear("up")
        self.down = linear("down")
        self.norm = norm("norm")
        self.mix_dropout, self.inner_dropout, self.dropout = map(Dropout, architecture.dropouts)
        self.attention_dropout = architecture.attention_dropout
        self.packs = False  # whether attention uses the kernel for training on a GPU

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
        attended = self.attend(self.input_norm(states), packed, only)
        if only is not None:
            states = states[only]  # (b, d)
        states = self.mix_norm(self.add_mixed(attended, states))
        if between is not None:
            states = between(states)
        result: Tensor = self.norm(self.add_inner(self.inner_norm(states), states))
        return result

    def add_mixed(self, attended: Tensor, states: Tensor) -> Tensor:
        return self.added(self.mix(attended), states, self.mix_dropout)

    def add_inner(self, inputs: Tensor, states: Tensor) -> Tensor:
        """Return `states` plus the result of the two dense layers for the inputs."""
        inner = self.inner_dropout(self.activation(self.up(inputs)))
        return self.added(self.down(inner), states, self.dropout)

    def added(self, change: Tensor, states: Tensor, dropout: nn.Module) -> Tensor:
        """Return `states` plus the change after dropout, with the dtype of `states`.

        Under autocast the change is bfloat16 and `states` are float32. The sum stays in float32, because
        bfloat16 sums lose small changes in every block. Dropout follows the cast, because bfloat16 also
        rounds its scale 1 / (1 - p): 1.109 instead of 1.111.
        """
        # In-place addition is safe: the backward pass of a product or dropout does not use the output.
        result: Tensor = dropout(change.to(states.dtype)).add_(states)
        return result

    def attend(self, states: Tensor, packed: Packed, only: Tensor | None) -> Tensor:
        """Return the attention output (n, h e); or (b, h e) if `only` selects one row of each sentence."""
        if only is not None:
            return self.attend_only(states, packed, only)
        values = F.linear(states, self.qkv.weight, self.qkv.bias)  # (n, (h + 2 g) e)
        norms = (self.query_norm, self.heads), (self.key_norm, self.key_heads)
        values = turned(values, packed, self.base, self.size, norms)
        counts = self.heads, self.key_heads, self.key_heads
        if self.without_padding(values, packed):
            parts = by_head(values[: packed.tokens], self.size, *counts)
            return with_rows(
                packed_attention(parts, packed, dropout=self.attention_dropout * self.training), len(states)
            )
        groups = packed.groups
        padded = groups.pad(values)  # (c, t, (h + 2 g) e) of each group
        parts = [
            self.attention(mask, packed, by_head(qkv, self.size, *counts))
            for qkv, mask in zip(padded, groups.masks, strict=True)
        ]
        return with_rows(groups.unpad(parts), len(states))

    def attend_only(self, states: Tensor, packed: Packed, only: Tensor) -> Tensor:
        query, pair = ends_of(self.qkv.weight, self.qkv.bias, self.heads * self.size)
        queries, pairs = F.linear(states[only], *query), F.linear(states, *pair)  # (b, h e), (n, 2 g e)
        queries = turned(queries, packed, self.base, self.size, [(self.query_norm, self.heads)], only)
        pairs = turned(pairs, packed, self.base, self.size, [(self.key_norm, self.key_heads)])
        counts = self.key_heads, self.key_heads
        # The kernel would let the one query of a sentence attend to later tokens.
        if self.without_padding(pairs, packed) and not packed.causal:
            rows = pairs[: packed.tokens]
            own = [*by_head(queries, self.size, self.heads), *by_head(rows, self.size, *counts)]
            return packed_attention(own, packed, single=True, dropout=self.attention_dropout * self.training)
        groups = packed.groups
        places = groups.split((only - packed.starts)[:, None])  # (c, 1, 1), in their sentences
        parts = zip(groups.split(queries), groups.pad(pairs), groups.masks, places, strict=True)
        mixed = []
        for one, others, mask, place in parts:
            heads = [*by_head(one, self.size, self.heads), *by_head(others, self.size, *counts)]
            mixed.append(self.attention(mask, packed, heads, place.flatten()))
        return groups.join(mixed)

    def without_padding(self, values: Tensor, packed: Packed) -> bool:
        """Whether the kernel can be used: it has no bias of relative positions and no window to add."""
        whole = not self.window or (packed.causal and packed.longest <= self.window + 1)
        return self.packs and packed.bias is None and whole and values.dtype in HALF

    def attention(
        self, mask: Tensor | None, packed: Packed, heads: Sequence[Tensor], places: Tensor | None = None
    ) -> Tensor:
        """Return the mixed values (c, q, h e) of queries (c, q, h, e), keys and values (c, t, g, e).

        `places` (c,) are those of one query for each sentence.
        """
        # Depends on the mode, not on gradients: a training pass without gradients must draw the same dropout.
        if self.training:
            kernel: Attention = partial(plain_attention, dropout=self.attention_dropout)
        else:
            kernel = blockwise_attention
        query, key, value = (each.transpose(1, 2) for each in heads)
        mask = with_bias(mask, packed.bias, key.shape[2], places)
        mixed = windowed(kernel, query, key, value, mask, self.window, places, causal=packed.causal)
        return mixed.transpose(1, 2).flatten(2)


def attend_packed(model: nn.Module, device: torch.device) -> None:
    """Let all blocks of a model in training on a GPU attend without padding, where the kernel is right.

    Short passes of blocks that use nothing else of a batch run as graphs.
    """
    found = cache(partial(works, device=device, window=0, causal=(False, True), trains=True))
    for module in model.modules():
        if isinstance(module, Block):
            module.packs = found((module.heads, module.key_heads, module.size))
    for module in model.modules():
        if isinstance(module, Bert):
            shape, blocks = module.architecture, cast(Sequence[Block], module.blocks)
            plain = not (shape.windows or shape.bases or shape.buckets)
            if plain and all(block.packs for block in blocks):
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
        self.depth, self.width, self.max_tokens = architecture.depth, width, architecture.max_tokens
        self.words = table(architecture.vocabulary, narrow)
        self.positions = None if architecture.bases else table(architecture.positions, narrow)
        self.types = table(architecture.types, narrow) if architecture.types else None
        has_norm = "norm" in architecture.kind.tables
        self.norm = make_norm(architecture, narrow) if has_norm else nn.Identity()
        self.dropout = Dropout(architecture.dropout)
        self.projection = nn.Linear(narrow, width) if narrow != width else None
        self.relative = table(architecture.buckets, architecture.heads) if architecture.buckets else None
        self.blocks = nn.ModuleList(Block(architecture, number) for number in range(architecture.depth))
        self.pooler = nn.Linear(width, width) if pooler else None
        self.convolution: Convolution | None = None
        self.graphs: Graphs | None = None  # for training on a GPU

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
        packed = whole = self.related(packed)
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

    def related(self, packed: Packed) -> Packed:
        """Return the batch with what all blocks use: the positions, and which tokens attend to which."""
        if self.architecture.bases:
            size, bases = self.architecture.head_size, {*self.architecture.bases}
            turns = {base: turns_of(packed.positions, base, size) for base in bases}
            packed = replace(packed, turns=turns, causal=packed.causal or self.architecture.causal)
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
        state = split(dict(self.weights()), self.architecture)
        return {
            theirs: state[ours].detach().clone()
            for ours, (theirs, _) in stored_tensors(self.architecture, pooler=self.has_pooler).items()
        }


def table(rows: int, width: int) -> nn.Embedding:
    # nn.Embedding(rows, width) draws random numbers. On the meta device this causes imports of two seconds.
    return nn.Embedding.from_pretrained(torch.zeros(rows, width), freeze=False)


def load_bert(tensors: Mapping[str, Tensor], architecture: Architecture) -> Bert:
    """Return the encoder in evaluation mode, with weights from `canonical` that `fit` accepts."""
    pooler = any(name.startswith("pooler.") for name in tensors)
    stored = stored_tensors(architecture, pooler=pooler)
    state = {ours: tensors[theirs] for ours, (theirs, _) in stored.items()}
    for name in state.keys() & {"pooler.weight", "projection.weight"}:
        state[name] = aligned(state[name])
    with torch.device("meta"):  # the real weights follow, so allocate and draw nothing
        bert = Bert(architecture, pooler=pooler)
    for block in range(architecture.depth):
        for module, parts in architecture.joined.items():
            for kind in ("weight", "bias"):
                names = [f"blocks.{block}.{part}.{kind}" for part in parts]
                if names[0] in state:
                    state[f"blocks.{block}.{module}.{kind}"] = torch.cat([state.pop(name) for name in names])
    bert.load_state_dict(state, assign=True)
    return bert.requires_grad_().eval()


def split(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return the same weights with the parts that `load_bert` has joined."""
    found = dict(state)
    for module, parts in architecture.joined.items():
        for name in [name for name in state if f".{module}." in name and len(parts) > 1]:
            pieces = found[name].split([*parts.values()])
            found |= {name.replace(module, part): piece for part, piece in zip(parts, pieces, strict=True)}
    return found
