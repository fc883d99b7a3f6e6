"""PairSupCon: its loss, its steps, and the effect of each setting."""

import pytest
import torch

from sentkit.papers.pairsupcon.method import PairSupCon
from sentkit.training.settings import build
from training.losses.formulas import loop_entailment, mean
from training.methods.loops import copies, cross_entropy

WORDS = ("contradiction", "entailment")


@pytest.fixture
def pairs(texts):
    return [{"text_a": texts[i], "text_b": texts[i + 1], "label": WORDS[i % 3 > 0]} for i in range(10)]


def method_of(width=2, **settings):
    """A method without an encoder to speak of: its heads and its loss need none."""
    body = torch.nn.Linear(2, 2)
    body.width = width
    return PairSupCon(body, PairSupCon.Settings(**settings))


def test_six_steps_are_those_of_a_padded_reference(trainer_of, check_steps, pairs, reference):
    """transformers' BertModel, plain loops and torch's Adam with two rates, in float64 without dropout."""
    wanted = {"batch": 4, "epochs": 2, "lr": 1e-4, "head_lr_factor": 30, "head_width": 8, "beta": 0.7}
    trainer = trainer_of(PairSupCon, pairs, double=True, dropout=0, **wanted)
    (first, second), [relation] = copies(trainer.method.contrast), copies(trainer.method.relation)
    groups = [{"params": list(reference.parameters().values()), "lr": 1e-4}]
    groups += [{"params": [first, second, relation], "lr": 3e-3}]

    def loss_of(batch, rows):
        labels = [WORDS.index(pairs[row]["label"]) for row in rows]
        u, v = map(reference.mean, batch.texts)
        one, other = (torch.relu(side @ first.T) @ second.T for side in (u, v))
        logits = torch.cat([u, v, abs(u - v)], 1) @ relation.T
        return cross_entropy(logits, labels) + 0.7 * mean(loop_entailment(one, other, labels, 0.05, "code"))

    optimizer = torch.optim.Adam(groups)
    check_steps(trainer, [], loss_of, count=6, optimizer=optimizer, rate=lambda step: None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"hard_negatives": False}, 0.870714),
        ({}, 0.972263),
        ({"hard_negative_form": "exponent"}, 1.161203),
        ({"id_average": "pairs"}, 2 * 0.972263),
        ({"beta": 0.5}, 0.972263 / 2),
        ({"beta": 0.5, "id_average": "pairs"}, 0.972263),
    ],
)
def test_the_loss_of_an_example_worked_by_hand(settings, expected):
    """Only the entailment's sides are anchors, so the released mean is over two of the four."""
    left, right = (
        torch.tensor(rows, dtype=torch.float64)
        for rows in ([[1.0, 0.0], [0.0, 1.0]], [[0.8, 0.6], [0.6, 0.8]])
    )
    outputs = {"left": left, "right": right, "label": torch.tensor([1, 0])}
    found = method_of(temperature=0.5, **settings).loss(outputs)["id"]

    assert found.value.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("preset", "terms", "weighted"),
    [
        ("paper", {"cls", "id"}, True),
        ("cls", {"cls"}, True),
        ("id", {"id"}, True),
        ("id-plain", {"id"}, False),
        ("plain", {"cls", "id"}, False),
    ],
)
def test_the_presets_are_the_rows_of_the_ablation(trainer_of, pairs, preset, terms, weighted):
    settings = build(PairSupCon.Settings, PairSupCon.presets, preset, [])
    trainer = trainer_of(PairSupCon, pairs, objective=settings.objective)
    method = trainer.method

    assert settings.hard_negatives == weighted
    assert method.loss(method.encode(trainer.run.corpus.batch([0, 1, 2]))).keys() == terms
    assert (method.contrast is not None, method.relation is not None) == ("id" in terms, "cls" in terms)


def test_the_heads_of_bert_base_have_as_many_weights_as_published():
    method = method_of(width=768)

    assert method.finished().heads.keys() == {"contrast.0.weight", "contrast.2.weight", "relation.weight"}
    assert sum(value.numel() for value in method.relation.parameters()) == 4608
    assert sum(value.numel() for value in method.contrast.parameters()) == 688_128
    assert method_of(width=768, head_width=64).contrast[2].weight.shape == (64, 768)


@pytest.mark.parametrize("objective", ["both", "id", "cls"])
def test_the_heads_learn_a_hundred_times_as_fast(trainer_of, pairs, objective):
    trainer = trainer_of(PairSupCon, pairs, objective=objective)
    encoder, heads = trainer.optimizer.param_groups
    sizes = [sum(value.numel() for value in group["params"]) for group in (encoder, heads)]

    assert heads["lr"] / encoder["lr"] == pytest.approx(100)
    assert encoder["lr"] == 5e-6
    assert sum(sizes) == sum(value.numel() for value in trainer.method.parameters())
    assert sizes[1] == sum(value.numel() for value in trainer.method.finished().heads.values())
    assert not trainer.optimizer.late  # that of torch
    assert [trainer.factor(step) for step in range(trainer.order.steps)] == [1.0] * trainer.order.steps


def test_neutral_pairs_are_omitted(corpus_of, texts):
    words = ["neutral", "entailment", "neutral", "contradiction"]
    rows = [{"text_a": texts[i], "text_b": texts[i + 1], "label": word} for i, word in enumerate(words)]
    corpus = corpus_of(PairSupCon, rows, PairSupCon.Settings())

    assert corpus.targets.tolist() == [1.0, 0.0]
    assert (
        corpus.text(0, 0).tolist()
        == corpus_of(PairSupCon, rows[1:2], PairSupCon.Settings()).text(0, 0).tolist()
    )
