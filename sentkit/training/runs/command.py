"""Runs one command: opens the base, chooses the readout, reads the rows, and trains one run per seed.

A sweep has such runs for each combination of settings, and reads the rows again if a setting can change them.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError, DataError, UsageError
from sentkit.formats.checkpoints.export import MODEL, command_record
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import is_pipe, read_object, readable, together
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from sentkit.formats.vectors.store import common_fields
from sentkit.model.checkpoint_reading import default_readout
from sentkit.model.transformer.device import pick_device
from sentkit.training.base import Base, StaticBase, open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import (
    CORPUS,
    Corpus,
    Tallied,
    check_labels,
    map_corpus,
    write_corpus,
)
from sentkit.training.data.dev import Dev, LabelledRows, read_dev, read_labelled
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import CPU, be_deterministic, open_processes, precision_name
from sentkit.training.loop.state import Run, lock_folder
from sentkit.training.method import Method, checked_reads, first_readout
from sentkit.training.runs.run import train
from sentkit.training.settings import AS_BASE, Recipe, notes, usual_readout, with_readout_of_base

RESULTS = ("method", "readout", "step", "dev_before", "dev")
# Settings that change neither the base nor the rows, so that runs with different ones can share them.
OF_STEPS = {*Recipe.__dataclass_fields__} - {"max_length", "prompt", "prompt_name", "dedup", "precision"}


def perform(runs: Sequence[Run], inputs: Inputs) -> bool:
    """Train all runs of a command. Return true on the process that prints the results."""
    for run in runs:
        check_run(run)
    groups = [[*group] for _, group in groupby(runs, reading)]
    if len(groups) > 1:  # each group reads the rows
        for path in filter(None, (*inputs.paths, runs[0].given("--dev"), runs[0].given("--test"))):
            if path == "-" or is_pipe(path):
                problem = f"{path}: a pipe cannot be read again, as these values of settings need it"
                raise UsageError(problem, advice="write the rows to a file")
    if runs[0].deterministic:
        be_deterministic()
    with open_processes(pick_device(runs[0].device)) as processes:
        groups = [[replace(run, processes=processes) for run in group] for group in groups]
        if runs[0].chosen:  # before the first run
            for group in groups:
                with lock_rows(group[0]):
                    settled(group, open_given(group[0]))
        for number, group in enumerate(groups):
            perform_group(group, inputs, [run for later_group in groups[number + 1 :] for run in later_group])
            policy = Rejects(skip=inputs.rejects.skip)  # the first group has reported the bad rows
            inputs = replace(inputs, rejects=policy, counter=ReadCounter(()))
        return processes.first


def reading(run: Run) -> dict[str, Any]:
    """Return the settings that can change the base or the rows."""
    return {name: value for name, value in asdict(run.settings).items() if name not in OF_STEPS}


def settled(group: Sequence[Run], base: Base) -> tuple[list[Run], dict[str, None]]:
    """Return runs with the readout and the precision, and the lines of `settle`.

    Refuse what the base does not support.
    """
    found, choices = [], dict[str, None]()
    for run in group:
        settings, choice = settle(run.method.name, run.kind, run.settings, base)
        # A static model has no products of matrices. The record of the run has the choice of auto.
        where = CPU if isinstance(base, StaticBase) else run.processes.device
        settings = replace(settings, precision=precision_name(settings.precision, where))
        base.check_settings(settings)
        run.kind.check(base, settings)
        found.append(replace(run, settings=settings))
        choices[choice] = None
    return found, choices


def perform_group(group: Sequence[Run], inputs: Inputs, later_runs: Sequence[Run] = ()) -> None:
    """Train the runs that read the same base and rows. The later runs are those of other groups."""
    with lock_rows(group[0]):
        base = open_given(group[0])
        group, choices = settled(group, base)
        run = group[0]
        stop, reporter = run.stop, run.reporter
        for choice in choices:
            reporter.say(choice)
        if base.entries is not None:
            family = base.checkpoint.config.get("model_type")
            if mismatch := base.entries.mismatch(base.training_tokenizer.hash, family):
                reporter.warn(mismatch)
        if base.dropped_steps:
            problem = "declares steps that are not copied to the new checkpoint"
            reporter.warn(f"{base.checkpoint.name} {problem}: {base.dropped_steps}")
        reporter.note(f"{run.processes.device}, {run.settings.precision}")
        dev, test, of_labels = None, None, run.kind.needs.labels
        with stop.interruptible():
            if (path := run.given("--dev")) and not of_labels:
                dev = read_dev(inputs.other(path), base, run.kind, run.settings)
        corpus = read_corpus(run, inputs, base, dev)
        with stop.interruptible():
            if of_labels:
                dev, test = read_labels(run, inputs, base, corpus)
        recorded = {}
        if run.processes.first:
            recorded = command_record(run.words, run.inputs, base.checkpoint)
        for number, run in enumerate(group):
            if run.chosen:
                reporter.say(f"run {run.output}")
            base_of_run = replace(base, labels=corpus.labels)
            run = replace(run, base=base_of_run, corpus=corpus, dev=dev, test=test, recorded=recorded)
            unfinished = [later for later in (*group[number + 1 :], *later_runs) if is_to_train(later)]
            works = [work_of(later, len(corpus)) for later in unfinished]
            reporter.begin(sum(works) / work_of(run, len(corpus)), 1 + len(unfinished))
            train(run)


def is_to_train(run: Run) -> bool:
    """Whether a run is not finished, as far as its folder shows."""
    return not run.output.exists() or (run.force and not run.resume)


def work_of(run: Run, rows: int) -> int:
    """Return the number of rows in all steps of a run."""
    recipe = run.settings
    work: int = recipe.epochs * rows
    return work if recipe.steps is None else min(work, recipe.steps * recipe.batch)


def check_run(run: Run) -> None:
    """Refuse invalid flags before any file is read."""
    name, needs = run.method.name, run.kind.needs
    if run.settings.batch == 1 and not needs.row_wise:
        raise UsageError("batch=1: this method needs a batch of 2 or more")
    if run.given("--entries") and needs.entries is None:
        raise UsageError(f"{name} does not use --entries")
    for each in ("prompt", "prompt_name"):
        if needs.labels and getattr(run.settings, each) is not None:
            raise UsageError(f"{name} adds no prompt", advice=f"remove --set {each}")
    if run.given("--test") and not needs.labels:
        raise UsageError(f"{name} does not use --test", advice="only classify does")
    refuse_existing(run)


def refuse_existing(run: Run) -> None:
    """Raise an error if an existing checkpoint or an unfinished run would be overwritten."""
    output, replaces = run.output, run.resume or run.force
    for folder in (run.root, output.parent) if run.several else ():
        if folder.is_file() or (folder / "config.json").exists():
            raise CannotCreateError(f"{folder}: is a file or a checkpoint, not a folder of runs")
    if output.is_symlink():
        raise CannotCreateError(f"{output}: is a symbolic link; give the path of the folder")
    if output.exists() and not (output / "sentkit.json").is_file():
        raise CannotCreateError(f"{output}: already exists and is not a checkpoint of sentkit")
    if output.exists() and not run.several and not replaces:
        raise CannotCreateError(f"{output}: already exists", advice="use -f to replace it")
    if output.exists() and run.force and Path.cwd().is_relative_to(output.resolve()):
        raise CannotCreateError(f"{output}: is the current folder, which cannot be replaced")
    if any(run.part.glob("state-*.pt")) and not replaces:
        advice = "use --resume to continue this run, or -f to start a new run"
        raise CannotCreateError(f"{run.part}: contains an unfinished run", advice=advice)


def lock_rows(run: Run) -> AbstractContextManager[None]:
    """Lock the folder of the token files, which all runs of a command share."""
    return lock_folder(run.rows, "rows.lock", first=run.processes.first, temporary=CORPUS)


def open_given(run: Run) -> Base:
    """Open the base of -m, with the entries of --entries."""
    name, needs, entries = run.method.name, run.kind.needs, run.given("--entries")
    model, settings = run.given(MODEL), run.settings
    assert model is not None, "the command always names a base"
    base = open_named(model, settings.max_length, settings.prompt, settings.prompt_name)
    if entries is not None and needs.entries is not None:
        base = replace(base, entries=needs.entries(entries))
    if isinstance(base, StaticBase) and not needs.static:
        problem = f"{name} cannot train a static model, which has no layers and no dropout"
        others = ", ".join(name for name, each in METHODS.items() if each.load().needs.static)
        raise UsageError(problem, advice=f"use {others}")
    why = base.why_no_head
    if why and needs.packed and (base.architecture is None or needs.head):
        raise UsageError(f"{name} needs {needs.packed}; this is not supported, because {why}")
    return base


def settle(name: str, kind: type[Method], settings: Any, base: Base) -> tuple[Any, str]:
    """Return the settings with `base` replaced by a readout, and a line with the choice and its reason.

    The readout is that of the settings, else of the base, else of the method. A causal language model without
    a declaration trains `last`: only its last token attends to the whole text.
    """
    if "readout" not in type(settings).__dataclass_fields__:
        return settings, f"readout {first_readout(kind, base, settings)}: {name} always uses it"
    declared = base.declared
    who = base.checkpoint.name
    says = f"{who} declares {'none' if declared is None else declared.name}"
    chosen, reason = settings.readout, f"as set; {says}"
    if chosen == AS_BASE and declared is not None:
        chosen, reason = declared.name, f"{who} declares it"
    elif chosen == AS_BASE:
        chosen, of_paper = usual_readout(type(settings))
        why = "the paper uses it" if of_paper else "it is a common choice"
        reason = f"{says}; {f'it is the default of {name}' if ':' in name else why}"
        if default_readout(base.checkpoint.config).name == "last":
            chosen, reason = "last", f"{says}; it is a causal language model"
    try:
        settled = replace(settings, readout=chosen)
        settled = with_readout_of_base(settled, None if declared is None else declared.name)
        check_readout(kind, settled, base)
    except UsageError as error:
        if settings.readout != AS_BASE or declared is None:
            raise
        problem = f"{who} declares the readout {chosen}, which {name} cannot train"
        usual, _ = usual_readout(type(settings))
        raise UsageError(problem, advice=f"use --set readout={usual}, or another") from error
    return settled, f"readout {chosen}: {reason}"


def check_readout(kind: type[Method], settings: Any, base: Base) -> None:
    choices = notes(type(settings))["readout"].choices
    if choices and settings.readout not in choices:
        raise UsageError(f"readout={settings.readout}", advice=f"available: {', '.join(choices)}")
    for readout in map(parse_readout, kind.readouts(settings)):
        if readout.reduction not in kind.needs.reductions:
            raise UsageError(f"readout={readout.name}: this method cannot train it")
        if base.architecture is not None:
            readout.resolved(base.architecture.depth)


def read_labels(run: Run, inputs: Inputs, base: Base, corpus: Corpus) -> Iterator[LabelledRows | None]:
    """Read --dev and --test, rows with labels or scores. Their labels must occur in the training rows."""
    for flag in ("--dev", "--test"):
        if (path := run.given(flag)) is None:
            yield None
            continue
        reads = run.kind.reads(base, run.settings)
        rows = read_labelled(flag, inputs.other(path), reads, corpus, run.settings.metric_name)
        if seen := rows.seen_in(corpus):
            run.reporter.warn(f"{path}: the training rows contain {seen} of {len(rows.rows)} rows")
        yield rows


def read_corpus(run: Run, inputs: Inputs, base: Base, dev: Dev | None) -> Corpus:
    """Tokenize the rows on one process and map the files on all processes."""
    tallied, kind, settings = Tallied(), run.kind, run.settings
    reads = checked_reads(kind, kind.reads(base, settings))
    if run.processes.first:
        sides = base.sides, () if dev is None else dev.sides
        parser = ExampleParser(run.method.name, reads, common_fields(inputs), *sides)
        more: Any = {"dedup": settings.dedup, "seen_pairs": None if dev is None else dev.texts}
        with run.stop.interruptible():
            tallied = write_corpus(run.rows, inputs, parser, base.training_tokenizer, **more)
    run.processes.wait()
    corpus, source = map_corpus(run.rows), together(inputs.paths)
    least = 1 if kind.needs.row_wise else 2
    if len(corpus) < least:
        why = f"; {tallied.left_out} rows skipped: {tallied.why}" if tallied.left_out else ""
        rows = f"{len(corpus)} {'row' if len(corpus) == 1 else 'rows'}"
        raise DataError(f"{rows} can be used, but training needs at least {least}{why}", source=source)
    if reads.varied and reads.target_field is not None:
        check_labels(corpus, source, reads.target_field)
    kind.check_rows(corpus, settings, source)
    run.reporter.note(f"{len(corpus)} rows, {len(corpus.ids)} tokens")
    for warning in (*tallied.warnings(), dev and dev.leak()):
        if warning:
            run.reporter.warn(warning)
    return corpus


# Results.


def results_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the result of each run and, for several seeds, the mean and sample standard deviation."""
    results: list[dict[str, Any]] = []
    for run in runs:
        declaration = read_object(run.output / "sentkit.json")
        of_run = {name: declaration.get(name) for name in RESULTS}
        test = {"test": declaration["test"]} if "test" in declaration else {}
        results.append({"checkpoint": readable(str(run.output)), "seed": run.seed, **of_run, **test})
    spread = {name: value for name, value in spread_of(results).items() if value is not None}
    if spread and len(results) > 1:
        seeds = [run.seed for run in runs]
        results.append({"checkpoint": readable(str(runs[0].output.parent)), "seeds": seeds, **spread})
    return results


def spread_of(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of each score; None if one score is undefined."""
    scores = {"dev": [each["dev"] for each in results]}
    tests = [each["test"] for each in results if "test" in each]
    for name in dict.fromkeys(name for test in tests for name in test if name != "rows"):
        scores[f"test_{name}"] = [test[name] for test in tests]
    spread = dict[str, float | None]()
    for name, values in scores.items():
        known = values if None not in values else []
        spread[f"{name}_mean"] = statistics.fmean(known) if known else None
        spread[f"{name}_sd"] = statistics.stdev(known) if len(known) > 1 else None
    return spread


def compared(runs: Sequence[Run], chosen: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the result of each combination of settings, which has these values; one is the best on --dev."""
    results: list[dict[str, Any]] = []
    groups = [[*group] for _, group in groupby(runs, lambda run: run.chosen)]
    for group, values in zip(groups, chosen, strict=True):
        of_runs = [record for record in results_of(group) if "seed" in record]
        record = {"checkpoint": readable(str(group[0].output.parent)), **values}
        record |= {"method": of_runs[0]["method"], "seeds": [each["seed"] for each in of_runs]}
        before = [each["dev_before"] for each in of_runs]
        record["step"] = [each["step"] for each in of_runs]
        record["dev_before"] = None if None in before else statistics.fmean(before)
        record |= {name.removesuffix("_mean"): score for name, score in spread_of(of_runs).items()}
        results.append({**record, "dev_by_seed": [each["dev"] for each in of_runs]})
    scores = [record["dev"] for record in results if record["dev"] is not None]
    best = next((record for record in results if scores and record["dev"] == max(scores)), None)
    return [{**record, "best": record is best} for record in results]


def result_line(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The table row of one seed, or of the mean over seeds with the standard deviation."""
    line = {"checkpoint": record["checkpoint"]}
    if "seeds" in record:
        means = [name.removesuffix("_mean") for name in record if name.endswith("_mean")]
        scores = {name: f"{record[f'{name}_mean']:.2f} ± {record[f'{name}_sd']:.2f}" for name in means}
        line |= {"seed": f"{len(record['seeds'])} seeds", "step": "", "dev before": ""}
        line["dev"] = scores.pop("dev", "")
        return [line | {name.replace("_", " "): score for name, score in scores.items()}]
    line |= {"seed": str(record["seed"]), "step": str(record["step"])}
    line |= {name.replace("_", " "): two_decimals(record[name]) for name in ("dev_before", "dev")}
    test = {name: score for name, score in record.get("test", {}).items() if name != "rows"}
    return [line | {f"test {name}": two_decimals(score) for name, score in test.items()}]


def sweep_line(record: Mapping[str, Any], chosen: Mapping[str, str]) -> list[dict[str, str]]:
    """The table row of a combination of settings: their texts, and each mean with the standard deviation."""
    line = {**chosen, "seeds": str(len(record["seeds"])), "step": ",".join(map(str, record["step"]))}
    for name in (name.removesuffix("_sd") for name in record if name.endswith("_sd")):
        line[name.replace("_", " ")] = mean_with_sd(record, name)
    return [line]


def best_of(results: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for record in (record for record in results if record["best"]):
        before = two_decimals(record["dev_before"])
        yield f"best on dev: {record['checkpoint']}, {mean_with_sd(record, 'dev')}, before {before}"


def mean_with_sd(record: Mapping[str, Any], name: str) -> str:
    sd = record[f"{name}_sd"]
    return two_decimals(record[name]) + ("" if sd is None else f" ({sd:.2f})")


def two_decimals(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
