"""CT: the drawn sentences, five steps beside a padded reference, and two encoders."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from sentkit.errors import DataError
from sentkit.training.method import changing, using
from sentkit.training.methods.products import ContrastiveTension
from training.losses.formulas import dot, loop_tension

RATE = 1e-3


def tension(first, second, texts, drawn):
    products = [
        [dot(first.mean([own])[0], second.mean([other])[0]) for other in [own, *others]]
        for own, others in zip(texts, drawn, strict=True)
    ]
    return torch.cat(loop_tension(products)).mean()


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """Two of transformers' BertModel, plain loops and torch's RMSprop, in float64."""
    recipe = {"batch": 3, "epochs": 2, "lr": RATE, "negatives": 2}
    trainer = trainer_of(ContrastiveTension, texts, double=True, **recipe)
    second = replace(reference, model=copy.deepcopy(reference.model))
    parameters = [*second.model.parameters(), *reference.model.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=RATE, alpha=0.9, eps=1e-7)

    def loss_of(batch, rows):
        return tension(reference, second, batch.texts[0], batch.draws["negatives"])

    check_steps(trainer, parameters, loss_of, optimizer=optimizer, rate=lambda step: RATE)


def test_the_drawn_sentences_are_others(trainer_of, texts):
    """A text that occurs more often is not drawn for itself; draws depend on seed and step only."""
    trainer = trainer_of(ContrastiveTension, [*texts[:2], *texts[:2]], batch=4, negatives=5)
    batch = trainer.batch(0)

    for own, others in zip(batch.texts[0], batch.draws["negatives"], strict=True):
        assert len(others) == 5
        assert not any(np.array_equal(own, other) for other in others)
    again = trainer.batch(0).draws["negatives"]
    assert all(map(np.array_equal, batch.draws["negatives"][0], again[0]))


def test_each_encoder_can_become_the_body(trainer_of, texts):
    trainer = trainer_of(ContrastiveTension, texts, batch=4)
    method = trainer.method
    first, second = method.body, method.second
    assert {name.partition(".")[0] for name in changing(method)} == {"body", "second"}
    assert [*method.encoders()] == [first, second]
    with using(method, second):
        assert method.body is second

    assert method.body is first


def test_equal_texts_are_refused(corpus_of, texts):
    settings = ContrastiveTension.Settings()
    corpus = corpus_of(ContrastiveTension, [texts[0]] * 3, settings)
    with pytest.raises(DataError, match="all 3 texts are equal: no other sentence to draw"):
        ContrastiveTension.check_rows(corpus, settings, "rows")
