"""One run from beginning to end: a base, a method and rows become a checkpoint folder, there when whole.

Its state lies in OUT.part; the finished checkpoint is made there too, and renamed to OUT.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sentkit.errors import CannotCreateError, DataError
from sentkit.formats.jsonfiles import read_object_if_there
from sentkit.model.precision import pick_precision
from sentkit.training.base import Base
from sentkit.training.corpus import Corpus
from sentkit.training.dev import Dev
from sentkit.training.finish import finish
from sentkit.training.journal import Journal
from sentkit.training.method import Method
from sentkit.training.ranks import Ranks
from sentkit.training.seeds import part_of
from sentkit.training.settings import differing
from sentkit.training.state import Keeper, Position
from sentkit.training.stopping import Stop
from sentkit.training.trainer import Record, Saving, Trainer


@dataclass(frozen=True, slots=True)
class Job:
    """What all seeds of one command have in common."""

    name: str
    kind: type[Method]
    settings: Any
    base: Base
    corpus: Corpus
    dev: Dev | None
    ranks: Ranks
    stop: Stop
    saving: Saving = field(default_factory=Saving)
    resume: bool = False
    force: bool = False
    threads: int | None = None  # None: as the state that is gone on from, else all there are
    report: Callable[[Record], None] = lambda record: None
    warn: Callable[[str], None] = lambda message: None

    def identity(self, seed: int) -> dict[str, Any]:
        """What must be equal for a run to be gone on with."""
        return {
            "method": self.name,
            "seed": seed,
            "base": self.base.hash,
            "data": self.corpus.digest,
            "dev": None if self.dev is None else self.dev.digest,
            **asdict(self.settings),
        }

    def surroundings(self) -> dict[str, Any]:
        """What may differ, and then gives other bits."""
        return {
            "sentkit": version("sentkit"),
            "torch": version("torch"),
            "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "device": self.ranks.device.type,
            "ranks": self.ranks.world,
        }


def train(job: Job, output: Path, seed: int, log: str | None = None) -> None:
    """One run, from its beginning or from its state, into the folder `output`."""
    identity = job.identity(seed)
    if is_finished(job, output, identity):
        return
    part = part_of(output)
    with claimed(part, "run.lock", first=job.ranks.first):
        keeper = Keeper(part)
        if job.ranks.first and not job.resume:
            keeper.forget()
        job.ranks.wait()
        state = keeper.load() if job.resume else None
        if state is not None:
            check_identity(identity, state["identity"]["run"], str(part))
        use_threads(job, state)
        torch.manual_seed(seed)  # before anything is built: new heads draw their weights
        method = job.kind.build(job.base, job.settings).to(job.ranks.device)
        torch.manual_seed(seed * 1_000_003 + job.ranks.rank)  # dropout is of each process's own
        journal = Journal(log if job.ranks.first else None)
        trainer = Trainer(
            method,
            job.corpus,
            keeper,
            seed,
            ranks=job.ranks,
            dev=job.dev,
            journal=journal,
            stop=job.stop,
            saving=job.saving,
            identity={"run": identity, "surroundings": job.surroundings()},
            precision=precision_of(job.settings.precision, job.ranks.device),
            report=job.report,
        )
        if state is not None:
            warn_of_surroundings(job, state["identity"]["surroundings"])
            trainer.go_on_from(state)
        position = trainer.run()
        journal.close()
        if job.ranks.first:
            tell_of_dev(job, position)
            lineage = lineage_of(job, identity, position)
            finish(method, job.base, part, output, lineage, force=job.force)
        job.ranks.wait()


def refuse_existing(output: Path, *, resume: bool, force: bool) -> None:
    """Said before any work: a checkpoint is not overwritten, nor a run that was stopped."""
    if resume or force:
        return
    if output.exists():
        raise CannotCreateError(f"{output}: exists already", advice="use -f to replace it")
    if any(part_of(output).glob("state-*.pt")):
        advice = "--resume goes on with it, -f begins anew"
        raise CannotCreateError(f"{part_of(output)}: holds a run that was not finished", advice=advice)


def is_finished(job: Job, output: Path, identity: Mapping[str, Any]) -> bool:
    """Whether this very run is done already."""
    if job.force or not output.exists():
        return False
    theirs = read_object_if_there(output / "sentkit.json").get("run")
    if not isinstance(theirs, dict):
        raise CannotCreateError(f"{output}: exists already, and is no run of sentkit train")
    check_identity(identity, theirs, str(output))
    return True


def check_identity(ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> None:
    differences = differing(ours, theirs)
    if differences:
        advice = "give the same settings and rows, or begin anew with -f"
        raise DataError(f"is another run: {', '.join(differences)}", source=source, advice=advice)


@contextmanager
def claimed(part: Path, lock: str, *, first: bool) -> Iterator[None]:
    """A folder to write in, ours alone: two runs that write one state would mix."""
    if not first:
        yield
        return
    try:
        part.mkdir(parents=True, exist_ok=True)
        handle = os.open(part / lock, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{part}: cannot be made: {trouble}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CannotCreateError(f"{part}: another process is training into it") from error
    finally:
        os.close(handle)


def use_threads(job: Job, state: Mapping[str, Any] | None) -> None:
    """As asked, else as the state was made with, else all this process may use; never by the environment."""
    before = None if state is None else state["identity"]["surroundings"]["threads"]
    most = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    torch.set_num_threads(job.threads or before or most)


def warn_of_surroundings(job: Job, theirs: Mapping[str, Any]) -> None:
    differences = differing(job.surroundings(), theirs)
    if differences:
        job.warn(f"goes on elsewhere, so the last bits may differ: {', '.join(differences)}")


def precision_of(name: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """What the encoder runs in: as it is, or with products in bfloat16."""
    kind = pick_precision(name, device)
    return nullcontext if kind == torch.float32 else partial(torch.autocast, device.type, dtype=kind)


def tell_of_dev(job: Job, position: Position) -> None:
    best, first = position.best_score, position.first_score
    if job.dev is None:
        return
    if best is None:
        job.warn("no look at --dev gave a correlation: the last weights are kept")
    elif first is not None and best <= first:
        job.warn(
            f"--dev was {first:.2f} before training, and is at best {best:.2f} (step {position.best_step})"
        )


def lineage_of(job: Job, identity: Mapping[str, Any], position: Position) -> dict[str, Any]:
    kept_best = job.settings.final == "best" and position.best_step >= 0
    return {
        "method": job.name,
        "step": position.best_step if kept_best else position.step,
        "dev": position.best_score if kept_best else position.last_score,
        "dev_before": position.first_score,
        "parents": list(job.base.parents),
        "run": dict(identity),
        "rows": len(job.corpus),
        "made_with": job.surroundings(),
    }
