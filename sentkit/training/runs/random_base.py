"""Random bases: encoders with new weights, which depend on the seed."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.json_files import read_object
from sentkit.model.checkpoint.lm_head import fresh_head, head_tensors
from sentkit.model.checkpoint.random_init import architecture_of, write_fresh
from sentkit.training.base import Base, open_base
from sentkit.training.loop.processes import Ranks
from sentkit.training.runs.folder_lock import claimed

Bases = Callable[[int], Base]  # by the seed
LOCK = "init.lock"


@dataclass(frozen=True, slots=True)
class Init:
    """The source files of a random base."""

    config: Path  # a file config.json
    tokenizer: Path  # a file tokenizer.json, or its folder

    def write(self, folder: Path, seed: int) -> None:
        """Write an untrained language model to an empty folder. The same seed gives the same bytes."""
        architecture = architecture_of(read_object(self.config), str(self.config))
        head = fresh_head(architecture, torch.Generator().manual_seed(seed))
        write_fresh(folder, self.config, self.tokenizer, seed, head_tensors(head, architecture))


@contextmanager
def from_nothing(init: Init, place: Path, ranks: Ranks, max_length: int) -> Iterator[Bases]:
    """Return a function from a seed to its base. The folder of a base is replaced by that of the next seed.

    A resumed run writes its base again, with the same bytes.
    """
    folder = place / "init"

    @lru_cache(maxsize=1)
    def base_of(seed: int) -> Base:
        if ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            init.write(folder, seed)
        ranks.wait()
        base = replace(open_base(read_checkpoint(str(folder)), max_length), parents=())
        ranks.wait()  # the first process removes this folder for the next seed
        return base

    with claimed(place, LOCK, first=ranks.first):
        try:
            yield base_of
        finally:
            if ranks.first:
                shutil.rmtree(folder, ignore_errors=True)
