"""What each process has before the first step."""

from dataclasses import replace

import torch
from torch import nn

from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Checkpointer
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.runs.train_run import begin


class WithLayer(SimCSE):
    def prepare(self, corpus):
        self.layer = nn.Linear(2, 2)


def test_a_layer_of_prepare_is_equal_in_all_processes_and_dropout_is_not(
    trainer_of, new_folder, texts
):
    run = trainer_of(WithLayer, texts).run
    layers = []
    random_numbers = []
    for rank in (0, 1):
        checkpointer = Checkpointer(new_folder())
        trainer = begin(replace(run, processes=Processes(rank=rank)), checkpointer)
        layers.append(trainer.method.layer.weight)
        random_numbers.append(torch.rand(1))

    assert torch.equal(*layers)
    assert not torch.equal(*random_numbers)
