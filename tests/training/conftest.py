"""A small base to train, rows in memory as a corpus, and a trainer over both."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sentkit.formats.lexicons.model2vec import write_model2vec
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.papers.defsent.plus import read_entries
from sentkit.training.base import Base, open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import Corpus, map_corpus, write_corpus
from sentkit.training.data.dev import Dev
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import Trainer
from sentkit.training.method import Method
from sentkit.training.options import Run, RunFolders, TrainOptions
from sentkit.training.settings import build
from support import SMALL, write_small_tokenizer

TEXTS = [
    "a man plays a guitar", "someone makes music", "the cat sleeps on the warm stone", "a dog runs",
    "two people walk along the river in the rain", "birds fly south", "the market fell again today",
    "she reads a long book about the sea", "rain", "children play in the park with a red ball",
    "an old house stands on the hill", "he writes a letter to his friend", "the train is late",
]  # fmt: skip

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


def make_base(folder: Path, seed: int = 0, kind: str = "BertForMaskedLM", **config: Any) -> Path:
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
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("bases") / "small")


@pytest.fixture(scope="session")
def base(base_folder: Path) -> Base:
    return open_named(str(base_folder), 32)


@pytest.fixture(scope="session")
def static_folder(base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of model2vec with the tokenizer of that base and random vectors of six numbers."""
    folder = tmp_path_factory.mktemp("static") / "static"
    folder.mkdir()
    rules = json.loads((base_folder / "tokenizer.json").read_text())
    rows = np.random.default_rng(0).standard_normal((len(rules["model"]["vocab"]), 6)) / 6**0.5
    write_model2vec(folder, rows.astype(np.float32), rules, {"parents": ["its teacher"]})
    return folder


@pytest.fixture(scope="session")
def together(base_folder: Path, static_folder: Path) -> Callable[..., None]:
    """Do the work of together.py for these cases, with results in this folder."""
    bases = {"transformer": str(base_folder), "static": str(static_folder)}
    script = [sys.executable, str(Path(__file__).with_name("together.py"))]

    def run(work: str, folder: Path, cases: list[Any]) -> None:
        command = [*script, work, json.dumps(bases), str(folder), json.dumps(cases)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        assert done.returncode == 0, done.stderr[-2000:]

    return run


@pytest.fixture(scope="session")
def make_base_in() -> Callable[..., Path]:
    return make_base


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture
def corpus_of(tmp_path: Path, base: Base) -> Callable[..., Corpus]:
    """Rows, as dictionaries or as texts, in the form that this method reads."""

    def make(kind: type[Method], rows: list[Any], settings: Any, base: Base = base) -> Corpus:
        dicts = [{"text": row} if isinstance(row, str) else row for row in rows]
        folder = tmp_path / f"rows{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in dicts))
        parser = ExampleParser(kind.__name__, kind.reads(base, settings), {})
        write_corpus(folder, Inputs([str(path)]), parser, base.training_tokenizer)
        return map_corpus(folder)

    return make


@pytest.fixture
def entries_in() -> Callable[..., np.ndarray]:
    """A vector file of these entries, with random vectors unless they are given; the vectors."""

    def write(
        path: Path, names: list[str], width: int = 16, vectors: Any = None, seed: int = 0, **spec: Any
    ) -> np.ndarray:
        random = np.random.default_rng(seed).standard_normal((len(names), width))
        found = np.array(random if vectors is None else vectors, np.float32)
        with create_vector_file(str(path), spec, ("embedding",), width=found.shape[1], force=True) as store:
            for name, vector in zip(names, found, strict=True):
                store.write([json.dumps({"entry": name}).encode()], vector[None, None])
        return found

    return write


@pytest.fixture
def with_entries(tmp_path: Path, base: Base, entries_in: Callable[..., np.ndarray]) -> Callable[..., Base]:
    """The base, or another one, that is to predict these entries."""
    own_base = base

    def make(names: list[str], base: Base = own_base, **given: Any) -> Base:
        path = tmp_path / f"entries{len(list(tmp_path.iterdir()))}.safetensors"
        entries_in(path, list(dict.fromkeys(names)), **given)
        return replace(base, entries=read_entries(str(path)))

    return make


@pytest.fixture
def trainer_of(tmp_path: Path, base: Base, corpus_of: Callable[..., Corpus]) -> Callable[..., Trainer]:
    """`trainer_of(SimCSE, texts, batch=4, double=True, temperature=.1)`: a trainer, ready to `run()`."""
    own_base = base

    def make(
        kind: type[Method],
        rows: list[Any],
        *,
        seed: int = 0,
        double: bool = False,
        base: Base = own_base,
        dev: Dev | None = None,
        save_every: int = 0,
        processes: Processes | None = None,
        **settings: Any,
    ) -> Trainer:
        assignments = [f"{name}={value}" for name, value in settings.items()]
        wanted = build(kind.Settings, kind.presets, None, assignments)
        folder = tmp_path / f"state{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        torch.manual_seed(seed)
        processes = processes or Processes()
        corpus = corpus_of(kind, rows, wanted, base)
        base = replace(base, labels=corpus.labels)
        method = kind.build(base, wanted).to(processes.device)
        if double:
            method.double()
        options = TrainOptions(
            method=kind.__name__,
            kind=kind,
            settings=wanted,
            folders=RunFolders(folder / "out", [seed]),
            save_every=save_every,
        )
        run = Run(options, seed, base, corpus, dev)
        return Trainer(run, method, Keeper(folder), processes)

    return make


@pytest.fixture
def small(
    trainer_of: Callable[..., Trainer], with_entries: Callable[..., Base], texts: list[str]
) -> Callable[..., Trainer]:
    """`small("simcse", batch=4)`: a trainer over twelve rows with every field that the method reads."""
    entries = ["cat", "dog", "rain", "sea", "house"]  # each one token

    def make(name: str, base: Base | None = None, **settings: Any) -> Trainer:
        kind, base, given = (
            METHODS[name].load(),
            base or with_entries(entries),
            FEWER.get(name, {}) | settings,
        )
        reads = kind.reads(base, build(kind.Settings, {}, None, [f"{n}={v}" for n, v in given.items()]))
        rows = [
            {field: texts[(n + 3 * place) % 13] for place, field in enumerate(reads.kinds[0].texts)}
            | {"label": ("entailment", "contradiction")[n % 2], "score": n % 6}
            | {"entry": entries[n % 5], "embedding": [1, n, n % 5]}
            for n in range(12)
        ]
        return trainer_of(kind, rows, base=base, **given)

    return make


@pytest.fixture
def losses_of() -> Callable[[Trainer], list[float]]:
    """Run a trainer and give the loss of every step."""

    def run(trainer: Trainer) -> list[float]:
        losses: list[float] = []

        def add_loss(record: Mapping[str, Any]) -> None:
            losses.extend([record["loss"]] if "loss" in record else [])

        trainer.reporter.step = add_loss
        trainer.train()
        return losses

    return run
