"""The activation functions by the names of `read_activation`, and gated ones."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,  # for poolers
}


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function of values (n, 2 m): the activation of the first half times the second half."""

    def gate(values: Tensor) -> Tensor:
        inner, gates = values.chunk(2, -1)
        return activation(inner) * gates

    return gate
