"""ESimCSE (arXiv 2109.04380): SimCSE with repeated tokens in one view, and a queue of more
negatives.

The queue has vectors of earlier steps from the momentum encoder, a slow average of the encoder.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses import in_batch_contrast
from sentkit.training.method import Draw, Outputs, readout_of, share
from sentkit.training.methods import recipes
from sentkit.training.methods.simcse import SimCSE

MOST_REPEATED = 10  # of the released code


class ESimCSE(SimCSE):
    Settings: ClassVar = recipes.ESimCSE
    body: Bert | TransformersModel
    queue: Tensor  # (size, d), the oldest first
    filled: Tensor  # number of vectors in the queue

    def __init__(self, body: Bert | TransformersModel, settings: recipes.ESimCSE) -> None:
        super().__init__(body, settings)
        self.slow: Bert | TransformersModel | None = None  # the momentum encoder
        if settings.queue_size:
            self.slow = deepcopy(body).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(settings.queue_size, body.width))
        self.register_buffer("filled", torch.tensor(0))

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        return Reads((SENTENCE,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        generator = random("repeat")
        repeated = [self.draw_repeated(len(text), generator) for text in batch.texts[0]]
        return {**super().draw(batch, random), "repeated": repeated}

    def draw_repeated(self, length: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the indices of the tokens to repeat, without the special tokens at both ends."""
        largest_count = share(self.settings.repeat_rate, length)
        if self.settings.repeat_range == "code":
            largest_count = max(min(MOST_REPEATED, largest_count) - 1, 0)
        else:
            largest_count = max(2, largest_count)
        inner_tokens = max(length - 2, 0)
        room = max(min(length - 2, self.body.max_tokens - length), 0)
        count = min(int(generator.integers(0, largest_count + 1)), room)
        return 1 + generator.choice(inner_tokens, count, replace=False, shuffle=False)

    def views(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        longer_texts = []
        for text, indices in zip(texts, batch.draws["repeated"], strict=True):
            longer_texts.append(with_repeated(text, indices))
        outputs = super().views(replace(batch, texts=(texts, longer_texts)))
        if self.slow is not None:
            with torch.no_grad():
                readout = parse_readout(readout_of(self))
                [states] = apply_readouts(self.slow, self.pack(texts), [readout])
                outputs["slow"] = torch.tanh(self.head(states))
        return outputs

    def contrast(self, outputs: Outputs) -> Tensor:
        """Return the contrast of each text with its longer view. The queue is empty in the first
        step.
        """
        queue = self.queue[: int(self.filled)]
        return in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature, queue)

    @torch.no_grad()
    def after_step(self, outputs: Outputs) -> None:
        """Append the vectors of this step to the queue, and move the momentum encoder towards the
        encoder.
        """
        if self.slow is None:
            return
        for slow_weight, weight in zip(self.slow.parameters(), self.body.parameters(), strict=True):
            slow_weight.lerp_(weight, 1 - self.settings.momentum)
        new_vectors = outputs["slow"].to(self.queue)
        vectors = torch.cat([self.queue[: int(self.filled)], new_vectors])[-len(self.queue) :]
        self.queue[: len(vectors)] = vectors
        self.filled.fill_(len(vectors))


def with_repeated(ids: NDArray[np.int32], indices: NDArray[np.int64]) -> NDArray[np.int32]:
    """The token ids with those at `indices` twice."""
    times = np.ones(len(ids), np.int64)
    times[indices] = 2
    return np.repeat(ids, times)
