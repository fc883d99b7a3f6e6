"""One complete run: takes a base, a method and rows, trains, and writes a checkpoint folder.

OUT.part contains the state. The checkpoint is also written there, and renamed to OUT when it is
complete.
"""

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from sentkit.errors import CannotCreateError
from sentkit.formats.files import read_object_if_there
from sentkit.training.data.corpus import stream
from sentkit.training.loop.processes import environment, use_threads
from sentkit.training.loop.state import Checkpointer, check_identity
from sentkit.training.loop.trainer import Trainer
from sentkit.training.run import Run
from sentkit.training.runs.final import NEW_FOLDER, finish
from sentkit.training.runs.folder_lock import lock_folder
from sentkit.training.settings import differences


def train(run: Run) -> None:
    processes = run.processes
    with lock_folder(run.state_folder, "run.lock", is_first_process=processes.is_first):
        checkpointer = Checkpointer(run.state_folder)
        if is_finished(run):
            if processes.is_first:
                checkpointer.forget()  # of a run that was killed after it wrote the checkpoint
                # a checkpoint whose writing was interrupted
                shutil.rmtree(run.state_folder / NEW_FOLDER, ignore_errors=True)
            return
        trainer = begin(run, checkpointer)
        log: AbstractContextManager[None] = nullcontext()
        if processes.is_first:
            log = checkpointer.logging(trainer.position.log_bytes, run.reporter.warn)
        with log:
            trainer.train()
            # Collected while all processes are at the same step.
            random_states = processes.random_states()
            if processes.is_first:
                try:
                    finish(trainer)
                except BaseException:
                    trainer.save(random_states)  # keep the result if the disk is full
                    raise
                checkpointer.forget()
        processes.wait()


def has_state(run: Run) -> bool:
    """Return true for a stopped run."""
    return any(run.state_folder.glob("state-*.pt"))


def refuse_state(run: Run) -> None:
    """Raise an error for a stopped run."""
    if has_state(run):
        advice = "use --resume to continue this run, or -f to start a new run"
        raise CannotCreateError(f"{run.state_folder}: contains an unfinished run", advice=advice)


def is_finished(run: Run) -> bool:
    """Return true if the output is the checkpoint of this run. Refuse other folders, except with
    -f.
    """
    if not run.output.exists() or (run.force and not run.resume):
        return False
    saved = read_object_if_there(run.output / "sentkit.json").get("run")
    if run.force:
        return bool(saved == run.identity)
    if not isinstance(saved, dict):
        raise CannotCreateError(f"{run.output}: already exists and is not a run of sentkit train")
    advice = "use the same settings and rows, or add -f to replace it"
    check_identity(run.identity, saved, str(run.output), advice)
    return True


def begin(run: Run, checkpointer: Checkpointer) -> Trainer:
    """Return a trainer at its first step, or with --resume at the step of the newest state."""
    processes = run.processes
    if not (run.resume or run.force):
        refuse_state(run)  # another process can have stopped this run since the command began
    if processes.is_first and not run.resume:
        checkpointer.forget()
    processes.wait()

    # The saved state and the environment that wrote it.
    state: Mapping[str, Any] | None = None
    saved_environment: Mapping[str, Any] = {}
    if run.resume:
        keeps_best = run.settings.final == "best"
        state = checkpointer.load(run.identity, run.reporter.warn, keeps_best=keeps_best)
    if state is not None:
        saved_environment = state["identity"]["environment"]
    use_threads(run.threads, saved_environment)
    if state is not None:
        changes = differences(environment(processes, run.settings.precision), saved_environment)
        if changes:
            problem = f"the environment changed: {', '.join(changes)}"
            run.reporter.warn(
                f"{problem}; the result may differ slightly from a run without interruption"
            )
        # Earlier versions have other defaults.
        eval_every = state["identity"]["run"]["eval_every"]
        # The checkpoint keeps the command that started the run.
        recorded = state.get("recorded", run.recorded)
        run = replace(run, settings=replace(run.settings, eval_every=eval_every), recorded=recorded)

    # The method. The seed comes before build and prepare, whose new layers have random weights, the
    # same in all processes.
    torch.manual_seed(run.seed)
    method = run.method_class.build(run.base, run.settings).to(processes.device)
    method.prepare(run.corpus)
    method.to(processes.device)
    # Each process has separate dropout, which is independent of the random weights of the heads.
    torch.manual_seed(int(stream(run.seed, processes.rank, "dropout").integers(1 << 62)))
    trainer = Trainer(run, method, checkpointer)
    if state is not None:
        trainer.resume_from(state)
    return trainer
