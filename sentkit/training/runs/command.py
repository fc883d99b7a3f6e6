"""Runs one command: opens the base, chooses the readout, reads the rows, and trains one run per seed.

A sweep has such runs for each combination of settings, and reads the rows again if a setting can change them.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import is_pipe, read_object, together
from sentkit.formats.rows.rows import Inputs, Meter, Rejects
from sentkit.formats.vectors.store import common_fields
from sentkit.model.checkpoint.heads import fresh_head, head_tensors
from sentkit.model.checkpoint.save_weights import architecture_to_initialise, write_fresh
from sentkit.model.reading import default_readout
from sentkit.model.transformer.device import pick_device
from sentkit.process import Stop
from sentkit.training.base import Base, StaticBase, open_base, open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import CORPUS, Corpus, Tallied, map_corpus, stream, write_corpus
from sentkit.training.data.dev import Dev, LabelledRows, read_dev, read_labelled
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import CPU, Processes, be_deterministic, open_processes, precision_name
from sentkit.training.loop.state import Reporter, lock_folder
from sentkit.training.method import Method, first_readout
from sentkit.training.options import Run, TrainOptions
from sentkit.training.runs.run import train
from sentkit.training.settings import AS_BASE, Recipe, notes, usual_readout, with_readout_of_base

# Settings that change neither the base nor the rows, so that runs with different ones can share them.
OF_STEPS = {*Recipe.__dataclass_fields__} - {"max_length", "prompt", "prompt_name", "dedup", "precision"}


def perform(sweep: Sequence[TrainOptions], inputs: Inputs, stop: Stop, reporter: Reporter) -> bool:
    """Train all runs of a command, with one or more combinations of settings.

    Return true on the process that prints the results.
    """
    for options in sweep:
        check_options(options)
    groups = [[*group] for _, group in groupby(sweep, reading)]
    if len(groups) > 1:  # each group reads the rows
        first, last = reading(sweep[0]), reading(sweep[-1])
        names = " and ".join(name for name in sweep[0].folders.chosen if first.get(name) != last.get(name))
        for path in filter(None, (*inputs.paths, sweep[0].dev, sweep[0].test)):
            if path == "-" or is_pipe(path):
                source = "standard input" if path == "-" else path
                problem = f"{source} cannot be read for each value of {names}"
                raise UsageError(problem, advice="write the rows to a file")
    if sweep[0].deterministic:
        be_deterministic()
    with open_processes(pick_device(sweep[0].device)) as processes:
        if len(sweep) > 1:  # before the first run
            for group in groups:
                with open_bases(group[0], processes) as base_of:
                    settled(group, base_of(group[0].folders.seeds[0]), processes, Reporter())
        for group in groups:
            perform_group(group, inputs, processes, stop, reporter)
            policy = Rejects(skip=inputs.rejects.skip)  # the first group has reported the bad rows
            inputs = replace(inputs, rejects=policy, meter=Meter(()))
        return processes.first


def reading(options: TrainOptions) -> dict[str, Any]:
    """Return the settings that can change the base or the rows."""
    return {name: value for name, value in asdict(options.settings).items() if name not in OF_STEPS}


def settled(
    group: Sequence[TrainOptions], base: Base, processes: Processes, reporter: Reporter
) -> list[TrainOptions]:
    """Return options with the readout and the precision. Refuse what the base does not support."""
    # A static model has no products of matrices. The record of the run has the choice of auto.
    where, choices = CPU if isinstance(base, StaticBase) else processes.device, dict[str, None]()
    found = []
    for options in group:
        settings, choice = settle(options.method, options.kind, options.settings, base)
        settings = replace(settings, precision=precision_name(settings.precision, where))
        base.check_settings(settings)
        options.kind.check(base, settings)
        found.append(replace(options, settings=settings))
        choices[choice] = None
    for choice in choices:
        reporter.say(choice)
    return found


def perform_group(
    group: Sequence[TrainOptions], inputs: Inputs, processes: Processes, stop: Stop, reporter: Reporter
) -> None:
    """Train the runs that read the same base and rows."""
    with open_bases(group[0], processes) as base_of:
        base = base_of(group[0].folders.seeds[0])
        group = settled(group, base, processes, reporter)
        options = group[0]
        if base.entries is not None:
            family = base.checkpoint.config.get("model_type")
            if mismatch := base.entries.mismatch(base.training_tokenizer.hash, family):
                reporter.warn(mismatch)
        if base.dropped_steps:
            problem = "declares steps that are not copied to the new checkpoint"
            reporter.warn(f"{base.checkpoint.name} {problem}: {base.dropped_steps}")
        reporter.note(f"{processes.device}, {options.settings.precision}")
        dev: Dev | LabelledRows | None
        test: LabelledRows | None
        of_labels = options.kind.needs.labels
        pairs = None
        if options.dev is not None and not of_labels:
            with stop.interruptible():
                pairs = read_dev(inputs.other(options.dev), base, options.kind, options.settings)
        corpus = read_corpus(options, inputs, base, pairs, processes, stop, reporter)
        with stop.interruptible():
            dev, test = read_labels(options, inputs, base, corpus, reporter) if of_labels else (pairs, None)
        command = options.command.record() if processes.first else {}
        for each in group:
            for seed in each.folders.seeds:
                if each.folders.sweep is not None:
                    reporter.say(f"run {each.folders.of_seed(seed)}")
                own_base = replace(base_of(seed), labels=corpus.labels)
                train(Run(each, seed, own_base, corpus, dev, test, command), processes, stop, reporter)


def check_options(options: TrainOptions) -> None:
    """Refuse invalid options before any file is read."""
    if options.settings.batch == 1 and not options.kind.needs.row_wise:
        raise UsageError("batch=1: this method needs a batch of 2 or more")
    if options.init is not None and options.settings.lora is not None:
        raise UsageError("lora does not train the random weights of --init", advice="remove --set lora")
    if options.entries is not None and options.kind.needs.entries is None:
        raise UsageError(f"{options.method} does not use --entries")
    for name in ("prompt", "prompt_name"):
        if options.kind.needs.labels and getattr(options.settings, name) is not None:
            raise UsageError(f"{options.method} adds no prompt", advice=f"remove --set {name}")
    if options.test is not None and not options.kind.needs.labels:
        raise UsageError(f"{options.method} does not use --test", advice="only classify does")
    options.folders.refuse_existing(resume=options.resume, force=options.force)


BaseOf = Callable[[int], Base]  # seed -> base


@contextmanager
def open_bases(options: TrainOptions, processes: Processes) -> Iterator[BaseOf]:
    """Lock the folder of the rows, and yield a function from a seed to its base: of -m, or random of --init.

    The folder of a random base is replaced by that of the next seed. A resumed run writes its base again,
    with the same bytes.
    """
    longest, folder = options.settings.max_length, options.folders.rows / "init"

    @lru_cache(maxsize=1)
    def random_base(seed: int) -> Base:
        assert options.init is not None, "see below"
        if processes.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_random(*options.init, folder, seed)
        processes.wait()
        prompts = options.settings.prompt, options.settings.prompt_name
        base = replace(open_base(read_checkpoint(str(folder)), longest, *prompts), parents=())
        processes.wait()  # the first process removes this folder for the next seed
        return base

    with lock_folder(options.folders.rows, "rows.lock", first=processes.first, temporary=CORPUS):
        try:
            if options.init is None:
                base = open_given(options, longest)
                yield lambda seed: base
            else:
                yield random_base
        finally:
            if processes.first:
                shutil.rmtree(folder, ignore_errors=True)


def open_given(options: TrainOptions, longest: int) -> Base:
    read = options.kind.needs.entries
    entries = None if options.entries is None or read is None else read(options.entries)
    prompts = options.settings.prompt, options.settings.prompt_name
    base = replace(open_named(options.model, longest, *prompts), entries=entries)
    if isinstance(base, StaticBase) and not options.kind.needs.static:
        problem = f"{options.method} cannot train a static model, which has no layers and no dropout"
        others = ", ".join(name for name, each in METHODS.items() if each.load().needs.static)
        raise UsageError(problem, advice=f"use {others}")
    needs, why = options.kind.needs, base.why_no_head
    if why and needs.packed and (base.architecture is None or needs.head):
        raise UsageError(f"{options.method} needs {needs.packed}; this is not supported, because {why}")
    return base


def write_random(config: Path, tokenizer: Path, folder: Path, seed: int) -> None:
    """Write an untrained language model to an empty folder. The same seed gives the same bytes."""
    architecture = architecture_to_initialise(read_object(config), str(config))
    # The seed of a run is also that of its other new layers, which must be independent of the head.
    own_seed = int(stream(seed, 0, "language model head").integers(1 << 62))
    head = fresh_head(architecture, torch.Generator().manual_seed(own_seed))
    write_fresh(folder, config, tokenizer, seed, head_tensors(head, architecture))


def settle(name: str, kind: type[Method], settings: Any, base: Base) -> tuple[Any, str]:
    """Return the settings with `base` replaced by a readout, and a line with the choice and its reason.

    The readout is that of the settings, else of the base, else of the method. A causal language model without
    a declaration trains `last`: only its last token attends to the whole text.
    """
    if "readout" not in type(settings).__dataclass_fields__:
        return settings, f"readout {first_readout(kind, base, settings)}: {name} always uses it"
    declared = base.declared
    who = base.checkpoint.name if base.parents else "a new encoder"
    says = f"{who} declares {'none' if declared is None else declared.name}"
    chosen, reason = settings.readout, f"as set; {says}"
    if chosen == AS_BASE and declared is not None:
        chosen, reason = declared.name, f"{who} declares it"
    elif chosen == AS_BASE:
        usual = usual_readout(type(settings))
        chosen = usual.name
        why = "the paper uses it" if usual.of_paper else "it is a common choice"
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
        usual = usual_readout(type(settings))
        problem = f"{who} declares the readout {chosen}, which {name} cannot train"
        raise UsageError(problem, advice=f"use --set readout={usual.name}, or another") from error
    return settled, f"readout {chosen}: {reason}"


def check_readout(kind: type[Method], settings: Any, base: Base) -> None:
    """Raise a UsageError for a readout that the method or the base does not support."""
    choices = notes(type(settings))["readout"].choices
    if choices and settings.readout not in choices:
        raise UsageError(f"readout={settings.readout}", advice=f"available: {', '.join(choices)}")
    for readout in map(parse_readout, kind.readouts(settings)):
        if readout.reduction not in kind.needs.reductions:
            raise UsageError(f"readout={readout.name}: this method cannot train it")
        if base.architecture is not None:
            readout.resolved(base.architecture.depth)


def read_labels(
    options: TrainOptions, inputs: Inputs, base: Base, corpus: Corpus, reporter: Reporter
) -> Iterator[LabelledRows | None]:
    """Read --dev and --test, rows with labels or scores. Their labels must occur in the training rows."""
    for flag, path in (("--dev", options.dev), ("--test", options.test)):
        if path is None:
            yield None
            continue
        reads = options.kind.reads(base, options.settings)
        rows = read_labelled(flag, inputs.other(path), reads, corpus, options.settings.metric_name)
        if seen := rows.seen_in(corpus):
            reporter.warn(f"{path}: the training rows contain {seen} of {len(rows)} rows")
        yield rows


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
    seen = None if dev is None else dev.texts
    tallied, kind, settings, folder = Tallied(), options.kind, options.settings, options.folders.rows
    if processes.first:
        sides = base.sides, () if dev is None else dev.sides
        parser = ExampleParser(options.method, kind.reads(base, settings), common_fields(inputs), *sides)
        with stop.interruptible():
            tallied = write_corpus(
                folder, inputs, parser, base.training_tokenizer, dedup=settings.dedup, seen_pairs=seen
            )
    processes.wait()
    corpus = map_corpus(folder)
    source = together(inputs.paths)
    least = 1 if kind.needs.row_wise else 2
    if len(corpus) < least:
        why = f"; {tallied.left_out} rows skipped: {tallied.why}" if tallied.left_out else ""
        rows = f"{len(corpus)} {'row' if len(corpus) == 1 else 'rows'}"
        raise DataError(f"{rows} can be used, but training needs at least {least}{why}", source=source)
    kind.check_rows(corpus, settings, source)
    reporter.note(f"{len(corpus)} rows, {len(corpus.ids)} tokens")
    for warning in tallied.warnings():
        reporter.warn(warning)
    if dev is not None and (leak := dev.leak()):
        reporter.warn(leak)
    return corpus
