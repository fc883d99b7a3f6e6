"""The loss of one batch in each of several processes over gloo: python hard_negatives.py BASE FOLDER CASES.

CASES is JSON, a list of [method, processes, settings]. The terms and the outputs that each process gathers go
to FOLDER/<case>-<rank>.pt.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from together import fork, run_of

from sentkit.training.catalogue import load
from sentkit.training.loop.processes import open_processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import Trainer


def compute(base, folder, case, name, assignments):
    torch.set_num_threads(1)
    with open_processes(torch.device("cpu")) as processes:
        own = folder / f"{case}-{processes.rank}"
        run, method = run_of(base, own, name, assignments)
        trainer = Trainer(run, method.double(), Keeper(own), processes)
        terms = trainer.gradient.compute(trainer.batch(0))
        torch.save({"terms": terms, "outputs": trainer.gradient.outputs}, f"{own}.pt")


def main():
    base, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    works = {}
    for case, (name, world, assignments) in enumerate(cases):
        load(name)
        works.setdefault(world, []).append(partial(compute, base, folder, case, name, assignments))
    for world, each in works.items():
        if any(codes := fork(world, each)):
            sys.exit(f"{world} processes: exit codes {codes}")


if __name__ == "__main__":
    main()
