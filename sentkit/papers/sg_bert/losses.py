"""The losses of SG-BERT. Axes: b sentences, d dimensions, l layers."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sentkit.model.transformer.readouts import widened
from sentkit.training.losses import (
    cosines,
    diagonal,
    diagonal_cross_entropy,
    negative_log_share,
)


def guided_opt1(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Contrast of query i with view i against all views and the other queries: (b, d), (b, d) -> (b,).

    SG-BERT's opt1, arXiv 2106.07345.
    """
    across = cosines(queries, views) / temperature  # (b, b)
    among = cosines(queries, queries) / temperature
    return diagonal_cross_entropy(torch.cat([across, among.masked_fill(diagonal(among), -torch.inf)], 1))


def guided_opt2_released(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Opt2 as in the released code of SG-BERT, which differs from the paper: (b, d), (b, d) -> (b,).

    The slice of the negatives starts one column late, so each query ignores its first negative. The loss
    of two sentences is therefore always 0.
    """
    similarities = cosines(queries, views) / temperature  # (b, b)
    lost = torch.zeros_like(similarities, dtype=torch.bool)
    lost[:1, 1:2] = True
    lost[1:, :1] = True
    return diagonal_cross_entropy(similarities.masked_fill(lost, -torch.inf))


def guided_opt3(queries: Tensor, layer_views: Tensor, temperature: float) -> Tensor:
    """Contrast of query i with each view of i against all views of others: (b, d), (b, l, d) -> (b, l).

    SG-BERT's opt3, arXiv 2106.07345. The other views of the same sentence are not negatives.
    """
    count, layers, _ = layer_views.shape
    similarities = cosines(queries, layer_views.flatten(0, 1)).view(count, count, layers) / temperature
    own = diagonal(similarities[:, :, 0])
    foreign = similarities[~own].view(count, (count - 1) * layers)
    return negative_log_share(similarities[own], foreign.logsumexp(1, keepdim=True))


def squared_distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of all squared differences. Only the first tensor of a pair has a gradient.

    The regulariser of SG-BERT, arXiv 2106.07345: the distance of an encoder from its initial weights.
    """
    tuned, start = zip(*((widened(p), widened(start.detach())) for p, start in pairs), strict=True)
    if tuned[0].is_cuda:
        result: Tensor = SquaredDistance.apply(len(tuned), *tuned, *start)
        return result
    # mse_loss stores no differences for the backward pass, which saves the memory of one encoder
    squares = (F.mse_loss(p, other, reduction="sum") for p, other in zip(tuned, start, strict=True))
    return sum(squares, torch.zeros(()))


class SquaredDistance(torch.autograd.Function):
    """The same with few kernels, because a GPU waits for the launch of each."""

    @staticmethod
    def forward(context: Any, count: int, *tensors: Tensor) -> Tensor:
        context.count = count
        context.save_for_backward(*tensors)
        norms = torch._foreach_norm(torch._foreach_sub(tensors[:count], tensors[count:]))
        return torch.stack(norms).square().sum()

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        count, tensors = context.count, context.saved_tensors
        differences = torch._foreach_sub(tensors[:count], tensors[count:])
        torch._foreach_mul_(differences, 2 * slope)
        return None, *differences, *(None for _ in range(count))
