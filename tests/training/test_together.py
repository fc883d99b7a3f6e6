"""Several processes are as one with the whole batch."""

import torch

from sentkit.training.catalogue import METHODS

# Settings that make each method small, and variants with different paths through the trainer.
# Three processes read their rows in chunks of one. Those of WHOLE have a second epoch.
RUNS = {
    "simcse": [],
    "simcse mlm": ["mlm_weight=0.1"],
    "simcse-sup": [],
    "esimcse": ["queue_size=6", "mlm_weight=0.1"],
    "sg-bert": ["head_width=8"],
    "sg-bert self": ["head_width=8", "guide=self", "objective=base"],
    "consert": [],
    "consert sup": ["mode=sup"],
    "consert joint": ["mode=joint"],
    "consert adversarial": ["mode=joint", "view_b=adversarial"],
    "pairsupcon": ["head_width=8"],
    "contrast": ["form=full"],
    "contrast guide": ["guide=self", "margin=0.1"],
    "contrast dims": ["dims=8,2"],
    "sbert": [],
    "sbert triplet": ["objective=triplet"],
    "mlm": [],
    "defsent": ["part=1"],
    "defsent-plus": [],
    "ct": ["negatives=2"],
    "promptbert": [],
    "promptbert triplets": ["objective=triplets"],
    "sncse": [],
    "is-bert": ["channels=6"],
    "tsdae": [],
    "clear": [],
    "rank-encoder": ["rank_corpus=8"],
    "distill": ["relational=1"],
    "distill static": ["relational=1", "dropout=none"],
    "cosent": [],
    "cosent lora": ["lora=2", "lora_layers=all"],
    "cosent dims": ["dims=8,2"],
    "sbert dims": ["objective=regression", "dims=8,2"],
    "angle": [],
    "classify": [],
    "classify regression": ["objective=regression"],
    "classify lora": ["lora=2"],
}
WHOLE = ("simcse", "esimcse", "contrast", "classify")


def runs():
    """By name and processes: each case in one process and in three, and some in two."""
    return {
        (name, world): (
            name.split()[0],
            world,
            [*settings, *["epochs=2"] * (name in WHOLE), *["chunk=1"] * (world == 3)],
            "static" if name.endswith(" static") else "transformer",
        )
        for name, settings in RUNS.items()
        for world in ((1, 2, 3) if name in WHOLE else (1, 3))
    }


def differences(one, many):
    """Yield the largest difference of the losses, and that of the weights."""
    assert len(one["losses"]) > 2
    assert one["weights"].keys() == many["weights"].keys()
    yield max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True))
    yield max((one["weights"][n] - many["weights"][n]).abs().max() for n in one["weights"])


def test_processes_have_the_losses_and_weights_of_one_process(together, tmp_path):
    """A batch of 4 is uneven for three processes, and the last one, of 2, leaves one of them without a row.

    This is one test, because several would make all runs in each worker of xdist.
    """
    together("train", tmp_path, list(runs().values()))
    ended = {key: torch.load(tmp_path / f"{number}.pt") for number, key in enumerate(runs())}

    found = {(name, world): [*differences(ended[name, 1], ended[name, world])] for name, world in ended}
    assert {key: values for key, values in found.items() if not all(each < 1e-9 for each in values)} == {}


def test_every_method_is_run():
    assert {name.split()[0] for name in RUNS} == METHODS.keys()
