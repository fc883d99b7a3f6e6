"""Reduces token states to one vector for each sentence, in float32, or in float64 for float64
states.

Axes: b sentences, n tokens, d the width.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK_REDUCTIONS, Readout
from sentkit.formats.checkpoints.reductions import PLAIN, Reduce, first_token, mean
from sentkit.model.transformer.packed import Packed

Reduction = Callable[[Tensor, Packed], Tensor]  # (n, d) -> (b, d)
Disturb = Callable[[Tensor], Tensor]  # (n, d) -> (n, d), applied to X(0)


class Convolution(nn.Module):
    """Convolutions over the tokens of each sentence, with zeros before and after it: (n, d) -> (n,
    k).

    The features of all kernels are concatenated. The module CNN of sentence-transformers has no
    zeros after
    a shorter sentence of a batch: it reads the states of the padding.
    """

    def __init__(self, width: int, channels: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self.channels = channels
        self.convs = nn.ModuleList(nn.Conv1d(width, channels, k, padding=k // 2) for k in kernels)

    @property
    def width(self) -> int:
        return self.channels * len(self.convs)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        padded = packed.pad(states).transpose(1, 2)  # (b, d, t)
        return packed.unpad(torch.cat([conv(padded) for conv in self.convs], 1).transpose(1, 2))


class TokenModel(Protocol):
    """The interface of `Bert` and `TransformersModel` that readouts use."""

    depth: int
    width: int
    convolution: Convolution | None

    @property
    def has_pooler(self) -> bool: ...

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Disturb | None = None,
        rows_of_last: Tensor | None = None,
    ) -> Iterator[Tensor]: ...

    def pooled(self, vectors: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PackedStates:
    """The token states of a batch, as `TokenStates`."""

    states: Tensor  # (n, d)
    packed: Packed

    @property
    def dtype(self) -> torch.dtype:
        return at_least_float32_dtype(self.states.dtype)

    @property
    def token_counts(self) -> Tensor:
        return self.packed.token_counts.to(self.dtype)

    @property
    def removed_prompt_length(self) -> int:
        return self.packed.removed_prompt_length

    @property
    def positions(self) -> Tensor:
        device = self.states.device
        numbers = torch.arange(1, self.packed.longest_length + 1, dtype=self.dtype, device=device)
        return numbers + self.removed_prompt_length

    # Sum and maximum reduce the padded axis. The order of additions in a scatter is random on CUDA.

    def sum(self, weights: Tensor | None = None) -> Tensor:
        padded = self.packed.pad(self.states)
        if weights is None:
            return padded.sum(1, dtype=self.dtype)
        return (at_least_float32(padded) * weights[..., None]).sum(1)

    def max(self) -> Tensor:
        return at_least_float32(self.packed.pad(self.states, fill=-torch.inf).amax(1))


def wk(layers: Sequence[Tensor], packed: Packed, *, clip: bool) -> Tensor:
    """SBERT-WK pooling (arXiv 2002.06652) of the states (n, d) of K layers, of all tokens but the
    last.

    A layer of a token gets a large weight if it differs from the span of its neighbours (novelty)
    and from each of them (alignment). A token gets a large weight if the cosines of its consecutive
    layers vary. The closed form needs only the cosines between the layers and equals the QR
    decompositions of the paper.
    """
    states = at_least_float32(torch.stack(list(layers), 1))  # (n, K, d)
    units = F.normalize(states.double(), dim=-1)
    cosines = units @ units.mT  # (n, K, K)

    # The weights of the layers of each token.
    alignment = torch.empty_like(cosines[:, 0])  # (n, K)
    novelty = torch.empty_like(cosines[:, 0])
    for k in range(len(layers)):
        near = neighbours(k, len(layers), clip=clip)
        cosines_of_layer = cosines[:, near, k]  # (n, m)
        ridge = RIDGE * torch.eye(len(near), dtype=cosines.dtype, device=cosines.device)
        factor, _ = torch.linalg.cholesky_ex(cosines[:, near][:, :, near] + ridge)
        solved = torch.cholesky_solve(cosines_of_layer[..., None], factor)[..., 0]
        # of the squared length, inside the span
        share = (cosines_of_layer * solved).sum(-1).clamp(0, 1)
        beta = cosines_of_layer.mean(-1) / share.sqrt().clamp_min(ROUNDING)
        beta = torch.where(beta.abs() < ROUNDING, ROUNDING, beta)
        alignment[:, k] = 1 / (2 * (len(near) + 1) * beta)
        novelty[:, k] = above_rounding((1 - share).sqrt(), ROUNDING)
    all_layers = torch.ones_like(novelty, dtype=torch.bool)
    layer_weights = (
        normalized_rows(alignment, all_layers) + normalized_rows(novelty, all_layers)
    ) / 2
    tokens = (layer_weights[:, None].to(states.dtype) @ states)[:, 0]  # (n, d)

    # The weights of the tokens of each sentence, without the last one, [SEP].
    variance = above_rounding(cosines.diagonal(1, -2, -1).var(-1, correction=0), ROUNDING**2)
    counts = (packed.token_counts - 1).clamp_min(1)
    is_read = torch.arange(packed.longest_length, device=states.device) < counts[:, None]  # (b, t)
    token_weights = normalized_rows(packed.pad(variance), is_read).to(states.dtype)
    return (packed.pad(tokens) * token_weights[..., None]).sum(1)


ROUNDING = 1e-6  # a difference between layers that float32 states cannot express
RIDGE = 1e-13  # makes the cosines of dependent layers positive definite


def neighbours(k: int, count: int, *, clip: bool) -> list[int]:
    """Return the two layers before layer k and the two after it.

    Near the end there are fewer. Near the start, `clip` also returns fewer; without it there are
    none before the layers 0 and 1, because the slice of the released code has a negative start and
    is empty.
    """
    after = range(k + 1, min(k + 3, count))
    if clip or k >= 2:
        return [*range(max(0, k - 2), k), *after]
    return [*after]


def above_rounding(values: Tensor, limit: float) -> Tensor:
    return torch.where(values < limit, 0.0, values)


def normalized_rows(values: Tensor, read: Tensor) -> Tensor:
    """Divide each row by its sum over the entries of `read`; equal shares if the sum is 0."""
    values = torch.where(read, values, 0.0)
    equal = read.to(values.dtype)
    totals = values.sum(-1, keepdim=True)
    return torch.where(totals == 0, equal / equal.sum(-1, keepdim=True), values / totals)


def at_least_float32_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half-precision types; keep float32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(values: Tensor) -> Tensor:
    return values.to(at_least_float32_dtype(values.dtype))


# The row of each sentence, (b,), of reductions that read only one. The last block then skips the
# other rows.
ROWS: dict[str, Callable[[Packed], Tensor]] = {
    **{name: plain.row for name, plain in PLAIN.items() if plain.row is not None},
    "pooler": first_token,
    "token": lambda packed: packed.readout_token_rows,
}


def selected_rows(of: Callable[[Packed], Tensor], states: Tensor, packed: Packed) -> Tensor:
    return at_least_float32(states[of(packed)])


def reduce_packed(reduce: Reduce, states: Tensor, packed: Packed) -> Tensor:
    vectors: Tensor = reduce(PackedStates(states, packed))
    return vectors


REDUCTIONS: dict[str, Reduction] = {
    **{name: partial(selected_rows, of) for name, of in ROWS.items()},
    **{
        name: partial(reduce_packed, plain.reduce)
        for name, plain in PLAIN.items()
        if plain.reduce is not None
    },
    CONV: partial(reduce_packed, mean),  # of the features of the convolution
}


def apply_readouts(
    encoder: TokenModel,
    packed: Packed,
    readouts: Sequence[Readout],
    *,
    disturb: Disturb | None = None,
) -> list[Tensor]:
    """Return the vectors of each readout from one pass to the deepest layer, (b, d); of a readout
    that joins k others, (b, k * d). `disturb` changes X(0).
    """
    check_layers(encoder, readouts)

    # Each reduction of a layer is computed once, also if several readouts use it.
    reductions: dict[int, dict[str, None]] = {}  # layer -> ordered set of reductions
    for readout in readouts:
        for joined in readout.joined_readouts:
            for layer in joined.layers_in(encoder.depth):
                reductions.setdefault(layer, {})[joined.reduction] = None
    reduced = reduce_layers(encoder, packed, reductions, disturb=disturb)

    # The mean over the layers of a readout; WK weights the token states of all layers.
    def vectors_of(joined: Readout) -> Tensor:
        vectors = [reduced[layer, joined.reduction] for layer in joined.layers_in(encoder.depth)]
        if joined.reduction in WK_REDUCTIONS:
            return wk(vectors, packed.batch_to_read, clip=joined.reduction == "wk-clip")
        return torch.stack(vectors).mean(0)

    return [torch.cat(list(map(vectors_of, readout.joined_readouts)), 1) for readout in readouts]


def width_of_vectors(encoder: TokenModel, readouts: Sequence[Readout]) -> int:
    if encoder.convolution is not None and readouts[0].reduction == CONV:
        return encoder.convolution.width
    return encoder.width * len(readouts[0].joined_readouts)


def check_layers(encoder: TokenModel, readouts: Sequence[Readout]) -> None:
    for readout in readouts:
        if readout.pooled and not encoder.has_pooler:
            raise UsageError(f'readout "{readout.name}": this checkpoint has no trained pooler')
        if readout.reduction == CONV and encoder.convolution is None:
            raise UsageError(f'readout "{readout.name}": this checkpoint has no convolution')


def reduce_layers(
    encoder: TokenModel,
    packed: Packed,
    reductions: Mapping[int, Collection[str]],
    *,
    disturb: Disturb | None = None,
) -> dict[tuple[int, str], Tensor]:
    """Return (b, d) by layer and reduction, one after the other to save memory; (n, d) for WK."""
    deepest = max(reductions)
    # (b,), if all reductions of the deepest layer read the same row of each sentence.
    rows_of_last: Tensor | None = None
    row_functions = {ROWS.get(name) for name in reductions[deepest]}
    if deepest and len(row_functions) == 1:
        row_of_sentences = row_functions.pop()
        if row_of_sentences is not None:
            rows_of_last = row_of_sentences(packed)
    outputs = {}
    layers = encoder.states(packed, deepest=deepest, disturb=disturb, rows_of_last=rows_of_last)
    for layer, states in enumerate(layers):
        for name in reductions.get(layer, ()):
            if layer == deepest and rows_of_last is not None:
                vectors = at_least_float32(states)  # only the required rows
            else:
                read = states if packed.rows_to_read is None else states[packed.rows_to_read]
                if name == CONV:
                    assert encoder.convolution is not None, "check_layers refuses this"
                    read = encoder.convolution(read, packed.batch_to_read)
                if name in WK_REDUCTIONS:
                    vectors = read
                else:
                    reduction = REDUCTIONS[POOLED.get(name, name)]
                    vectors = reduction(read, packed.batch_to_read)
            if name in POOLED:
                vectors = at_least_float32(encoder.pooled(vectors.to(states.dtype)))
            outputs[layer, name] = vectors
    return outputs
