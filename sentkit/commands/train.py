"""`sentkit train`: fine-tuning of an encoder on rows."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sentkit.console import Console, StepProgress, print_described, print_table, print_text, show, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import assignment, numbers
from sentkit.flags import Named, Range, options
from sentkit.flags.rows import RowFlags
from sentkit.process import check_threads, handle_signals, is_first_process, typed_words

if TYPE_CHECKING:
    from sentkit.training.run import Run


FILES = ("dev", "test", "entries")
# Flags of all runs, and options that differ between the runs of --list.
SHARED = ("device", "threads", "deterministic", "resume", "force", "save_every", "save_seconds")
OF_ONE_RUN = ("-o", "--output", "--seed", "--set", "--epochs", "--batch", "--lr")


@dataclass(frozen=True)
class BaseFlags:
    """The checkpoint that a run starts with.

    -m, --model MODEL: A folder, a hub name, NAME@REVISION, pkg:NAME, nano or static. [default: nano]
    """

    model: str | None = None


@dataclass(frozen=True)
class TrainFlags(options.OutputFlags, BaseFlags):
    """The new checkpoint, with the state of its run in OUT.part; the settings of the runs and their data.

    -o, --output DIR: The checkpoint folder to create.
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
    --threads N: CPU threads. [default: as in the run to resume, else SENTKIT_THREADS, else all CPUs]
    --deterministic: Also on CUDA, every run writes the same bytes; slower.
    --resume: Continue the stopped run; if there is none, start one.
    --save-every N: Also save the state every N steps; 0: only --save-seconds.
    --save-seconds S: Save the state every S seconds; 0: after every step.
    """

    path: Annotated[str, Named("--output")] = ""
    set_: list[str] | None = None
    preset: str | None = None
    epochs: str | None = None
    batch: str | None = None
    lr: str | None = None
    dev: str | None = None
    test: str | None = None
    entries: str | None = None
    seed: str = "0"
    device: str = "auto"
    threads: Annotated[int | None, Range(min=1)] = None
    deterministic: bool = False
    resume: bool = False
    save_every: Annotated[int, Range(min=0)] = 0
    save_seconds: Annotated[float, Range(min=0)] = 300.0


def train(
    *,
    method: Annotated[str | None, Named("METHOD")] = None,
    flags: TrainFlags,
    list_: bool = False,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Train an encoder.

    Flags:
      METHOD: A name of --list, or FILE.py:CLASS; see sentkit-method(7).
      --list: Show the methods in groups; after METHOD, its settings and presets; with -o, the command of
          each run.
    """
    from sentkit.formats.checkpoints.command_record import METHOD, inputs_of
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.training.catalogue import METHODS, open_method
    from sentkit.training.settings import build, combinations, described

    check_threads("--threads", flags.threads)
    if method is None and list_:
        print_methods()
        return
    if method is None:
        raise UsageError("METHOD is missing", advice=f"available: {', '.join(METHODS)}")
    if not flags.path and not list_:
        raise UsageError("-o is missing: give the folder of the new checkpoint")
    first = is_first_process()
    if not first:
        console = replace(console, quiet=True)
    # Opening the method imports torch.
    stopping = partial(console.report, "stops after this step and saves; Ctrl-C again exits at once")
    with handle_signals(stopping) as stop, open_method(method) as loaded:
        kind = loaded.method_class
        if list_ and not flags.path:
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.run import Reporter, Run
        from sentkit.training.runs.command import perform

        given = given_settings(flags, console)
        grid, seeds = combinations(kind.Settings, given), numbers("--seed", flags.seed)
        built = [build(kind.Settings, kind.presets, flags.preset, words_for(given | each)) for each in grid]
        reads = {f"--{name}": getattr(flags, name) for name in FILES} | {METHOD: loaded.file}
        reads |= kind.other_checkpoints(built[0])  # names of checkpoints are no settings with several values
        base = flags.model or "nano"
        inputs = inputs_of({"FILE": row_flags.paths, "-m": base, **reads})
        bar = StepProgress(console)
        one = Run(
            method=loaded,
            settings=built[0],
            root=Path(flags.path),
            several=len(seeds) > 1 or bool(grid[0]),
            words=typed_words(),
            inputs=inputs,
            stop=stop,
            reporter=Reporter(console.report, console.note, console.warn, bar.begin, bar.take),
            **{name: getattr(flags, name) for name in SHARED},
        )
        sweep = list(zip(built, grid, strict=True))
        runs = [replace(one, settings=a, chosen=b, seed=each) for a, b in sweep for each in seeds]
        if list_:
            print_text(command_lines(typed_words(), given, runs))
            return
        folders = [str(each) for own in runs for each in (own.output, own.state_folder, own.rows_folder)]
        others = row_flags.rejects and "/dev/null"  # of the other processes, which read the same rows
        opened = (row_flags if first else replace(row_flags, rejects=others)).open(
            console,
            flags,
            known=(*LEARNED, "embedding"),
            reads={"-m": options.model_paths(base), **reads},
            writes={"-o": [*dict.fromkeys(folders)], "stdout": "-"},
        )
        with opened as rows:
            watch_rows(console, rows)
            if perform(runs, rows):
                bar.done()
                print_results(runs, kind.Settings)


def given_settings(flags: TrainFlags, console: Console) -> dict[str, str]:
    """The value of each setting that --set or another flag gives.

    The order of options on the command line is not available here, so a flag always overrides --set.
    """
    from sentkit.training.recipe import OF_DEV

    of_flags = {"epochs": flags.epochs, "batch": flags.batch, "lr": flags.lr}
    given = {name: value for name, value in of_flags.items() if value is not None}
    for each in flags.set_ or []:
        name, value = assignment(each)
        if name in given and value != given[name]:
            console.warn(f"--set {each} has no effect: --{name} {given[name]} overrides it")
    given = dict(map(assignment, flags.set_ or [])) | given
    if flags.dev is None and (idle := next((name for name in given if name in OF_DEV), None)):
        raise UsageError(f"{idle} has no effect without --dev")
    return given


def print_results(runs: "Sequence[Run]", kind: type) -> None:
    """Print the result of each run, or of a sweep the result of each combination of settings."""
    from sentkit.training.runs.results import best_of, compared, result_line, results_of, sweep_line
    from sentkit.training.settings import parsed

    with (table := options.OutputFlags()).open() as out:
        if not runs[0].chosen:
            show(results_of(runs), result_line, out, as_table=table.on_terminal, labels=["checkpoint"])
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


def command_lines(typed: Sequence[str], given: Mapping[str, str], runs: "Sequence[Run]") -> Iterator[str]:
    """The command of each run: the typed words, with the settings, seed and output of this run."""
    end = typed.index("--") if "--" in typed else len(typed)  # the words after it are no options
    words = ["sentkit", *words_of_every_run(typed[:end])]
    for run in runs:
        settings = [word for setting in words_for({**given, **run.chosen}) for word in ("--set", setting)]
        yield shlex.join([*words, *settings, "--seed", str(run.seed), "-o", str(run.output), *typed[end:]])


def words_of_every_run(typed: Sequence[str]) -> Iterator[str]:
    """The typed words without --list, and without the options of one run and their values."""
    words = iter(typed)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in OF_ONE_RUN:
            if not equals:
                next(words)
        elif word != "--list":
            yield word


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
