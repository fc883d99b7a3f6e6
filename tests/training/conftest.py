"""A small base to train, rows in memory as a corpus, and a trainer over both."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sentkit.formats.lexicons.model2vec import write_model2vec
from sentkit.training.base import open_named
from support import python_of
from training import small as helpers


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory):
    return helpers.make_base(tmp_path_factory.mktemp("bases") / "small")


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
def albert(base_folder, tmp_path_factory):
    """A model that transformers runs, with the same tokenizer."""
    import transformers

    folder = tmp_path_factory.mktemp("albert") / "base"
    shutil.copytree(
        base_folder, folder, ignore=shutil.ignore_patterns("model.safetensors", "config.json")
    )
    sizes = json.loads((base_folder / "config.json").read_text())
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    )
    config = transformers.AlbertConfig(**{name: sizes[name] for name in names})
    transformers.AlbertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def together(base_folder, static_folder, forked_program):
    """Do the work of together.py for these cases, with results in this folder."""
    bases = {"transformer": str(base_folder), "static": str(static_folder)}

    def run(task, folder, cases):
        words = [task, json.dumps(bases), str(folder), json.dumps(cases)]
        completed = subprocess.run(
            [*python_of(forked_program), "-m", "training.together", *words],
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert completed.returncode == 0, completed.stderr[-2000:]

    return run


@pytest.fixture(scope="session")
def texts():
    return list(helpers.TEXTS)


@pytest.fixture
def new_folder(tmp_path):
    return lambda: tmp_path / f"made{len(list(tmp_path.iterdir()))}"


@pytest.fixture
def corpus_of(new_folder, base):
    def make(kind, rows, settings, base=base):
        return helpers.corpus_in(new_folder(), kind, rows, settings, base)

    return make


@pytest.fixture
def with_entries(new_folder, base):
    """The base, or another one, that is to predict these entries."""

    def make(names, base=base, **options):
        return helpers.with_entries(
            base, new_folder().with_suffix(".safetensors"), names, **options
        )

    return make


@pytest.fixture
def trainer_of(new_folder, base):
    """`trainer_of(SimCSE, texts, batch=4, double=True, temperature=.1)`: a trainer, ready to
    `train()`.
    """

    def make(kind, rows, *, base=base, **settings):
        return helpers.make_trainer(new_folder(), kind, rows, base, **settings)

    return make


@pytest.fixture
def small(new_folder, base):
    """`small("simcse", batch=4)`: a trainer over twelve rows with every field."""
    return lambda name, base=base, **settings: helpers.small_trainer(
        new_folder(), name, base, **settings
    )


@pytest.fixture
def losses_of():
    """Run a trainer and give the loss of every step."""

    def run(trainer):
        records = []
        trainer.reporter.step = records.append
        trainer.train()
        return [record["loss"] for record in records if "loss" in record]

    return run
