"""Small bases, rows with every field, and trainers over both."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.papers.defsent.plus import read_entries
from sentkit.process import Stopped
from sentkit.training.catalogue import METHODS, LoadedMethod
from sentkit.training.data.corpus import map_corpus
from sentkit.training.data.corpus_writer import write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.gradient import Gradient
from sentkit.training.loop.processes import Processes, precision_of
from sentkit.training.loop.state import Checkpointer
from sentkit.training.loop.trainer import Trainer
from sentkit.training.method import changing_tensors, trained_parameters
from sentkit.training.run import Run
from sentkit.training.settings import build
from support import SMALL, in_jsonl, write_small_tokenizer

TEXTS = [
    "a man plays a guitar",
    "someone makes music",
    "the cat sleeps on the warm stone",
    "a dog runs",
    "two people walk along the river in the rain",
    "birds fly south",
    "the market fell again today",
    "she reads a long book about the sea",
    "rain",
    "children play in the park with a red ball",
    "an old house stands on the hill",
    "he writes a letter to his friend",
    "the train is late",
]
ENTRIES = ["cat", "dog", "rain", "sea", "house"]  # each one token
FIELDS = ("text", "text_a", "text_b", "anchor", "positive", "negative", "definition")
DISTILBERT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}
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

    sizes = (
        SMALL
        | {"vocab_size": write_small_tokenizer(folder), "max_position_embeddings": 64}
        | config
    )
    if kind.startswith("DistilBert"):
        sizes = {DISTILBERT.get(name, name): value for name, value in sizes.items()}
    torch.manual_seed(seed)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    return folder


def every_field(count):
    """Rows with every field that a method reads."""
    return [
        {field: TEXTS[(n + 3 * index) % 13] for index, field in enumerate(FIELDS)}
        | {"label": ("entailment", "contradiction")[n % 2], "score": n % 6}
        | {"entry": ENTRIES[n % 5], "embedding": [1, n, n % 5]}
        for n in range(count)
    ]


def entries_in(path, names, width=16, vectors=None, seed=0, **spec):
    """Write a vector file of these entries, with random vectors unless they are given; the
    vectors.
    """
    random = np.random.default_rng(seed).standard_normal((len(names), width))
    matrix = np.array(random if vectors is None else vectors, np.float32)
    with create_vector_file(
        str(path), spec, ("embedding",), width=matrix.shape[1], force=True
    ) as store:
        for name, vector in zip(names, matrix, strict=True):
            store.write([json.dumps({"entry": name}).encode()], vector[None, None])
    return matrix


def with_entries(base, path, names, **options):
    """A base that is to predict these entries."""
    entries_in(path, list(dict.fromkeys(names)), **options)
    return replace(base, entries=read_entries(str(path)))


def corpus_in(folder, kind, rows, settings, base):
    """Rows, as dictionaries or as texts, in the form that this method reads."""
    folder.mkdir()
    path = folder / "rows.jsonl"
    path.write_text(in_jsonl(*({"text": row} if isinstance(row, str) else row for row in rows)))
    parser = ExampleParser(kind.__name__, kind.reads(base, settings), {})
    write_corpus(folder, Inputs([str(path)]), parser, base.training_tokenizer)
    return map_corpus(folder)


def make_trainer(
    folder,
    kind,
    rows,
    base,
    *,
    seed=0,
    double=False,
    dev=None,
    save_every=0,
    processes=None,
    **settings,
):
    """A trainer with the state in a new folder."""
    chosen = build(
        kind.Settings, kind.presets, None, [f"{name}={value}" for name, value in settings.items()]
    )
    (folder / "state").mkdir(parents=True)
    torch.manual_seed(seed)
    processes = processes or Processes()
    corpus = corpus_in(folder / "rows", kind, rows, chosen, base)
    base = replace(base, labels=corpus.labels)
    method = kind.build(base, chosen).to(processes.device)
    if double:
        method.double()
    method.prepare(corpus)
    run = Run(
        method=LoadedMethod(kind, kind.__name__),
        settings=chosen,
        seed=seed,
        root=folder / "out",
        save_every=save_every,
        processes=processes,
        base=base,
        corpus=corpus,
        dev=dev,
    )
    return Trainer(run, method, Checkpointer(folder / "state"))


def small_trainer(folder, name, base, *, count=12, **settings):
    """A trainer of this method over rows with every field, and over entries."""
    folder.mkdir(parents=True)
    base = with_entries(base, folder / "entries.safetensors", ENTRIES)
    return make_trainer(
        folder, METHODS[name].load(), every_field(count), base, **FEWER.get(name, {}) | settings
    )


def gradient_of(trainer, precision=None, **chunks):
    """The terms and the gradient of the first batch, as the trainer computes it, or in other
    chunks.
    """
    trainer.method.train()
    torch.manual_seed(5)
    numbers = precision_of(precision or trainer.recipe.precision, trainer.processes.device)
    options = {"chunk": trainer.recipe.chunk, "precision": numbers} | chunks
    terms = Gradient(trainer.method, trainer.processes, **options).compute(trainer.batch(0))
    slopes = {
        name: weight.grad.clone()
        for name, weight in trained_parameters(trainer.method)
        if weight.grad is not None
    }
    return {name: value.item() for name, value in terms.items()}, slopes


def run_with_log(trainer, behind=0):
    """Train from one seed: the lines of the log, the tensors of method and optimizer, warnings and
    error.
    """
    trainer.max_unread = behind
    messages = []
    trainer.reporter.warn = messages.append
    torch.manual_seed(4)
    with trainer.checkpointer.logging():
        try:
            trainer.train()
        except DataError as error:
            messages.append(str(error))
        lines = (trainer.checkpointer.folder / "steps.jsonl").read_text()
    return lines, [changing_tensors(trainer.method), trainer.optimizer.state_dict()], messages


def equal(one, other):
    """The same values of the same kinds; NaN is equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or (one != one and other != other)


def changed_by(trainer):
    """Train; the names of the tensors of the method that are not as before."""
    before = {name: value.clone() for name, value in trainer.method.state_dict().items()}
    trainer.train()
    after = trainer.method.state_dict()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def stop_after(trainer, step):
    """Train until this step. The state is in the folder of the trainer."""

    def report(record):
        trainer.stop.requested = record["step"] == step

    trainer.reporter.step = report
    with pytest.raises(Stopped):
        trainer.train()
