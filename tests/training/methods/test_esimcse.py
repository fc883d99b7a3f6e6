"""ESimCSE: repeated tokens, the momentum encoder, the queue, and ten steps beside a padded reference."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from sentkit.training.methods.simcse import ESimCSE
from training.losses.formulas import loop_in_batch, mean
from training.methods.loops import copies


def doubled(ids, places):
    found = []
    for place, number in enumerate(ids):
        found += [number, number] if place in places else [number]
    return np.array(found)


def test_ten_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """transformers' BertModel, twice, plain loops and torch's AdamW, in float64 and without dropout."""
    recipe = {"batch": 4, "epochs": 4, "lr": 1e-3, "dropout": 0, "clip": 0}
    recipe |= {"queue_size": 6, "momentum": 0.9, "repeat_rate": 0.5}
    trainer = trainer_of(ESimCSE, texts, double=True, **recipe)
    weight, bias = copies(trainer.method.head)
    slow, queue, places = replace(reference, model=copy.deepcopy(reference.model)), [], []

    def loss_of(batch, rows):
        with torch.no_grad():
            for mine, own in zip(slow.model.parameters(), reference.model.parameters(), strict=True):
                mine.copy_(0.9 * mine + 0.1 * own)
            new = torch.tanh(slow.first(batch.texts[0]) @ weight.T + bias)
        longer = [doubled(*each) for each in zip(batch.texts[0], batch.draws["repeated"], strict=True)]
        one, other = (
            torch.tanh(reference.first(each) @ weight.T + bias) for each in (batch.texts[0], longer)
        )
        loss = mean(loop_in_batch(one, [*other, *queue], 0.05))
        queue[:] = [*queue, *new][-6:]
        places.extend(batch.draws["repeated"])
        return loss

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of, count=10)
    assert any(map(len, places))


PAPER = {"repeat_range": "paper"}


@pytest.mark.parametrize(
    ("length", "settings", "counts"),
    [
        (3, {}, {0}),  # the rate allows 0
        (12, {}, {0, 1, 2}),  # 0.32 * 12 = 3.84: one of 0, 1 and 2
        (12, PAPER, {0, 1, 2, 3}),
        (4, PAPER, {0, 1, 2}),  # 2, although the rate allows 1
        (3, PAPER, {0, 1}),  # one token is not special
        (2, PAPER, {0}),
        (40, {}, set(range(10))),  # at most 9
        (62, {}, {0, 1, 2}),  # the encoder has 64 positions
        (12, PAPER | {"repeat_rate": 0}, {0}),
    ],
)
def test_the_number_of_repeated_tokens(method_of, length, settings, counts):
    method, dice = method_of(ESimCSE, **settings), np.random.default_rng(0)
    drawn = [method.places(length, dice) for _ in range(400)]

    assert {len(each) for each in drawn} == counts
    assert all(len(set(each)) == len(each) for each in drawn)
    assert {place for each in drawn for place in each} <= set(range(1, length - 1))


def test_the_momentum_encoder_has_no_dropout_and_is_not_kept(method_of):
    method = method_of(ESimCSE, momentum=0.995).train()

    assert not method.slow.training
    assert method.finished().heads.keys() == {"head.weight", "head.bias"}
    assert method_of(ESimCSE, queue_size=0).slow is None
