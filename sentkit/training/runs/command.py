"""Runs one command: opens the base, chooses the readout, reads rows, trains a run per seed.

A sweep has such runs for each combination of settings, and reads the rows again if a setting can
change them.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError, DataError, DivergedError, UsageError
from sentkit.formats.checkpoints.command_record import MODEL, command_record
from sentkit.formats.counted import counted
from sentkit.formats.files import is_pipe, text_of_paths
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from sentkit.formats.vectors.store import common_field_names
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.device import pick_device
from sentkit.training.base import Base, open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import (
    CORPUS,
    MIXED,
    Corpus,
    Order,
    check_files,
    check_labels,
    map_corpus,
    refuse_one_file,
)
from sentkit.training.data.corpus_writer import RowCounts, write_corpus
from sentkit.training.data.dev import Dev, LabelledRows, read_dev, read_labelled
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import CPU, be_deterministic, open_processes, precision_name
from sentkit.training.loop.trainer import check_rates
from sentkit.training.method import checked_reads
from sentkit.training.recipe import Recipe
from sentkit.training.run import Run
from sentkit.training.runs.folder_lock import lock_folder
from sentkit.training.runs.readout import settle
from sentkit.training.runs.train_run import refuse_state, train

# Settings that change neither the base nor the rows: runs with different ones share both.
OF_STEPS = {*Recipe.__dataclass_fields__} - {
    "max_length",
    "prompt",
    "prompt_name",
    "dedup",
    "batches",
    "precision",
}


@dataclass(frozen=True)
class Outcome:
    """What a command needs to print its results."""

    is_first_process: bool  # which prints them
    diverged: list[Path]  # the outputs of those of several runs that were not written


def perform(runs: Sequence[Run], inputs: Inputs) -> Outcome:
    """Train all runs of a command."""
    for run in runs:
        check_run(run)
        if run.settings.batches != MIXED and len(inputs.paths) < 2:
            refuse_one_file(run.settings.batches, inputs.paths[0])
    groups = [list(group) for _, group in groupby(runs, settings_of_reading)]
    if len(groups) > 1:
        files = [*inputs.paths, runs[0].given("--dev"), runs[0].given("--test")]
        refuse_pipes(files)
    if runs[0].chosen:
        refuse_pipes([runs[0].given("--entries")])
    if runs[0].deterministic:
        be_deterministic()
    with open_processes(pick_device(runs[0].device)) as processes:
        groups = [[replace(run, processes=processes) for run in group] for group in groups]
        with lock_rows(groups[0][0]):
            diverged = perform_groups(groups, inputs)
        return Outcome(processes.is_first, diverged)


def perform_groups(groups: Sequence[Sequence[Run]], inputs: Inputs) -> list[Path]:
    """Train the groups of runs, each of which reads the same base and rows. Return the outputs of
    those of several runs that diverged.
    """
    if groups[0][0].chosen:  # check all combinations of settings before the first run
        for group in groups:
            with_settled_settings(group, open_given(group[0]))
    diverged: list[Path] = []
    for index, group in enumerate(groups):
        later_runs = [run for later_group in groups[index + 1 :] for run in later_group]
        diverged += perform_group(group, inputs, later_runs)
        # The first group has reported the bad rows.
        inputs = replace(
            inputs,
            rejects=Rejects(skip=inputs.rejects.skip),
            counter=ReadCounter.accepting_no_rows(),
        )
    return diverged


def settings_of_reading(run: Run) -> dict[str, Any]:
    """Return the settings that can change the base or the rows. Runs with equal ones share both."""
    return {name: value for name, value in asdict(run.settings).items() if name not in OF_STEPS}


def refuse_pipes(paths: Sequence[str | None]) -> None:
    """Raise a UsageError if one of the inputs cannot be read more than once."""
    for path in paths:
        if path and (path == "-" or is_pipe(path)):
            problem = f"{path}: a pipe cannot be read again, as these values of settings need it"
            raise UsageError(problem, advice="write the rows to a file")


def with_settled_settings(group: Sequence[Run], base: Base) -> tuple[list[Run], list[str]]:
    """Return runs with the readout and the precision, and the different lines of `settle`.

    Refuse settings that the base does not support.
    """
    runs: list[Run] = []
    choices: list[str] = []
    for run in group:
        settings, choice = settle(run.method.name, run.method_class, run.settings, base)
        # A static model has no products of matrices. The record of the run has the choice of auto.
        device = run.processes.device
        if base.is_static:
            device = CPU
        settings = replace(settings, precision=precision_name(settings.precision, device))
        base.check_settings(settings)
        run.method_class.check(base, settings)
        runs.append(replace(run, settings=settings))
        if choice not in choices:
            choices.append(choice)
    return runs, choices


def perform_group(
    group: Sequence[Run], inputs: Inputs, later_runs: Sequence[Run] = ()
) -> list[Path]:
    """Train the runs that read the same base and rows. The later runs are those of other groups.

    Return the outputs of those of several runs that diverged. The others continue.
    """
    base = open_given(group[0])
    has_default_precision = group[0].settings.precision == "auto"
    group, choices = with_settled_settings(group, base)
    run = group[0]
    for choice in choices:
        run.reporter.say(choice)
    warn_about_base(run, base)
    run.reporter.note(f"{run.processes.device}, {run.settings.precision}")
    on_cpu = run.processes.device.type == "cpu"
    precision = run.settings.precision
    has_choice = precision == "bf16" or has_default_precision
    if on_cpu and has_choice and base.architecture is not None:
        run.reporter.advise(partial(faster_training, base.architecture, precision))

    # The rows, on --dev and --test, and of training.
    dev: Dev | None = None
    labelled_dev: LabelledRows | None = None
    test: LabelledRows | None = None
    has_labels = run.method_class.needs.labels
    dev_path = run.given("--dev")
    if dev_path is not None and not has_labels:
        with run.stop.interruptible():
            dev = read_dev(inputs.with_paths(dev_path), base, run.method_class, run.settings)
    corpus = read_corpus(run, inputs, base, dev)
    if has_labels:  # those of the training rows
        with run.stop.interruptible():
            labelled_dev = read_labels("--dev", run, inputs, base, corpus)
            test = read_labels("--test", run, inputs, base, corpus)

    check_steps(group, corpus)
    warnings = [warning_of_equal_views(base, corpus, run.settings) for run in group]
    for warning in dict.fromkeys(warnings):
        if warning is not None:
            group[0].reporter.warn(warning)

    # The runs, each with the share of its work in that of all runs that follow.
    base = replace(base, labels=corpus.labels)
    recorded: dict[str, Any] = {}
    if run.processes.is_first:
        recorded = command_record(run.words, run.inputs, base.checkpoint)
    diverged: list[Path] = []
    for index, run in enumerate(group):
        if run.chosen:
            run.reporter.say(f"run {run.output}")
        unfinished = [later for later in [*group[index + 1 :], *later_runs] if is_to_train(later)]
        later_work = sum(work_of(later, len(corpus)) for later in unfinished)
        run.reporter.begin(later_work / work_of(run, len(corpus)), 1 + len(unfinished))
        try:
            train(
                replace(
                    run,
                    base=base,
                    corpus=corpus,
                    dev=dev or labelled_dev,
                    test=test,
                    recorded=recorded,
                )
            )
        except DivergedError as error:
            if not run.several:
                raise
            if run.processes.is_first:
                run.reporter.error(str(error))
            diverged.append(run.output)
    return diverged


def warn_about_base(run: Run, base: Base) -> None:
    """Warn about entries of another model, and about steps that are not in the new checkpoint."""
    if base.entries is not None:
        family = base.checkpoint.config.get("model_type")
        mismatch = base.entries.mismatch(base.training_tokenizer.hash, family)
        if mismatch:
            run.reporter.warn(mismatch)
    if base.dropped_steps:
        problem = "declares steps that are not copied to the new checkpoint"
        run.reporter.warn(f"{base.checkpoint.name} {problem}: {base.dropped_steps}")


def is_to_train(run: Run) -> bool:
    """Return true if a run is not finished, as far as its folder shows."""
    return not run.output.exists() or (run.force and not run.resume)


def work_of(run: Run, rows: int) -> int:
    """Return the number of rows in all steps of a run."""
    recipe = run.settings
    limits = list[int]()
    if recipe.epochs is not None:
        limits.append(recipe.epochs * rows)
    if recipe.steps is not None:
        limits.append(recipe.steps * recipe.batch)
    return min(limits)


def check_steps(group: Sequence[Run], corpus: Corpus) -> None:
    """Refuse runs that train nothing, before the first one of the group; warn about those with
    fewer steps than they are given.
    """
    for run in group:
        check_rates(run, corpus)
    for warning in dict.fromkeys(too_few_steps(run, corpus) for run in group):
        if warning is not None:
            group[0].reporter.warn(warning)


def too_few_steps(run: Run, corpus: Corpus) -> str | None:
    """Return a warning if the epochs that the user gives end before the steps."""
    recipe = run.settings
    if recipe.steps is None or recipe.epochs is None:
        return None
    smallest_batch = 1 if run.method_class.needs.row_wise else 2
    rows = len(corpus)
    order = Order(
        rows=rows,
        batch=recipe.batch,
        epochs=recipe.epochs,
        seed=run.seed,
        smallest_batch=smallest_batch,
        batches=recipe.batches,
        files=corpus.files,
    )
    if order.steps >= recipe.steps:
        return None
    steps = counted(order.steps, "step")
    epochs = counted(recipe.epochs, "epoch")
    needed_epochs = math.ceil(recipe.steps / order.epoch_steps)
    advice = f"--epochs {needed_epochs} gives {recipe.steps}"
    return f"only {steps}: {counted(rows, 'row')}, batch {recipe.batch}, {epochs}; {advice}"


def warning_of_equal_views(base: Base, corpus: Corpus, settings: Recipe) -> str | None:
    """A warning if two views of a sentence only differ in dropout, and there is none."""
    has_sentences = corpus.columns == 1
    if not (has_sentences and settings.views_need_dropout) or base.has_dropout(settings):
        return None
    if settings.dropout is not None:
        return f"dropout={settings.dropout:g}: both views of a sentence are equal"
    advice = "try --set dropout=0.1"
    if base.architecture is None:
        advice = "use another base"  # `Base.check_settings` refuses the setting
    problem = f"{base.checkpoint.name} has no dropout, so both views of a sentence are equal"
    return f"{problem}; {advice}"


def check_run(run: Run) -> None:
    """Refuse invalid flags before any file is read."""
    name = run.method.name
    needs = run.method_class.needs
    if run.settings.batch == 1 and not needs.row_wise:
        raise UsageError("batch=1: this method needs a batch of 2 or more")
    if run.settings.batches != MIXED and needs.row_wise:
        problem = f"batches has no effect with {name}, which has no negatives of the batch"
        raise UsageError(problem, advice=f"remove --set batches={run.settings.batches}")
    if run.given("--entries") and needs.entries is None:
        raise UsageError(f"{name} does not use --entries")
    for setting in ("prompt", "prompt_name"):
        if needs.labels and getattr(run.settings, setting) is not None:
            raise UsageError(f"{name} adds no prompt", advice=f"remove --set {setting}")
    if run.given("--test") and not needs.labels:
        raise UsageError(f"{name} does not use --test", advice="only classify does")
    refuse_existing(run)


def refuse_existing(run: Run) -> None:
    """Raise an error if an existing checkpoint or an unfinished run would be overwritten."""
    output = run.output
    replaces = run.resume or run.force
    if run.several:
        for folder in (run.root, output.parent):
            if folder.is_file() or (folder / "config.json").exists():
                raise CannotCreateError(
                    f"{folder}: is a file or a checkpoint, not a folder of runs"
                )
    if output.is_symlink():
        raise CannotCreateError(f"{output}: is a symbolic link; give the path of the folder")
    if has_runs(output):
        advice = "use another -o; the same command with several --seed adds runs"
        raise CannotCreateError(f"{output}: is a folder of runs, not a checkpoint", advice=advice)
    if output.exists() and not (output / "sentkit.json").is_file():
        raise CannotCreateError(f"{output}: already exists and is not a checkpoint of sentkit")
    if output.exists() and not run.several and not replaces:
        raise CannotCreateError(f"{output}: already exists", advice="use -f to replace it")
    if output.exists() and run.force and Path.cwd().is_relative_to(output.resolve()):
        raise CannotCreateError(f"{output}: is the current folder, which cannot be replaced")
    if not replaces:
        refuse_state(run)


def has_runs(folder: Path) -> bool:
    """Return true for a folder of runs: one per seed, also for each combination of settings."""
    seeds = [*folder.glob("seed-*"), *folder.glob("*=*/seed-*")]
    return any((seed / "sentkit.json").is_file() or seed.suffix == ".part" for seed in seeds)


def lock_rows(run: Run) -> AbstractContextManager[None]:
    """Lock the folder of the token files, which all runs of a command share. At the end, remove
    these files.
    """
    return lock_folder(
        run.rows_folder, "rows.lock", is_first_process=run.processes.is_first, temporary=CORPUS
    )


def faster_training(architecture: Architecture, precision: str) -> str | None:
    """Measure whether training with another precision is much faster on this CPU."""
    from sentkit.model.transformer.kernels.precision_gain import faster_to_train

    faster = faster_to_train(architecture, precision)
    return None if faster is None else f"--set precision={faster}"


def open_given(run: Run) -> Base:
    """Open the base of -m and --entries. Refuse a base that the method cannot train."""
    name = run.method.name
    needs = run.method_class.needs
    settings = run.settings
    model = run.given(MODEL)
    assert model is not None, "the command always names a base"
    base = open_named(model, settings.max_length, settings.prompt, settings.prompt_name)
    entries = run.given("--entries")
    if entries is not None and needs.entries is not None:
        base = replace(base, entries=needs.entries(entries))
    if base.is_static and not needs.static:
        problem = f"{name} cannot train a static model, which has no layers and no dropout"
        able = [method for method, listing in METHODS.items() if listing.load().needs.static]
        raise UsageError(problem, advice=f"use {', '.join(able)}")

    # A decoder lacks heads and poolers only; a model that transformers runs lacks all features.
    reason = base.why_no_head
    lacks_feature = base.architecture is None or needs.head
    if reason and needs.packed and lacks_feature:
        raise UsageError(f"{name} needs {needs.packed}; this is not supported, because {reason}")
    return base


def read_labels(
    flag: str, run: Run, inputs: Inputs, base: Base, corpus: Corpus
) -> LabelledRows | None:
    """Read the rows of --dev or --test. Their labels must occur in the training rows."""
    path = run.given(flag)
    if path is None:
        return None
    reads = run.method_class.reads(base, run.settings)
    rows = read_labelled(flag, inputs.with_paths(path), reads, corpus, run.settings.metric_name)
    seen = rows.seen_in(corpus)
    if rows.warning_of_skipped is not None:
        run.reporter.warn(rows.warning_of_skipped)
    if seen:
        count = f"{seen} of {len(rows.rows)} rows of {flag}"
        run.reporter.warn(f"{path}: the training rows contain {count}")
    return rows


def read_corpus(run: Run, inputs: Inputs, base: Base, dev: Dev | None) -> Corpus:
    """Tokenize the rows on one process and map the files on all processes."""
    method_class = run.method_class
    settings = run.settings
    reads = checked_reads(method_class, method_class.reads(base, settings))
    row_counts = RowCounts()
    if run.processes.is_first:
        dev_sides = () if dev is None else dev.sides
        parser = ExampleParser(
            run.method.name, reads, common_field_names(inputs), base.prompt_of_side, dev_sides
        )
        with run.stop.interruptible():
            row_counts = write_corpus(
                run.rows_folder,
                inputs,
                parser,
                base.training_tokenizer,
                dedup=settings.dedup,
                seen_pairs=None if dev is None else dev.seen_pairs,
                with_files=settings.batches != MIXED,
            )
    run.processes.wait()
    corpus = map_corpus(run.rows_folder)

    # Refuse rows that no method, or this method, can learn from.
    source = text_of_paths(inputs.paths)
    needed = 1 if method_class.needs.row_wise else 2
    if len(corpus) < needed:
        problem = f"{counted(len(corpus), 'row')} can be used, but training needs at least {needed}"
        if row_counts.without_target:
            problem += f"; {row_counts.skipped_without_target()}"
        if row_counts.blank:
            problem += f"; {row_counts.why_blank()}"
        raise DataError(problem, source=source)
    check_files(corpus, settings.batches, needed)
    if reads.varied and reads.target_field is not None:
        check_labels(corpus, source, reads.target_field)
    method_class.check_rows(corpus, settings, source)

    run.reporter.note(f"{len(corpus)} rows, {corpus.tokens} tokens")
    warnings: list[str | None] = [*row_counts.warnings()]
    if dev is not None:
        warnings += [dev.warning_of_skipped, dev.zero_vectors(), dev.leak()]
    for warning in filter(None, warnings):
        run.reporter.warn(warning)
    return corpus
