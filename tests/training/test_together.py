"""Several processes are as one with the whole batch."""

import torch

from sentkit.training.catalogue import METHODS

WHOLE = (
    "simcse",
    "esimcse",
    "contrast",
    "classify",
)  # these have two processes, too, and a second epoch
# Every method, and variants with different paths through the trainer.
RUNS = {name: {} for name in METHODS} | {
    "simcse mlm": {"mlm_weight": 0.1},
    "esimcse": {"mlm_weight": 0.1},
    "sg-bert self": {"guide": "self", "objective": "base"},
    "consert sup": {"mode": "sup"},
    "consert joint": {"mode": "joint"},
    "consert adversarial": {"mode": "joint", "view_b": "adversarial"},
    "contrast": {"form": "full"},
    "contrast guide": {"guide": "self", "margin": 0.1},
    "contrast dims": {"dims": "8,2"},
    "sbert triplet": {"objective": "triplet"},
    "promptbert triplets": {"objective": "triplets"},
    "distill": {"relational": 1},
    "distill static": {"relational": 1, "dropout": "none"},
    "cosent lora": {"lora": 2, "lora_layers": "all"},
    "cosent dims": {"dims": "8,2"},
    "sbert dims": {"objective": "regression", "dims": "8,2"},
    "classify regression": {"objective": "regression"},
    "classify lora": {"lora": 2},
}


def case_of(name, world):
    """Three processes read their rows in chunks of one."""
    more = ({"epochs": 2} if name in WHOLE else {}) | ({"chunk": 1} if world == 3 else {})
    method, _, variant = name.partition(" ")
    return method, world, RUNS[name] | more, "static" if variant == "static" else "transformer"


def differences(one, many):
    """Yield the largest difference of the losses, and that of the weights."""
    assert len(one["losses"]) > 2
    assert one["weights"].keys() == many["weights"].keys()
    yield max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True))
    yield max((one["weights"][n] - many["weights"][n]).abs().max() for n in one["weights"])


def test_processes_have_the_losses_and_weights_of_one_process(together, tmp_path):
    """A batch of 4 is uneven for three processes, and the last one, of 2, leaves one of them
    without a row.

    This is one test, because several would make all runs in each worker of xdist.
    """
    runs = [(name, world) for name in RUNS for world in ((1, 2, 3) if name in WHOLE else (1, 3))]
    together("train", tmp_path, [case_of(*run) for run in runs])
    ended = {run: torch.load(tmp_path / f"{number}.pt") for number, run in enumerate(runs)}

    found = {
        (name, world): [*differences(ended[name, 1], ended[name, world])] for name, world in ended
    }
    assert {
        run: values for run, values in found.items() if not all(each < 1e-9 for each in values)
    } == {}
