"""Static models in training, and distillation."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.flags.help_texts import PAGES
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import write_json
from sentkit.formats.lexicons.model2vec import Table
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.store import open_inputs
from sentkit.model import find_encoder
from sentkit.model.query_encoder import encoded_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import map_corpus
from sentkit.training.data.corpus_writer import write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.method import dev_vectors
from sentkit.training.methods.distill import Distill
from sentkit.training.runs.checkpoint import write_checkpoint
from sentkit.training.static_body import TokenTable, scaled
from training.losses.formulas import loop_relational, mean
from training.methods.loops import RECIPE

VARIANTS = ("plain", "weights", "mapping", "long", "stock")


@pytest.fixture
def base_of(static_folder, tmp_path):
    """A static base: model2vec, with weights or shared rows, without unit length, or a
    StaticEmbedding.
    """

    def make(variant="plain", folder=None):
        folder = folder or tmp_path / f"base-{variant}"
        shutil.copytree(static_folder, folder)
        arrays = load_file(folder / "model.safetensors")
        random = np.random.default_rng(1)
        rows = arrays["embeddings"]
        if variant in ("weights", "mapping"):
            arrays["weights"] = random.uniform(0.5, 1.5, len(rows)).astype(np.float32)
        if variant == "mapping":
            arrays |= {"embeddings": rows[:9], "mapping": np.arange(len(rows)) % 9}
        if variant == "long":
            change(folder / "config.json", normalize=False)
            write_json(
                folder / "modules.json", json.loads((folder / "modules.json").read_text())[:1]
            )
        if variant == "stock":  # as sentence-transformers saves it, with its table in a subfolder
            (folder / "config.json").unlink()
            (folder / "table").mkdir()
            (folder / "tokenizer.json").rename(folder / "table/tokenizer.json")
            arrays = {"embedding.weight": rows}
            listing = json.loads((folder / "modules.json").read_text())
            write_json(folder / "modules.json", [listing[0] | {"path": "table"}, listing[1]])
            (folder / "model.safetensors").unlink()
        save_file(arrays, folder / ("table" if variant == "stock" else ".") / "model.safetensors")
        return open_named(str(folder), 32)

    return make


def change(path, **fields):
    write_json(path, json.loads(path.read_text()) | fields)


def with_vectors(texts, width):
    vectors = np.random.default_rng(2).standard_normal((len(texts), width)).astype(np.float32)
    return [{"text": text, "embedding": v.tolist()} for text, v in zip(texts, vectors, strict=True)]


class Bag:
    """The embedding bag of torch with the parameters of a table, in float64."""

    def __init__(self, table, *, normalize):
        self.normalize = normalize
        self.places = table.row_of_token
        self.rows = torch.tensor(table.rows, dtype=torch.float64, requires_grad=True)
        weights = np.ones(0) if table.weights is None else table.weights
        self.weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)

    def __call__(self, texts):
        table = self.rows if self.places is None else self.rows[torch.tensor(self.places)]
        table = table * self.weights[:, None] if len(self.weights) else table
        offsets = torch.tensor([0, *np.cumsum([len(text) for text in texts])[:-1]])
        vectors = F.embedding_bag(torch.tensor(np.concatenate(texts)), table, offsets, mode="mean")
        return vectors / vectors.square().sum(1, keepdim=True).sqrt() if self.normalize else vectors


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("loss", ["cosine", "mse"])
def test_five_steps_are_those_of_an_embedding_bag(
    trainer_of, check_steps, base_of, texts, variant, loss
):
    base = base_of(variant)
    rows = with_vectors(texts, 6)
    recipe = RECIPE | {"lr": 1e-2, "dropout": "none", "chunk": 3}
    trainer = trainer_of(Distill, rows, base=base, loss=loss, **recipe)
    bag = Bag(base.table, normalize=variant != "long")

    def loss_of(batch, chosen):
        teacher = torch.tensor(np.float32([rows[row]["embedding"] for row in chosen])).double()
        vectors = bag(batch.texts[0])
        if loss == "mse":
            return (vectors - teacher).square().mean()
        return (1 - torch.cosine_similarity(vectors, teacher)).mean()

    check_steps(trainer, [bag.rows, bag.weights], loss_of)


def vectors_of_training(trainer, folder):
    """The vectors of the rows after a training, which this folder keeps."""
    trainer.train()
    method = trainer.method.eval()
    write_checkpoint(folder, method, trainer.run.base, {"parents": []}, "mean")
    texts = trainer.run.corpus.batch(np.arange(13)).texts[0]
    with torch.no_grad():
        return dev_vectors(method, method.pack(texts)).numpy()


def vectors_of(folder, texts):
    encoded = encoded_texts(texts, find_encoder(str(folder), ReadingOptions()))
    return np.concatenate([block.vectors[:, 0] for block in encoded.blocks()])


@pytest.mark.parametrize(
    ("variant", "width", "map_"), [("plain", 6, "on"), *((name, 9, "auto") for name in VARIANTS)]
)
def test_the_folder_gives_the_vectors_of_training(
    trainer_of, base_of, texts, tmp_path, variant, width, map_
):
    """To sentence-transformers too. A map to another width is part of the table."""
    from sentence_transformers import SentenceTransformer

    rows = with_vectors(texts, width)
    base = base_of(variant)
    trainer = trainer_of(Distill, rows, base=base, batch=4, lr=0.05, map=map_)
    expected = vectors_of_training(trainer, tmp_path / "made")
    if variant != "long":  # only the direction of mapped vectors is trained
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = vectors_of(tmp_path / "made", texts)
    library_vectors = SentenceTransformer(str(tmp_path / "made"), device="cpu").encode(texts)

    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(library_vectors, expected, rtol=0, atol=2e-6)
    assert expected.shape == (13, width)
    assert np.abs(vectors[:, :6] - vectors_of(base.checkpoint.name, texts)).max() > 0.1


def test_a_folder_keeps_the_files_of_its_base(trainer_of, base_of, texts, tmp_path):
    """A table of int8 becomes float32. The README and the record of training are new."""
    base = base_of()
    folder = Path(base.checkpoint.name)
    trained = tmp_path / "made"
    table = np.round(load_file(folder / "model.safetensors")["embeddings"] * 40).astype(np.int8)
    save_file({"embeddings": table}, folder / "model.safetensors")
    change(folder / "config.json", embedding_dtype="int8", tokenizer_name="a name")
    (folder / "README.md").write_text("of the base")
    base = open_named(str(folder), 32)
    trainer = trainer_of(Distill, with_vectors(texts, 9), base=base, batch=4)
    write_checkpoint(trained, trainer.method, base, {"parents": [*base.parents]}, "mean")
    [(name, values)] = load_file(trained / "model.safetensors").items()

    assert (name, values.dtype, values.shape) == ("embeddings", np.float32, (len(table), 9))
    np.testing.assert_array_equal(
        values[:, :6] / values[0, 0], (table / table[0, 0]).astype(np.float32)
    )
    config = {"hidden_dim": 9, "embedding_dtype": "float32", "tokenizer_name": "a name"}
    assert config.items() <= json.loads((trained / "config.json").read_text()).items()
    for file in ("tokenizer.json", "modules.json"):
        assert (trained / file).read_bytes() == (folder / file).read_bytes()
    record = json.loads((trained / "sentkit.json").read_text())
    assert record == {"readout": "mean", "parents": [str(folder), "its teacher"]}
    assert (trained / "README.md").read_text() != "of the base"


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_a_power_of_two_changes_no_vector(base_of, variant):
    """Not one bit of the vectors; the tables for training are equal."""
    table = base_of(variant).table
    larger = replace(table, rows=table.rows * np.float32(2.0**9))
    vectors = table.rows if table.row_of_token is None else table.rows[table.row_of_token]
    vectors = vectors if table.weights is None else vectors * table.weights[:, None]
    length = np.linalg.norm(vectors) / len(vectors) ** 0.5

    np.testing.assert_array_equal(scaled(larger), scaled(table))
    np.testing.assert_array_equal(scaled(table) * 2.0 ** round(np.log2(length)), table.rows)
    assert not scaled(Table(np.zeros((3, 2), np.float32))).any()


def test_a_text_with_the_vector_0_has_no_gradient(base_of):
    table = TokenTable(Table(np.array([[0, 0], [3, 4], [-3, -4]], np.float32)), normalize=True)
    [vectors] = apply_readouts(table, pack([[0, 0], [1, 2], [1]]), [parse_readout("mean")])
    vectors.sum().backward()

    assert vectors.tolist() == [[0, 0], [0, 0], [pytest.approx(0.6), pytest.approx(0.8)]]
    assert table.rows.grad.isfinite().all()


STATIC = ["simcse-sup", "contrast", "sbert", "cosent", "angle", "pairsupcon"]


@pytest.mark.parametrize("name", STATIC)
def test_methods_of_vectors_train_a_static_model(small, losses_of, base_of, name):
    losses = losses_of(small(name, base=base_of(), batch=6, epochs=15, lr=0.02))

    assert losses[-1] < losses[0]


def test_the_list_of_methods_for_static_models():
    """The man page of the command names them."""
    [named] = re.findall(
        r"StaticEmbedding\.(.+?)\ntrain its table", (PAGES / "train.txt").read_text(), re.DOTALL
    )
    for_static = {name for name, method in METHODS.items() if method.load().needs.static}

    assert for_static == {*STATIC, "distill"} == set(re.findall(r"[a-z-]{5,}", named))


def test_a_declared_truncation_is_refused(base_of, tmp_path):
    folder = Path(base_of("stock").checkpoint.name)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 4})
    with pytest.raises(
        UsageError, match="does not support a static model that declares truncate_dim"
    ):
        open_named(str(folder), 32)


def test_a_table_with_nan_is_refused(base_of):
    folder = Path(base_of("weights").checkpoint.name)
    arrays = load_file(folder / "model.safetensors")
    arrays["weights"][5] = np.nan
    save_file(arrays, folder / "model.safetensors")

    with pytest.raises(DataError, match='"weights" contains NaN or infinity'):
        open_named(str(folder), 32)


EMB = "teacher/mean:0123456789ab"


@pytest.mark.parametrize(
    ("loss", "map_", "width", "relational"),
    [
        ("cosine", "auto", 16, 1),
        ("mse", "on", 16, 0.5),
        ("cosine", "auto", 5, 1),
        ("mse", "auto", 24, 0),
    ],
)
def test_five_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference, loss, map_, width, relational
):
    """transformers' BertModel, a map that begins as the identity and torch's AdamW, in float64."""
    rows = with_vectors(texts, width)
    settings = {"loss": loss, "map": map_, "relational": relational, "chunk": 3}
    trainer = trainer_of(Distill, rows, **RECIPE, **settings)
    base_width = reference.base.architecture.width
    weight = torch.eye(width, base_width, dtype=torch.float64, requires_grad=True)

    def loss_of(batch, numbers):
        plain = reference.mean(batch.texts[0])
        vectors = plain @ weight.T if map_ == "on" or width != base_width else plain
        teacher = torch.tensor(
            np.float32([rows[number]["embedding"] for number in numbers])
        ).double()
        if loss == "cosine":
            value = sum(1 - torch.cosine_similarity(vectors, teacher)) / len(teacher)
        else:
            value = sum(sum((vectors - teacher) ** 2 / width).flatten()) / len(teacher)
        if relational:
            stored = vectors if width != base_width else plain  # the vectors of the checkpoint
            value = value + relational * mean(loop_relational(stored, teacher))
        return value

    check_steps(trainer, [*reference.model.parameters(), weight], loss_of)


@pytest.mark.parametrize(("width", "map_"), [(16, "auto"), (16, "on"), (5, "auto")])
def test_the_checkpoint_gives_the_vectors_of_training(
    trainer_of, texts, base, tmp_path, width, map_
):
    """To sentence-transformers too. It has the map as a Dense step only if the widths differ."""
    from sentence_transformers import SentenceTransformer

    trainer = trainer_of(
        Distill, with_vectors(texts, width), batch=4, epochs=8, lr=3e-3, dropout=0, map=map_
    )
    expected = vectors_of_training(trainer, tmp_path / "made")
    checkpoint = read_checkpoint(str(tmp_path / "made"))
    vectors = SentenceTransformer(str(tmp_path / "made"), device="cpu").encode(texts)

    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)
    assert vectors.shape == (13, width)
    assert [*checkpoint.declaration.step_names] == ([] if width == 16 else ["2_Dense"])
    assert (tmp_path / "made/heads.safetensors").exists() == (map_ == "on")


def test_vectors_and_their_space_are_in_the_corpus(corpus_of, base, tmp_path, texts):
    """Those of a vector file are the same rows."""
    rows = [row | {"_emb": EMB} for row in with_vectors(texts, 5)]
    corpus = corpus_of(Distill, rows, Distill.Settings())
    path = tmp_path / "rows.safetensors"
    with create_vector_file(
        str(path), {"_emb": EMB}, ("embedding",), width=5, force=False
    ) as store:
        for row in rows:
            store.write(
                [json.dumps({"text": row["text"]}).encode()], np.float32([[row["embedding"]]])
            )
    parser = ExampleParser("distill", Distill.reads(base, Distill.Settings()), {})
    write_corpus(tmp_path, open_inputs([str(path)]), parser, base.training_tokenizer)
    changed = [*rows[:-1], rows[-1] | {"embedding": [1.0] * 5}]

    np.testing.assert_array_equal(corpus.vectors, np.float32([row["embedding"] for row in rows]))
    second_of_batch = corpus.batch(np.array([7, 2])).take(slice(1, 2))
    np.testing.assert_array_equal(second_of_batch.vectors, corpus.vectors[[2]])
    assert corpus.teacher == map_corpus(tmp_path).teacher == EMB
    assert map_corpus(tmp_path).digest == corpus.digest
    assert corpus_of(Distill, changed, Distill.Settings()).digest != corpus.digest
