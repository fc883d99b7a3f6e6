"""`sentkit train`: fine-tuning of an encoder on rows."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentkit import options
from sentkit.console import Console, StepProgress, print_described, print_table
from sentkit.errors import UsageError
from sentkit.values import numbers

OF_DEV = ("eval_every", "patience", "early_stop", "final")

if TYPE_CHECKING:
    from sentkit.training.data.corpus import Corpus, Tallied
    from sentkit.training.method import Method
    from sentkit.training.runs.random_base import Init


def train(
    *,
    context: typer.Context,
    method: Annotated[str | None, typer.Argument(metavar="METHOD", help="A method of --list.")] = None,
    model: options.Model = "nano",
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="The checkpoint folder to create.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method; repeatable. The last one wins; flags such as --lr override it.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Settings of a published recipe.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Same as --set epochs=N.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Same as --set batch=N.")] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="Same as --set lr=X.")] = None,
    max_length: Annotated[int | None, typer.Option(metavar="N", help="Same as --set max_length=N.")] = None,
    chunk: Annotated[
        int | None,
        typer.Option(metavar="N", help="Same as --set chunk=N: large batches in less memory, exactly."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Same as --set precision=NAME.")
    ] = None,
    eval_every: Annotated[int | None, typer.Option(metavar="N", help="Same as --set eval_every=N.")] = None,
    patience: Annotated[int | None, typer.Option(metavar="N", help="Same as --set patience=N.")] = None,
    dev: Annotated[
        str | None, typer.Option(metavar="PAIRS", help="Pairs with scores, to choose the best step.")
    ] = None,
    entries: Annotated[
        str | None, typer.Option(metavar="PATH", help="For defsent-plus: the output of build-entries.")
    ] = None,
    seed: Annotated[
        str,
        typer.Option(metavar="N|A,B|A..B", help="Random seed. Several seeds: one run each, in OUT/seed-N."),
    ] = "0",
    init: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="Start from a config.json, with random weights.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="For --init: a tokenizer.json, or its folder.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Device that runs the model.")
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="CPU threads. [default: all, or as in the run to resume]"),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same bytes in each run on CUDA too; slower.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a stopped run, or start a new one.")
    ] = False,
    save_every: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also save the state every N steps; 0: only by time.")
    ] = 0,
    save_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Save the state every S seconds; 0: after every step.")
    ] = 300.0,
    log: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write each step to PATH as a JSON line.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the methods.")] = False,
    help_settings: Annotated[
        bool, typer.Option("--help-settings", help="Show the settings of METHOD.")
    ] = False,
    force: options.Force = False,
    row_flags: options.RowFlags,
    progress: options.Progress = "auto",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fine-tune an encoder.

    \b
    Examples:
      sentkit train --list
      sentkit train simcse --help-settings
      sentkit train simcse titles.txt -m BASE -o ckpt --epochs 2
      sentkit train simcse titles.txt -o runs --dev pairs.jsonl --seed 0..2

    The input is rows. The output is a checkpoint folder for `encode`, transformers and
    sentence-transformers. With --dev, the best step is kept. Several processes:
    torchrun --nproc-per-node N -m sentkit -- train ...

    Positive pairs, such as questions and answers, are rows for simcse. The two texts
    are then its two views (--field text_a=question --field text_b=answer).

    Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 finish the step, save the state and
    exit with 75. The same command with --resume continues, and the result has the same
    bytes. A second Ctrl-C exits at once with 130 and reports the last saved step.
    """
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.training.catalogue import METHODS, find
    from sentkit.training.loop.signals import listening
    from sentkit.training.runs.seeds import Place
    from sentkit.training.settings import build, described

    if list_:
        print_methods()
        return
    if method is None:
        raise UsageError("which METHOD?", advice=f"there are: {', '.join(METHODS)}")
    first = os.environ.get("RANK", "0") == "0"  # of several processes only the first writes and prints
    console = Console("train", quiet or not first, verbose)
    with listening(partial(say_stopping, console)) as stop:
        kind = find(method)  # this imports torch
        if help_settings:
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.loop.trainer import Saving
        from sentkit.training.runs.command import Request, Told, perform

        flags: dict[str, object] = {"epochs": epochs, "batch": batch, "lr": lr, "chunk": chunk}
        flags |= {"max_length": max_length, "precision": precision}
        flags |= {"eval_every": eval_every, "patience": patience}
        given = assignments(console, set_ or [], flags)
        check_together(output, dev, given, resume=resume, force=force)
        request = Request(
            method,
            kind,
            build(kind.Settings, kind.presets, preset, given),
            Place(Path(output or ""), numbers("--seed", seed)),
            model=model,
            entries=entries,
            init=init_of(kind, init, tokenizer, model_given=given_by_hand(context, "model")),
            dev=dev,
            device=device,
            threads=threads,
            deterministic=deterministic,
            saving=Saving(save_every, save_seconds),
            log=log,
            resume=resume,
            force=force,
        )
        bar = StepProgress(console, progress)
        with (row_flags if first else replace(row_flags, rejects=None)).open(
            console,
            known=LEARNED,
            force=force,
            reads={
                **{"-m": None if init else options.model_path(model), "--dev": dev, "--entries": entries},
                **{"--init": init, "--tokenizer": tokenizer},
            },
            writes={"-o": request.place.folders, "--log": request.place.logs(log), "stdout": "-"},
        ) as inputs:
            told = Told(
                partial(tell_of_rows, console), bar.take, console.warn, console.note, partial(state, console)
            )
            if perform(request, inputs, stop, told):
                bar.done()
                print_results(request.place.results())


def check_together(
    output: str | None, dev: str | None, given: Sequence[str], *, resume: bool, force: bool
) -> None:
    """Refuse missing flags and flags that contradict each other."""
    if output is None:
        raise UsageError("-o is missing: the folder of the new checkpoint")
    if resume and force:
        raise UsageError("-f begins anew, and --resume goes on: which?")
    names = [each.partition("=")[0].strip().replace("-", "_") for each in given]
    idle = [name for name in names if name in OF_DEV]
    if dev is None and idle:
        raise UsageError(f"{idle[0]} does nothing without --dev")


def assignments(console: Console, set_: Sequence[str], flags: Mapping[str, object]) -> list[str]:
    """Every --set, then every given flag.

    The order of options on the command line is not available here, so a flag always overrides --set.
    """
    given = {name: str(value) for name, value in flags.items() if value is not None}
    for assignment in set_:
        name, _, value = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if name in given and value.strip() != given[name]:
            flag = f"--{name.replace('_', '-')} {given[name]}"
            console.warn(f"--set {assignment} has no effect: {flag} wins")
    return [*set_, *(f"{name}={value}" for name, value in given.items())]


def state(console: Console, choice: str) -> None:
    if not console.quiet:
        console.say(choice)


def say_stopping(console: Console) -> None:
    """Called by a signal handler: printing may fail if the signal interrupts another write."""
    if not console.quiet:
        with suppress(RuntimeError, OSError):
            console.say("stops after this step and saves; Ctrl-C again exits at once")


def given_by_hand(context: typer.Context, name: str) -> bool:
    """True if the flag is on the command line, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def init_of(
    kind: "type[Method]", config: str | None, tokenizer: str | None, *, model_given: bool
) -> "Init | None":
    """The parameters of --init and --tokenizer; raises UsageError if they conflict with other flags."""
    from sentkit.training.catalogue import METHODS
    from sentkit.training.runs.random_base import Init

    if config is None:
        if tokenizer is not None:
            raise UsageError("--tokenizer belongs to --init")
        return None
    if tokenizer is None:
        raise UsageError("--init needs --tokenizer, a tokenizer.json or the folder of one")
    if model_given:
        raise UsageError("--init begins from nothing, and -m from a checkpoint: which?")
    if not kind.from_nothing:
        able = ", ".join(name for name, each in METHODS.items() if each.load().from_nothing)
        raise UsageError("this method cannot begin from nothing", advice=f"these can: {able}")
    return Init(Path(config), Path(tokenizer))


def tell_of_rows(console: Console, corpus: "Corpus", tallied: "Tallied") -> None:
    """Print the number of rows and warnings about skipped rows, before the first step."""
    console.note(f"{len(corpus)} rows, {len(corpus.ids)} tokens")
    for warning in tallied.warnings():
        console.warn(warning)


def print_methods() -> None:
    from sentkit.training.catalogue import METHODS

    columns = ("method", "what it does", "paper")
    rows = [(name, each.summary, each.cite and f"arXiv {each.cite}") for name, each in METHODS.items()]
    print_table(columns, rows, names=columns)


def print_results(records: Sequence[Mapping[str, Any]]) -> None:
    """Print a table on a terminal, JSON lines in a pipe."""
    from sentkit.formats.json_files import json_line
    from sentkit.formats.outputs.outputs import open_output

    if not options.as_table("-", json=False):
        with open_output("-", force=False) as out:
            out.writelines(json_line(record) for record in records)
        return
    rows = []
    for record in records:
        if "seeds" in record:
            mean = f"{record['dev_mean']:.2f} ± {record['dev_sd']:.2f}"
            rows.append((record["checkpoint"], f"{len(record['seeds'])} seeds", "", "", mean))
        else:
            scores = [number(record[name]) for name in ("dev_before", "dev")]
            rows.append((record["checkpoint"], str(record["seed"]), str(record["step"]), *scores))
    print_table(("checkpoint", "seed", "step", "dev before", "dev"), rows, names=("checkpoint",))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
