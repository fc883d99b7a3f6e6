"""RankEncoder: five steps beside a padded reference and scipy, and its corpus."""

import pytest
import torch
from scipy.stats import spearmanr

from sentkit.errors import DataError
from sentkit.training.base import open_named
from sentkit.training.data.batches import stream
from sentkit.training.method import changing
from sentkit.training.methods.simcse import RankEncoder
from training.losses.formulas import loop_in_batch, mean
from training.methods.loops import copies


def rank_error(vectors, rankings, low, high):
    """Of all pairs of the batch whose rankings correlate in this range."""
    values = []
    for i, one in enumerate(vectors):
        for j, other in enumerate(vectors):
            similarity = spearmanr(rankings[i], rankings[j]).statistic
            if low <= similarity <= high:
                values.append((torch.cosine_similarity(one, other, dim=0) - similarity) ** 2)
    return sum(values) / max(len(values), 1)


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """transformers' BertModel, plain loops and torch's AdamW, in float64 and without dropout."""
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "dropout": 0, "clip": 0, "rank_weight": 0.5}
    recipe |= {"rank_corpus": 9, "rank_low": -0.2}
    trainer = trainer_of(RankEncoder, texts, double=True, **recipe)
    weight, bias = copies(trainer.method.head)
    known = [texts[row] for row in stream(0, 0, "rank corpus").permutation(13)[:9]]
    with torch.no_grad():
        corpus, frozen = reference.first(known), reference.first(texts)
    cosines = [[torch.cosine_similarity(row, each, dim=0).item() for each in corpus] for row in frozen]

    def loss_of(batch, rows):
        vectors = torch.tanh(reference.first(batch.texts[0]) @ weight.T + bias)
        error = rank_error(vectors, [cosines[row] for row in rows], -0.2, 0.9999)
        return mean(loop_in_batch(vectors, vectors, 0.05)) + 0.5 * error

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of)


def test_the_guide_can_be_a_trained_checkpoint(make_base_in, tmp_path, trainer_of, base, texts):
    """As in the released recipe: it ranks with its own weights, and another checkpoint is another run.

    Training changes neither the guide nor its vectors of the corpus.
    """
    folder = str(make_base_in(tmp_path / "guide", seed=5))
    trainer = trainer_of(RankEncoder, texts, batch=4, rank_corpus=5, guide=folder)
    theirs = open_named(folder, 32).body(None).state_dict()
    own = trainer_of(RankEncoder, texts, batch=4, rank_corpus=5)
    corpus = trainer.method.corpus.clone()

    trainer.train()
    assert torch.equal(corpus, trainer.method.corpus)
    assert not trainer.method.guide.training
    assert trainer.method.finished().heads.keys() == {"head.weight", "head.bias"}
    assert {name.partition(".")[0] for name in changing(trainer.method)} == {"body", "head"}
    assert all(torch.equal(value, theirs[name]) for name, value in trainer.method.guide.state_dict().items())
    assert not torch.allclose(trainer.method.corpus, own.method.corpus, atol=1e-3)
    assert RankEncoder.other_checkpoints(trainer.method.settings) == {"guide": folder}
    assert RankEncoder.identity(base, trainer.method.settings)["guide_hash"]
    assert RankEncoder.identity(base, own.method.settings) == {}


def test_a_corpus_of_too_few_rows_is_refused(corpus_of, texts):
    settings = RankEncoder.Settings()
    corpus = corpus_of(RankEncoder, texts, settings)
    with pytest.raises(DataError, match="rows: 13 rows, fewer than rank_corpus=10000") as caught:
        RankEncoder.check_rows(corpus, settings, "rows")

    assert caught.value.advice == "use --set rank_corpus=13"
    RankEncoder.check_rows(corpus, RankEncoder.Settings(rank_corpus=13), "rows")
