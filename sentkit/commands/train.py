"""`sentkit train`: fine-tuning of an encoder on rows."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sentkit.console import Console, StepProgress, print_described, print_table, show
from sentkit.errors import UsageError
from sentkit.flag_values import numbers
from sentkit.flags import options
from sentkit.flags.rows import RowFlags

OF_DEV = ("eval_every", "patience", "early_stop", "final", "metric")

if TYPE_CHECKING:
    from sentkit.training.method import Method
    from sentkit.training.options import RandomInit


@dataclass(frozen=True)
class CheckpointFlags(options.OutputFlags):
    """The folder of the new checkpoint; the state of the run is in OUT.part."""

    path: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="The checkpoint folder to create.")
    ] = ""

    def __post_init__(self) -> None:
        options.refuse_long_name(self.path, ".part")


@dataclass(frozen=True)
class SettingFlags:
    """The settings of the method."""

    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the method; repeatable. Of equal names, the last value is used."
            " Flags such as --lr have priority.",
        ),
    ] = None
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Settings of a published recipe.")] = None
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Same as --set epochs=N.")] = None
    batch: Annotated[int | None, typer.Option(metavar="N", help="Same as --set batch=N.")] = None
    lr: Annotated[float | None, typer.Option(metavar="X", help="Same as --set lr=X.")] = None
    max_length: Annotated[int | None, typer.Option(metavar="N", help="Same as --set max_length=N.")] = None
    chunk: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Same as --set chunk=N: encode N rows at once, which needs less memory."
        ),
    ] = None
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="Same as --set precision=NAME.")] = (
        None
    )
    eval_every: Annotated[int | None, typer.Option(metavar="N", help="Same as --set eval_every=N.")] = None
    patience: Annotated[int | None, typer.Option(metavar="N", help="Same as --set patience=N.")] = None

    def given(self, console: Console) -> list[str]:
        """Every --set, then every other flag as NAME=VALUE.

        The order of options on the command line is not available here, so a flag always overrides --set.
        """
        values = {name: value for name, value in vars(self).items() if name not in ("set_", "preset")}
        given = {name: str(value) for name, value in values.items() if value is not None}
        for assignment in self.set_ or []:
            name, _, value = assignment.partition("=")
            name = name.strip().replace("-", "_")
            if name in given and value.strip() != given[name]:
                flag = f"--{name.replace('_', '-')} {given[name]}"
                console.warn(f"--set {assignment} has no effect: {flag} overrides it")
        return [*(self.set_ or []), *(f"{name}={value}" for name, value in given.items())]


@dataclass(frozen=True)
class StartFlags:
    """A start from random weights instead of a checkpoint."""

    init: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="Start with random weights for this config.json.")
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="For --init: a tokenizer.json, or its folder.")
    ] = None

    def init_of(self, kind: "type[Method]", *, model_given: bool) -> "RandomInit | None":
        """The random start; raises UsageError if the flags conflict with others."""
        from sentkit.training.catalogue import METHODS
        from sentkit.training.options import RandomInit

        if self.init is None:
            if self.tokenizer is not None:
                raise UsageError("--tokenizer has no effect without --init")
            return None
        if self.tokenizer is None:
            raise UsageError("--init needs --tokenizer: a tokenizer.json, or its folder")
        if model_given:
            raise UsageError(
                "--init and -m cannot be used together",
                advice="--init starts with random weights, -m with a checkpoint",
            )
        if not kind.from_nothing:
            able = ", ".join(name for name, each in METHODS.items() if each.load().from_nothing)
            raise UsageError("this method cannot be used with --init", advice=f"these methods can: {able}")
        return RandomInit(Path(self.init), Path(self.tokenizer))


@dataclass(frozen=True)
class SavingFlags:
    """The saved state of a run."""

    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the stopped run; if there is none, start one.")
    ] = False
    save_every: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Also save the state every N steps; 0: only --save-seconds."),
    ] = 0
    save_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Save the state every S seconds; 0: after every step.")
    ] = 300.0


def train(
    *,
    context: typer.Context,
    method: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="Name of a method; --list shows all.")
    ] = None,
    model: options.Model = "nano",
    output: CheckpointFlags,
    settings: SettingFlags,
    dev: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS", help="Pairs with scores, for classify labelled rows, to choose the best step."
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="ROWS", help="For classify: labelled rows; print their metrics.")
    ] = None,
    entries: Annotated[
        str | None, typer.Option(metavar="PATH", help="For defsent-plus: the output of build-entries.")
    ] = None,
    seed: Annotated[
        str,
        typer.Option(metavar="N|A,B|A..B", help="Random seed. Several seeds: one run each, in OUT/seed-N."),
    ] = "0",
    start: StartFlags,
    device: options.Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="CPU threads. [default: all, or as in the run to resume]"),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Also on CUDA, every run writes the same bytes; slower.")
    ] = False,
    saving: SavingFlags,
    log: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write each step to PATH as a JSON line.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the methods.")] = False,
    help_settings: Annotated[
        bool, typer.Option("--help-settings", help="Show the settings of METHOD.")
    ] = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Train an encoder.

    \b
    Examples:
      sentkit train --list
      sentkit train simcse --help-settings
      sentkit train simcse titles.txt -m BASE -o ckpt --epochs 2
      sentkit train simcse titles.txt -o runs --dev pairs.jsonl --seed 0..2

    The command reads rows and writes a checkpoint folder, which `encode`, transformers
    and sentence-transformers can load. With --dev, the folder has the weights of the
    step with the best score; a warning reports pairs that are also in the training rows.
    To use several processes, run: torchrun --nproc-per-node N -m sentkit -- train ...

    For positive pairs, such as questions and answers, use simcse or contrast, with
    --field text_a=question --field text_b=answer. sncse takes the output of
    `augment --op negate`, clear takes two variants of each sentence, and cosent and
    angle take pairs with a "score". classify takes sentences or pairs with a "label",
    or a "score" for --set objective=regression; transformers loads its checkpoint with
    AutoModelForSequenceClassification.

    After Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2, the command finishes the step,
    saves the state and exits with code 75. To continue, run the same command with
    --resume; the result has the same bytes as without the stop. After a second Ctrl-C,
    the command reports the last saved step and exits at once with code 130.
    """
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.training.catalogue import METHODS, find
    from sentkit.training.loop.signals import handle_signals
    from sentkit.training.run_folders import RunFolders, result_line
    from sentkit.training.settings import build, described

    if list_:
        print_methods()
        return
    if method is None:
        raise UsageError("METHOD is missing", advice=f"available: {', '.join(METHODS)}")
    first = os.environ.get("RANK", "0") == "0"  # of several processes only the first writes and prints
    console = Console("train", run.quiet or not first, run.verbose)
    with handle_signals(partial(say_stopping, console)) as stop:
        kind = find(method)  # this imports torch
        if help_settings:
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.loop.step_log import Reporter
        from sentkit.training.options import Saving, TrainOptions
        from sentkit.training.runs.command import perform

        given = settings.given(console)
        check_together(output, dev, given)
        model_given = getattr(context.get_parameter_source("model"), "name", "") == "COMMANDLINE"
        train_options = TrainOptions(
            method=method,
            kind=kind,
            settings=build(kind.Settings, kind.presets, settings.preset, given),
            folders=RunFolders(Path(output.path), numbers("--seed", seed)),
            model=model,
            entries=entries,
            init=start.init_of(kind, model_given=model_given),
            dev=dev,
            test=test,
            device=device,
            threads=threads,
            deterministic=deterministic,
            saving=Saving(saving.save_every, saving.save_seconds),
            log=log,
            resume=saving.resume,
            force=output.force,
        )
        folders, bar = train_options.folders, StepProgress(console, run.progress)
        with (row_flags if first else replace(row_flags, rejects=None)).open(
            console,
            output,
            known=(*LEARNED, "embedding"),
            reads={
                "-m": None if start.init else options.model_paths(model),
                "--dev": dev,
                "--test": test,
                "--entries": entries,
                "--init": start.init,
                "--tokenizer": start.tokenizer,
                **kind.other_checkpoints(train_options.settings),
            },
            writes={"-o": folders.all_folders, "--log": folders.logs(log), "stdout": "-"},
        ) as inputs:
            say = partial(say_unless_quiet, console)
            if perform(train_options, inputs, stop, Reporter(say, console.note, console.warn, bar.take)):
                bar.done()
                table = options.OutputFlags()
                with table.open() as out:
                    show(
                        folders.results(), result_line, out, as_table=table.on_terminal, texts=["checkpoint"]
                    )


def check_together(output: CheckpointFlags, dev: str | None, given: Sequence[str]) -> None:
    """Refuse missing flags and flags that contradict each other."""
    if not output.path:
        raise UsageError("-o is missing: give the folder of the new checkpoint")
    names = [each.partition("=")[0].strip().replace("-", "_") for each in given]
    idle = [name for name in names if name in OF_DEV]
    if dev is None and idle:
        raise UsageError(f"{idle[0]} has no effect without --dev")


def say_unless_quiet(console: Console, message: str) -> None:
    if not console.quiet:
        console.say(message)


def say_stopping(console: Console) -> None:
    """Called by a signal handler: printing may fail if the signal interrupts another write."""
    with suppress(RuntimeError, OSError):
        say_unless_quiet(console, "stops after this step and saves; Ctrl-C again exits at once")


def print_methods() -> None:
    from sentkit.training.catalogue import METHODS

    columns = ("method", "description", "paper")
    rows = [(name, each.summary, each.cite and f"arXiv {each.cite}") for name, each in METHODS.items()]
    print_table(columns, rows, texts=columns, wrap=True)
