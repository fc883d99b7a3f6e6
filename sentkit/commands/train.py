"""`sentkit train`: fine-tuning of an encoder on rows."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentkit.console import Console, StepProgress, print_described, print_table, print_text, show, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import assignment, numbers
from sentkit.flags import Named, Needs, Range, options, words_of
from sentkit.flags.rows import RowFlags
from sentkit.process import check_threads, is_first_process

if TYPE_CHECKING:
    from sentkit.training.loop.state import Run
    from sentkit.training.method import Method


@dataclass(frozen=True)
class CheckpointFlags(options.OutputFlags):
    """The folder of the new checkpoint; the state of the run is in OUT.part.

    -o, --output DIR: The checkpoint folder to create.
    """

    path: Annotated[str, Named("--output")] = ""


def train(
    *,
    context: typer.Context,
    method: Annotated[str | None, Named("METHOD")] = None,
    model: str = "nano",
    output: CheckpointFlags,
    set_: list[str] | None = None,
    preset: str | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    dev: str | None = None,
    test: str | None = None,
    entries: str | None = None,
    seed: str = "0",
    init: Annotated[str | None, Needs("--tokenizer")] = None,
    tokenizer: Annotated[str | None, Needs("--init")] = None,
    device: str = "auto",
    threads: Annotated[int | None, Range(min=1)] = None,
    deterministic: bool = False,
    resume: bool = False,
    save_every: Annotated[int, Range(min=0)] = 0,
    save_seconds: Annotated[float, Range(min=0)] = 300.0,
    list_: bool = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Train an encoder.

    Flags:
      METHOD: A name of --list, or FILE.py:CLASS; see sentkit-method(7).
      --set NAME=VALUE: Change a setting; repeatable. Of equal names, the last value is used; flags such as
          --lr have priority. A list, as in lr=1e-5,3e-5, trains a run for each value.
      --preset NAME: Settings of a published recipe.
      --epochs N: Same as --set epochs=N.
      --batch N: Same as --set batch=N.
      --lr X: Same as --set lr=X.
      --dev ROWS: Pairs with or without scores or triplets, for classify labelled rows, to choose the best
          step.
      --test ROWS: For classify: labelled rows; print their metrics.
      --entries PATH: For defsent-plus: the output of build-entries.
      --seed N|A,B|A..B: Random seed. Several seeds: one run each, in OUT/seed-N.
      --init CONFIG: Start with random weights for this config.json.
      --tokenizer PATH: For --init: a tokenizer.json, or its folder.
      --threads N: CPU threads. [default: as in the run to resume, else SENTKIT_THREADS, else all CPUs]
      --deterministic: Also on CUDA, every run writes the same bytes; slower.
      --resume: Continue the stopped run; if there is none, start one.
      --save-every N: Also save the state every N steps; 0: only --save-seconds.
      --save-seconds S: Save the state every S seconds; 0: after every step.
      --list: Show the methods in groups; after METHOD, its settings and presets; with -o, the command of
          each run.
    """
    from sentkit.formats.checkpoints.export import METHOD, Command, inputs_of
    from sentkit.formats.outputs.outputs import refuse_url
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.process import handle_signals
    from sentkit.training.catalogue import METHODS, open_method
    from sentkit.training.settings import build, combinations, described

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
    stopping = partial(console.report, "stops after this step and saves; Ctrl-C again exits at once")
    with handle_signals(stopping) as stop, open_method(method) as loaded:
        kind = loaded.kind
        if list_ and not output.path:
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.loop.state import Reporter, Run
        from sentkit.training.runs.command import perform

        given = given_settings(set_ or [], {"epochs": epochs, "batch": batch, "lr": lr}, dev, console)
        grid, seeds = combinations(kind.Settings, given), numbers("--seed", seed)
        built = [build(kind.Settings, kind.presets, preset, words_for(given | each)) for each in grid]
        reads = {
            "--dev": dev,
            "--test": test,
            "--entries": entries,
            "--init": init,
            "--tokenizer": tokenizer,
            **kind.other_checkpoints(built[0]),  # names of checkpoints are no settings with several values
            METHOD: loaded.file,
        }
        if init:
            refuse_random_start(kind, model_given=is_given(context, "model"))
        paths = {"FILE": row_flags.paths, **({} if init else {"-m": model}), **reads}
        bar = StepProgress(console)
        one = Run(
            method=loaded,
            settings=built[0],
            root=Path(output.path),
            several=len(seeds) > 1 or bool(grid[0]),
            device=device,
            threads=threads,
            deterministic=deterministic,
            resume=resume,
            save_every=save_every,
            save_seconds=save_seconds,
            force=output.force,
            command=Command(
                ("train", method), inputs_of(paths), words_of(row_flags, but=("files", "rejects"))
            ),
            stop=stop,
            reporter=Reporter(console.report, console.note, console.warn, bar.take),
        )
        sweep = list(zip(built, grid, strict=True))
        runs = [replace(one, settings=a, chosen=b, seed=each) for a, b in sweep for each in seeds]
        if list_:
            print_text(command_lines(context, given, runs))
            return
        folders = [str(each) for run in runs for each in (run.output, run.part, run.rows)]
        others = row_flags.rejects and "/dev/null"  # of the other processes, which read the same rows
        opened = (row_flags if first else replace(row_flags, rejects=others)).open(
            console,
            output,
            known=(*LEARNED, "embedding"),
            reads={"-m": None if init else options.model_paths(model), **reads},
            writes={"-o": [*dict.fromkeys(folders)], "stdout": "-"},
        )
        with opened as inputs:
            watch_rows(console, inputs)
            if perform(runs, inputs):
                bar.done()
                print_results(runs, kind.Settings)


def given_settings(
    assignments: Sequence[str], flags: Mapping[str, float | None], dev: str | None, console: Console
) -> dict[str, str]:
    """The value of each setting that --set or another flag gives.

    The order of options on the command line is not available here, so a flag always overrides --set.
    """
    from sentkit.training.settings import OF_DEV

    given = {name: str(value) for name, value in flags.items() if value is not None}
    for each in assignments:
        name, value = assignment(each)
        if name in given and value != given[name]:
            console.warn(f"--set {each} has no effect: --{name} {given[name]} overrides it")
    given = dict(map(assignment, assignments)) | given
    if dev is None and (idle := next((name for name in given if name in OF_DEV), None)):
        raise UsageError(f"{idle} has no effect without --dev")
    return given


def refuse_random_start(kind: "type[Method]", *, model_given: bool) -> None:
    """Raise a UsageError if a run cannot start with random weights instead of a checkpoint."""
    from sentkit.training.catalogue import METHODS

    if model_given:
        advice = "--init starts with random weights, -m with a checkpoint"
        raise UsageError("--init and -m cannot be used together", advice=advice)
    if not kind.needs.random_start:
        able = ", ".join(name for name, each in METHODS.items() if each.load().needs.random_start)
        raise UsageError("this method cannot be used with --init", advice=f"these methods can: {able}")


def print_results(runs: "Sequence[Run]", kind: type) -> None:
    """Print the result of each run, or of a sweep the result of each combination of settings."""
    from sentkit.training.runs.command import best_of, compared, result_line, results_of, sweep_line
    from sentkit.training.settings import parsed

    with (table := options.OutputFlags()).open() as out:
        if not runs[0].chosen:
            show(results_of(runs), result_line, out, as_table=table.on_terminal, texts=["checkpoint"])
            return
        grid = [chosen for chosen, _ in groupby(run.chosen for run in runs)]
        results = compared(runs, [parsed(kind, words_for(chosen)) for chosen in grid])
        chosen = iter(grid)
        layout: Any = {"as_table": table.on_terminal, "optional": ["step"]}
        show(results, lambda record: sweep_line(record, next(chosen)), out, **layout)
        if table.on_terminal:
            print_text(best_of(results))


def words_for(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def is_given(context: typer.Context, name: str) -> bool:
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def command_lines(context: typer.Context, given: Mapping[str, str], runs: "Sequence[Run]") -> Iterator[str]:
    """The command of each run, which all have the flags of this command."""
    from sentkit.training.runs.replay import operand, option

    words = ["sentkit", "train"]
    ours = {"list_", "path", "seed", "set_", "epochs", "batch", "lr"}
    for each in sorted(context.command.params, key=lambda each: each.param_type_name):  # arguments first
        if each.name is None or each.name in ours or not is_given(context, each.name):
            continue
        value = context.params[each.name]
        for one in value if isinstance(value, list | tuple) else [value]:
            if each.param_type_name == "argument":
                words.append(operand(one))
            else:
                words += [each.opts[-1]] if one is True else option(each.opts[-1], str(one))
    for run in runs:
        settings = [word for each in words_for({**given, **run.chosen}) for word in ("--set", each)]
        yield shlex.join([*words, *settings, "--seed", str(run.seed), *option("-o", str(run.output))])


def print_methods() -> None:
    """Print a table for each group; their columns have the same widths."""
    from sentkit.training.catalogue import GROUPS, METHODS

    known = [name for names in GROUPS.values() for name in names]
    groups = {**GROUPS, "of papers": [name for name in METHODS if name not in known]}
    longest = max(map(len, [*METHODS, *groups])), max(len(each.summary) for each in METHODS.values())
    for number, (heading, names) in enumerate(groups.items()):
        if number:
            print_text([""])
        columns = (heading.ljust(longest[0]), "description", "paper")
        listings = {name: METHODS[name] for name in names}
        rows = [
            (name.ljust(longest[0]), each.summary.ljust(longest[1]), each.cite and f"arXiv {each.cite}")
            for name, each in listings.items()
        ]
        print_table(columns, rows, texts=columns, wrap=True)
