"""Rows with every field that a method reads, and a trainer over rows in memory."""

import json
from dataclasses import replace

import torch

from sentkit.formats.rows.rows import Inputs
from sentkit.training.data.corpus import map_corpus, write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import Trainer
from sentkit.training.options import Run, RunFolders, TrainOptions
from sentkit.training.settings import build

TEXTS = [
    "a man plays a guitar", "someone makes music", "the cat sleeps on the warm stone", "a dog runs",
    "two people walk along the river in the rain", "birds fly south", "the market fell again today",
    "she reads a long book about the sea", "rain", "children play in the park with a red ball",
    "an old house stands on the hill", "he writes a letter to his friend", "the train is late",
]  # fmt: skip
ENTRIES = ["cat", "dog", "rain", "sea", "house"]  # each one token


def rows_for(kind, base, settings, count):
    """Rows of the first kind that a method reads, with each field that another one reads."""
    names = kind.reads(base, settings).kinds[0].texts
    return [
        {name: TEXTS[(n + 3 * place) % 13] for place, name in enumerate(names)}
        | {"label": ("entailment", "contradiction")[n % 2], "score": n % 6}
        | {"entry": ENTRIES[n % 5], "embedding": [1, n, n % 5]}
        for n in range(count)
    ]


def corpus_in(folder, kind, rows, settings, base):
    """Rows, as dictionaries or as texts, in the form that this method reads, in a new folder."""
    folder.mkdir(parents=True)
    dicts = [{"text": row} if isinstance(row, str) else row for row in rows]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in dicts))
    parser = ExampleParser(kind.__name__, kind.reads(base, settings), {})
    write_corpus(folder, Inputs([str(path)]), parser, base.training_tokenizer)
    return map_corpus(folder)


def trainer_in(
    folder, kind, rows, assignments, base, processes=None, *, seed=0, double=False, dev=None, save_every=0
):
    """A trainer, ready to `train()`. Rows can be their number, for `rows_for`."""
    settings, processes = build(kind.Settings, kind.presets, None, assignments), processes or Processes()
    torch.manual_seed(seed)
    rows = rows_for(kind, base, settings, rows) if isinstance(rows, int) else rows
    corpus = corpus_in(folder / "rows", kind, rows, settings, base)
    base = replace(base, labels=corpus.labels)
    method = kind.build(base, settings).to(processes.device)
    if double:
        method.double()
    folders = RunFolders(folder / "out", [seed])
    options = TrainOptions(
        method=kind.__name__, kind=kind, settings=settings, folders=folders, save_every=save_every
    )
    (folder / "state").mkdir()
    return Trainer(Run(options, seed, base, corpus, dev), method, Keeper(folder / "state"), processes)
