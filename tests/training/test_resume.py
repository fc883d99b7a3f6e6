"""Each method, stopped and resumed, ends with the bits of an uninterrupted run."""

import pytest
import torch

from sentkit.signals import Stopped
from sentkit.training.catalogue import METHODS
from sentkit.training.method import changing
from sentkit.training.settings import build

LABELS = ("entailment", "contradiction")
ENTRIES = ["cat", "dog", "rain", "sea", "house"]  # each one token
SMALL = {
    "simcse": {},
    "simcse-sup": {"mlm_weight": 0.1, "dims": "8,4"},
    "esimcse": {"queue_size": 6, "mlm_weight": 0.1, "lora": 2},
    "sg-bert": {"head_width": 8, "objective": "base", "lora": 2},
    "consert": {"dropout": 0.1, "view_a": "dropout"},
    "pairsupcon": {"head_width": 8},
    "contrast": {"form": "full", "guide": "self", "dims": "8,4"},
    "sbert": {},
    "mlm": {},
    "defsent": {"part": 1},
    "defsent-plus": {},
    "ct": {"negatives": 2, "lora": 2, "lora_layers": "all"},
    "promptbert": {},
    "sncse": {},
    "is-bert": {"channels": 6, "lora": 2},
    "tsdae": {},
    "clear": {},
    "rank-encoder": {"rank_corpus": 8},
    "distill": {"relational": 1},
    "cosent": {},
    "angle": {},
    "classify": {},
}


def rows_of(kind, base, settings, texts):
    """Twelve rows with every field that the method needs."""
    names = kind.reads(base, settings).kinds[0].texts
    for number in range(12):
        own = {name: texts[(number + 3 * place) % len(texts)] for place, name in enumerate(names)}
        yield {
            **own,
            "label": LABELS[number % 2],
            "score": number % 6,
            "entry": ENTRIES[number % 5],
            "embedding": [1, number, number % 5],
        }


def stopped_after(trainer, steps):
    """Stop after this number of steps. The state is in the folder of the trainer."""

    def report(record):
        trainer.stop.requested = record.get("step") == steps

    trainer.reporter.step = report
    with pytest.raises(Stopped):
        trainer.train()


@pytest.fixture
def small(trainer_of, with_entries, texts):
    """A trainer of this method over twelve rows."""

    def make(name):
        kind, base = METHODS[name].load(), with_entries(ENTRIES)
        given = {"batch": 6, "epochs": 2, "lr": 0.003, "chunk": 4, **SMALL[name]}
        settings = build(kind.Settings, {}, None, [f"{each}={value}" for each, value in given.items()])
        return trainer_of(kind, list(rows_of(kind, base, settings, texts)), base=base, **given)

    return make


@pytest.mark.parametrize("name", METHODS)
def test_products_in_bfloat16_give_losses_in_float32(name, small):
    trainer = small(name)
    with torch.autocast("cpu", torch.bfloat16):
        terms = trainer.method.loss(trainer.method.encode(trainer.batch(0)))

    assert {term.sum.dtype for term in terms.values()} == {torch.float32}
    assert all(term.sum.isfinite() for term in terms.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_and_resumed_run_equals_a_whole_run(name, small):
    """With dropout and chunks: weights, optimizer and position are equal to the last bit."""
    whole, cut, rest = (small(name) for _ in range(3))
    torch.manual_seed(11)
    whole.train()
    torch.manual_seed(11)
    stopped_after(cut, 3)
    torch.manual_seed(99)  # the random state of a new process does not matter
    rest.keeper = cut.keeper
    rest.resume_from(cut.keeper.load(rest.run.identity))
    rest.train()

    assert (whole.position.step, rest.position.step) == (4, 4)
    assert changing(whole.method).keys() == changing(rest.method).keys()
    for tensor, value in changing(whole.method).items():
        assert torch.equal(value, changing(rest.method)[tensor]), tensor


def test_every_method_is_tested():
    assert SMALL.keys() == METHODS.keys()
