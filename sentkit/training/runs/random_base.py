"""Random bases: encoders with new weights, which depend on the seed."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.json_files import read_object
from sentkit.model.checkpoint.heads import fresh_head, head_tensors
from sentkit.model.checkpoint.save_weights import architecture_of, write_fresh
from sentkit.training.base import Base, open_base
from sentkit.training.data.batches import stream
from sentkit.training.loop.processes import Processes
from sentkit.training.options import RandomInit
from sentkit.training.runs.folder_lock import lock_folder

BaseOf = Callable[[int], Base]  # seed -> base


@contextmanager
def random_bases(init: RandomInit, place: Path, processes: Processes, max_length: int) -> Iterator[BaseOf]:
    """Return a function from a seed to its base. The folder of a base is replaced by that of the next seed.

    A resumed run writes its base again, with the same bytes.
    """
    folder = place / "init"

    @lru_cache(maxsize=1)
    def base_of(seed: int) -> Base:
        if processes.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_random(init, folder, seed)
        processes.wait()
        base = replace(open_base(read_checkpoint(str(folder)), max_length), parents=())
        processes.wait()  # the first process removes this folder for the next seed
        return base

    with lock_folder(place, "init.lock", first=processes.first):
        try:
            yield base_of
        finally:
            if processes.first:
                shutil.rmtree(folder, ignore_errors=True)


def write_random(init: RandomInit, folder: Path, seed: int) -> None:
    """Write an untrained language model to an empty folder. The same seed gives the same bytes."""
    architecture = architecture_of(read_object(init.config), str(init.config))
    # The seed of a run is also that of its other new layers, which must be independent of the head.
    own_seed = int(stream(seed, 0, "language model head").integers(1 << 62))
    head = fresh_head(architecture, torch.Generator().manual_seed(own_seed))
    write_fresh(folder, init.config, init.tokenizer, seed, head_tensors(head, architecture))
