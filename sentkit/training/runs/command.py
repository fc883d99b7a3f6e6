"""Runs one command: reads the rows once and then trains one run per seed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import together
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.metrics.sts.seen import Sightings
from sentkit.model.transformer.device import pick_device
from sentkit.signals import Stop
from sentkit.training.base import Base
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import FILES, Corpus, Tallied, check_rows, map_corpus, write_corpus
from sentkit.training.data.dev import Dev, read_dev
from sentkit.training.data.entries import read_entries
from sentkit.training.data.examples import ExampleParser
from sentkit.training.data.labelled import LabelledRows, read_labelled
from sentkit.training.loop.processes import Processes, be_deterministic, open_processes, precision_name
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.step_log import Reporter
from sentkit.training.method import template_of
from sentkit.training.options import Run, TrainOptions
from sentkit.training.run_folders import part_of
from sentkit.training.runs.folder_lock import lock_folder
from sentkit.training.runs.random_base import BaseOf, random_bases
from sentkit.training.runs.run import train
from sentkit.training.runs.save_checkpoint import NEW_FOLDER
from sentkit.training.runs.training_readout import settle
from sentkit.training.static_base import StaticBase, open_named


def perform(options: TrainOptions, inputs: Inputs, stop: Stop, reporter: Reporter) -> bool:
    """Train all runs of a command. Return true on the process that prints the results."""
    check_options(options)
    if options.deterministic:
        be_deterministic()
    with (
        open_processes(pick_device(options.device)) as processes,
        open_bases(options, processes) as base_of,
    ):
        base = base_of(options.folders.seeds[0])
        settings, choice = settle(options.method, options.kind, options.settings, base)
        options = replace(options, settings=settings)
        base.check_settings(settings)
        options.kind.check(base, settings)
        reporter.say(choice)
        warn_of_base(base, reporter)
        reporter.note(f"{processes.device}, {precision_name(settings.precision, processes.device)}")
        pairs: Dev | None = None
        labelled: LabelledRows | None = None
        test: LabelledRows | None = None
        if not options.kind.needs.labels:
            with stop.interruptible():
                pairs = read_dev_pairs(options, inputs, base)
        if options.force and not options.resume and options.folders.several:
            remove_state_of_one_run(options.folders.output, processes)
        with lock_folder(options.folders.rows, "rows.lock", first=processes.first, temporary=FILES):
            corpus = read_corpus(options, inputs, base, pairs, processes, stop, reporter)
            if options.kind.needs.labels:
                with stop.interruptible():
                    labelled, test = (
                        read_labelled_rows(flag, path, options, inputs, base, corpus)
                        for flag, path in (("--dev", options.dev), ("--test", options.test))
                    )
                    for path, rows in ((options.dev, labelled), (options.test, test)):
                        if processes.first and rows is not None and (seen := rows.seen_in(corpus)):
                            reporter.warn(f"{path}: the training rows contain {seen} of {len(rows)} rows")
            dev, command = pairs or labelled, options.command.record() if processes.first else {}
            for seed in options.folders.seeds:
                own_base = replace(base_of(seed), labels=corpus.labels)
                train(Run(options, seed, own_base, corpus, dev, test, command), processes, stop, reporter)
        return processes.first


def check_options(options: TrainOptions) -> None:
    """Refuse invalid options before any file is read."""
    if options.settings.batch == 1 and not options.kind.needs.row_wise:
        raise UsageError("batch=1: this method needs a batch of 2 or more")
    if options.init is not None and options.settings.lora is not None:
        raise UsageError("lora does not train the random weights of --init", advice="remove --set lora")
    if options.entries is not None and not options.kind.needs.entries:
        raise UsageError(f"{options.method} does not use --entries")
    if options.test is not None and not options.kind.needs.labels:
        raise UsageError(f"{options.method} does not use --test", advice="only classify does")
    options.folders.refuse_existing(resume=options.resume, force=options.force)


def remove_state_of_one_run(output: Path, processes: Processes) -> None:
    """Remove OUT.part, the state of a run of one seed, before runs of several seeds replace it."""
    part = part_of(output)
    if processes.first and part.is_dir():
        with lock_folder(part, "run.lock", first=True):
            Keeper(part).forget()
            shutil.rmtree(part / NEW_FOLDER, ignore_errors=True)


@contextmanager
def open_bases(options: TrainOptions, processes: Processes) -> Iterator[BaseOf]:
    """Return a function from a seed to its base: the given checkpoint, or a random base of --init."""
    longest = options.settings.max_length
    if options.init is not None:
        with random_bases(options.init, options.folders.rows, processes, longest) as base_of:
            yield base_of
        return
    entries = None if options.entries is None else read_entries(options.entries)
    base = replace(open_named(options.model, longest), entries=entries)
    if isinstance(base, StaticBase) and not options.kind.needs.static:
        problem = f"{options.method} cannot train a static model, which has no layers and no dropout"
        others = ", ".join(name for name, each in METHODS.items() if each.load().needs.static)
        raise UsageError(problem, advice=f"use {others}")
    if base.architecture is None and options.kind.needs.packed:
        problem = f"{options.method} needs {options.kind.needs.packed}"
        why = f"transformers runs this model ({base.why_not_packed})"
        raise UsageError(f"{problem}; this is not supported, because {why}")
    yield lambda seed: base


def warn_of_base(base: Base, reporter: Reporter) -> None:
    if base.entries is not None:
        mismatch = base.entries.mismatch(
            base.training_tokenizer.hash, base.checkpoint.config.get("model_type")
        )
        if mismatch:
            reporter.warn(mismatch)
    if base.dropped_steps:
        name = base.checkpoint.name
        reporter.warn(
            f"{name} declares steps that are not copied to the new checkpoint: {base.dropped_steps}"
        )


def read_dev_pairs(options: TrainOptions, inputs: Inputs, base: Base) -> Dev | None:
    """Read --dev with the tokenizers of all readouts that can be evaluated."""
    if options.dev is None:
        return None
    kind, settings = options.kind, options.settings
    names = (*kind.readouts(settings), kind.dev_readout(settings))
    through = any(parse_readout(name).reduction == "token" for name in names)
    pairs = inputs.other(options.dev)
    templated = base.final_tokenizer_with(template_of(settings)) if through else None
    in_template = base.declared is not None and base.declared.reduction == "token"
    return read_dev(
        pairs, base.final_tokenizer, templated, base.final_tokenizer_with(None) if in_template else None
    )


def read_labelled_rows(
    flag: str, path: str | None, options: TrainOptions, inputs: Inputs, base: Base, corpus: Corpus
) -> LabelledRows | None:
    """Read a file with labels or scores. Its labels must occur in the training rows."""
    if path is None:
        return None
    settings = options.settings
    rows = inputs.other(path)
    return read_labelled(flag, rows, options.kind.reads(base, settings), corpus, settings.metric_name)


def read_corpus(
    options: TrainOptions,
    inputs: Inputs,
    base: Base,
    dev: Dev | None,
    processes: Processes,
    stop: Stop,
    reporter: Reporter,
) -> Corpus:
    """Tokenize the rows on one process and map the files on all processes."""
    sightings = None if dev is None else Sightings(dev.texts)
    tallied, kind, settings, folder = Tallied(), options.kind, options.settings, options.folders.rows
    if processes.first:
        parser = ExampleParser(options.method, kind.reads(base, settings), common_fields(inputs))
        with stop.interruptible():
            tallied = write_corpus(
                folder, inputs, parser, base.training_tokenizer, dedup=settings.dedup, sightings=sightings
            )
    processes.wait()
    corpus = map_corpus(folder)
    source = together(inputs.paths)
    check_rows(corpus, tallied, 1 if kind.needs.row_wise else 2, source)
    kind.check_rows(corpus, settings, source)
    reporter.note(f"{len(corpus)} rows, {len(corpus.ids)} tokens")
    for warning in tallied.warnings():
        reporter.warn(warning)
    if dev is not None and sightings is not None and (leak := dev.leak(sightings)):
        reporter.warn(leak)
    return corpus
