"""Reduces token states to one vector for each sentence, in float32, or in float64 for float64 states.

Axes: b sentences, n tokens, d the width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK, Readout
from sentkit.model.transformer.packed import Packed

Reduction = Callable[[Tensor, Packed], Tensor]  # (n, d) -> (b, d)
Disturb = Callable[[Tensor], Tensor]  # (n, d) -> (n, d), applied to X(0)


class Convolution(nn.Module):
    """Convolutions over the tokens of each sentence, with zeros before and after it: (n, d) -> (n, k).

    The features of all kernels are concatenated. The module CNN of sentence-transformers has no zeros after
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
        only: Tensor | None = None,
    ) -> Iterator[Tensor]: ...

    def pooled(self, vectors: Tensor) -> Tensor: ...


# Mean and max reduce the padded axis. The order of additions in a scatter is random on CUDA.


def mean(states: Tensor, packed: Packed, *, root: bool = False) -> Tensor:
    """The sum divided by the number of tokens, or by its root."""
    dtype = wide(states.dtype)
    counts = packed.counts.to(dtype)
    return packed.pad(states).sum(1, dtype=dtype) / (counts.sqrt() if root else counts)[:, None]


def weighted_mean(states: Tensor, packed: Packed) -> Tensor:
    """The weight of a token is its position in the sentence: 1, 2, 3, ..."""
    padded, counts = widened(packed.pad(states)), packed.counts
    places = torch.arange(1, packed.longest + 1, dtype=padded.dtype, device=states.device)
    weights = places + packed.skipped
    totals = counts * (counts + 1 + 2 * packed.skipped) // 2  # (b,); `cumsum` is not deterministic on CUDA
    return (padded * weights[:, None]).sum(1) / totals.to(padded.dtype)[:, None]


def maximum(states: Tensor, packed: Packed) -> Tensor:
    return widened(packed.pad(states, fill=-torch.inf).amax(1))


def wk(layers: Sequence[Tensor], packed: Packed, *, clip: bool) -> Tensor:
    """SBERT-WK pooling (arXiv 2002.06652) of the states (n, d) of K layers, of all tokens but the last.

    A layer of a token gets a large weight if it differs from the span of its neighbours (novelty) and from
    each of them (alignment). A token gets a large weight if the cosines of its consecutive layers vary. The
    closed form needs only the cosines between the layers and equals the QR decompositions of the paper.
    """
    states = widened(torch.stack(list(layers), 1))  # (n, K, d)
    units = F.normalize(states.double(), dim=-1)
    cosines = units @ units.mT  # (n, K, K)
    alignment, novelty = torch.empty_like(cosines[:, 0]), torch.empty_like(cosines[:, 0])  # (n, K)
    for k in range(len(layers)):
        near = neighbours(k, len(layers), clip=clip)
        own = cosines[:, near, k]  # (n, m)
        ridge = RIDGE * torch.eye(len(near), dtype=own.dtype, device=own.device)
        factor, _ = torch.linalg.cholesky_ex(cosines[:, near][:, :, near] + ridge)
        solved = torch.cholesky_solve(own[..., None], factor)[..., 0]
        share = (own * solved).sum(-1).clamp(0, 1)  # of the squared length, inside the span
        beta = own.mean(-1) / share.sqrt().clamp_min(ROUNDING)
        beta = torch.where(beta.abs() < ROUNDING, ROUNDING, beta)
        alignment[:, k] = 1 / (2 * (len(near) + 1) * beta)
        novelty[:, k] = above_rounding((1 - share).sqrt(), ROUNDING)
    every = torch.ones_like(novelty, dtype=torch.bool)
    weights = (shares(alignment, every) + shares(novelty, every)) / 2
    tokens = (weights[:, None].to(states.dtype) @ states)[:, 0]  # (n, d)
    variance = above_rounding(cosines.diagonal(1, -2, -1).var(-1, correction=0), ROUNDING**2)
    counts = packed.counts - 1  # without the last token, [SEP]
    read = torch.arange(packed.longest, device=states.device) < counts.clamp_min(1)[:, None]  # (b, t)
    return (packed.pad(tokens) * shares(packed.pad(variance), read).to(states.dtype)[..., None]).sum(1)


ROUNDING = 1e-6  # a difference between layers that float32 states cannot express
RIDGE = 1e-13  # makes the cosines of dependent layers positive definite


def neighbours(k: int, count: int, *, clip: bool) -> list[int]:
    """Return the two layers before layer k and the two after it.

    Near the end there are fewer. Near the start, `clip` also returns fewer; without it there are none before
    the layers 0 and 1, because the slice of the released code has a negative start and is empty.
    """
    before = range(max(0, k - 2), k) if clip or k >= 2 else range(0)
    return [*before, *range(k + 1, min(k + 3, count))]


def above_rounding(values: Tensor, limit: float) -> Tensor:
    return torch.where(values < limit, 0.0, values)


def shares(values: Tensor, read: Tensor) -> Tensor:
    """Divide each row by its sum over the entries of `read`; equal shares if the sum is 0."""
    values, equal = torch.where(read, values, 0.0), read.to(values.dtype)
    totals = values.sum(-1, keepdim=True)
    return torch.where(totals == 0, equal / equal.sum(-1, keepdim=True), values / totals)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half-precision types; keep float32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def widened(values: Tensor) -> Tensor:
    return values.to(wide(values.dtype))


def first_rows(packed: Packed) -> Tensor:
    return packed.starts + packed.skip


# The row of each sentence, (b,), of reductions that read only one. The last block then skips the other rows.
ROWS: dict[str, Callable[[Packed], Tensor]] = {
    "cls": first_rows,
    "pooler": first_rows,
    "token": lambda packed: packed.read_rows,
    "last": lambda packed: packed.starts + packed.counts - 1,
}


def row(of: Callable[[Packed], Tensor], states: Tensor, packed: Packed) -> Tensor:
    return widened(states[of(packed)])


REDUCTIONS: dict[str, Reduction] = {
    **{name: partial(row, of) for name, of in ROWS.items()},
    "mean": mean,
    "max": maximum,
    "mean-sqrt": partial(mean, root=True),
    "weighted-mean": weighted_mean,
    CONV: mean,  # of the features of the convolution
}


def apply_readouts(
    encoder: TokenModel, packed: Packed, readouts: Sequence[Readout], *, disturb: Disturb | None = None
) -> list[Tensor]:
    """Return one (b, d) for each readout, from one pass to the deepest layer. `disturb` changes X(0)."""
    check_layers(encoder, readouts)
    parts = [part for readout in readouts for part in readout.parts]
    layers = [part.resolved(encoder.depth) for part in parts]
    wanted: dict[int, dict[str, None]] = {}  # layer -> ordered set of reductions
    for part, own in zip(parts, layers, strict=True):
        for layer in own:
            wanted.setdefault(layer, {})[part.reduction] = None
    vectors = reduce_layers(encoder, packed, wanted, disturb=disturb)
    results = list[Tensor]()
    for part, own in zip(parts, layers, strict=True):
        found = [vectors[layer, part.reduction] for layer in own]
        if part.reduction in WK:
            results.append(wk(found, packed.read_part, clip=part.reduction == "wk-clip"))
        else:
            results.append(torch.stack(found).mean(0))
    separate = iter(results)
    return [torch.cat([*islice(separate, len(readout.parts))], 1) for readout in readouts]


def width_of_vectors(encoder: TokenModel, readouts: Sequence[Readout]) -> int:
    if encoder.convolution is not None and readouts[0].reduction == CONV:
        return encoder.convolution.width
    return encoder.width * len(readouts[0].parts)


def check_layers(encoder: TokenModel, readouts: Sequence[Readout]) -> None:
    for readout in readouts:
        if readout.pooled and not encoder.has_pooler:
            raise UsageError(f'readout "{readout.name}": this checkpoint has no trained pooler')
        if readout.reduction == CONV and encoder.convolution is None:
            raise UsageError(f'readout "{readout.name}": this checkpoint has no convolution')


def reduce_layers(
    encoder: TokenModel,
    packed: Packed,
    wanted: Mapping[int, Iterable[str]],
    *,
    disturb: Disturb | None = None,
) -> dict[tuple[int, str], Tensor]:
    """Return (b, d) by layer and reduction, one after the other to save memory; (n, d) for WK."""
    deepest = max(wanted)
    single = {ROWS.get(name) for name in wanted[deepest]}
    of = single.pop() if deepest and len(single) == 1 else None
    only = None if of is None else of(packed)  # (b,), if all reductions read the same row of each sentence
    outputs = {}
    layers = encoder.states(packed, deepest=deepest, disturb=disturb, only=only)
    for layer, states in enumerate(layers):
        for name in wanted.get(layer, ()):
            if layer == deepest and only is not None:
                vectors = widened(states)  # only the required rows
            else:
                read = states if packed.kept is None else states[packed.kept]
                if name == CONV:
                    assert encoder.convolution is not None, "check_layers refuses this"
                    read = encoder.convolution(read, packed.read_part)
                vectors = read if name in WK else REDUCTIONS[POOLED.get(name, name)](read, packed.read_part)
            if name in POOLED:
                vectors = widened(encoder.pooled(vectors.to(states.dtype)))
            outputs[layer, name] = vectors
    return outputs
