"""CT and IS-BERT: steps beside a padded reference, drawn sentences, two encoders, and a convolution."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import UsageError
from sentkit.training.base import open_named
from sentkit.training.method import changing, using
from sentkit.training.methods.products import ISBERT, ContrastiveTension
from sentkit.training.runs.run import write_checkpoint
from training.losses.formulas import dot, loop_information, loop_tension, mean
from training.methods.loops import RECIPE


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """Two of transformers' BertModel, plain loops and torch's RMSprop, in float64."""
    recipe = {"batch": 3, "epochs": 2, "lr": 1e-3, "negatives": 2}
    trainer = trainer_of(ContrastiveTension, texts, double=True, **recipe)
    second = replace(reference, model=copy.deepcopy(reference.model))
    parameters = [*second.model.parameters(), *reference.model.parameters()]
    optimizer = torch.optim.RMSprop(parameters, alpha=0.9, eps=1e-7)

    def loss_of(batch, rows):
        products = [
            [dot(reference.mean([own])[0], second.mean([other])[0]) for other in [own, *others]]
            for own, others in zip(batch.texts[0], batch.draws["negatives"], strict=True)
        ]
        return torch.cat(loop_tension(products)).mean()

    check_steps(trainer, parameters, loss_of, optimizer=optimizer, constant=True)


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


def test_five_steps_with_a_convolution_are_those_of_a_reference(trainer_of, check_steps, texts, reference):
    """transformers' BertModel, torch's Conv1d on one sentence at a time, plain loops, in float64."""
    recipe = RECIPE | {"channels": 3, "optimizer": "adamw", "epsilon": 1e-8}
    trainer = trainer_of(ISBERT, texts, **recipe)
    kernels = [torch.nn.Conv1d(16, 3, size, padding=size // 2).double() for size in (1, 3, 5)]
    for kernel, own in zip(kernels, trainer.method.body.convolution.convs, strict=True):
        kernel.load_state_dict(own.state_dict())

    def loss_of(batch, rows):
        states, mask = reference.states([texts[row] for row in rows])
        local = []
        for row, length in zip(states, mask.sum(1), strict=True):
            sentence = row[:length].T[None]
            local.append(torch.cat([kernel(sentence)[0].T for kernel in kernels], 1))
        own, others = loop_information(local, [each.mean(0) for each in local])
        return mean(own) + mean(others)

    parameters = [*reference.model.parameters(), *(value for each in kernels for value in each.parameters())]
    check_steps(trainer, parameters, loss_of)


def test_the_convolution_of_the_base_is_trained_further(trainer_of, texts, tmp_path):
    """It is part of the hash of the base, so a run with another convolution is another run."""
    trainer, made = trainer_of(ISBERT, texts, batch=13, channels=6), tmp_path / "made"
    write_checkpoint(made, trainer.method, trainer.run.base, {})
    base = open_named(str(made), 32)
    again = ISBERT.build(base, ISBERT.Settings(channels=6))

    assert base.declared.name == "conv"
    for name, value in trainer.method.body.convolution.state_dict().items():
        assert torch.equal(value, again.body.convolution.state_dict()[name])
    with pytest.raises(UsageError, match="channels=256: the convolution of the base has 6") as caught:
        ISBERT.check(base, ISBERT.Settings())
    assert caught.value.advice == "use --set channels=6"
    ISBERT.check(base, ISBERT.Settings(channels=6))
    path = made / "0_CNN/model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    assert open_named(str(made), 32).hash != base.hash
