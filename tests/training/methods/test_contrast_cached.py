"""The gradient of `contrast` in chunks beside the cached loss of sentence-transformers."""

import pytest
import torch

from sentkit.model.transformer.architecture import stored_layers
from sentkit.model.transformer.bert import split
from sentkit.training.losses import candidates
from sentkit.training.methods.contrast import Contrast

BOTH = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.mark.parametrize(("form", "same"), [("one-way", {}), ("symmetric", BOTH)])
def test_the_gradient_is_that_of_the_cached_loss(
    form, same, trainer_of, gradients_of, base, base_folder, texts, monkeypatch
):
    """In float64, without dropout, with two negatives for each row, in spans of four anchors."""
    monkeypatch.setattr(candidates, "MAX_COSINES", 4 * 39)
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    columns = [[texts[(i + k) % 13] for i in range(13)] for k in (0, 1, 4, 7)]
    rows = [{"anchor": a, "positive": p, "negatives": n} for a, p, *n in zip(*columns, strict=True)]
    settings = {"batch": 13, "dropout": 0, "equal_texts": False, "form": form}
    trainer = trainer_of(Contrast, rows, double=True, **settings)
    ours = split({name.removeprefix("body."): each for name, each in gradients_of(trainer, 4).items()})

    body = Transformer(str(base_folder), max_seq_length=32)
    pooling = Pooling(base.architecture.width, "mean")
    model = SentenceTransformer(modules=[body, pooling], device="cpu").double().eval()
    loss = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=4, **same)
    loss([model.tokenize(column) for column in columns], None).backward()
    theirs = {name: each.grad for name, each in body.auto_model.named_parameters()}

    names = [(layer, name) for layer in stored_layers(base.architecture) for name in layer.shapes()]
    assert len(names) == len(ours)
    for layer, name in names:
        found = ours[f"{layer.ours}.{name.rpartition('.')[2]}"]
        torch.testing.assert_close(found, theirs[name], rtol=1e-9, atol=1e-12, msg=name)
    assert max(each.abs().max() for each in ours.values()) > 1e-4
