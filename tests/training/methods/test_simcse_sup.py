"""SimCSE with labels: its loss, its steps, and the readout of its checkpoint."""

import math
import shutil

import numpy as np
import pytest
import torch
import transformers

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.rows import Inputs
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions, plan_reading
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.training.base import open_named
from sentkit.training.data.dev import read_dev
from sentkit.training.method import dev_vectors
from sentkit.training.methods.simcse import SupervisedSimCSE
from sentkit.training.runs.run import write_checkpoint
from support import copy_tokenizer
from training.losses.formulas import loop_triplet, mean
from training.methods.loops import copies

NAMES = ("anchor", "positive", "negative")


@pytest.fixture
def triplets(texts):
    return [dict(zip(NAMES, texts[i : i + 3], strict=True)) for i in range(10)]


def test_six_steps_are_those_of_a_padded_reference(trainer_of, check_steps, triplets, reference):
    """transformers' BertModel, plain loops and torch's AdamW, in float64 and without dropout."""
    wanted = {"batch": 4, "epochs": 2, "lr": 1e-3, "hard_negative_weight": 0.5, "dropout": 0, "clip": 0}
    trainer = trainer_of(SupervisedSimCSE, triplets, double=True, **wanted)
    weight, bias = copies(trainer.method.head)

    def loss_of(batch, rows):
        heads = [torch.tanh(reference.first(column) @ weight.T + bias) for column in batch.texts]
        return mean(loop_triplet(*heads, 0.05, 0.5))

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of, count=6)


def test_dev_is_read_through_the_head(trainer_of, triplets, base, tmp_path):
    """As the finished checkpoint will be: tanh(W cls + b), which a head of zeros makes all alike."""
    trainer = trainer_of(SupervisedSimCSE, triplets)
    path = tmp_path / "dev.jsonl"
    path.write_text(
        '{"text_a":"a cat","text_b":"a dog runs","score":1}\n'
        '{"text_a":"rain","text_b":"birds fly south","score":2}\n'
    )
    dev = read_dev(Inputs([str(path)]), base.final_tokenizer)
    packed = trainer.method.pack([np.array(each.ids) for each in dev.tokens])
    trainer.method.eval()
    with torch.no_grad():
        states = trainer.method.vectors(packed, "cls")
        found = dev_vectors(trainer.method, packed)

    torch.testing.assert_close(found, torch.tanh(trainer.method.head(states)), rtol=0, atol=0)
    assert math.isfinite(dev.score(trainer.method, lambda: None))
    torch.nn.init.zeros_(trainer.method.head.weight)
    assert math.isnan(dev.score(trainer.method, lambda: None))


@pytest.mark.parametrize("pooler", [False, True])
def test_the_checkpoint_is_read_through_the_head_everywhere(
    trainer_of, triplets, base_folder, texts, tmp_path, pooler
):
    """By sentkit, by transformers and sentence-transformers; nobody reads the pooler that a base had."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "base"
    shutil.copytree(base_folder, folder)
    if pooler:
        transformers.BertModel.from_pretrained(base_folder).save_pretrained(folder)
    base = open_named(str(folder), 32)
    trainer = trainer_of(SupervisedSimCSE, triplets, base=base, batch=5, lr=1e-3)
    trainer.train()
    method, folder = trainer.method.eval(), tmp_path / "checkpoint"
    write_checkpoint(folder, method, base, {"method": "simcse-sup"})
    tokens = [each.ids for each in base.training_tokenizer(texts)]
    with torch.no_grad():
        states = method.vectors(method.pack(tokens), "cls")
        expected = torch.tanh(states @ method.head.weight.T + method.head.bias).numpy()
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, ReadingOptions())
    encoder = TransformerEncoder(checkpoint, reading, device="cpu", precision="fp32")
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        pooled = [model(torch.tensor([ids])).pooler_output[0].numpy() for ids in tokens]

    assert [readout.name for readout in reading.readouts] == ["pooler"]
    np.testing.assert_allclose(
        encode_texts(reading.tokenizer(texts), encoder, 1000)[0], expected, rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(np.stack(pooled), expected, rtol=0, atol=1e-5)
    found = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "config", "problem"),
    [
        ("DistilBertModel", {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}, '"distilbert" has'),
        ("ElectraModel", {"embedding_size": 8}, '"electra" has no pooler'),
        ("AlbertModel", {"embedding_size": 8}, 'model type "albert" has no pooler'),
    ],
)
def test_a_family_that_has_no_pooler_is_refused_before_training(base_folder, tmp_path, kind, config, problem):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    made = getattr(transformers, kind)
    model = made(made.config_class(vocab_size=16384, max_position_embeddings=64, **(small | config)))
    model.save_pretrained(tmp_path / "base")
    copy_tokenizer(tmp_path / "base")
    base = open_named(str(tmp_path / "base"), 32)

    with pytest.raises(UsageError, match=f"the trained head is saved as the pooler, but {problem}"):
        SupervisedSimCSE.check(base, SupervisedSimCSE.Settings())
