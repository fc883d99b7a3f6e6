"""One complete run: takes a base, a method and rows, trains, and writes a checkpoint folder.

OUT.part contains the state. The checkpoint is also written there, and renamed to OUT when it is complete.
"""

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.export import card, write_static_folder
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.files import read_object_if_there
from sentkit.formats.outputs.temporary import publish_folder
from sentkit.metrics.reports import defined
from sentkit.model.checkpoint.export import Declaration, merged, write_card, write_folder, write_weights
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.families import WITH_POOLER
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.process import RESUME, Interrupted, Stopped
from sentkit.training.base import Base, TokenTable
from sentkit.training.data.corpus import stream
from sentkit.training.data.dev import SPEARMAN, nan_lowest
from sentkit.training.loop.processes import environment, use_threads
from sentkit.training.loop.state import LOG, Keeper, Run, check_identity, lock_folder
from sentkit.training.loop.trainer import EVALUATIONS, Trainer
from sentkit.training.method import Finished, Method, checked_finished, first_readout, template_of, using
from sentkit.training.settings import AUTO, differences, format_value

NEW_FOLDER = "checkpoint"  # name of the new checkpoint in the folder of the state


def train(run: Run) -> None:
    part, processes = run.part, run.processes
    with lock_folder(part, "run.lock", first=processes.first):
        keeper = Keeper(part)
        if is_finished(run):
            if processes.first:
                keeper.forget()  # of a run that was killed after it wrote the checkpoint
                shutil.rmtree(part / NEW_FOLDER, ignore_errors=True)  # the folder that -f replaced
            return
        trainer = begin(run, keeper)
        with keeper.logging(trainer.position.log_bytes) if processes.first else nullcontext():
            trainer.train()
            random_states = processes.random_states()  # collected while all processes are at the same step
            if processes.first:
                try:
                    finish(trainer)
                except BaseException:
                    trainer.save(random_states)  # keep the result if the disk is full
                    raise
                keeper.forget()
        processes.wait()


def is_finished(run: Run) -> bool:
    """Return true if the output is the checkpoint of this run. Refuse other folders, except with -f."""
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


def begin(run: Run, keeper: Keeper) -> Trainer:
    processes, warn = run.processes, run.reporter.warn
    if processes.first and not run.resume:
        keeper.forget()
    processes.wait()
    keeps_best = run.settings.final == "best"
    state = keeper.load(run.identity, warn, keeps_best=keeps_best) if run.resume else None
    saved = {} if state is None else state["identity"]
    use_threads(run.threads, saved.get("environment"))
    if saved:
        changes = differences(environment(processes, run.settings.precision), saved["environment"])
        if changes:
            changed = f"the environment changed: {', '.join(changes)}"
            warn(f"{changed}; the result may differ slightly from a run without interruption")
        # Earlier versions have other defaults.
        run = replace(run, settings=replace(run.settings, eval_every=saved["run"]["eval_every"]))
    if state is not None:  # the checkpoint keeps the command that started the run
        run = replace(run, recorded=state.get("recorded", run.recorded))
    torch.manual_seed(run.seed)  # before the build, because new heads have random weights
    method = run.kind.build(run.base, run.settings).to(processes.device)
    # Each process has separate dropout, which is independent of the random weights of the heads.
    torch.manual_seed(int(stream(run.seed, processes.rank, "dropout").integers(1 << 62)))
    trainer = Trainer(run, method, keeper)
    if state is not None:
        trainer.resume_from(state)
    return trainer


def finish(trainer: Trainer) -> None:
    run, position = trainer.run, trainer.position
    made_with = environment(trainer.processes, run.settings.precision)
    if position.limits and trainer.recipe.chunk_tokens == AUTO:
        made_with["chunk_tokens"] = position.limits
    try:
        with best_encoder(trainer) as encoder:
            chosen = choose_readout(trainer)
            for warning in dev_warnings(trainer, chosen) if run.dev else ():
                trainer.reporter.warn(warning)
            kept_best = run.settings.final == "best" and position.best_step >= 0
            lineage = {
                "method": run.method.name,
                "step": position.best_step if kept_best else position.step,
                "dev": position.best_score if kept_best else position.last_score,
                "dev_before": position.first_score,
                "parents": list(run.base.parents),
                "run": run.identity,
                "rows": len(run.corpus),
                **({"teacher": run.corpus.teacher} if run.corpus.teacher else {}),
                **({} if run.base.entries is None else {"entries": run.base.entries.lineage}),
                **class_lineage(trainer),
                **run.recorded,
                **({"this_run": {**run.chosen, "seed": run.seed}} if run.several else {}),
                "made_with": made_with,
                **chosen,
                **encoder,
            }
            readout = chosen.get("readout")
            if run.dev is not None:
                found = run.dev.intervals(run.dev.values(trainer.method, readout, trainer.stop.poll))
                lineage["dev_ci95"] = [defined(each) for each in found[run.dev.metric]]
            publish(trainer, lineage, readout)
    except Interrupted as error:
        raise Stopped("stopped and saved after the last step", advice=RESUME) from error


def class_lineage(trainer: Trainer) -> dict[str, Any]:
    """Return the metric of --dev if it is not Spearman's; for classify also labels and scores on --test."""
    run, test = trainer.run, trainer.run.test
    if not run.kind.needs.labels:
        metric = run.dev.metric if run.dev is not None else SPEARMAN
        return {} if metric == SPEARMAN else {"metric": metric}
    lineage: dict[str, Any] = {"labels": run.base.labels, "metric": run.settings.metric_name}
    if test is not None:
        values = test.values(trainer.method, None, trainer.stop.poll)
        measures = test.measures(values, slice(None))
        lineage["test"] = {"rows": len(test.rows), **{n: defined(each) for n, each in measures.items()}}
        found = test.intervals(values)
        lineage["test_ci95"] = {name: [defined(each) for each in limits] for name, limits in found.items()}
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
        yield {"encoder": best + 1, "dev_by_encoder": [defined(score) for score in scores]}


def choose_readout(trainer: Trainer) -> dict[str, Any]:
    """Return the best readout on --dev, the score of each readout and the score of the base.

    The result is empty without --dev, or if the only readout is the one evaluated during training.
    """
    run, method, poll = trainer.run, trainer.method, trainer.stop.poll
    names = method.readouts(run.settings)
    if run.dev is None or run.kind.needs.labels or names == (method.dev_readout(run.settings),):
        return {}
    scores = {name: run.dev.score_as(name, method, poll) for name in names}
    best = max(names, key=lambda name: nan_lowest(scores[name]))  # of equal scores, the first readout
    untrained = run.kind.build(run.base, run.settings).to(method.device)
    if run.base.declared is None:
        before = run.dev.score_as(best, untrained, poll)
    else:
        before = run.dev.score_base(run.base.declared, untrained, poll)
    chosen = {"readout": best, "dev": defined(scores[best]), "dev_before": defined(before)}
    by_readout = {name: defined(score) for name, score in scores.items()}
    return chosen | ({"dev_by_readout": by_readout} if len(names) > 1 else {})


def dev_warnings(trainer: Trainer, chosen: Mapping[str, Any]) -> Iterator[str]:
    run, position = trainer.run, trainer.position
    keeps_best = run.settings.final == "best"
    kept = position.best_score if keeps_best else position.last_score
    before = position.first_score
    readout = run.kind.dev_readout(run.settings)
    if chosen:
        kept, before, readout = chosen["dev"], chosen["dev_before"], chosen["readout"]
    if kept is None or math.isnan(kept):
        yield "all --dev scores are undefined; the weights of the last step are used"
    elif before is not None and before >= kept:
        yield worse_than_base(trainer, before, kept, readout, every_step=keeps_best and not chosen)
    between = range(1, position.step)
    if between and not any(map(trainer.evaluates, between)):
        more = f"--set eval_every={math.ceil(position.step / EVALUATIONS)} scores more"
        yield f"--dev scored only the last of {position.step} steps; {more}"


def worse_than_base(trainer: Trainer, before: float, kept: float, readout: str, *, every_step: bool) -> str:
    """Return a warning: on --dev, the base is not worse than what the checkpoint has, and what to try.

    `every_step`: the checkpoint has the best step, so all other scored steps are not better either.
    """
    run, position = trainer.run, trainer.position
    labels = run.kind.needs.labels
    of_base = readout if run.base.declared is None else run.base.declared.name
    step = position.best_step if every_step else position.step

    # What is compared.
    if not every_step:
        problem = "the result is not better than the base on --dev"
    elif before > kept:
        problem = "every scored step is worse than the base on --dev"
    else:
        problem = "no scored step is better than the base on --dev"
    scores = f"{before:.2f} before training, {kept:.2f} at step {step}, which is kept"
    if not labels:
        scores = f"{before:.2f} before training (readout {of_base}), {kept:.2f} at step {step}"
        scores += f", which is kept (readout {readout})"

    # What to try.
    advice = [f"a lower --lr than {format_value(run.settings.lr)}"]
    if run.settings.epochs > 1:
        advice.append("fewer --epochs")
    if not labels and of_base != readout and "readout" in type(run.settings).__dataclass_fields__:
        advice.append(f"--set readout={of_base}, that of the base")
    advice.append("more rows, or rows that are closer to those of --dev")
    return f"{problem}: {scores}; try {', '.join(advice[:-1])}, or {advice[-1]}; else keep the base"


def publish(trainer: Trainer, lineage: Mapping[str, Any], readout: str | None) -> None:
    """Write the checkpoint into the folder of the state, and rename it to OUT."""
    run, part = trainer.run, trainer.keeper.folder
    folder, code, output = part / NEW_FOLDER, run.method.code, str(run.output)
    try:
        write_checkpoint(folder, trainer.method, run.base, lineage, readout)
        if code is not None:  # the file of a user
            (folder / run.method.name.rpartition(":")[0]).write_bytes(code)
        if (part / LOG).is_file():
            shutil.copyfile(part / LOG, folder / LOG)
        publish_folder(folder, run.output, force=run.force, name=output)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), output) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_checkpoint(
    folder: Path, method: Method, base: Base, lineage: Mapping[str, Any], readout: str | None = None
) -> None:
    """Write the complete checkpoint to a new folder; by default with the readout of the method."""
    readout = readout or first_readout(type(method), base, method.settings)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    body = method.body
    finished = checked_finished(method, method.finished())
    if finished.heads:
        write_weights(folder / "heads.safetensors", finished.heads)
    if isinstance(body, TokenTable):
        table = body.table()
        for step in finished.steps:  # a linear map after the mean is equal to a map of each token vector
            table = replace(table, rows=step(table.rows))
        write_static_folder(folder, base.checkpoint, table, {"readout": readout, **lineage})
        text = card(
            lineage,
            readout,
            width=table.rows.shape[1],
            max_length=base.final_tokenizer.max_length,
            stock=(folder / "modules.json").is_file(),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
    else:
        declaration = declare_trained(
            body, template_of(method.settings), finished, base, parse_readout(readout)
        )
        write_folder(
            folder,
            replace(base.checkpoint, config=base.checkpoint.config | finished.config),
            declaration,
            lineage,
            tensors_of(body, finished, base),
        )
        write_card(folder, lineage, declaration)


def tensors_of(body: Bert | TransformersModel, finished: Finished, base: Base) -> dict[str, Tensor]:
    """Return the trained encoder, the tensors of the method and the other tensors of the base."""
    if finished.whole:
        return finished.tensors
    if isinstance(body, TransformersModel) or base.architecture is None:
        return body.tensors()
    trained, pooler = body.tensors() | finished.tensors, finished.pooler
    if pooler is not None and base.architecture.family in WITH_POOLER:
        trained |= {"pooler.dense.weight": pooler.weight, "pooler.dense.bias": pooler.bias}
    return merged(base.stored, trained, base.architecture)


def declare_trained(
    body: Bert | TransformersModel, template: str | None, finished: Finished, base: Base, readout: Readout
) -> Declaration:
    if readout.pooled:
        base.check_pooler()
    tokenizer = base.final_tokenizer_with(template) if readout.reduction == "token" else base.final_tokenizer
    assert isinstance(tokenizer, Tokenizer), "of a base that is not static"
    if base.sides:
        tokenizer = tokenizer.with_prompt(base.checkpoint.declared.prompt)
    description, of_body = Pooler(), body.pooler if isinstance(body, Bert) else None
    if base.architecture is not None and base.architecture.family in WITH_POOLER:
        # Without a new pooler, the description of the base stays, but training changed the space.
        of_base = replace(base.checkpoint.declared.pooler, lands_in="")
        description = of_base if finished.pooler is None else finished.pooler_note
    return Declaration(
        body,
        readout,
        tokenizer,
        pooler=finished.pooler or of_body,
        pooler_note=description,
        prompts=base.prompts,
        steps=finished.steps,
    )
