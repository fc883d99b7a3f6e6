"""The setting `dims`: the loss of truncated vectors, by sentence-transformers."""

import pytest
import torch
from torch import nn

from sentkit.errors import UsageError
from sentkit.training.catalogue import METHODS
from sentkit.training.method import terms_of
from sentkit.training.methods.pairs import SBERT, AnglE, CoSENT
from sentkit.training.methods.simcse import SupervisedSimCSE
from sentkit.training.settings import Dims, widths_of

WIDTH, WIDTHS = 8, (8, 5, 2)  # the full width and the setting
TRIPLET = ("anchor", "positive", "negative")

SCORED = [{"text_a": "a", "text_b": "b", "score": n} for n in (1.0, 4.0)]


class Given(nn.Module):
    """An encoder of sentence-transformers whose vectors are given."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return WIDTH


def method_of(kind, **settings):
    body = nn.Linear(2, 2)
    body.width = WIDTH
    return kind(body, kind.Settings(dims="5,2", **settings))


def vectors(names, rows=6):
    torch.manual_seed(0)
    return {name: torch.randn(rows, WIDTH, requires_grad=True) for name in names}


def total(terms):
    return sum(term.value for term in terms.values())


SCORES = torch.tensor([0.0, 3.0, 5.0, 2.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("kind", "settings", "names", "rest", "theirs"),
    [
        (SupervisedSimCSE, {}, TRIPLET, {}, "MultipleNegativesRankingLoss"),
        (CoSENT, {}, ("left", "right"), {"score": SCORES}, "CoSENTLoss"),
        (SBERT, {"objective": "regression", "scale": 1.0}, ("text_a", "text_b"), {"target": SCORES},
         "CosineSimilarityLoss"),
    ],
)  # fmt: skip
def test_value_and_gradient_are_those_of_matryoshka_loss(kind, settings, names, rest, theirs):
    """Of sentence-transformers, with the full width as the first of its widths."""
    from sentence_transformers.sentence_transformer import losses

    outputs, model = vectors(names), Given()
    loss = losses.MatryoshkaLoss(model, getattr(losses, theirs)(model), list(WIDTHS))
    own = [vector.detach().clone().requires_grad_() for vector in outputs.values()]
    expected = loss([{"vectors": vector} for vector in own], next(iter(rest.values()), None))
    expected.backward()
    found = total(terms_of(method_of(kind, **settings), outputs | rest))
    found.backward()

    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, vector in zip(outputs.values(), own, strict=True):
        torch.testing.assert_close(ours.grad, vector.grad, rtol=1e-4, atol=1e-6)


def test_terms_without_vectors_occur_once(trainer_of, texts):
    rows = [dict(zip(TRIPLET, texts[i : i + 3], strict=True)) for i in range(8)]
    trainer = trainer_of(SupervisedSimCSE, rows, batch=4, mlm_weight=0.1, dims="8,4")
    records = []
    trainer.reporter.step = records.append
    trainer.train()

    assert list(records[0]["terms"]) == ["contrast", "mlm", "contrast_8", "contrast_4"]
    assert records[0]["loss"] == pytest.approx(sum(records[0]["terms"].values()))


def test_widths_that_do_not_fit_are_refused(trainer_of):
    for dims in ("16", "17,4"):
        with pytest.raises(
            UsageError, match=f"^dims={dims}: the vectors have 16 dimensions, which are always"
        ):
            trainer_of(CoSENT, SCORED, dims=dims)
    with pytest.raises(UsageError, match=r"^angle needs vectors of even width, not 3$"):
        trainer_of(AnglE, SCORED, dims="4,3")


def test_each_method_with_dims_names_its_vectors():
    """The setting has an effect exactly in the methods that have sentence vectors as outputs."""
    for name, listing in METHODS.items():
        kind = listing.load()
        assert issubclass(kind.Settings, Dims) == bool(kind.needs.vectors), name
        assert widths_of(kind.Settings()) == []
