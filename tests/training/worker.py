"""One process of a run, alone or under torchrun: worker.py BASE FOLDER METHOD OUT [SETTING=VALUE]..."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from sentkit.formats.checkpoints import read_checkpoint
from sentkit.formats.rows import Inputs
from sentkit.training.base import open_base
from sentkit.training.catalogue import find
from sentkit.training.corpus import map_corpus, write_corpus
from sentkit.training.examples import ExampleParser
from sentkit.training.ranks import open_ranks
from sentkit.training.settings import build
from sentkit.training.state import Keeper
from sentkit.training.trainer import Trainer

WORDS = "man plays guitar music cat sleeps dog runs river rain birds market book sea park".split()
LABELS = ("entailment", "contradiction", "neutral")


def text(number):
    return " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 3 + number % 5))


def rows(kinds):
    """Ten rows with every member that any method asks for."""
    named = {name for kind in kinds[:1] for name in kind.texts}
    for number in range(10):
        row = {name: text(3 * number + place) for place, name in enumerate(sorted(named))}
        yield {**row, "label": LABELS[number % 3], "score": number % 6}


def main():
    base_name, folder, name, out, *assignments = sys.argv[1:]
    die = next((int(each[4:]) for each in assignments if each.startswith("die=")), None)
    kind = find(name)
    plain = ["batch=4", "epochs=2", "lr=0.003", "dropout=0", "max_length=24"]
    settings = build(kind.Settings, kind.presets, None, plain + [a for a in assignments if "die=" not in a])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = open_base(read_checkpoint(base_name), 24)
    method = kind.build(base, settings).double()
    with open_ranks(torch.device("cpu")) as ranks:
        own = Path(folder) / f"{name}-{ranks.world}-{ranks.rank}-{len(assignments)}"
        own.mkdir()
        reads = kind.reads(settings)
        (own / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(reads.kinds)))
        parser = ExampleParser(name, reads, {})
        write_corpus(own, Inputs([str(own / "rows.jsonl")]), parser, base.tokenizer)
        trainer = Trainer(method, map_corpus(own), Keeper(own), 0, ranks=ranks)
        losses = []

        def report(record):
            losses.append(record["loss"])
            if len(losses) == die:
                os.kill(os.getpid(), signal.SIGKILL)

        trainer.report = report
        trainer.run()
        if ranks.first:
            weights = {name: value.clone() for name, value in trainer.tensors().items()}
            torch.save({"losses": losses, "weights": weights}, out)


if __name__ == "__main__":
    main()
