"""The small layers of the packed encoder: activations, norms and dropout."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.architecture import Architecture

# By the names of `read_activation`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,  # for poolers
}


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function of values (n, 2 m): the activation of the first half times the second
    half.
    """

    def gate(values: Tensor) -> Tensor:
        inner, gates = values.chunk(2, -1)
        return activation(inner) * gates

    return gate


class RMSNorm(nn.RMSNorm):
    def forward(self, values: Tensor) -> Tensor:
        return F.rms_norm(values, self.normalized_shape, self.weight.to(values.dtype), self.eps)


def make_norm(architecture: Architecture, width: int) -> nn.Module:
    if architecture.family_traits.squares:
        return RMSNorm(width, architecture.norm_epsilon)
    has_bias = architecture.family_traits.has_bias("norm")
    return nn.LayerNorm(width, architecture.norm_epsilon, bias=has_bias)


class Dropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            return drop(values, self.p)
        return values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set values to 0 with the probability `rate`, and multiply the others by 1 / (1 - rate).

    On a CPU, this takes a quarter of the time of the kernel of torch. The seed is a draw of torch,
    so that the state of its generator determines all dropout. The numbers do not depend on threads.
    """
    if not rate:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    count = values.numel()
    dtype = np.float64 if values.dtype == torch.float64 else np.float32
    seed = int(torch.empty((), dtype=torch.int64).random_())
    # Each draw of 64 bits is two signed integers of 32 bits, uniform from -2^31 to 2^31 - 1.
    draws = np.random.SFC64(seed).random_raw((count + 1) // 2).view(np.int32)[:count]
    is_kept = (draws >= round(rate * 2**32) - 2**31).view(np.uint8)
    factors = np.multiply(is_kept, dtype(1 / (1 - rate)), dtype=dtype).reshape(values.shape)
    return values * torch.from_numpy(factors).to(values.dtype)
