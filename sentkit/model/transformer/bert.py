"""One transformer for all families of `families.py`, over packed sentences.

The families differ only in the values of `Architecture` and the names in `families.py`. X(k) are
the token states after block k; X(0) are the states after the embeddings. Axes: b sentences, n
tokens, d the width, h heads; in attention, c sentences of at most t tokens (`Groups`).
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
from sentkit.model.transformer.architecture import Architecture, stored_tensors
from sentkit.model.transformer.attention import (
    Attention,
    blockwise_attention,
    cosines_and_sines,
    norm_and_rotate,
    plain_attention,
    windowed,
    with_bias,
)
from sentkit.model.transformer.kernels.gpu_kernels import (
    HALF,
    by_head,
    kernel_is_right,
    packed_attention,
)
from sentkit.model.transformer.kernels.graphs import Graphs, Run
from sentkit.model.transformer.layers import ACTIVATIONS, Dropout, gated, make_norm
from sentkit.model.transformer.packed import (
    Packed,
    ends_of,
    first_tokens,
    spare_tokens,
    with_rows,
)
from sentkit.model.transformer.readouts import Convolution
from sentkit.model.transformer.weights import aligned


class Block(nn.Module):
    """Self-attention and two dense layers, each with a residual connection, and the norms of the
    family.
    """

    def __init__(self, architecture: Architecture, number: int = 0) -> None:
        """`number` is that of the block. `qkv` gives queries, keys and values, `mix` follows the
        attention, `up` and `down` are the feed-forward layers.
        """
        super().__init__()
        modules = architecture.modules_of_block(number)
        shapes = architecture.weight_shapes

        def norm(name: str) -> nn.Module:
            if name not in modules:
                return nn.Identity()
            [width] = shapes[name]
            return make_norm(architecture, width)

        def linear(name: str) -> nn.Linear:
            outputs, inputs = shapes[name]
            return nn.Linear(inputs, outputs, bias=architecture.family_traits.has_bias(name))

        self.heads = architecture.heads
        self.key_heads = architecture.key_heads
        self.head_size = architecture.head_size
        self.attention_window = 0
        self.rotary_base = 0.0  # of rotary positions
        if architecture.attention_windows:
            self.attention_window = architecture.attention_windows[number]
        if architecture.rotary_bases:
            self.rotary_base = architecture.rotary_bases[number]
        self.activation = ACTIVATIONS[architecture.activation]
        if architecture.family_traits.gated:
            self.activation = gated(self.activation)

        # The layers in the order of the computation. Norms that the family lacks are the identity.
        self.input_norm = norm("input_norm")
        self.qkv = linear("qkv")
        self.query_norm = norm("query_norm")
        self.key_norm = norm("key_norm")
        self.mix = linear("mix")
        self.mix_norm = norm("mix_norm")
        self.inner_norm = norm("inner_norm")
        self.up = linear("up")
        self.down = linear("down")
        self.norm = norm("norm")
        self.mix_dropout, self.inner_dropout, self.dropout = map(Dropout, architecture.dropouts)
        self.attention_dropout = architecture.attention_dropout
        # Whether attention uses the kernel for training on a GPU; `attend_packed` sets it.
        self.uses_packed_kernel = False

    def forward(
        self,
        states: Tensor,
        packed: Packed,
        query_rows: Tensor | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return X(k) from X(k - 1), (n, d); or (b, d) if `query_rows` selects one row of each
        sentence.

        `between` changes the states after the attention, as the cross-attention of a decoder does.
        `states` can have more than n rows: the result has them too, and their values have no
        meaning.
        """
        attended = self.attend(self.input_norm(states), packed, query_rows)
        if query_rows is not None:
            states = states[query_rows]  # (b, d)
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

        Under autocast the change is bfloat16 and `states` are float32. The sum stays in float32,
        because bfloat16 sums lose small changes in every block. Dropout follows the cast, because
        bfloat16 also rounds its scale 1 / (1 - p): 1.109 instead of 1.111.
        """
        # In-place addition is safe: the backward pass of a product or dropout does not use the
        # output.
        result: Tensor = dropout(change.to(states.dtype)).add_(states)
        return result

    def attend(self, states: Tensor, packed: Packed, query_rows: Tensor | None) -> Tensor:
        """Return the attention output (n, h e); or (b, h e) if `query_rows` selects one row of each
        sentence.
        """
        if query_rows is not None:
            return self.attend_single_queries(states, packed, query_rows)
        # Queries, keys and values, (n, (h + 2 g) e).
        projected = F.linear(states, self.qkv.weight, self.qkv.bias)
        norms = [(self.query_norm, self.heads), (self.key_norm, self.key_heads)]
        projected = norm_and_rotate(projected, packed, self.rotary_base, self.head_size, norms)

        # By the kernel, or with padding in groups of c sentences.
        if self.without_padding(projected, packed):
            heads = by_head(
                projected[: packed.tokens],
                self.head_size,
                self.heads,
                self.key_heads,
                self.key_heads,
            )
            mixed = packed_attention(heads, packed, dropout=self.attention_dropout * self.training)
            return with_rows(mixed, len(states))
        groups = packed.groups
        mixed_groups = []
        # (c, t, (h + 2 g) e)
        for padded, mask in zip(groups.pad(projected), groups.masks, strict=True):
            heads = by_head(padded, self.head_size, self.heads, self.key_heads, self.key_heads)
            mixed_groups.append(self.attention(mask, packed, heads))
        return with_rows(groups.unpad(mixed_groups), len(states))

    def with_positions(
        self,
        queries: Tensor,
        keys_and_values: Tensor,
        packed: Packed,
        query_rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Apply the norms of heads and rotary positions to queries (b, h e), which are those of
        some rows, and to the keys in (n, 2 g e).
        """
        queries = norm_and_rotate(
            queries,
            packed,
            self.rotary_base,
            self.head_size,
            [(self.query_norm, self.heads)],
            query_rows,
        )
        keys_and_values = norm_and_rotate(
            keys_and_values,
            packed,
            self.rotary_base,
            self.head_size,
            [(self.key_norm, self.key_heads)],
        )
        return queries, keys_and_values

    def attend_single_queries(self, states: Tensor, packed: Packed, query_rows: Tensor) -> Tensor:
        query_weights, key_value_weights = ends_of(
            self.qkv.weight, self.qkv.bias, self.heads * self.head_size
        )
        queries = F.linear(states[query_rows], *query_weights)  # (b, h e)
        keys_and_values = F.linear(states, *key_value_weights)  # (n, 2 g e)
        queries, keys_and_values = self.with_positions(queries, keys_and_values, packed, query_rows)

        def by_heads(queries: Tensor, keys_and_values: Tensor) -> list[Tensor]:
            [query] = by_head(queries, self.head_size, self.heads)
            key, value = by_head(keys_and_values, self.head_size, self.key_heads, self.key_heads)
            return [query, key, value]

        # The kernel would let the one query of a sentence attend to later tokens.
        if self.without_padding(keys_and_values, packed) and not packed.causal:
            heads = by_heads(queries, keys_and_values[: packed.tokens])
            return packed_attention(
                heads, packed, single=True, dropout=self.attention_dropout * self.training
            )
        groups = packed.groups
        queries_of_groups = groups.split(queries)
        keys_and_values_of_groups = groups.pad(keys_and_values)
        # (c, 1, 1), in their sentences
        positions_of_groups = groups.split((query_rows - packed.starts)[:, None])
        mixed_groups = []
        for number, mask in enumerate(groups.masks):
            heads = by_heads(queries_of_groups[number], keys_and_values_of_groups[number])
            positions = positions_of_groups[number].flatten()
            mixed_groups.append(self.attention(mask, packed, heads, positions))
        return groups.join(mixed_groups)

    def without_padding(self, projected: Tensor, packed: Packed) -> bool:
        """Whether the kernel can be used: it has no bias of relative positions and no window to
        add.
        """
        needs_no_window = not self.attention_window or (
            packed.causal and packed.longest_length <= self.attention_window + 1
        )
        return (
            self.uses_packed_kernel
            and packed.bias is None
            and needs_no_window
            and projected.dtype in HALF
        )

    def attention(
        self,
        mask: Tensor | None,
        packed: Packed,
        heads: Sequence[Tensor],
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the mixed values (c, q, h e) of queries (c, q, h, e), keys and values (c, t, g,
        e).

        `positions` (c,) are those of one query for each sentence.
        """
        # Depends on the mode, not on gradients: a training pass without gradients must draw the
        # same dropout.
        if self.training:
            kernel: Attention = partial(plain_attention, dropout=self.attention_dropout)
        else:
            kernel = blockwise_attention
        query, key, value = (values.transpose(1, 2) for values in heads)
        mask = with_bias(mask, packed.bias, key.shape[2], positions)
        mixed = windowed(
            kernel, query, key, value, mask, self.attention_window, positions, causal=packed.causal
        )
        return mixed.transpose(1, 2).flatten(2)


def attend_packed(model: nn.Module, device: torch.device) -> None:
    """Let all blocks of a model in training on a GPU attend without padding, where the kernel gives
    the right result.

    Short passes (see LARGEST_PASS in `graphs.py`) run as graphs of CUDA, if the blocks of a model
    read no more of a batch than its states and lengths: no windows, and no rotary or relative
    positions.
    """
    # The kernel is tried once for each shape of heads: with and without causal attention, and with
    # gradients.
    is_right = cache(
        partial(kernel_is_right, device=device, window=0, causal=(False, True), trains=True)
    )
    for module in model.modules():
        if isinstance(module, Block):
            shape = (module.heads, module.key_heads, module.head_size)
            module.uses_packed_kernel = is_right(shape)

    # Graphs, for which all blocks have to use the kernel.
    for module in model.modules():
        if isinstance(module, Bert):
            architecture = module.architecture
            blocks = cast(Sequence[Block], module.blocks)
            needs_more = (
                architecture.attention_windows or architecture.rotary_bases or architecture.buckets
            )
            if not needs_more and all(block.uses_packed_kernel for block in blocks):
                module.graphs = Graphs(blocks)


def stop_graphs(model: nn.Module) -> bool:
    """Run without graphs from now on. Return true if this frees memory."""
    frees_memory = False
    for module in model.modules():
        if isinstance(module, Bert) and module.graphs is not None and module.graphs.chains:
            module.graphs.stop()
            frees_memory = True
    return frees_memory


class Bert(nn.Module):
    def __init__(self, architecture: Architecture, *, pooler: bool = False) -> None:
        super().__init__()
        table_width = architecture.embedding_width
        width = architecture.width
        self.architecture = architecture
        self.depth = architecture.depth
        self.width = width
        self.max_tokens = architecture.max_tokens

        # The tables and the layers before the blocks.
        self.words = table(architecture.vocabulary, table_width)
        self.positions: nn.Embedding | None = None
        if not architecture.rotary_bases:
            self.positions = table(architecture.positions, table_width)
        self.types: nn.Embedding | None = None
        if architecture.types:
            self.types = table(architecture.types, table_width)
        self.norm: nn.Module = nn.Identity()
        if "norm" in architecture.family_traits.tables:
            self.norm = make_norm(architecture, table_width)
        self.dropout = Dropout(architecture.dropout)
        self.projection: nn.Linear | None = None
        if table_width != width:
            self.projection = nn.Linear(table_width, width)
        self.relative: nn.Embedding | None = None
        if architecture.buckets:
            self.relative = table(architecture.buckets, architecture.heads)

        # The blocks, and what readouts compute after them.
        self.blocks = nn.ModuleList(
            Block(architecture, number) for number in range(architecture.depth)
        )
        self.pooler: nn.Linear | None = None
        if pooler:
            self.pooler = nn.Linear(width, width)
        self.convolution: Convolution | None = None  # see `add_convolution`
        self.graphs: Graphs | None = None  # for training on a GPU; see `attend_packed`

    @property
    def has_pooler(self) -> bool:
        return self.pooler is not None

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Callable[[Tensor], Tensor] | None = None,
        rows_of_last: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0), X(1) .. X(deepest), each (n, d), and compute each state on demand.

        `disturb` changes X(0) before the first use. `rows_of_last` selects one row of each
        sentence: the last block computes only these rows, and the last state is (b, d).
        """
        blocks = self.blocks[:deepest]
        states = self.embed(packed)
        if disturb is not None:
            states = disturb(states)
        yield states
        packed = self.related(packed)

        # In bf16, more rows for fewer shapes of kernels: their values have no meaning.
        filled = packed
        run_graph: Run | None = None
        is_bf16 = torch.is_autocast_enabled(states.device.type)
        if self.graphs is not None and is_bf16:
            filled = packed.with_filler_sentences()
            states = with_rows(states, filled.tokens)
            graph_blocks = len(blocks)
            if rows_of_last is not None:  # the last block computes few rows
                graph_blocks -= 1
            run_graph = self.graphs.runner(graph_blocks, filled, states)
        elif states.device.type == "cpu" and is_bf16:
            states = with_rows(states, packed.tokens + spare_tokens(packed.tokens))

        for number, block in enumerate(blocks):
            if rows_of_last is not None and number == len(blocks) - 1:
                yield block(states, packed, rows_of_last)
                return
            if run_graph is None:
                states = block(states, filled)
                yield states[: packed.tokens]
            else:
                states = run_graph(number, states)
                result = states[: packed.tokens]
                # the next pass overwrites it
                yield (result if result.requires_grad else result.clone())

    def embed(self, packed: Packed) -> Tensor:
        states = self.words(packed.ids)
        if self.positions is not None:
            assert packed.longest_length <= self.max_tokens, (
                "a sentence longer than the encoder's positions"
            )
            table = self.positions.weight
            if self.types is not None and packed.segment_ids is None:
                table = table + self.types.weight[0]  # every token belongs to the first segment
            states = states + F.embedding(self.position_rows(packed), table)
        if packed.segment_ids is not None:
            assert self.types is not None, "an encoder without segments"
            states = states + self.types(packed.segment_ids)
        states = self.dropout(self.norm(states))
        if self.projection is not None:
            # products are bfloat16 under autocast
            states = self.projection(states).to(states.dtype)
        return states  # (n, d)

    def position_rows(self, packed: Packed) -> Tensor:
        """The row (n,) of each token in the table of positions."""
        offset = self.architecture.position_offset
        rows = packed.positions + offset
        if not self.architecture.family_traits.skips_padding:
            return rows
        # A padding token within a sentence has the row before the first one, and is not counted.
        is_padding = packed.ids == self.architecture.padding_id
        count_before = is_padding.long().cumsum(0) - is_padding.long()
        starts = packed.to_device(np.repeat(first_tokens(packed.lengths), packed.lengths))
        return torch.where(is_padding, offset - 1, rows - (count_before - count_before[starts]))

    def related(self, packed: Packed) -> Packed:
        """Return the batch with what all blocks use: the positions, and which tokens attend to
        which.
        """
        if self.architecture.rotary_bases:
            size = self.architecture.head_size
            turns = {
                base: cosines_and_sines(packed.positions, base, size)
                for base in {*self.architecture.rotary_bases}
            }
            packed = replace(
                packed, rotations=turns, causal=packed.causal or self.architecture.causal
            )
        if self.relative is None:
            return packed
        rows = packed.to_device(buckets_of(packed.longest_length))
        return replace(packed, bias=self.relative(rows).permute(2, 0, 1).contiguous())

    def pooled(self, vectors: Tensor) -> Tensor:
        """Apply the pooler to one vector for each sentence, (b, d) -> (b, d)."""
        assert self.pooler is not None, "this encoder has no pooler"
        return ACTIVATIONS[self.architecture.pooler_activation](self.pooler(vectors))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights and biases of all layers. A layer can compute its weight, as
        with LoRA.
        """
        for name, module in self.named_modules():
            for parameter_name in ("weight", "bias"):
                value = getattr(module, parameter_name, None)
                if value is not None:
                    yield f"{name}.{parameter_name}", value

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the weights under the Hugging Face names that AutoModel reads."""
        state = split(dict(self.weights()), self.architecture)
        stored = stored_tensors(self.architecture, pooler=self.has_pooler)
        return {
            stored_name: state[name].detach().clone() for name, (stored_name, _) in stored.items()
        }


def table(rows: int, width: int) -> nn.Embedding:
    # nn.Embedding(rows, width) draws random numbers. On the meta device this causes imports of two
    # seconds.
    return nn.Embedding.from_pretrained(torch.zeros(rows, width), freeze=False)


def load_bert(tensors: Mapping[str, Tensor], architecture: Architecture) -> Bert:
    """Return the encoder in evaluation mode, with weights from `canonical` that `fit` accepts."""
    pooler = any(name.startswith("pooler.") for name in tensors)
    stored = stored_tensors(architecture, pooler=pooler)
    state = {name: tensors[stored_name] for name, (stored_name, _) in stored.items()}
    for name in state.keys() & {"pooler.weight", "projection.weight"}:
        state[name] = aligned(state[name])
    with torch.device("meta"):  # the real weights follow, so allocate and draw nothing
        bert = Bert(architecture, pooler=pooler)
    for block in range(architecture.depth):
        for joined_module, modules in architecture.joined_matrices.items():
            for parameter in ("weight", "bias"):
                names = [f"blocks.{block}.{module}.{parameter}" for module in modules]
                if names[0] in state:
                    joined = torch.cat([state.pop(name) for name in names])
                    state[f"blocks.{block}.{joined_module}.{parameter}"] = joined
    bert.load_state_dict(state, assign=True)
    return bert.requires_grad_().eval()


def split(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return the same weights, and the matrices that `load_bert` has joined."""
    tensors = dict(state)
    for joined_module, rows_of_modules in architecture.joined_matrices.items():
        if len(rows_of_modules) == 1:
            continue
        for name, joined in state.items():
            if f".{joined_module}." in name:
                matrices = joined.split([*rows_of_modules.values()])
                for module, matrix in zip(rows_of_modules, matrices, strict=True):
                    tensors[name.replace(joined_module, module)] = matrix
    return tensors
