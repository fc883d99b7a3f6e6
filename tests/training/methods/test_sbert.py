"""SBERT: what its three objectives compute, step by step."""

import pytest
import torch

from reference_steps import adamw
from sentkit.errors import DataError
from sentkit.training.methods.pairs import SBERT
from training.losses.formulas import loop_margin, loop_regression, mean
from training.methods.loops import copies, cross_entropy

WORDS = ("contradiction", "entailment", "neutral")


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


def softmax(rows, vectors, classifier, settings):
    u, v = vectors
    logits = torch.cat([u, v, abs(u - v)], 1) @ classifier[0].T + classifier[1]
    return cross_entropy(logits, [WORDS.index(row["label"]) for row in rows])


def regression(rows, vectors, classifier, settings):
    return mean(loop_regression(*vectors, [row["score"] / settings["scale"] for row in rows]))


def triplet(rows, vectors, classifier, settings):
    return mean(loop_margin(*vectors, settings["margin"]))


@pytest.mark.parametrize(
    ("loop", "settings"), [(softmax, {}), (regression, {"scale": 6.0}), (triplet, {"margin": 2.0})]
)
def test_six_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, rows_of, reference, loop, settings
):
    """transformers' BertModel, plain loops and torch's AdamW with decay, in float64 and without dropout."""
    rows = rows_of(loop.__name__)
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0.3, "optimizer": "adamw", "weight_decay": 0.1}
    recipe |= {"dropout": 0, "clip": 0, "objective": loop.__name__}
    trainer = trainer_of(SBERT, rows, double=True, **recipe, **settings)
    classifier = copies(trainer.method.classifier) if loop is softmax else []
    named = reference.parameters() | dict(zip(("weight", "bias"), classifier, strict=False))

    def loss_of(batch, numbers):
        vectors = [reference.mean(column) for column in batch.texts]
        return loop([rows[number] for number in numbers], vectors, classifier, settings)

    def rate(step):
        """A warm-up of 0.3 * 6 steps, rounded up to 2."""
        return 1e-3 * (step / 2 if step < 2 else (6 - step) / 4)

    check_steps(trainer, [], loss_of, count=6, optimizer=adamw(named, 0.1), rate=rate)


def test_a_last_row_alone_is_a_batch(trainer_of, losses_of, rows_of):
    """A row needs no other to contrast with."""
    losses = losses_of(trainer_of(SBERT, rows_of("softmax"), batch=9))

    assert len(losses) == 2


@pytest.mark.parametrize("scale", [5.0, 1.0])
def test_a_score_is_not_over_the_scale(corpus_of, texts, scale):
    settings = SBERT.Settings(objective="regression", scale=scale)
    rows = [{"text_a": texts[0], "text_b": texts[1], "score": score} for score in (-scale, 0, scale)]
    problem = f'"score" is {scale + 0.5}, outside the scale of {scale:g}$'

    assert len(corpus_of(SBERT, rows, settings)) == 3
    with pytest.raises(DataError, match=problem):
        corpus_of(SBERT, [*rows, rows[0] | {"score": scale + 0.5}], settings)
