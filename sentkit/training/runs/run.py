"""One complete run: takes a base, a method and rows, and writes a checkpoint folder.

OUT.part contains the state. The checkpoint is also written there, and renamed to OUT when it is complete.
"""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sentkit.errors import CannotCreateError
from sentkit.formats.json_files import read_object_if_there
from sentkit.process import usable_cpus
from sentkit.signals import RESUME, Aborted, Interrupted, Stop, Stopped
from sentkit.training.data.batches import stream
from sentkit.training.data.dev import nan_lowest
from sentkit.training.loop.processes import Processes, environment, use_threads
from sentkit.training.loop.state import Keeper, Position, Reporter, StepLog, check_identity
from sentkit.training.loop.trainer import Trainer
from sentkit.training.method import using
from sentkit.training.options import Run
from sentkit.training.run_folders import LOG, lock_folder, part_of
from sentkit.training.runs.save_checkpoint import NEW_FOLDER, save_checkpoint
from sentkit.training.settings import differences


def train(run: Run, processes: Processes, stop: Stop, reporter: Reporter) -> None:
    """Start or resume one run and write its checkpoint."""
    part = part_of(run.output)
    with lock_folder(part, "run.lock", first=processes.first):
        keeper = Keeper(part)
        if is_finished(run):
            if processes.first:
                keeper.forget()  # of a run that was killed after it wrote the checkpoint
                shutil.rmtree(part / NEW_FOLDER, ignore_errors=True)  # the folder that -f replaced
            return
        trainer = begin(run, keeper, processes, stop, reporter)
        with reporting_last_save(trainer), open_log(trainer) as trainer.step_log:
            trainer.train()
            random_states = processes.random_states()  # collected while all processes are at the same step
            if processes.first:
                try:
                    finish(trainer)
                except BaseException:
                    trainer.save_with(random_states)  # keep the result if the disk is full
                    raise
                keeper.forget()
        processes.wait()


def is_finished(run: Run) -> bool:
    """Return true if the output is the checkpoint of this run. Refuse other folders, except with -f."""
    options = run.options
    if not run.output.exists() or (options.force and not options.resume):
        return False
    saved = read_object_if_there(run.output / "sentkit.json").get("run")
    if options.force:
        return bool(saved == run.identity)
    if not isinstance(saved, dict):
        raise CannotCreateError(f"{run.output}: already exists and is not a run of sentkit train")
    advice = "use the same settings and rows, or add -f to replace it"
    check_identity(run.identity, saved, str(run.output), advice)
    return True


def begin(run: Run, keeper: Keeper, processes: Processes, stop: Stop, reporter: Reporter) -> Trainer:
    """Return a trainer at the first step or at the last saved state."""
    options = run.options
    if processes.first and not options.resume:
        keeper.forget()
    processes.wait()
    use_threads(options.threads, None)
    torch.manual_seed(run.seed)  # before the build, because new heads have random weights
    method = options.kind.build(run.base, run.settings).to(processes.device)
    # Each process has separate dropout, which is independent of the random weights of the heads.
    torch.manual_seed(int(stream(run.seed, processes.rank, "dropout").integers(1 << 62)))
    trainer = Trainer(run, method, keeper, processes, stop, reporter)
    state = trainer.saved_state() if options.resume else None
    saved = None if state is None else state["identity"]["environment"]
    use_threads(options.threads, saved)
    if state is not None:
        advise_of_threads(options.threads, reporter)
        changes = differences(environment(processes, run.settings.precision), saved or {})
        if changes:
            changed = f"the environment changed: {', '.join(changes)}"
            reporter.warn(f"{changed}; the result may differ slightly from a run without interruption")
        trainer.resume_from(state)
    return trainer


def advise_of_threads(requested: int | None, reporter: Reporter) -> None:
    """Warn if the number of threads of the saved state is too large for this machine."""
    cpus = usable_cpus()
    if requested is None and torch.get_num_threads() > cpus:
        few = f"the run has {torch.get_num_threads()} threads, and this process may use {cpus} CPUs"
        reporter.warn(f"{few}; --threads {cpus} is faster, and the result may differ slightly")


@contextmanager
def reporting_last_save(trainer: Trainer) -> Iterator[None]:
    """Convert a second Ctrl-C to a message with the step from which --resume continues."""
    try:
        yield
    except KeyboardInterrupt as error:
        saved, here = max(trainer.keeper.kept, default=None), f"interrupted at step {trainer.position.step}"
        if saved is None:
            raise Aborted(f"{here}; nothing is saved") from error
        advice = f"{RESUME} from there"
        raise Aborted(f"{here}; the last saved step is {saved}", advice=advice) from error


@contextmanager
def open_log(trainer: Trainer) -> Iterator[StepLog]:
    """The log in the folder of the state. It is removed if the run ends and there is neither."""
    folder = trainer.keeper.folder
    try:
        with StepLog(folder if trainer.processes.first else None, trainer.position.log_bytes) as log:
            yield log
    finally:
        if trainer.processes.first and not any(folder.glob("state-*.pt")):
            (folder / LOG).unlink(missing_ok=True)


def finish(trainer: Trainer) -> None:
    """Write the checkpoint after the last step."""
    run, method, position = trainer.run, trainer.method, trainer.position
    try:
        with best_encoder(trainer) as encoder:
            chosen = choose_readout(trainer)
            for warning in dev_warnings(run, position, chosen) if run.dev else ():
                trainer.reporter.warn(warning)
            kept_best = run.settings.final == "best" and position.best_step >= 0
            lineage = {
                "method": run.options.method,
                "step": position.best_step if kept_best else position.step,
                "dev": position.best_score if kept_best else position.last_score,
                "dev_before": position.first_score,
                "parents": list(run.base.parents),
                "run": run.identity,
                "rows": len(run.corpus),
                **({"teacher": run.corpus.teacher} if run.corpus.teacher else {}),
                **({} if run.base.entries is None else {"entries": run.base.entries.lineage}),
                **class_lineage(trainer),
                "command": run.command,
                "made_with": environment(trainer.processes, run.settings.precision),
                **chosen,
                **encoder,
            }
            readout, force = chosen.get("readout"), run.options.force
            save_checkpoint(
                method, run.base, trainer.keeper.folder, run.output, lineage, readout, force=force
            )
    except Interrupted as error:
        raise Stopped("stopped and saved after the last step", advice=RESUME) from error


def class_lineage(trainer: Trainer) -> dict[str, Any]:
    """Return labels, metric and scores on --test, for methods that classify."""
    run, test = trainer.run, trainer.run.test
    if not run.options.kind.needs.labels:
        return {}
    lineage: dict[str, Any] = {"labels": run.base.labels, "metric": run.settings.metric_name}
    if test is not None:
        measures = test.measures(trainer.method, trainer.stop.poll)
        scores = {name: known(score) for name, score in measures.items()}
        lineage["test"] = {"rows": len(test), **scores}
    return lineage


@contextmanager
def best_encoder(trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Use the encoder with the best score on --dev in the context. Yield its number and all scores."""
    run, method = trainer.run, trainer.method
    encoders = method.encoders()
    if run.dev is None or len(encoders) == 1:
        yield {}
        return
    scores = run.dev.scores(method, trainer.stop.poll)
    best = max(range(len(scores)), key=lambda place: nan_lowest(scores[place]))
    with using(method, encoders[best]):
        yield {"encoder": best + 1, "dev_by_encoder": [known(score) for score in scores]}


def choose_readout(trainer: Trainer) -> dict[str, Any]:
    """Return the best readout on --dev, the score of each readout and the score of the base.

    The result is empty without --dev, or if the only readout is the one evaluated during training.
    """
    run, method, poll = trainer.run, trainer.method, trainer.stop.poll
    names = method.readouts(run.settings)
    if run.dev is None or names == (method.dev_readout(run.settings),):
        return {}
    scores = {name: run.dev.score_as(name, method, poll) for name in names}
    best = max(names, key=lambda name: nan_lowest(scores[name]))  # of equal scores, the first readout
    untrained = run.options.kind.build(run.base, run.settings).to(method.device)
    if run.base.declared is None:
        before = run.dev.score_as(best, untrained, poll)
    else:
        before = run.dev.score_base(run.base.declared, untrained, poll)
    return {
        "readout": best,
        "dev": known(scores[best]),
        "dev_before": known(before),
        **({"dev_by_readout": {name: known(scores[name]) for name in names}} if len(names) > 1 else {}),
    }


def known(score: float) -> float | None:
    return None if math.isnan(score) else score


def dev_warnings(run: Run, position: Position, chosen: Mapping[str, Any]) -> Sequence[str]:
    """Return warnings about the score on --dev."""
    kept = position.best_score if run.settings.final == "best" else position.last_score
    before, readout = position.first_score, run.options.kind.dev_readout(run.settings)
    if chosen:
        kept, before, readout = chosen["dev"], chosen["dev_before"], chosen["readout"]
    if kept is None or math.isnan(kept):
        return ["all --dev scores are undefined; the weights of the last step are used"]
    if before is None or math.isnan(before) or kept > before:
        return []
    declared = run.base.declared
    first = f"{before:.2f} before training (readout {readout if declared is None else declared.name})"
    after = f"{kept:.2f} after (readout {readout})"
    if run.options.kind.needs.labels:
        first, after = f"{before:.2f} before training", f"{kept:.2f} after"
    how = "not better" if kept == before else f"worse by {before - kept:.2f}"
    return [f"the result is {how} on --dev: {first}, {after}"]
