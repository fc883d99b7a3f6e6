"""Several processes are as one with the whole batch."""

import pytest
import torch

from sentkit.training.catalogue import METHODS

# These have two processes, too, and a second epoch.
WHOLE = ("simcse", "esimcse", "contrast", "classify")
# Every method, and a variant for each other path through the trainer.
RUNS = {name: {} for name in METHODS} | {
    "simcse mlm": {"mlm_weight": 0.1},
    "esimcse": {"mlm_weight": 0.1},
    "consert adversarial": {"mode": "joint", "view_b": "adversarial"},
    "contrast": {"form": "full"},
    "contrast guide": {"guide": "self", "margin": 0.1},
    "distill": {"relational": 1},
    "distill static": {"relational": 1, "dropout": "none"},
    "cosent lora": {"lora": 2, "lora_layers": "all"},
    "cosent dims": {"dims": "8,2"},
}
MORE_RUNS = {
    "sg-bert self": {"guide": "self", "objective": "base"},
    "consert sup": {"mode": "sup"},
    "consert joint": {"mode": "joint"},
    "contrast dims": {"dims": "8,2"},
    "sbert triplet": {"objective": "triplet"},
    "promptbert triplets": {"objective": "triplets"},
    "sbert dims": {"objective": "regression", "dims": "8,2"},
    "classify regression": {"objective": "regression"},
    "classify lora": {"lora": 2},
}


def case_of(name, world, settings):
    """Three processes read their rows in chunks of one."""
    epochs = {"epochs": 2} if name in WHOLE else {}
    chunk = {"chunk": 1} if world == 3 else {}
    method, _, variant = name.partition(" ")
    base = "static" if variant == "static" else "transformer"
    return method, world, settings | epochs | chunk, base


def differences(alone, joint):
    """The largest difference of the losses, and that of the weights."""
    assert len(alone["losses"]) > 2
    assert alone["weights"].keys() == joint["weights"].keys()
    losses = zip(alone["losses"], joint["losses"], strict=True)
    weights = [(weight, joint["weights"][name]) for name, weight in alone["weights"].items()]
    return max(abs(a - b) for a, b in losses), max((a - b).abs().max() for a, b in weights)


@pytest.mark.parametrize(
    "settings_of_runs", [RUNS, pytest.param(MORE_RUNS, marks=pytest.mark.slow)], ids=["all", "more"]
)
def test_processes_have_the_losses_and_weights_of_one_process(together, tmp_path, settings_of_runs):
    """A batch of 4 is uneven for three processes, and the last one, of 2, leaves one of them
    without a row.

    This is one test, because several would make all runs in each worker of xdist.
    """
    worlds = {name: (1, 2, 3) if name in WHOLE else (1, 3) for name in settings_of_runs}
    runs = [(name, world) for name in settings_of_runs for world in worlds[name]]
    cases = [case_of(name, world, settings_of_runs[name]) for name, world in runs]

    together("train", tmp_path, cases)

    results = {run: torch.load(tmp_path / f"{number}.pt") for number, run in enumerate(runs)}
    for (name, world), result in results.items():
        difference_of_losses, difference_of_weights = differences(results[name, 1], result)
        assert difference_of_losses < 1e-9, (name, world)
        assert difference_of_weights < 1e-9, (name, world)
