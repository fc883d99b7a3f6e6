"""distill: five steps beside a padded reference, the map to another width, and bad vectors in the rows."""

import json

import numpy as np
import pytest
import torch

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.training.data.corpus import map_corpus, write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.method import dev_vectors
from sentkit.training.methods.distill import Distill
from sentkit.training.runs.run import write_checkpoint
from training.losses.formulas import loop_relational, mean

EMB = "teacher/mean:0123456789ab"


def rows_of(texts, width=16):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(texts), width, generator=generator)
    return [{"text": text, "embedding": v.tolist()} for text, v in zip(texts, vectors, strict=True)]


@pytest.mark.parametrize(
    ("loss", "map_", "width", "relational"),
    [("cosine", "auto", 16, 1), ("mse", "on", 16, 0.5), ("cosine", "auto", 5, 1), ("mse", "auto", 24, 0)],
)
def test_five_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference, loss, map_, width, relational
):
    """transformers' BertModel, a map that begins as the identity and torch's AdamW, in float64."""
    rows = rows_of(texts, width)
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0, "dropout": 0, "clip": 0, "chunk": 3}
    trainer = trainer_of(Distill, rows, double=True, loss=loss, map=map_, relational=relational, **recipe)
    own = reference.base.architecture.width
    weight = torch.eye(width, own, dtype=torch.float64, requires_grad=True)

    def loss_of(batch, numbers):
        plain = reference.mean(batch.texts[0])
        vectors = plain @ weight.T if map_ == "on" or width != own else plain
        teacher = torch.tensor(np.float32([rows[number]["embedding"] for number in numbers])).double()
        if loss == "cosine":
            value = sum(1 - torch.cosine_similarity(vectors, teacher)) / len(teacher)
        else:
            value = sum(sum((vectors - teacher) ** 2 / width).flatten()) / len(teacher)
        if relational:
            kept = vectors if width != own else plain  # the vectors of the checkpoint
            value = value + relational * mean(loop_relational(kept, teacher))
        return value

    check_steps(trainer, [*reference.model.parameters(), weight], loss_of)


@pytest.mark.parametrize(("width", "map_"), [(16, "auto"), (16, "on"), (5, "auto")])
def test_the_checkpoint_gives_the_vectors_of_training(trainer_of, texts, base, tmp_path, width, map_):
    """To sentence-transformers too. It has the map as a Dense step only if the widths differ."""
    from sentence_transformers import SentenceTransformer

    trainer = trainer_of(Distill, rows_of(texts, width), batch=4, epochs=8, lr=3e-3, dropout=0, map=map_)
    trainer.train()
    write_checkpoint(tmp_path / "made", trainer.method, base, {"parents": []}, "mean")
    checkpoint = read_checkpoint(str(tmp_path / "made"))
    found = SentenceTransformer(str(tmp_path / "made"), device="cpu").encode(texts)
    trainer.method.eval()
    with torch.no_grad():
        expected = dev_vectors(
            trainer.method, trainer.method.pack(trainer.run.corpus.batch(np.arange(13)).texts[0])
        )

    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-6)
    assert found.shape == (13, width)
    assert [*checkpoint.declared.steps] == ([] if width == 16 else ["2_Dense"])
    assert (tmp_path / "made/heads.safetensors").exists() == (map_ == "on")


def test_vectors_and_their_space_are_in_the_corpus(corpus_of, base, tmp_path, texts):
    """Those of a vector file are the same rows."""
    rows = [row | {"_emb": EMB} for row in rows_of(texts, 5)]
    corpus = corpus_of(Distill, rows, Distill.Settings())
    path = tmp_path / "rows.safetensors"
    with create_vector_file(str(path), {"_emb": EMB}, ("embedding",), width=5, force=False) as store:
        for row in rows:
            store.write([json.dumps({"text": row["text"]}).encode()], np.float32([[row["embedding"]]]))
    parser = ExampleParser("distill", Distill.reads(base, Distill.Settings()), {})
    write_corpus(tmp_path, Inputs([str(path)]), parser, base.training_tokenizer)
    changed = [*rows[:-1], rows[-1] | {"embedding": [1.0] * 5}]

    np.testing.assert_array_equal(corpus.vectors, np.float32([row["embedding"] for row in rows]))
    np.testing.assert_array_equal(
        corpus.batch(np.array([7, 2])).part(slice(1, 2)).vectors, corpus.vectors[[2]]
    )
    assert corpus.teacher == map_corpus(tmp_path).teacher == EMB
    assert map_corpus(tmp_path).digest == corpus.digest
    assert corpus_of(Distill, changed, Distill.Settings()).digest != corpus.digest
    with pytest.raises(DataError, match="this row has no vector"):
        corpus_of(Distill, [{"text": texts[0]}], Distill.Settings())


BAD = [
    ({"embedding": [1.0, 2.0]}, "2 numbers"),
    ({"embedding": [0.0] * 5}, "the vector is 0, so it has no direction"),
    ({"embedding": [1e39, 0, 0, 0, 0]}, "a vector contains NaN or infinity"),
    ({"embedding": "x"}, '"embedding" is a string that is not base64'),
    ({"embedding": None}, '"embedding" is null, expected a vector: a list of numbers, or base64'),
    ({"_emb": "other/mean:ffffffffffff"}, "other/mean (ffff…)"),
]


@pytest.mark.parametrize(("change", "problem"), BAD)
def test_bad_vectors_are_errors_with_a_line(corpus_of, texts, change, problem):
    rows = rows_of(texts, 5)
    rows[3] |= change
    with pytest.raises(DataError) as caught:
        corpus_of(Distill, rows, Distill.Settings())

    place, _, message = str(caught.value).partition(": ")
    assert place.endswith("rows.jsonl:4")
    assert problem in message
