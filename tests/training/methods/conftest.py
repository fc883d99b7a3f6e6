"""The reference of all methods: the BertModel of transformers, padded, in float64 and without
dropout.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from reference_steps import PlainAdamW, take_step
from sentkit.model.checkpoint.heads import HEADS
from sentkit.training.base import Base, open_named
from sentkit.training.data.corpus import Batch, stream
from sentkit.training.methods.mlm import MaskedLanguageModel
from sentkit.training.settings import build
from support import padded
from training.small import make_base


@dataclass(frozen=True)
class Reference:
    model: Any
    base: Base

    def states(self, texts):
        """(b, t, d), and (b, t): 1 at the real tokens. The texts are strings or token ids."""
        strings = isinstance(texts[0], str)
        ids, mask = padded(
            [tokens.ids for tokens in self.base.training_tokenizer(texts)] if strings else texts
        )
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask

    def first(self, texts):
        return self.states(texts)[0][:, 0]

    def mean(self, texts):
        states, mask = self.states(texts)
        return (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    def parameters(self):
        return {
            name: value for name, value in self.model.named_parameters() if "pooler" not in name
        }


@pytest.fixture
def reference(base, base_folder):
    """The session's base as transformers computes it."""
    model = transformers.BertModel.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return Reference(model.train(), base)


@pytest.fixture
def check_steps(losses_of):
    """The first losses of a trainer are those of a reference with these parameters.

    `loss_of` gets a batch and the numbers of its rows. Unless set, the optimizer is AdamW. The rate
    rises for some steps and then falls to 0, or is constant.
    """

    def check(
        trainer,
        parameters,
        loss_of,
        *,
        count=5,
        optimizer=None,
        warmup=0,
        constant=False,
        rates=None,
    ):
        steps = trainer.order.steps
        lr = trainer.recipe.lr
        batches = [(trainer.batch(step), trainer.order.at(step)) for step in range(count)]
        losses = losses_of(trainer)[:count]
        optimizer = optimizer or torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
        take = (
            optimizer.step if isinstance(optimizer, PlainAdamW) else partial(take_step, optimizer)
        )
        rises = [lr * step / warmup for step in range(warmup)]
        falls = [
            lr * (1 if constant else (steps - step) / (steps - warmup))
            for step in range(warmup, count)
        ]
        rates = rates or rises + falls
        expected = [take(loss_of(*batch), rate) for batch, rate in zip(batches, rates, strict=True)]
        assert losses == pytest.approx(expected, rel=0, abs=1e-9)
        assert len({round(loss, 6) for loss in losses}) == count

    return check


@pytest.fixture
def method_of(base):
    """`method_of(SimCSE, temperature=0.1)`: a method over that base, with these settings."""
    own_base = base

    def make(kind, base=own_base, preset=None, **settings):
        assignments = [f"{name}={value}" for name, value in settings.items()]
        return kind.build(base, build(kind.Settings, kind.presets, preset, assignments))

    return make


@pytest.fixture
def mlm_of(method_of):
    return partial(method_of, MaskedLanguageModel)


@pytest.fixture
def drawn():
    """Rows with the draws of a method: these tokens, or so many ordinary ones between [CLS] and
    [SEP].
    """

    def make(method, *rows, step=0):
        tokens = [[2, *range(100, 100 + row), 3] if isinstance(row, int) else row for row in rows]
        batch = Batch(([np.array(ids, np.int32) for ids in tokens],))
        return replace(batch, draws=method.draw(batch, partial(stream, 0, step)))

    return make


@pytest.fixture
def base_of(tmp_path):
    """A base of that family with a small tokenizer, saved from its MaskedLM or from another
    model.
    """

    def make(family="bert", head="ForMaskedLM", name="base", *, pooler=False, **config):
        kind = HEADS[family].kind + head
        folder = make_base(tmp_path / name, 3, kind, num_hidden_layers=2, pad_token_id=0, **config)
        if pooler:
            prefix = getattr(transformers, kind).base_model_prefix
            add_pooler(folder / "model.safetensors", f"{prefix}.pooler.dense")
        return open_named(str(tmp_path / name), 32)

    return make


@pytest.fixture
def scored(texts):
    """Thirteen pairs with scores from 0 to 5."""
    return [{"text_a": texts[i], "text_b": texts[(i + 1) % 13], "score": i % 6} for i in range(13)]


def add_pooler(path, name):
    """Beside a language model head, where transformers has no class that saves both."""
    from safetensors.torch import load_file, save_file

    more = {f"{name}.weight": torch.randn(16, 16), f"{name}.bias": torch.randn(16)}
    save_file(load_file(path) | more, path, {"format": "pt"})
