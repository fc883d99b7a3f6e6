"""`sentkit train`: fine-tuning of an encoder on rows."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sentkit import completion
from sentkit.console import (
    Console,
    StepProgress,
    print_described,
    print_table,
    print_text,
    show,
    watch_rows,
)
from sentkit.errors import DataError, DivergedRunsError, UsageError
from sentkit.flag_values import assignment, numbers
from sentkit.flags import options
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import needs
from sentkit.process import check_threads, handle_signals, is_first_process, typed_words

if TYPE_CHECKING:
    from sentkit.training.run import Run

METHODS_IN_ADVICE = 3
# Options that differ between the runs of --list.
OF_ONE_RUN = ("-o", "--output", "--seed", "--set", "--epochs", "--batch", "--lr", "--rejects")
DROPPED = "/dev/null"  # --rejects without a file


def train(
    *,
    method: Annotated[
        str | None,
        Argument(
            metavar="METHOD",
            autocompletion=completion.methods,
            help="A name of --list, or FILE.py:CLASS; see sentkit-method(7).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="A folder, a hub name, NAME@REVISION, pkg:NAME, nano or static. [default: nano]",
        ),
    ] = None,
    output_path: Annotated[
        str,
        Option("-o", "--output", metavar="DIR", help="The checkpoint folder to create."),
    ] = "",
    force: options.Force = False,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            autocompletion=completion.settings_of_method,
            help="Change a setting; repeatable. Of equal names, the last value is used; flags such "
            "as --lr have priority. A list, as in lr=1e-5,3e-5, trains a run for each value.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(
            "--preset",
            metavar="NAME",
            autocompletion=completion.presets_of_method,
            help="Settings of a published recipe.",
        ),
    ] = None,
    epochs: Annotated[
        str | None,
        Option("--epochs", metavar="N", help="Same as --set epochs=N."),
    ] = None,
    batch: Annotated[
        str | None,
        Option("--batch", metavar="N", help="Same as --set batch=N."),
    ] = None,
    lr: Annotated[
        str | None,
        Option("--lr", metavar="X", help="Same as --set lr=X."),
    ] = None,
    dev: Annotated[
        str | None,
        Option(
            "--dev",
            metavar="ROWS",
            help="Pairs with or without scores or triplets, for classify labelled rows, to choose "
            "the best step.",
        ),
    ] = None,
    test: Annotated[
        str | None,
        Option("--test", metavar="ROWS", help="For classify: labelled rows; print their metrics."),
    ] = None,
    entries: Annotated[
        str | None,
        Option("--entries", metavar="PATH", help="For defsent-plus: the output of build-entries."),
    ] = None,
    seed: Annotated[
        str,
        Option(
            "--seed",
            metavar="N|A,B|A..B",
            help="Random seed. Several seeds: one run each, in OUT/seed-N.",
        ),
    ] = "0",
    device: options.Device = "auto",
    threads: Annotated[
        int | None,
        Option(
            "--threads",
            metavar="N",
            min=1,
            help="CPU threads. [default: as in the run to resume, else SENTKIT_THREADS, else "
            "OMP_NUM_THREADS, else all CPUs]",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        Option("--deterministic", help="Also on CUDA, every run writes the same bytes; slower."),
    ] = False,
    resume: Annotated[
        bool,
        Option("--resume", help="Continue the stopped run; if there is none, start one."),
    ] = False,
    save_every: Annotated[
        int,
        Option(
            "--save-every",
            metavar="N",
            min=0,
            help="Also save the state every N steps; 0: only --save-seconds.",
        ),
    ] = 0,
    save_seconds: Annotated[
        float,
        Option(
            "--save-seconds",
            metavar="S",
            min=0,
            help="Save the state every S seconds; 0: after every step.",
        ),
    ] = 300.0,
    list_: Annotated[
        bool,
        Option(
            "--list",
            help="Show the methods in groups; after METHOD, its settings and presets; with -o, the "
            "command of each run.",
        ),
    ] = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Train an encoder."""
    from sentkit.formats.checkpoints.command_record import METHOD, inputs_of
    from sentkit.formats.rows.kinds import LEARNED
    from sentkit.training.catalogue import METHODS, open_method
    from sentkit.training.settings import build, combinations, described

    check_threads("--threads", threads)
    if method is None and list_:
        print_methods()
        return
    if method is None:
        raise UsageError("METHOD is missing", advice=f"available: {', '.join(METHODS)}")
    if not output_path and not list_:
        raise UsageError("-o is missing: give the folder of the new checkpoint")
    output = Output(output_path, force)
    first_process = is_first_process()
    if not first_process:
        console = replace(console, quiet=True)

    # The method. Opening it imports torch.
    stopping = partial(
        console.report, "stops after this step and saves; Ctrl-C again exits at once"
    )
    with handle_signals(stopping) as stop, open_method(method) as loaded:
        kind = loaded.method_class
        if list_ and not output_path:
            of_runs = {"--preset": preset, "--set": set_, "--lr": lr, "--epochs": epochs}
            needs({**of_runs, "--batch": batch}, {"-o": output_path or None})
            print_described(described(kind.Settings, kind.presets))
            return
        from sentkit.training.run import Reporter, Run
        from sentkit.training.runs.command import perform

        # The settings of each combination of values of a sweep, which is one without lists of
        # values.
        assigned = settings_of_flags(
            set_ or [], {"epochs": epochs, "batch": batch, "lr": lr}, console
        )
        refuse_settings_of_others(loaded.name, kind.Settings, assigned)
        if dev is None:
            refuse_settings_of_dev(assigned)
        sweep = combinations(kind.Settings, assigned)
        if "metric" in sweep[0]:
            problem = "--set metric: scores of different metrics cannot be compared"
            raise UsageError(problem, advice="run the command once per metric")
        settings_of_sweep = [
            build(kind.Settings, kind.presets, preset, words_for(assigned | chosen))
            for chosen in sweep
        ]
        seeds = numbers("--seed", seed)

        # The inputs.
        base = model or "nano"
        reads = {"--dev": dev, "--test": test, "--entries": entries, METHOD: loaded.file}
        reads |= kind.other_checkpoints(settings_of_sweep[0])  # settings with one value each
        several = len(seeds) > 1 or bool(sweep[0])
        paths = input_paths(files)

        # A run for each combination and seed.
        progress = StepProgress(console)
        run = Run(
            method=loaded,
            settings=settings_of_sweep[0],
            root=Path(output_path),
            several=several,
            words=typed_words(),
            inputs=inputs_of({"FILE": paths, "-m": base, **reads}),
            stop=stop,
            reporter=Reporter(
                say=console.report,
                note=console.note,
                warn=console.warn,
                error=console.error,
                begin=progress.begin,
                step=progress.take,
                advise=progress.advise,
            ),
            device=device,
            threads=threads,
            deterministic=deterministic,
            resume=resume,
            force=force,
            save_every=save_every,
            save_seconds=save_seconds,
        )
        runs = [
            replace(run, settings=settings, chosen=chosen, seed=run_seed)
            for settings, chosen in zip(settings_of_sweep, sweep, strict=True)
            for run_seed in seeds
        ]
        # The other processes read the same rows.
        if rejects is not None and (not first_process or has_bad_rows(rejects, runs)):
            rejects = DROPPED
        if list_:
            print_text(command_lines(typed_words(), assigned, runs, rejects))
            return

        # Rows -> examples -> steps -> a checkpoint for each run.
        opened = RowSource(paths, field, rejects).open(
            console,
            output,
            field_names=(*LEARNED, "embedding"),
            reads={"-m": model_paths(base), **reads},
            writes={"-o": folders_of(runs), "stdout": "-"},
        )
        with opened as inputs:
            watch_rows(console, inputs)
            outcome = perform(runs, inputs)
            if outcome.is_first_process:
                progress.done()
                print_results(runs, kind.Settings, outcome.diverged)
        if outcome.is_first_process and outcome.diverged:
            raise error_of_diverged(runs, outcome.diverged)


def settings_of_flags(
    assignments: Sequence[str], flags: Mapping[str, str | None], console: Console
) -> dict[str, str]:
    """The value of each setting that --set or another flag gives.

    The order of options on the command line is not available here, so a flag always overrides
    --set.
    """
    of_flags = {name: value for name, value in flags.items() if value is not None}
    of_set = dict[str, str]()
    for text in assignments:
        name, value = assignment(text)
        of_set[name] = value
        if name in of_flags and value != of_flags[name]:
            console.warn(f"--set {text} has no effect: --{name} {of_flags[name]} overrides it")
    return of_set | of_flags


def refuse_settings_of_others(method: str, kind: type, assigned: Mapping[str, str]) -> None:
    """Refuse a setting that only other methods have: a similar name would be misleading."""
    from sentkit.training.catalogue import METHODS, names_of

    settings = [field.name for field in fields(kind)]
    for name in assigned:
        methods = [other for other in METHODS if name in names_of(other)[0]]
        if name not in settings and methods:
            having = ", ".join(methods[:METHODS_IN_ADVICE])
            if len(methods) > METHODS_IN_ADVICE:
                having += " and others"
            advice = f"{having} have it; those of {method}: {', '.join(settings)}"
            if len(methods) == 1:
                advice = f"{having} has it; those of {method}: {', '.join(settings)}"
            raise UsageError(f'{method} has no setting "{name}"', advice=advice)


def refuse_settings_of_dev(assigned: Mapping[str, str]) -> None:
    from sentkit.training.recipe import OF_DEV

    for name in assigned:
        if name in OF_DEV:
            raise UsageError(f"{name} has no effect without --dev")


def folders_of(runs: "Sequence[Run]") -> list[str]:
    """The folders that the runs write, without repetitions."""
    folders = [folder for run in runs for folder in (run.output, run.state_folder, run.rows_folder)]
    return list(dict.fromkeys(map(str, folders)))


def has_bad_rows(path: str, runs: "Sequence[Run]") -> bool:
    """Return true if earlier runs of the same rows have written the bad rows to this file."""
    from sentkit.formats.checkpoints.command_record import FILE, recorded_digests
    from sentkit.training.runs.command import is_to_train
    from sentkit.training.runs.train_run import has_state

    first = runs[0]  # all runs have these flags
    if first.force or not (first.resume or first.several) or not Path(path).exists():
        return False
    finished = [run for run in runs if not is_to_train(run)]
    if len(finished) == len(runs):
        return True
    if not finished:  # a run continues only with the same rows
        return first.several and first.resume and any(map(has_state, runs))
    digests = [entry.digest() for entry in first.inputs if entry.flag == FILE]
    if None in digests:  # a pipe
        return False
    return all(recorded_digests(run.output, FILE) == digests for run in finished)


def error_of_diverged(runs: "Sequence[Run]", diverged: "Sequence[Path]") -> DataError:
    """The error at the end of several runs, of which some have no result."""
    from sentkit.formats.files import shown_path

    names = ", ".join(shown_path(str(path)) for path in diverged)
    problem = f"{len(diverged)} of {len(runs)} runs diverged: {names}"
    advice = "another --seed can help, or a lower --lr with another -o"
    if runs[0].chosen:
        advice = "replace these values; with --resume, the command keeps the finished runs"
    if len(diverged) == len(runs):
        return DataError(problem, source="training", advice=advice)
    return DivergedRunsError(problem, source="training", advice=advice)


def print_results(
    runs: "Sequence[Run]", settings_class: type, diverged: "Sequence[Path]" = ()
) -> None:
    """Print the result of each run, or of a sweep the result of each combination of settings.

    The runs of a combination follow each other. They differ in their seed.
    """
    from sentkit.training.runs.results import (
        best_of,
        result_line,
        results_of,
        results_of_combinations,
        sweep_line,
    )
    from sentkit.training.settings import parsed

    output = Output()
    as_table = output.on_terminal
    with output.open() as file:
        if not runs[0].chosen:
            results = results_of(runs, diverged)
            show(results, result_line, file, as_table=as_table, labels=["checkpoint"])
            return
        # The settings of each combination: as they were typed for a table, as values for JSON.
        combinations = [chosen for chosen, _ in groupby(run.chosen for run in runs)]
        values = [parsed(settings_class, words_for(chosen)) for chosen in combinations]
        results = results_of_combinations(runs, values, diverged)

        def lines(record: dict[str, Any]) -> list[dict[str, str]]:
            return sweep_line(record, combinations[results.index(record)])

        show(results, lines, file, as_table=as_table, optional=["step"])
        if as_table:
            print_text(best_of(results))


def words_for(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def command_lines(
    typed: Sequence[str], assigned: Mapping[str, str], runs: "Sequence[Run]", rejects: str | None
) -> Iterator[str]:
    """The command of each run: the typed words, with the settings, seed and output of this run.

    The first run that is to be trained writes the bad rows, which are those of all runs.
    """
    from sentkit.training.runs.command import is_to_train

    writer = next(filter(is_to_train, runs), None)
    end = typed.index("--") if "--" in typed else len(typed)  # words after it are not options
    words = ["sentkit", *words_of_every_run(typed[:end])]
    for run in runs:
        of_run = list[str]()
        for setting in words_for({**assigned, **run.chosen}):
            of_run += ["--set", setting]
        of_run += ["--seed", str(run.seed), "-o", str(run.output)]
        if rejects is not None:
            of_run += ["--rejects", rejects if run is writer else DROPPED]
        yield shlex.join([*words, *of_run, *typed[end:]])


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

    in_a_group = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "of papers": [name for name in METHODS if name not in in_a_group]}
    name_width = max(map(len, [*METHODS, *groups]))
    summary_width = max(len(listing.summary) for listing in METHODS.values())
    for index, (heading, names) in enumerate(groups.items()):
        if index > 0:
            print_text([""])
        columns = (heading.ljust(name_width), "description", "paper")
        rows = list[tuple[str, str, str]]()
        for name in names:
            listing = METHODS[name]
            paper = listing.cite and f"arXiv {listing.cite}"
            rows.append((name.ljust(name_width), listing.summary.ljust(summary_width), paper))
        print_table(columns, rows, texts=columns, wrap=True)


def setting_of_flag(flag: str) -> str | None:
    """The setting of a method that is meant by a flag such as --steps or --max-steps."""
    from sentkit.training.catalogue import METHODS, names_of
    from sentkit.training.settings import SYNONYMS

    name = flag.lstrip("-").replace("-", "_")
    if not any(name in names_of(method)[0] for method in METHODS):
        name = SYNONYMS.get(name, "")
    if not name or name.startswith("-"):
        return None
    return name
