"""IS-BERT: five steps beside a padded reference, chunks, and a base that has a convolution."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import UsageError
from sentkit.training.base import open_named
from sentkit.training.methods.products import ISBERT
from sentkit.training.runs.run import write_checkpoint
from training.losses.formulas import loop_information, mean


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """transformers' BertModel, torch's Conv1d on one sentence at a time, plain loops, in float64."""
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "dropout": 0, "clip": 0, "channels": 3}
    recipe |= {"optimizer": "adamw", "epsilon": 1e-8, "weight_decay": 0, "warmup": 0}
    trainer = trainer_of(ISBERT, texts, double=True, **recipe)
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
