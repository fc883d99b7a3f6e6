"""CoSENT and AnglE: their terms, five steps beside a padded reference, and rows that they refuse."""

import pytest
import torch

from sentkit.errors import DataError, UsageError
from sentkit.training.methods.pairs import AnglE, CoSENT
from training.losses.formulas import attraction, cosine, loop_agreement, loop_ranked, without


def method_of(kind=CoSENT, width=2, **settings):
    body = torch.nn.Linear(2, 2)
    body.width = width
    return kind(body, kind.Settings(**settings))


def contrast(left, right, scores):
    """Both texts of each pair with a score of 4 or 5 against all other texts of the batch."""
    found, both = [], [*left, *right]
    for place, score in enumerate(scores):
        for anchor in (place, place + len(left)) if score >= 4 else ():
            partner = (anchor + len(left)) % len(both)
            others = without(both, anchor, partner)
            found.append(attraction(both[anchor], both[partner], others, 0.05))
    return sum(found) / len(both)  # as the released code: also over the rows that are no anchors


def cosent(left, right, scores):
    return loop_ranked([*map(cosine, left, right)], scores)


def angle_total(left, right, scores):
    angles = loop_agreement(left, right)
    return cosent(left, right, scores) + contrast(left, right, scores) + 0.02 * loop_ranked(angles, scores)


@pytest.mark.parametrize(("kind", "loop"), [(CoSENT, cosent), (AnglE, angle_total)])
def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, scored, reference, kind, loop):
    """transformers' BertModel, plain loops and torch's AdamW, in float64 and without dropout."""
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0, "dropout": 0, "clip": 0}
    trainer = trainer_of(kind, scored, double=True, **recipe)

    def loss_of(batch, numbers):
        chosen = [scored[number] for number in numbers]
        left, right = (reference.mean([row[name] for row in chosen]) for name in ("text_a", "text_b"))
        return loop(left, right, [row["score"] for row in chosen])

    check_steps(trainer, reference.model.parameters(), loss_of)


def test_a_batch_of_equal_scores_has_no_gradient():
    left = torch.eye(2).requires_grad_()
    outputs = {"left": left, "right": torch.ones(2, 2), "score": torch.tensor([2.0, 2.0])}
    value = method_of().loss(outputs)["cosine"].value
    value.backward()

    assert value.item() == 0.0
    assert left.grad.abs().max() == 0.0


def test_equal_scores_are_refused(corpus_of, scored):
    settings = AnglE.Settings()
    equal = corpus_of(CoSENT, [row | {"score": 5} for row in scored], settings)
    low = corpus_of(CoSENT, [row | {"score": row["score"] / 5} for row in scored], settings)

    for kind in (CoSENT, AnglE):
        with pytest.raises(DataError, match=r'^rows: "score" is the same in all 13 rows: no order to learn'):
            kind.check_rows(equal, settings, "rows")
    with pytest.raises(
        DataError, match="all scores are below positive_score=4, so there are no positive pairs"
    ) as caught:
        AnglE.check_rows(low, settings, "rows")
    assert "positive_score" in caught.value.advice
    AnglE.check_rows(low, AnglE.Settings(contrast_weight=0.0), "rows")
    AnglE.check_rows(equal, AnglE.Settings(cosine_weight=0.0, angle_weight=0.0), "rows")


def test_a_base_of_odd_width_is_refused():
    with pytest.raises(UsageError, match="even width, not 3"):
        method_of(AnglE, width=3)
