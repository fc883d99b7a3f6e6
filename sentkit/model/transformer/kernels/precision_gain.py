"""The time of a model in bf16 beside fp32 on this CPU, measured on one block of its sizes.

With instructions for it, bf16 takes less time than fp32; without them, it can take seven times as
much.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sentkit.model.encoding import FasterPrecision
from sentkit.model.text.tokens import TokenBlock, Tokens
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.kernels.inference import prepare_for_cpu
from sentkit.model.transformer.packed import Packed, pack_block

CPU = torch.device("cpu")
SENTENCES = 32
TOKENS_OF_SENTENCE = 32
VOCABULARY = 64
WORTH_TELLING = 0.8  # of the time of the chosen precision


def faster_to_encode(architecture: Architecture, chosen: str) -> FasterPrecision | None:
    """Return the other one of fp32 and bf16 if it encodes much faster than the chosen one."""
    return if_much_faster(chosen, bf16_time_of_encoding(architecture))


def faster_to_train(architecture: Architecture, chosen: str) -> FasterPrecision | None:
    """Return the other one of fp32 and bf16 if it trains much faster than the chosen one."""
    return if_much_faster(chosen, bf16_time_of_training(architecture))


def if_much_faster(chosen: str, bf16_share: float) -> FasterPrecision | None:
    """`bf16_share` is the time of bf16 as a share of that of fp32."""
    if chosen == "bf16":
        other = FasterPrecision("fp32", 1 / bf16_share)
    else:
        other = FasterPrecision("bf16", bf16_share)
    return other if other.share_of_time <= WORTH_TELLING else None


def bf16_time_of_encoding(architecture: Architecture) -> float:
    """Return the time of a prepared block in bf16, as a share of that in fp32."""

    def block_in(dtype: torch.dtype) -> Callable[[], Tensor]:
        bert = prepare_for_cpu(small_bert(architecture).to(dtype).eval())
        packed = packed_sentences()
        return lambda: last_states(bert, packed)

    return 1 / speed_ratio(new=block_in(torch.bfloat16), old=block_in(torch.float32))


def bf16_time_of_training(architecture: Architecture) -> float:
    """Return the time of a gradient of a block with bf16, as a share of that without it."""

    def gradient(*, bf16: bool) -> Callable[[], None]:
        bert = small_bert(architecture).train()
        packed = packed_sentences()

        def run() -> None:
            with torch.inference_mode(False), torch.enable_grad():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                    states = last_states(bert, packed)
                states.float().sum().backward()
                bert.zero_grad()

        return run

    # The dropout of a training draws from the same generator.
    with torch.random.fork_rng(devices=[]):
        return 1 / speed_ratio(new=gradient(bf16=True), old=gradient(bf16=False))


def small_bert(architecture: Architecture) -> Bert:
    """An encoder of one block with random weights. The random numbers of others do not change."""
    of_one_block = replace(
        architecture,
        depth=1,
        vocabulary=VOCABULARY,
        padding_id=0,
        attention_windows=architecture.attention_windows[:1],
        rotary_bases=architecture.rotary_bases[:1],
    )
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        return Bert(of_one_block)


def packed_sentences() -> Packed:
    ids = np.arange(TOKENS_OF_SENTENCE) % (VOCABULARY - 1) + 1
    sentence = Tokens(ids.tolist(), TOKENS_OF_SENTENCE)
    return pack_block(TokenBlock.of([sentence] * SENTENCES), CPU)


def last_states(bert: Bert, packed: Packed) -> Tensor:
    *_, states = bert.states(packed)
    return states
