"""What a method is held against: transformers' own BertModel, padded, in float64 and without dropout."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sentkit.training.origin import Base
from sentkit.training.trainer import Trainer


@dataclass(frozen=True)
class Reference:
    model: Any
    base: Base

    def states(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """(b, t, d), and (b, t): 1 at the real tokens."""
        tokens = [each.ids for each in self.base.tokenizer(texts)]
        longest = max(map(len, tokens))
        ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in tokens])
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in tokens])
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask

    def first(self, texts: list[str]) -> Tensor:
        return self.states(texts)[0][:, 0]

    def mean(self, texts: list[str]) -> Tensor:
        states, mask = self.states(texts)
        return (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    def parameters(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.model.named_parameters() if "pooler" not in name}


@pytest.fixture
def reference(base: Base, base_folder: Path) -> Reference:
    """The session's base as transformers computes it."""
    import transformers

    model = transformers.BertModel.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return Reference(model.train(), base)


@pytest.fixture
def gradients_of() -> Callable[[Trainer, int], dict[str, Tensor]]:
    """The gradient of a trainer's first batch, encoded in chunks of so many rows; 0: all at once."""

    def find(trainer: Trainer, chunk: int) -> dict[str, Tensor]:
        trainer.gradient.chunk = chunk
        trainer.gradient.of(trainer._batch(0))
        return {
            name: value.grad.clone() for name, value in trainer.method.trained() if value.grad is not None
        }

    return find
