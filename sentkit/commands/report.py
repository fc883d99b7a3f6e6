"""`sentkit report`: values of checkpoints on test sets, beside the tables of papers."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from sentkit.console import Console, TaskProgress
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.escaping import terminal_width
from sentkit.flag_values import classifier_protocol, numbers
from sentkit.flags import options
from sentkit.flags.outputs import Output, check_paths, model_paths
from sentkit.flags.rules import needs, refuse_together
from sentkit.process import threads_of_command

if TYPE_CHECKING:
    from sentkit.reports.evaluate import Results, Row
    from sentkit.reports.suites import TestSet
    from sentkit.reports.tables import PaperTable, Table

LARGEST_SEED = 2**32 - 1
HEAD = "senteval"  # the classifier, by default
SEED = "1111"


def report(
    *,
    checkpoints: Annotated[
        list[str] | None,
        Argument(
            metavar="[ROW]...",
            help="[NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]: a row; CHECKPOINT as for -m, a pattern, "
            "or a folder of seeds.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option("--data", metavar="DIR", help="Folder of test sets; see below."),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        Option(
            "--pairs",
            metavar="NAME=FILE",
            help="A file of pairs (text_a, text_b, score); repeatable.",
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        Option(
            "--field", metavar="OURS=THEIRS", help="For --pairs: read the field THEIRS as OURS."
        ),
    ] = None,
    suites: Annotated[
        str | None,
        Option(
            "--suites",
            metavar="NAME,NAME",
            help="Suites of --data, such as sts,retrieval. "
            "[default: all with files, or those of --table]",
        ),
    ] = None,
    paper: Annotated[
        Literal["sg-bert", "consert", "pairsupcon", "defsent-plus"] | None,
        Option("--paper", help="Add the published tables of this paper."),
    ] = None,
    table: Annotated[
        int | None,
        Option(
            "--table",
            metavar="N",
            min=1,
            help="With --paper: only the table with this number, after the rows.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            metavar="NAME",
            help="Compare all rows with this one, with intervals and p.",
        ),
    ] = None,
    intervals: Annotated[
        bool,
        Option(
            "--intervals",
            help="Add 95 % intervals of the values.",
        ),
    ] = False,
    form: Annotated[
        Literal["text", "markdown", "latex", "json", "mteb"] | None,
        Option(
            "--format",
            help="mteb: a folder of its result files and cards. [default: by the suffix of -o; "
            "else text on a terminal, json otherwise]",
        ),
    ] = None,
    results: Annotated[
        str | None,
        Option(
            "--results",
            metavar="DIR",
            help="Keep the results in this folder, and use those it already has.",
        ),
    ] = None,
    head: Annotated[
        str,
        Option(
            "--head",
            metavar="NAME",
            help="Classifier of senteval: its network, senteval:50:10 with 50 hidden units and 10 "
            "folds; or logreg.",
        ),
    ] = HEAD,
    seed: Annotated[
        str,
        Option(
            "--seed",
            metavar="N|A,B|A..B",
            help="For senteval: seeds of its networks, or of the folds of logreg; their mean is "
            "the value.",
        ),
    ] = SEED,
    train: Annotated[
        list[str] | None,
        Option(
            "--train",
            metavar="FILE[:X]",
            help="Training rows; also report the values without the rows that occur there; with "
            ":0.9, or that have a cosine of at least 0.9 (of static). Repeatable.",
        ),
    ] = None,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    output_path: options.Output = "-",
    force: options.Force = False,
    console: Console,
) -> None:
    """Evaluate checkpoints, beside the tables of papers."""
    # The flags that other flags or arguments require or exclude.
    flags_of_tables = {"--baseline": baseline, "--intervals": intervals, "--train": train}
    flags_of_classifiers = {"--head": head != HEAD, "--seed": seed != SEED}
    flags_of_rows = {
        "--data": data,
        "--pairs": pairs,
        **flags_of_tables,
        "--results": results,
        **flags_of_classifiers,
        "--format mteb": form == "mteb",
        "--precision": precision != "auto",
        "--device": device != "auto",
    }
    needs(flags_of_rows, {"ROW": checkpoints})
    needs({"--field": field}, {"--pairs": pairs})
    needs({"--suites": suites}, {"--data": data})
    needs({"--table": table}, {"--paper": paper})
    refuse_together(
        {**flags_of_tables, **flags_of_classifiers, "--paper": paper, "--force": force},
        {"--format mteb": form == "mteb"},
    )
    from sentkit.reports import tables
    from sentkit.reports.evaluate import (
        Evaluator,
        find_baseline,
        find_models,
        rows_of,
        skipped_rows,
    )
    from sentkit.reports.measure import (
        measure,
        read_training_files,
        warnings_about,
        with_training,
    )
    from sentkit.reports.suites import Settings, find_tests, refuse_idle_flags

    # The published tables, the format, and the rows.
    output = Output(output_path, force)
    table_number = None if table is None else str(table)
    published = tables.tables_of(paper, table_number)
    style = tables.form_of(output.path, form, on_terminal=output.on_terminal)
    rows = rows_of(checkpoints or [])
    classifier, hidden_units, folds = classifier_protocol(head)
    settings = Settings(
        head=classifier,
        hidden=hidden_units,
        folds=folds,
        seeds=parse_seeds(seed),
        jobs=threads_of_command() or 1,
        warn=console.warn,
    )

    if not rows:
        write_published(published, style, output)
        return

    # The test sets, and all paths.
    if not (data or pairs):
        advice = "give a folder of test sets (see --help), or a file of pairs: --pairs NAME=FILE"
        raise UsageError("--data or --pairs is missing", advice=advice)
    baseline_row = None if baseline is None else find_baseline(rows, baseline)
    suites_of_table = []
    if suites is None and paper and table_number:
        suites_of_table = tables.suites_of(paper, table_number)
    tests, unused_paths = find_tests(data, suites, suites_of_table, pairs or [], field or [])
    refuse_idle_flags(tests, [name for name, is_given in flags_of_classifiers.items() if is_given])
    if paper is not None:
        check_tasks(paper, table_number, tests, data)
    training = parse_training_files(train or [])
    check_all_paths(console, rows, tests, output, results, [path for path, _ in training], style)

    # The values of all rows.
    models = find_models(rows, device=device, precision=precision)
    console.warn(*(f"not used: {path}" for path in unused_paths), *tables.unaveraged(tests))
    seen_texts = read_training_files(training, tests)
    progress = TaskProgress(console, "evaluations")
    progress.begin(len(models) * len(tests))
    evaluator = Evaluator(
        settings,
        None if results is None else Path(results),
        warn=console.warn,
        report=lambda rows, tokens: progress.add(tasks=0, rows=rows),
    )
    evaluations, failed = evaluator.evaluate_all(models, tests, console.error, progress.add)
    console.warn(*skipped_rows(evaluations, tests))
    if not evaluations:
        raise AnswerIsNo("all evaluations failed")

    # The output.
    if style == "mteb":
        write_for_mteb(output.path, rows, tests, evaluations, console)
    else:
        measured = measure(rows, tests, evaluations, intervals=intervals, baseline=baseline_row)
        if not measured:
            problem = f"{failed} of {len(models) * len(tests)} evaluations failed"
            raise AnswerIsNo(f"{problem}, and no row has the values of all its checkpoints")
        console.warn(*warnings_about(measured, baseline_row, beside_published=paper is not None))
        if seen_texts is not None:
            measured = with_training(measured, tests, evaluations, seen_texts, evaluator, models)
        records = [*(row.record(baseline_row) for row in measured), *figures_of(published)]
        tables_of_rows = tables.measured_tables(measured, baseline_row, paper, table_number)
        write(tables_of_rows, records, style, output)
    if failed:
        raise AnswerIsNo(f"{failed} of {len(models) * len(tests)} evaluations failed")


def write_published(published: "Sequence[PaperTable]", style: str, output: Output) -> None:
    """Write published tables, without rows of the user."""
    from sentkit.reports import tables

    if not published:
        advice = "give a checkpoint; --paper alone prints published tables"
        raise UsageError("ROW is missing", advice=advice)
    output.check_creatable()
    records = figures_of(published)
    write([tables.published_table(table) for table in published], records, style, output)


def figures_of(published: "Sequence[PaperTable]") -> list[dict[str, Any]]:
    """The records of published tables."""
    return [figure for table in published for figure in table.figures]


def check_tasks(
    paper: str, table: str | None, tests: "Sequence[TestSet]", data: str | None
) -> None:
    """Refuse test sets without a task of the tables."""
    from sentkit.reports.tables import has_task

    if has_task(paper, table, tests):
        return
    problem = f"{data or '--pairs'} has no test set of {paper}"
    if table:
        problem += f", table {table}"
    raise UsageError(problem, advice="remove --paper to print only the values")


def parse_seeds(text: str) -> Sequence[int]:
    seeds = numbers("--seed", text)
    if max(seeds) > LARGEST_SEED:
        raise UsageError(f"--seed {text}: expected numbers up to {LARGEST_SEED}")
    return seeds


def parse_training_files(arguments: Sequence[str]) -> list[tuple[str, float | None]]:
    """The paths and the threshold of each FILE[:X]. A file of the whole name has no threshold."""
    from sentkit.formats.files import exists, expanded

    files: list[tuple[str, float | None]] = []
    for argument in arguments:
        path = argument
        threshold = None
        match = re.fullmatch(r"(.+):(0?\.\d+|1(?:\.0+)?)", argument)
        is_path = exists(Path(argument))
        if match is not None and float(match[2]) > 0 and not is_path:
            path = match[1]
            threshold = float(match[2])
        elif re.search(r":-?\d*\.?\d+$", argument) and not is_path:
            raise UsageError(f"--train {argument}: expected a threshold over 0 and up to 1")
        files += [(file, threshold) for file in expanded([path])]
    return files


def check_all_paths(
    console: Console,
    rows: "Sequence[Row]",
    tests: "Sequence[TestSet]",
    output: Output,
    results: str | None,
    training: Sequence[str],
    style: str,
) -> None:
    """Check the files of training rows, and that no output overwrites an input."""
    from sentkit.formats.files import check_input
    from sentkit.reports.mteb import (
        check_new_folder,
        refuse_equal_names,
        refuse_tests_without_task,
    )

    for path in training:
        check_input(path)
    reads: dict[str, list[str]] = {"ROW": [], "--data": [], "--pairs": [], "--train": [*training]}
    for row in rows:
        reads["ROW"] += [path for path in row.transforms if path is not None]
        for name in row.models:
            paths = model_paths(name) or []
            if isinstance(paths, str):
                paths = [paths]
            reads["ROW"] += paths
    for test in tests:
        reads["--pairs" if test.suite == "pairs" else "--data"] += test.files
    check_paths(console, {"-o": output.path, "--results": results}, reads)
    if style == "mteb":
        check_new_folder(output.path)
        refuse_tests_without_task(tests)
        refuse_equal_names(rows, tests)
    output.check_creatable()


def write_for_mteb(
    folder: str,
    rows: "Sequence[Row]",
    tests: "Sequence[TestSet]",
    results: "Results",
    console: Console,
) -> None:
    """Write the result files and the cards of mteb, and name test sets that have none."""
    from sentkit.reports.mteb import undefined_values, without_task, write_results

    console.warn(*without_task(tests))
    console.warn(*undefined_values(rows, tests, results))
    write_results(folder, rows, tests, results)


def write(
    tables: "Sequence[Table]", records: Iterable[dict[str, Any]], style: str, output: Output
) -> None:
    from sentkit.formats.files import json_line
    from sentkit.reports.tables import rendered

    with output.open() as file:
        if style == "json":
            file.writelines(json_line(record) for record in records)
        else:
            width = terminal_width() if output.on_terminal else sys.maxsize
            file.write(rendered(tables, style, width).encode())
