"""Work of several processes over gloo, forked from one: python -m training.together WORK BASES
FOLDER CASES.

WORK is train or compute. BASES is JSON, kind -> path. CASES is JSON, a list of [method, processes,
settings, kind of base]. With train, the loss of every step and the weights at the end of each go to
FOLDER/<number>.pt; with compute, the terms of the first batch and the outputs that each process
gathers to FOLDER/<number>.<rank>.pt. Float64, and no dropout unless set.
"""

import json
import os
import socket
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from sentkit.training.base import open_named
from sentkit.training.catalogue import load
from sentkit.training.loop.processes import open_processes
from sentkit.training.method import changing_tensors
from training.small import small_trainer

PLAIN = {
    "batch": 4,
    "epochs": 1,
    "lr": 0.003,
    "dropout": 0,
    "max_length": 24,
    "count": 10,
    "double": True,
}


@contextmanager
def trainer_of(base_name, run_folder, name, settings):
    """This process's part of a run."""
    torch.set_num_threads(1)
    with open_processes(torch.device("cpu")) as processes:
        folder = run_folder / f"rank{processes.rank}"
        base = open_named(base_name, 24)
        yield small_trainer(folder, name, base, processes=processes, **PLAIN | settings)


def train(*case):
    with trainer_of(*case) as trainer:
        losses = []
        trainer.reporter.step = lambda record: losses.append(record["loss"])
        trainer.train()
        if trainer.processes.is_first:
            weights = {
                name: value.clone() for name, value in changing_tensors(trainer.method).items()
            }
            torch.save({"losses": losses, "weights": weights}, case[1].with_suffix(".pt"))


def compute(*case):
    with trainer_of(*case) as trainer:
        terms = trainer.gradient.compute(trainer.batch(0))
        results = {"terms": terms, "outputs": trainer.gradient.outputs}
        torch.save(results, case[1].with_suffix(f".{trainer.processes.rank}.pt"))


def free_ports(count):
    """So many different ports."""
    with ExitStack() as stack:
        doors = [stack.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [door.getsockname()[1] for door in doors]


@contextmanager
def connected_once(world):
    """The processes connect before the first run, and each run has this connection: a new one
    takes longer than the steps of a small run.
    """
    if world == 1:
        yield
        return
    with (
        open_processes(torch.device("cpu")),
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
    ):
        yield


def connected(world, functions):
    """One function that runs these one after the other with one connection of its processes."""

    def run():
        with connected_once(world):
            for function in functions:
                function()

    return run


def fork(world, functions):
    """Run these functions, one after the other, in so many processes; their exit codes."""
    ports = free_ports(len(functions))
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            try:
                for port, function in zip(ports, functions, strict=True):
                    os.environ["MASTER_PORT"] = str(port)
                    function()
            except BaseException as error:
                sys.stderr.write(f"rank {rank} of {world}: {error!r}\n")
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main():
    function = {"train": train, "compute": compute}[sys.argv[1]]
    bases = json.loads(sys.argv[2])
    folder = Path(sys.argv[3])
    cases = json.loads(sys.argv[4])
    functions = {}
    # The first backward pass of a chunk imports it, half a second in each process.
    import_module("torch.fx.experimental.symbolic_shapes")
    for number, (name, world, settings, kind) in enumerate(cases):
        load(name)
        run_folder = folder / str(number)
        functions.setdefault(world, []).append(
            partial(function, bases[kind], run_folder, name, settings)
        )
    for world, functions_of_world in functions.items():
        if any(codes := fork(world, [connected(world, functions_of_world)])):
            sys.exit(f"{world} processes: exit codes {codes}")


if __name__ == "__main__":
    main()
