"""Parsers of flag values for which typer has no type."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sentkit.errors import UsageError

RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
MOST = 1000  # the longest range
SIZE = re.compile(r"([0-9]{1,18})([KMG]?)", re.IGNORECASE)
WINDOW = re.compile(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?")
SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
CLOSE = 0.5  # minimum similarity of a suggested name: `temp` has half of `temperature`
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def numbers(flag: str, text: str) -> list[int]:
    """Parse `7`, `1,2,3` or `0..9`; duplicates are removed."""
    found: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST:
            raise UsageError(
                f'{flag} "{text}"', advice=f"expected 7, or 1,2,3, or 0..9 (of up to {MOST} numbers)"
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def size(flag: str, text: str) -> int:
    """Parse a number of bytes: `1000`, or `64K`, `64M` and `2G` in powers of 1024."""
    match = SIZE.fullmatch(text.strip())
    if match is None or not 0 < (found := int(match[1]) * UNITS[match[2].upper()]) < sys.maxsize:
        raise UsageError(f'{flag} "{text}"', advice="expected a number of bytes, for example 500K, 64M or 2G")
    return found


def window_sizes(text: str | None) -> tuple[int | None, int | None]:
    """Parse --window: the tokens of a window, and those to the next one, as in `128` or `128:64`."""
    if text is None:
        return None, None
    match = WINDOW.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'--window "{text}"', advice="expected N or N:STRIDE, for example 128 or 128:64")
    size, stride = match.groups()
    if stride is None:
        return int(size), None
    return int(size), int(stride)


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
    match = SHARD.fullmatch(text)
    if match is None or not int(match[2]) or int(match[1]) > int(match[2]):
        raise UsageError(
            f'--shard "{text}"', advice="expected I/N with I from 1 to N, for example 3/8, or auto"
        )
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


def classifier_head(text: str) -> tuple[str, int]:
    """Parse --head of a classifier on vectors: its name, and its hidden units, as in `senteval:50`."""
    name, colon, hidden = text.partition(":")
    if name == "logreg" and not colon:
        return name, 0
    if name == "senteval" and (not colon or hidden.isdecimal()):
        return name, int(hidden or 0)
    raise UsageError(f'--head "{text}"', advice="available: logreg, senteval, senteval:N")


def assignment(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE of --set. A dash in the name is an underscore."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f'--set "{text}": expected name=value')
    name = name.strip().replace("-", "_")
    return name, value if name == "prompt" else value.strip()  # a prompt can end with a space


def suggestion(name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Advice for an unknown name: the most similar known name, or all of them.

    `synonyms` are other names of known ones. The name that is similar to a synonym means the known one.
    """
    known = list(known)
    meanings = {**(synonyms or {}), **dict(zip(known, known, strict=True))}
    similar = get_close_matches(name, meanings, n=1, cutoff=CLOSE)
    if not similar:
        return f"available: {', '.join(known)}"
    return f'did you mean "{meanings[similar[0]]}"?'
