"""Parsers of flag values for which typer has no type."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sentkit.errors import UsageError

RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
LONGEST_RANGE = 1000
SIZE = re.compile(r"([0-9]{1,18})([KMG]?)", re.IGNORECASE)
WINDOW = re.compile(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?")
SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
UNITS_OR_FOLDS = re.compile(r"\d{1,9}")
MAX_HIDDEN_UNITS = 100_000
MIN_SIMILARITY = 0.5  # minimum similarity of a suggested name: `temp` has half of `temperature`
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def numbers(flag: str, text: str) -> list[int]:
    """Parse `7`, `1,2,3` or `0..9`; duplicates are removed."""
    values: list[int] = []
    for range_text in text.split(","):
        match = RANGE.fullmatch(range_text.strip())
        values_of_range = range(0)
        if match is not None:
            first = int(match[1])
            last = int(match[2] or match[1])
            if last < first:
                problem = f'{flag} "{text}": {first}..{last} has no numbers'
                raise UsageError(problem, advice=f"write {last}..{first}")
            values_of_range = range(first, last + 1)
        if not 0 < len(values_of_range) <= LONGEST_RANGE:
            expected = f"7, or 1,2,3, or 0..9 (of up to {LONGEST_RANGE} numbers)"
            raise UsageError(f'{flag} "{text}"', advice=f"expected {expected}")
        values += values_of_range
    return list(dict.fromkeys(values))


def size(flag: str, text: str) -> int:
    """Parse a number of bytes: `1000`, or `64K`, `64M` and `2G` in powers of 1024."""
    count = 0
    match = SIZE.fullmatch(text.strip())
    if match is not None:
        count = int(match[1]) * UNITS[match[2].upper()]
    if not 0 < count < sys.maxsize:
        raise UsageError(
            f'{flag} "{text}"', advice="expected a number of bytes, for example 500K, 64M or 2G"
        )
    return count


def window_sizes(text: str | None) -> tuple[int | None, int | None]:
    """Parse --window: the tokens of a window, and those to the next one, as in `128` or
    `128:64`.
    """
    if text is None:
        return None, None
    match = WINDOW.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f'--window "{text}"', advice="expected N or N:STRIDE, for example 128 or 128:64"
        )
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
        return shard_of_launchers(environment)
    match = SHARD.fullmatch(text)
    if match is None or not int(match[2]) or int(match[1]) > int(match[2]):
        raise UsageError(
            f'--shard "{text}"', advice="expected I/N with I from 1 to N, for example 3/8, or auto"
        )
    return Shard(int(match[1]), int(match[2]))


# Of mpirun: rank, number of ranks, and rank on the machine. Of Open MPI; of MPICH and Intel MPI.
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The number of this process among the `count` processes of a launcher."""

    index: int
    count: int
    local: int | None = None  # the number of the process on its machine


def shard_of_launchers(environment: Mapping[str, str]) -> Shard:
    """The shard of this process: of the tasks of a Slurm array, of srun or mpirun in each of them,
    and of torchrun in each of their processes.
    """
    array = ranks_of_array(environment)
    srun = ranks_of_srun(environment)
    tasks_of_srun = number_of(environment, "SLURM_STEP_NUM_TASKS") or 0
    # In an allocation, mpirun starts one task of srun on each node, which starts all ranks there.
    # With no more ranks than tasks, srun has set the variables of MPI, or they are those of an
    # mpirun around it.
    step = ranks_of_mpi(environment, more_than=tasks_of_srun) or srun
    world = ranks_of_torchrun(environment)
    nodes_of_world = number_of(environment, "GROUP_WORLD_SIZE")
    if array is None and step is None and world is None:
        advice = "outside of Slurm, MPI and torchrun, name the shard: --shard 3/8"
        raise UsageError("--shard auto: no Slurm array, srun, mpirun or torchrun", advice=advice)

    # The ranks of torchrun count the processes of all tasks of srun if it runs in each of them as
    # one node of the same world, or if RANK is the number of the task.
    if step is not None and world is not None:
        world_spans_tasks = (nodes_of_world or world.count) == step.count
        if world_spans_tasks:
            step = None

    # Each launcher starts its processes in each process of the one before.
    index = 0
    count = 1
    local = None
    for ranks in (array, step, world):
        if ranks is not None:
            index = index * ranks.count + ranks.index
            count *= ranks.count
            local = ranks.local
    return Shard(index + 1, count, local)


def number_of(environment: Mapping[str, str], name: str) -> int | None:
    """The number in a variable of a launcher; None if it is not set."""
    value = environment.get(name)
    if value is None:
        return None
    if not value.isdecimal():
        raise UsageError(f'--shard auto: {name} is "{value}", expected a number')
    return int(value)


def ranks_of_array(environment: Mapping[str, str]) -> Ranks | None:
    task = number_of(environment, "SLURM_ARRAY_TASK_ID")
    tasks = number_of(environment, "SLURM_ARRAY_TASK_COUNT")
    if task is None or not tasks:
        return None
    index = index_in_array(
        task,
        tasks,
        first=number_of(environment, "SLURM_ARRAY_TASK_MIN") or 0,
        step=number_of(environment, "SLURM_ARRAY_TASK_STEP") or 1,
        last=number_of(environment, "SLURM_ARRAY_TASK_MAX"),
    )
    return Ranks(index, tasks)


def index_in_array(task: int, tasks: int, *, first: int, step: int, last: int | None) -> int:
    """The index of a task of a Slurm array, such as 2 for task 20 of --array=0-30:10."""
    index, remainder = divmod(task - first, step)
    if remainder or index >= tasks or last not in (None, first + step * (tasks - 1)):
        advice = "use --shard $SLURM_ARRAY_TASK_ID/N with the N of the whole array"
        raise UsageError("--shard auto: the indices of the Slurm array have gaps", advice=advice)
    return index


def ranks_of_srun(environment: Mapping[str, str]) -> Ranks | None:
    # SLURM_NTASKS is also set in a batch script that runs once, SLURM_STEP_NUM_TASKS only in tasks
    # of srun.
    task = number_of(environment, "SLURM_PROCID")
    tasks = number_of(environment, "SLURM_STEP_NUM_TASKS")
    local = number_of(environment, "SLURM_LOCALID")
    if task is None or not tasks:
        return None
    return Ranks(task, tasks, local)


def ranks_of_mpi(environment: Mapping[str, str], *, more_than: int) -> Ranks | None:
    """The ranks of an mpirun with more of them than this number."""
    for rank_name, size_name, local_name in MPI_VARIABLES:
        size = number_of(environment, size_name) or 0
        if size <= more_than:
            continue
        rank = number_of(environment, rank_name)
        if rank is not None:
            local_names = (local_name, "PMI_LOCAL_RANK", "SLURM_LOCALID")
            name_in_use = next((name for name in local_names if name in environment), local_name)
            return Ranks(rank, size, number_of(environment, name_in_use))
    return None


def ranks_of_torchrun(environment: Mapping[str, str]) -> Ranks | None:
    rank = number_of(environment, "RANK")
    world = number_of(environment, "WORLD_SIZE")
    if rank is None or not world:
        return None
    return Ranks(rank, world, number_of(environment, "LOCAL_RANK"))


def classifier_head(text: str) -> tuple[str, int]:
    """Parse --head of a classifier on vectors: its name, and its hidden units, as in
    `senteval:50`.
    """
    name, colon, hidden = text.partition(":")
    if name == "logreg" and not colon:
        return name, 0
    if name == "senteval" and (not colon or UNITS_OR_FOLDS.fullmatch(hidden)):
        hidden_units = int(hidden or 0)
        if hidden_units > MAX_HIDDEN_UNITS:
            limit = f"{MAX_HIDDEN_UNITS:,}"
            raise UsageError(f'--head "{text}"', advice=f"expected up to {limit} hidden units")
        return name, hidden_units
    raise UsageError(f'--head "{text}"', advice="available: logreg, senteval, senteval:N")


def classifier_protocol(text: str) -> tuple[str, int, int]:
    """Parse --head of the tasks of SentEval: its name, its hidden units, and the folds.

    The network has 5 folds, the default of SentEval's engine, or others as in `senteval:50:10`.
    """
    if text.count(":") < 2:
        name, hidden = classifier_head(text)
        return name, hidden, 10 if name == "logreg" else 5
    head, _, folds = text.rpartition(":")
    name, hidden = classifier_head(head)
    if not UNITS_OR_FOLDS.fullmatch(folds) or int(folds) < 3:
        raise UsageError(f'--head "{text}"', advice="the number of folds is 3 or more")
    return name, hidden, int(folds)


def assignment(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE of --set. A dash in the name is an underscore."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f'--set "{text}": expected name=value')
    name = name.strip().replace("-", "_")
    if name == "prompt":
        return name, value  # it can end with a space
    return name, value.strip()


def suggestion(name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Advice for an unknown name: the most similar known name, or all of them.

    `synonyms` are other names of known ones. The name that is similar to a synonym means the known
    one.
    """
    known_names = list(known)
    meanings = dict[str, str]()
    for synonym, known_name in (synonyms or {}).items():
        meanings[comparable(synonym)] = known_name
    for known_name in known_names:
        meanings[comparable(known_name)] = known_name
    similar = get_close_matches(comparable(name), meanings, n=1, cutoff=MIN_SIMILARITY)
    if not similar:
        return f"available: {', '.join(known_names)}"
    return f'did you mean "{meanings[similar[0]]}"?'


def suggestion_with_all(
    name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """The same advice, always with all known names."""
    known_names = list(known)
    advice = suggestion(name, known_names, synonyms)
    available = f"available: {', '.join(known_names)}"
    if advice == available:
        return advice
    return f"{advice} {available}"


def comparable(name: str) -> str:
    """A name without its spelling: `DefSent+` and `defsent_plus` are `defsent-plus`."""
    return name.lower().replace("_", "-").replace("+", "-plus")
