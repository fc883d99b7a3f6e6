"""`sentkit train`: fine-tuning of an encoder on rows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sentkit.console import Console, StepProgress, print_described, print_table, show, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import assignment, numbers
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Named, Range, words_of
from sentkit.flags.training import CheckpointFlags, SavingFlags, SettingFlags, StartFlags
from sentkit.process import check_threads, is_first_process


def train(
    *,
    context: typer.Context,
    method: Annotated[str | None, Named("METHOD")] = None,
    model: str = "nano",
    output: CheckpointFlags,
    settings: SettingFlags,
    dev: str | None = None,
    test: str | None = None,
    entries: str | None = None,
    seed: str = "0",
    start: StartFlags,
    device: str = "auto",
    threads: Annotated[int | None, Range(min=1)] = None,
    deterministic: bool = False,
    saving: SavingFlags,
    list_: bool = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Train an encoder.

    \b
    Examples:
      sentkit train --list
      sentkit train simcse --list
      sentkit train simcse titles.txt -m BASE -o ckpt --epochs 2
      sentkit train simcse titles.txt -o runs --dev pairs.jsonl --seed 0..2

    Most used: METHOD [FILE]... -m -o --preset --set --epochs --dev --list -v

    The command reads rows and writes a checkpoint folder, which `encode`, transformers
    and sentence-transformers can load. With --dev, the folder has the weights of the
    step with the best score; a warning reports pairs that are also in the training rows.
    To use several processes, run: torchrun --nproc-per-node N -m sentkit -- train ...

    Flags:
      METHOD: A name of --list, or FILE.py:CLASS; see sentkit-method(7).
      --dev ROWS: Pairs with or without scores or triplets, for classify labelled rows, to choose the best
          step.
      --test ROWS: For classify: labelled rows; print their metrics.
      --entries PATH: For defsent-plus: the output of build-entries.
      --seed N|A,B|A..B: Random seed. Several seeds: one run each, in OUT/seed-N.
      --threads N: CPU threads. [default: as in the run to resume, else SENTKIT_THREADS, else all CPUs]
      --deterministic: Also on CUDA, every run writes the same bytes; slower.
      --list: Show the methods; after METHOD, its settings and presets.
    """
    from sentkit.formats.checkpoints.commands import METHOD, Command, inputs_of
    from sentkit.formats.outputs.outputs import refuse_url
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.signals import handle_signals
    from sentkit.training.catalogue import METHODS, open_method
    from sentkit.training.run_folders import RunFolders, result_line
    from sentkit.training.settings import build, described

    check_threads("--threads", threads)
    if method is None and list_:
        print_methods()
        return
    if method is None:
        raise UsageError("METHOD is missing", advice=f"available: {', '.join(METHODS)}")
    if not output.path and not list_:
        raise UsageError("-o is missing: give the folder of the new checkpoint")
    refuse_url(output.path)
    first = is_first_process()
    console = Console("train", run.quiet or not first, run.verbose)
    # Opening the method imports torch.
    with handle_signals(partial(say_stopping, console)) as stop, open_method(method) as loaded:
        kind = loaded.kind
        if list_:
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.loop.state import Reporter
        from sentkit.training.options import TrainOptions
        from sentkit.training.runs.command import perform

        given = settings.given(console)
        check_dev(dev, given)
        model_given = getattr(context.get_parameter_source("model"), "name", "") == "COMMANDLINE"
        built = build(kind.Settings, kind.presets, settings.preset, given)
        reads = {
            "--dev": dev,
            "--test": test,
            "--entries": entries,
            "--init": start.init,
            "--tokenizer": start.tokenizer,
            **kind.other_checkpoints(built),
            METHOD: loaded.file,
        }
        bases = {} if start.init else {"-m": model}
        flags_of_rows = words_of(row_flags, but=("files", "rejects"))
        train_options = TrainOptions(
            method=loaded.name,
            method_digest=loaded.digest,
            kind=kind,
            settings=built,
            folders=RunFolders(Path(output.path), numbers("--seed", seed)),
            model=model,
            entries=entries,
            init=start.init_of(kind, model_given=model_given),
            dev=dev,
            test=test,
            device=device,
            threads=threads,
            deterministic=deterministic,
            **vars(saving),
            force=output.force,
            command=Command(
                ("train", method), inputs_of({"FILE": row_flags.paths, **bases, **reads}), flags_of_rows
            ),
        )
        folders, bar = train_options.folders, StepProgress(console)
        others = row_flags.rejects and "/dev/null"  # of the other processes, which read the same rows
        opened = (row_flags if first else replace(row_flags, rejects=others)).open(
            console,
            output,
            known=(*LEARNED, "embedding"),
            reads={"-m": None if start.init else options.model_paths(model), **reads},
            writes={"-o": folders.all_folders, "stdout": "-"},
        )
        with opened as inputs:
            watch_rows(console, inputs)
            if perform(
                train_options, inputs, stop, Reporter(console.report, console.note, console.warn, bar.take)
            ):
                bar.done()
                with (table := options.OutputFlags()).open() as out:
                    show(
                        folders.results(), result_line, out, as_table=table.on_terminal, texts=["checkpoint"]
                    )


def check_dev(dev: str | None, given: Sequence[str]) -> None:
    """Refuse settings that have no effect without --dev."""
    from sentkit.training.recipe import OF_DEV

    idle = [name for name, _ in map(assignment, given) if name in OF_DEV]
    if dev is None and idle:
        raise UsageError(f"{idle[0]} has no effect without --dev")


def say_stopping(console: Console) -> None:
    """Called by a signal handler: printing may fail if the signal interrupts another write."""
    with suppress(RuntimeError, OSError):
        console.report("stops after this step and saves; Ctrl-C again exits at once")


def print_methods() -> None:
    from sentkit.training.catalogue import METHODS

    columns = ("method", "description", "paper")
    rows = [(name, each.summary, each.cite and f"arXiv {each.cite}") for name, each in METHODS.items()]
    print_table(columns, rows, texts=columns, wrap=True)
