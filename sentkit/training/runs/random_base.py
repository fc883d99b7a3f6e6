"""Where the runs of a command begin: at one checkpoint, or each at random weights of its seed's own."""

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
    """What a base is made of where there is none."""

    config: Path  # a config.json
    tokenizer: Path  # a tokenizer.json, or a folder that has one

    def write(self, folder: Path, seed: int) -> None:
        """Fill an empty folder with a language model that has learned nothing: the same bytes for a seed."""
        architecture = architecture_of(read_object(self.config), str(self.config))
        head = fresh_head(architecture, torch.Generator().manual_seed(seed))
        write_fresh(folder, self.config, self.tokenizer, seed, head_tensors(head, architecture))


@contextmanager
def from_nothing(init: Init, place: Path, ranks: Ranks, max_length: int) -> Iterator[Bases]:
    """The base of each seed, while this lasts; its folder is made when it is asked for, one at a time.

    A run that is gone on with finds its base again: it is written once more, to the same bytes.
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
        ranks.wait()  # the first may go on to the next seed, and takes this folder away
        return base

    with claimed(place, LOCK, first=ranks.first):
        try:
            yield base_of
        finally:
            if ranks.first:
                shutil.rmtree(folder, ignore_errors=True)
