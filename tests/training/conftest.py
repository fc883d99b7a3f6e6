"""A small base to train, rows in memory as a corpus, and a trainer over both."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from sentkit.formats.lexicons.model2vec import write_model2vec
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.papers.defsent.plus import read_entries
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from support import ROOT, SMALL, write_small_tokenizer
from training.making import ENTRIES, TEXTS, corpus_in, trainer_in

DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
DISTILBERT["intermediate_size"] = "hidden_dim"
FEWER = {
    "ct": {"negatives": 2},
    "defsent": {"part": 1},
    "esimcse": {"queue_size": 6},
    "is-bert": {"channels": 6},
    "pairsupcon": {"head_width": 8},
    "rank-encoder": {"rank_corpus": 8},
    "sg-bert": {"head_width": 8},
}


def make_base(folder, seed=0, kind="BertForMaskedLM", **config):
    """A model of transformers with random weights, and a small tokenizer."""
    import transformers

    sizes = SMALL | {"vocab_size": write_small_tokenizer(folder), "max_position_embeddings": 64} | config
    if kind.startswith("DistilBert"):
        sizes = {DISTILBERT.get(name, name): value for name, value in sizes.items()}
    torch.manual_seed(seed)
    made = getattr(transformers, kind)
    model = made(made.config_class(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("bases") / "small")


@pytest.fixture(scope="session")
def base(base_folder):
    return open_named(str(base_folder), 32)


@pytest.fixture(scope="session")
def static_folder(base_folder, tmp_path_factory):
    """A folder of model2vec with the tokenizer of that base and random vectors of six numbers."""
    folder = tmp_path_factory.mktemp("static") / "static"
    folder.mkdir()
    rules = json.loads((base_folder / "tokenizer.json").read_text())
    rows = np.random.default_rng(0).standard_normal((len(rules["model"]["vocab"]), 6)) / 6**0.5
    write_model2vec(folder, rows.astype(np.float32), rules, {"parents": ["its teacher"]})
    return folder


@pytest.fixture(scope="session")
def together(base_folder, static_folder):
    """Do the work of together.py for these cases, with results in this folder."""
    bases = {"transformer": str(base_folder), "static": str(static_folder)}

    def run(work, folder, cases):
        command = [
            sys.executable,
            "-m",
            "training.together",
            work,
            json.dumps(bases),
            folder,
            json.dumps(cases),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=1800, cwd=ROOT / "tests"
        )
        assert done.returncode == 0, done.stderr[-2000:]

    return run


@pytest.fixture(scope="session")
def make_base_in():
    return make_base


@pytest.fixture(scope="session")
def texts():
    return list(TEXTS)


@pytest.fixture
def new_folder(tmp_path):
    return lambda: tmp_path / f"folder{len(list(tmp_path.iterdir()))}"


@pytest.fixture
def corpus_of(new_folder, base):
    """Rows, as dictionaries or as texts, in the form that this method reads."""
    own_base = base
    return lambda kind, rows, settings, base=own_base: corpus_in(new_folder(), kind, rows, settings, base)


@pytest.fixture
def entries_in():
    """A vector file of these entries, with random vectors unless they are given; the vectors."""

    def write(path, names, width=16, vectors=None, seed=0, **spec):
        random = np.random.default_rng(seed).standard_normal((len(names), width))
        found = np.array(random if vectors is None else vectors, np.float32)
        with create_vector_file(str(path), spec, ("embedding",), width=found.shape[1], force=True) as store:
            for name, vector in zip(names, found, strict=True):
                store.write([json.dumps({"entry": name}).encode()], vector[None, None])
        return found

    return write


@pytest.fixture
def with_entries(tmp_path, base, entries_in):
    """The base, or another one, that is to predict these entries."""
    own_base = base

    def make(names, base=own_base, **given):
        path = tmp_path / f"entries{len(list(tmp_path.iterdir()))}.safetensors"
        entries_in(path, list(dict.fromkeys(names)), **given)
        return replace(base, entries=read_entries(str(path)))

    return make


@pytest.fixture
def trainer_of(new_folder, base):
    """`trainer_of(SimCSE, texts, batch=4, double=True, temperature=.1)`: a trainer, ready to `train()`."""
    own_base, of_trainer = base, ("processes", "seed", "double", "dev", "save_every")

    def make(kind, rows, *, base=own_base, **given):
        more = {name: given.pop(name) for name in of_trainer if name in given}
        assignments = [f"{name}={value}" for name, value in given.items()]
        return trainer_in(new_folder(), kind, rows, assignments, base, **more)

    return make


@pytest.fixture
def small(trainer_of, with_entries):
    """`small("simcse", batch=4)`: a trainer over twelve rows with every field that the method reads."""

    def make(name, base=None, **settings):
        given = FEWER.get(name, {}) | settings
        return trainer_of(METHODS[name].load(), 12, base=base or with_entries(ENTRIES), **given)

    return make


@pytest.fixture
def losses_of():
    """Run a trainer and give the loss of every step."""

    def run(trainer):
        losses = []

        def add_loss(record):
            losses.extend([record["loss"]] if "loss" in record else [])

        trainer.reporter.step = add_loss
        trainer.train()
        return losses

    return run
