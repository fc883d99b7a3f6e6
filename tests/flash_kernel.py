"""The kernel of `_flash_attention_forward` and of its gradient for a CPU, with the checks
of CUDA.
"""

from contextlib import contextmanager
from itertools import pairwise

import torch


class Kernel:
    """Plain attention in float64 in each sentence, also with dropout, which the backward pass draws
    again.
    """

    def __init__(self):
        self.calls = 0
        self.backward_calls = 0
        self.refuses = True
        self.error = 0.0
        # whether the backward pass has the same dropout, if any
        self.repeats = True
        self.drops = True

    def forward(
        self,
        query,
        key,
        value,
        starts,
        key_starts,
        longest,
        longest_key,
        dropout,
        causal,
        debug,
        **options,
    ):
        if self.refuses and (
            query.dtype != torch.bfloat16 or query.shape[-1] % 8 or query.shape[-1] > 256
        ):
            raise RuntimeError("FlashAttention does not support this")
        for tensor in (query, key, value):
            assert tensor.stride(-1) == 1
            assert tensor.data_ptr() % 16 == 0
        for rows, bounds, limit in ((query, starts, longest), (key, key_starts, longest_key)):
            assert bounds.dtype == torch.int32
            assert bounds.is_contiguous()
            assert bounds[0] == 0
            assert bounds[-1] == len(rows)
            assert bounds.diff().max() <= limit
            assert limit == 1 or limit % 128 == 0
        assert not debug
        window = options.get("window_size_left", -1)  # -1: none
        after = 0 if causal else window
        assert options in ({}, {"window_size_left": window, "window_size_right": after})
        self.calls += 1
        seed = (
            torch.empty((), dtype=torch.int64).random_()
            if dropout
            else torch.zeros((), dtype=torch.int64)
        )
        tensors = (tensor.double() for tensor in (query, key, value))
        mixed = self.attention(*tensors, starts, key_starts, dropout, causal, seed, window)
        return (
            (mixed + self.error).to(query.dtype),
            seed.double(),
            seed,
            torch.empty(0),
            torch.empty(0),
        )

    def backward(
        self,
        slope,
        query,
        key,
        value,
        out,
        sums,
        starts,
        key_starts,
        longest,
        longest_key,
        dropout,
        causal,
        seed,
        unused,
        **options,
    ):
        self.backward_calls += 1
        if not self.repeats:
            seed = seed + 1
        with torch.inference_mode(False), torch.enable_grad():
            inputs = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
            mixed = self.attention(*inputs, starts, key_starts, dropout, causal, seed)
            slopes = torch.autograd.grad(mixed, inputs, slope.double())
        return tuple(slope_of_input.to(query.dtype) for slope_of_input in slopes)

    def attention(self, query, key, value, starts, key_starts, dropout, causal, seed, window=-1):
        random = torch.Generator().manual_seed(int(seed))
        outputs = []
        for (start, end), (first, after) in zip(
            pairwise(starts), pairwise(key_starts), strict=True
        ):
            q = query[start:end]
            shared = query.shape[1] // key.shape[1]
            k, v = (heads[first:after].repeat_interleave(shared, 1) for heads in (key, value))
            scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
            if causal:
                is_before = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
                scores = scores.masked_fill(~is_before, -torch.inf)
            if window >= 0:
                assert len(q) == len(k)
                apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
                scores = scores.masked_fill(apart.abs() > window, -torch.inf)
            weights = scores.softmax(-1)
            if dropout and self.drops:
                is_kept = torch.rand(weights.shape, generator=random) >= dropout
                weights = weights * is_kept / (1 - dropout)
            outputs.append(torch.einsum("hqk,khe->qhe", weights, v))
        return torch.cat(outputs)


@contextmanager
def kernel_on_cpu():
    library = torch.library.Library("aten", "IMPL", "CPU")
    kernel = Kernel()
    library.impl("_flash_attention_forward", kernel.forward)
    library.impl("_flash_attention_backward", kernel.backward)
    try:
        yield kernel
    finally:
        library._destroy()
