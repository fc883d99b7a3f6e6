"""ESimCSE (arXiv 2109.04380): SimCSE that repeats tokens in one view, with a queue of more negatives.

The queue has vectors of earlier steps from the momentum encoder, a slow average of the encoder.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
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
from sentkit.training.data.batches import Batch
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
        self.slow = deepcopy(body).requires_grad_(False) if settings.queue_size else None
        self.register_buffer("queue", torch.zeros(settings.queue_size, body.width))
        self.register_buffer("filled", torch.tensor(0))

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        return Reads((SENTENCE,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        dice = random("repeat")
        repeated = [self.places(len(text), dice) for text in batch.texts[0]]
        return {**super().draw(batch, random), "repeated": repeated}

    def places(self, length: int, dice: np.random.Generator) -> NDArray[np.int64]:
        """Draw the tokens to repeat. The first and the last are special tokens and are excluded."""
        most = share(self.settings.repeat_rate, length)
        if self.settings.repeat_range == "code":
            most = max(min(MOST_REPEATED, most) - 1, 0)
        elif self.settings.repeat_rate:
            most = max(2, most)
        room = min(length - 2, self.body.max_tokens - length)
        count = min(int(dice.integers(0, most + 1)), max(room, 0))
        return 1 + dice.choice(max(length - 2, 0), count, replace=False, shuffle=False)

    def views(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        longer = [repeated(*each) for each in zip(texts, batch.draws["repeated"], strict=True)]
        states = self.vectors(self.pack([*texts, *longer]))
        one, other = torch.tanh(self.head(states)).chunk(2)
        outputs = {"one": one, "other": other}
        if self.slow is not None:
            with torch.no_grad():
                readout = parse_readout(readout_of(self))
                outputs["slow"] = torch.tanh(
                    self.head(apply_readouts(self.slow, self.pack(texts), [readout])[0])
                )
        return outputs

    def contrast(self, outputs: Outputs) -> Tensor:
        """Return the contrast of each text with its longer view. The queue is empty in the first step."""
        queue = self.queue[: int(self.filled)]
        return in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature, queue)

    @torch.no_grad()
    def after_step(self, outputs: Outputs) -> None:
        """Append the vectors of this step to the queue, and move the momentum encoder towards the encoder."""
        if self.slow is not None:
            for slow, own in zip(self.slow.parameters(), self.body.parameters(), strict=True):
                slow.lerp_(own, 1 - self.settings.momentum)
            new = outputs["slow"].to(self.queue)
            rows = torch.cat([self.queue[: int(self.filled)], new])[-len(self.queue) :]
            self.queue[: len(rows)] = rows
            self.filled.fill_(len(rows))


def repeated(ids: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int32]:
    times = np.ones(len(ids), np.int64)
    times[places] = 2
    return np.repeat(ids, times)
