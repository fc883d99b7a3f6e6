"""The end of a run: the encoder and the readout that --dev selects, the record, and the
folder OUT.
"""

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentkit.formats.outputs.temporary import publish_folder
from sentkit.metrics.reports import defined
from sentkit.process import RESUME, Interrupted, Stopped
from sentkit.training.data.dev import SPEARMAN, Dev, nan_lowest
from sentkit.training.loop.processes import environment
from sentkit.training.loop.state import LOG
from sentkit.training.loop.trainer import EVALUATIONS, Trainer
from sentkit.training.method import using
from sentkit.training.recipe import AUTO
from sentkit.training.runs.checkpoint import write_checkpoint
from sentkit.training.settings import format_value

NEW_FOLDER = "checkpoint"  # name of the new checkpoint in the folder of the state
MOST_DECIMALS = 5  # of two scores in a message; train.json rounds to seven digits


def finish(trainer: Trainer) -> None:
    """Choose encoder and readout on --dev, and write the checkpoint."""
    try:
        with best_encoder(trainer) as encoder:
            chosen = choose_readout(trainer)
            readout = chosen.get("readout")
            if trainer.run.dev is not None:
                for warning in dev_warnings(trainer, chosen):
                    trainer.reporter.warn(warning)
            lineage = lineage_of(trainer) | chosen | encoder
            if trainer.run.dev is not None:
                dev = trainer.run.dev
                intervals = dev.intervals(dev.values(trainer.method, readout, trainer.stop.poll))
                lineage["dev_ci95"] = [defined(limit) for limit in intervals[dev.metric]]
            publish(trainer, lineage, readout)
    except Interrupted as error:
        raise Stopped("stopped and saved after the last step", advice=RESUME) from error


def lineage_of(trainer: Trainer) -> dict[str, Any]:
    """Return the record of the run for sentkit.json."""
    run = trainer.run
    position = trainer.position
    step = position.step
    score = position.last_score
    if run.settings.final == "best" and position.best_step >= 0:
        step = position.best_step
        score = position.best_score
    lineage = {
        "method": run.method.name,
        "step": step,
        "dev": score,
        "dev_before": position.first_score,
        "parents": list(run.base.parents),
        "run": run.identity,
        "rows": len(run.corpus),
    }
    if run.corpus.teacher:
        lineage["teacher"] = run.corpus.teacher
    if run.base.entries is not None:
        lineage["entries"] = run.base.entries.lineage
    lineage |= lineage_of_metric(trainer)
    lineage |= run.recorded
    if run.several:
        lineage["this_run"] = {**run.chosen, "seed": run.seed}
    made_with = environment(trainer.processes, run.settings.precision)
    if position.limits and trainer.recipe.chunk_tokens == AUTO:
        made_with["chunk_tokens"] = position.limits
    lineage["made_with"] = made_with
    return lineage


def lineage_of_metric(trainer: Trainer) -> dict[str, Any]:
    """Return the metric of --dev if it is not Spearman's; for classify also labels and scores on
    --test.
    """
    run = trainer.run
    if not run.method_class.needs.labels:
        if run.dev is None or run.dev.metric == SPEARMAN:
            return {}
        return {"metric": run.dev.metric}
    lineage: dict[str, Any] = {"labels": run.base.labels, "metric": run.settings.metric_name}
    if run.test is not None:
        values = run.test.values(trainer.method, None, trainer.stop.poll)
        measures = run.test.measures(values, slice(None))
        scores = {name: defined(score) for name, score in measures.items()}
        lineage["test"] = {"rows": len(run.test.rows), **scores}
        lineage["test_ci95"] = {
            name: [defined(limit) for limit in limits]
            for name, limits in run.test.intervals(values).items()
        }
    return lineage


@contextmanager
def best_encoder(trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Use the encoder with the best score on --dev in the context. Yield its number and all
    scores.
    """
    run = trainer.run
    method = trainer.method
    encoders = method.encoders()
    if run.dev is None or len(encoders) == 1:
        yield {}
        return
    scores = run.dev.scores_of_encoders(method, trainer.stop.poll)
    best = max(range(len(scores)), key=lambda index: nan_lowest(scores[index]))
    with using(method, encoders[best]):
        yield {"encoder": best + 1, "dev_by_encoder": [defined(score) for score in scores]}


def choose_readout(trainer: Trainer) -> dict[str, Any]:
    """Return the best readout on --dev, the score of each readout and the score of the base.

    The result is empty without --dev, or if the only readout is the one evaluated during training.
    """
    run = trainer.run
    method = trainer.method
    poll = trainer.stop.poll
    names = method.readouts(run.settings)
    if not isinstance(run.dev, Dev):  # none, or rows with labels, which no readout predicts
        return {}
    if names == (method.dev_readout(run.settings),):
        return {}
    scores = {name: run.dev.score_with_readout(name, method, poll) for name in names}
    # of equal scores, the first readout
    best = max(names, key=lambda name: nan_lowest(scores[name]))

    # The score before training, with the readout that the base declares and the steps after it, or
    # else with the best one.
    untrained = run.method_class.build(run.base, run.settings).to(method.device)
    if run.base.declared is None:
        before = run.dev.score_with_readout(best, untrained, poll)
    else:
        before = run.dev.score_base(run.base, untrained, poll)
    chosen: dict[str, Any] = {
        "readout": best,
        "dev": defined(scores[best]),
        "dev_before": defined(before),
    }
    if len(names) > 1:
        chosen["dev_by_readout"] = {name: defined(score) for name, score in scores.items()}
    return chosen


def dev_warnings(trainer: Trainer, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about the scores on --dev. `chosen` is the result of `choose_readout`."""
    run = trainer.run
    position = trainer.position
    keeps_best = run.settings.final == "best"
    if chosen:
        before = chosen["dev_before"]
        score = chosen["dev"]
        readout = chosen["readout"]
    else:
        before = position.first_score
        score = position.best_score if keeps_best else position.last_score
        readout = run.method_class.dev_readout(run.settings)
    if score is None or math.isnan(score):
        yield "all --dev scores are undefined; the weights of the last step are used"
    elif before is not None and before >= score:
        yield worse_than_base(trainer, before, score, readout, every_step=keeps_best and not chosen)

    steps_before_last = range(1, position.step)
    if steps_before_last and not any(trainer.evaluates(step) for step in steps_before_last):
        advice = f"--set eval_every={math.ceil(position.step / EVALUATIONS)} scores more"
        yield f"--dev scored only the last of {position.step} steps; {advice}"


def worse_than_base(
    trainer: Trainer, before: float, score: float, readout: str, *, every_step: bool
) -> str:
    """Return a warning: on --dev, the base is not worse than what the checkpoint has, and what to
    try.

    `every_step`: the checkpoint has the best step, so all other scored steps are not better either.
    """
    run = trainer.run
    has_labels = run.method_class.needs.labels
    readout_of_base = readout
    if run.base.declared is not None:
        readout_of_base = run.base.declared.name

    # What is compared.
    decimals = distinct_decimals(before, score)
    step = trainer.position.step
    if not every_step:
        problem = "the result is not better than the base on --dev"
    elif decimals is not None:
        problem = "every scored step is worse than the base on --dev"
    else:
        problem = "no scored step is better than the base on --dev"
    if every_step:
        step = trainer.position.best_step
    score_before = f"{before:.{decimals or 2}f}"
    score_kept = f"{score:.{decimals or 2}f}"
    reading_of_base = f"readout {readout_of_base}"
    if run.base.dropped_steps:
        reading_of_base += f", then {run.base.dropped_steps}"
    if has_labels:
        scores = f"{score_before} before training, {score_kept} at step {step}, which is kept"
    else:
        scores = (
            f"{score_before} before training ({reading_of_base}), {score_kept} at step "
            f"{step}, which is kept (readout {readout})"
        )

    has_setting = "readout" in type(run.settings).__dataclass_fields__
    other_readout: str | None = None
    if has_setting and not has_labels and readout_of_base != readout:
        other_readout = readout_of_base
    advice = what_to_try(trainer, before, score, other_readout)
    if not has_labels:  # the base cannot predict them: its head is new
        advice += "; else keep the base"
    return f"{problem}: {scores}; try {advice}"


def what_to_try(trainer: Trainer, before: float, score: float, other_readout: str | None) -> str:
    """Return what can give a better score on --dev than before training. The other readout is that
    of the base, if the run has not its readout.
    """
    run = trainer.run
    position = trainer.position
    rate = format_value(run.settings.lr)
    length = "steps" if run.settings.epochs is None else "--epochs"
    is_changed = distinct_decimals(before, score) is not None
    if position.first_score is not None and position.last_score is not None:
        is_changed |= distinct_decimals(position.first_score, position.last_score) is not None
    if not is_changed:
        return f"a higher --lr than {rate}, or more {length}"

    advice = [f"a lower --lr than {rate}"]
    if run.method_class.needs.labels:
        advice = [f"another --lr than {rate}", f"more {length}"]
    elif run.settings.epochs is None or run.settings.epochs > 1:
        advice.append(f"fewer {length}")
    if other_readout is not None:
        advice.append(f"--set readout={other_readout}, that of the base")
    return f"{', '.join(advice)}, or more rows, or rows that are closer to those of --dev"


def distinct_decimals(a: float, b: float) -> int | None:
    """The fewest decimals, 2 or more, with which two scores look different; None for equal
    scores.
    """
    for decimals in range(2, MOST_DECIMALS + 1):
        if f"{a:.{decimals}f}" != f"{b:.{decimals}f}":
            return decimals
    return None


def publish(trainer: Trainer, lineage: Mapping[str, Any], readout: str | None) -> None:
    """Write the checkpoint into the folder of the state, and rename it to OUT."""
    run = trainer.run
    state_folder = trainer.checkpointer.folder
    new_folder = state_folder / NEW_FOLDER
    output = str(run.output)
    try:
        write_checkpoint(new_folder, trainer.method, run.base, lineage, readout)
        if run.method.code is not None:  # the file of a user
            file_name, _, _ = run.method.name.rpartition(":")
            (new_folder / file_name).write_bytes(run.method.code)
        if (state_folder / LOG).is_file():
            shutil.copyfile(state_folder / LOG, new_folder / LOG)
        publish_folder(new_folder, run.output, force=run.force, name=output)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), output) from error
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
