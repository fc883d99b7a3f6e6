"""SBERT: what its three objectives compute, step by step."""

import pytest
import torch

from reference_steps import adamw, take_step
from sentkit.errors import DataError, UsageError
from sentkit.training.methods.sbert import SBERT

WORDS = ("contradiction", "entailment", "neutral")
STEPS = 6


@pytest.fixture
def rows_of(texts):
    """Ten rows of the kind that an objective reads."""
    rows = {
        "softmax": lambda i: {"text_a": texts[i], "text_b": texts[i + 1], "label": WORDS[i % 3]},
        "regression": lambda i: {"text_a": texts[i], "text_b": texts[i + 1], "score": i / 2},
        "triplet": lambda i: {"anchor": texts[i], "positive": texts[i + 1], "negative": texts[i + 2]},
    }
    return lambda objective: [rows[objective](i) for i in range(10)]


# The objectives as the paper states them, in loops.


def softmax(rows, vectors, heads, settings):
    u, v = vectors
    logits = torch.cat([u, v, abs(u - v)], 1) @ heads["classifier.weight"].T + heads["classifier.bias"]
    own = [WORDS.index(row["label"]) for row in rows]
    return sum(torch.logsumexp(line, 0) - line[i] for line, i in zip(logits, own, strict=True)) / len(rows)


def regression(rows, vectors, heads, settings):
    total = 0.0
    for row, u, v in zip(rows, *vectors, strict=True):
        total = total + (torch.cosine_similarity(u, v, dim=0) - row["score"] / settings["scale"]) ** 2
    return total / len(rows)


def triplet(rows, vectors, heads, settings):
    total = 0.0
    for anchor, positive, negative in zip(*vectors, strict=True):
        near, far = (torch.sqrt(((anchor - other) ** 2).sum()) for other in (positive, negative))
        total = total + torch.clamp(near - far + settings["margin"], min=0)
    return total / len(rows)


@pytest.mark.parametrize(
    ("loop", "settings"), [(softmax, {}), (regression, {"scale": 6.0}), (triplet, {"margin": 2.0})]
)
def test_six_steps_are_those_of_a_padded_reference(trainer_of, losses_of, rows_of, reference, loop, settings):
    """transformers' BertModel, plain loops and torch's AdamW with decay, in float64 and without dropout."""
    objective = loop.__name__
    rows = rows_of(objective)
    names = [name for name in rows[0] if name not in ("label", "score")]
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0.3, "optimizer": "adamw", "weight_decay": 0.1}
    trainer = trainer_of(
        SBERT, rows, double=True, dropout=0, clip=0, objective=objective, **recipe, **settings
    )
    heads = {
        name: value.detach().clone().requires_grad_()
        for name, value in trainer.method.finished().heads.items()
    }
    ours = losses_of(trainer)
    named = {**reference.parameters(), **heads}
    optimizer = adamw(named, 0.1)
    theirs = []
    for step in range(STEPS):
        chosen = [rows[row] for row in trainer.order.at(step)]
        vectors = [reference.mean([row[name] for row in chosen]) for name in names]
        loss = loop(chosen, vectors, heads, settings)
        # a warm-up of 0.3 * 6 steps, rounded up to 2
        rate = 1e-3 * (step / 2 if step < 2 else (STEPS - step) / 4)
        theirs.append(take_step(optimizer, loss, rate))

    assert ours == pytest.approx(theirs, rel=0, abs=1e-9)
    assert ours[0] != ours[-1]


def test_a_last_row_alone_is_a_batch(trainer_of, losses_of, rows_of):
    """A row needs no other to contrast with."""
    losses = losses_of(trainer_of(SBERT, rows_of("softmax"), batch=9))

    assert len(losses) == 2


@pytest.mark.parametrize(("scale", "limit"), [(5.0, 5.0), (1.0, 1.0)])
def test_a_score_is_not_over_the_scale(corpus_of, texts, scale, limit):
    settings = SBERT.Settings(objective="regression", scale=scale)
    rows = [{"text_a": texts[0], "text_b": texts[1], "score": score} for score in (-limit, 0, limit)]
    problem = f'"score" is {limit + 0.5}, outside the scale of {limit:g}$'

    assert len(corpus_of(SBERT, rows, settings)) == 3
    with pytest.raises(DataError, match=problem):
        corpus_of(SBERT, [*rows, rows[0] | {"score": limit + 0.5}], settings)


def test_a_setting_of_another_objective_is_refused():
    with pytest.raises(UsageError, match="margin has no effect with objective=softmax"):
        SBERT.Settings(margin=5.0)
    with pytest.raises(UsageError, match="scale has no effect with objective=triplet"):
        SBERT.Settings(objective="triplet", scale=1.0)
