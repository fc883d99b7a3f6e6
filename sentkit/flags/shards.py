"""The part of the work of one process: shard I of N, from a flag or from the variables of an engine."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sentkit.errors import UsageError

FORM = re.compile(r"(\d{1,9})/(\d{1,9})")
ADVICE = "expected I/N with I from 1 to N, for example 3/8, or auto"


@dataclass(frozen=True, slots=True)
class Shard:
    """The blocks with an index that is `number` modulo `count`."""

    number: int = 1
    count: int = 1
    local: int | None = None  # the number of the process on its machine

    def has(self, index: int) -> bool:
        return (index - self.number) % self.count == 0

    def device(self, name: str) -> str:
        """The device for `auto`: each process of a machine gets its own, if there are several."""
        return f"auto:{self.local}" if name == "auto" and self.local is not None else name

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Parse `3/8` or `auto`. 0/8 is the same as 8/8, for arrays that start at 0."""
    if text == "auto":
        return shard_of_engine(environment)
    match = FORM.fullmatch(text)
    if match is None or not int(match[2]) or int(match[1]) > int(match[2]):
        raise UsageError(f'--shard "{text}"', advice=ADVICE)
    return Shard(int(match[1]), int(match[2]))


def shard_of_engine(environment: Mapping[str, str]) -> Shard:
    """The shard of this process: Slurm array, tasks of srun in each array task, or else torchrun."""

    def number(name: str) -> int | None:
        value = environment.get(name)
        if value is not None and not value.isdecimal():
            raise UsageError(f'--shard auto: {name} is "{value}", expected a number')
        return None if value is None else int(value)

    place, count, local, known = 0, 1, None, False
    task, tasks = number("SLURM_ARRAY_TASK_ID"), number("SLURM_ARRAY_TASK_COUNT")
    if task is not None and tasks:
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        place, count, known = (task - first) // step, tasks, True
        last = number("SLURM_ARRAY_TASK_MAX")
        if (task - first) % step or place >= tasks or last not in (None, first + step * (tasks - 1)):
            advice = "use --shard $SLURM_ARRAY_TASK_ID/N with the N of the whole array"
            raise UsageError("--shard auto: the indices of the Slurm array have gaps", advice=advice)
    # SLURM_NTASKS is also set in a batch script that runs once; this variable only in tasks of srun.
    inner, size = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS")
    if inner is not None and size:
        place, count, known, local = place * size + inner, count * size, True, number("SLURM_LOCALID")
    rank, world = number("RANK"), number("WORLD_SIZE")
    if not known and rank is not None and world:
        place, count, known, local = rank, world, True, number("LOCAL_RANK")
    if not known:
        advice = "outside of Slurm and torchrun, name the shard: --shard 3/8"
        raise UsageError("--shard auto: no Slurm array, srun or torchrun", advice=advice)
    return Shard(place + 1, count, local)
