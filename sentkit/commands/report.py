"""`sentkit report`: values of checkpoints on test sets, beside the tables of papers."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, TaskProgress, terminal_width
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flag_values import numbers
from sentkit.flags import Named, Needs, Range, options
from sentkit.process import threads_of_command

if TYPE_CHECKING:
    from sentkit.reports.evaluate import Row
    from sentkit.reports.suites import TestSet
    from sentkit.reports.tables import Table

LARGEST_SEED = 2**32 - 1
HEAD, SEED = "logreg", "1111"  # defaults


def report(
    *,
    arguments: Annotated[list[str] | None, Named("[ROW]...")] = None,
    data: Annotated[str | None, Needs("ROW")] = None,
    pairs: Annotated[list[str] | None, Needs("ROW")] = None,
    field: Annotated[list[str] | None, Needs("--pairs")] = None,
    suites: Annotated[str | None, Needs("--data")] = None,
    paper: Literal["sg-bert", "consert", "pairsupcon", "defsent-plus"] | None = None,
    table: Annotated[int | None, Range(min=1), Needs("--paper")] = None,
    baseline: Annotated[str | None, Needs("ROW")] = None,
    intervals: Annotated[bool, Needs("ROW")] = False,
    form: Annotated[Literal["text", "markdown", "latex", "json"] | None, Named("--format")] = None,
    results: Annotated[str | None, Needs("ROW")] = None,
    head: Annotated[str, Needs("ROW")] = HEAD,
    seed: Annotated[str, Needs("ROW")] = SEED,
    train: Annotated[list[str] | None, Needs("ROW")] = None,
    machine: options.MachineFlags,
    output: options.OutputFlags,
    console: Console,
) -> None:
    """Evaluate checkpoints, beside the tables of papers.

    Flags:
      [ROW]...: [NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]: a row; CHECKPOINT as for -m, a pattern, or a folder
          of seeds.
      --format: [default: by the suffix of -o; else text on a terminal, json otherwise]
      --data DIR: Folder of test sets; see below.
      --pairs NAME=FILE: A file of pairs (text_a, text_b, score); repeatable.
      --field OURS=THEIRS: For --pairs: read the field THEIRS as OURS.
      --suites NAME,NAME: sts, sts-multilingual, clustering, senteval, few-shot or retrieval. [default: all
          with files, or those of --table]
      --paper: Add the published tables of this paper.
      --table N: With --paper: only the table with this number, after the rows.
      --train FILE[:X]: Training rows; also report the values without the rows that occur there; with :0.9, or
          that have a cosine of at least 0.9 (of static). Repeatable.
      --baseline NAME: For pairs with scores, and retrieval: compare all rows with this one, with intervals
          and p.
      --intervals: For pairs with scores, and retrieval: add 95 % intervals of the values.
      --results DIR: Keep the results in this folder, and use those it already has.
      --head NAME: Classifier of senteval: logreg, or its network: senteval; senteval:50 has 50 hidden units.
      --seed N|A,B|A..B: For senteval: seeds of folds and classifiers; their mean is the value.
    """
    from sentkit.reports import tables
    from sentkit.reports.evaluate import Evaluator, find_baseline, find_models, rows_of
    from sentkit.reports.measure import measure, other_readouts, with_training
    from sentkit.reports.suites import Settings, find_tests, ignored_flags

    number = None if table is None else str(table)
    published = tables.tables_of(paper, number)
    style = tables.form_of(output.path, form, on_terminal=output.on_terminal)
    rows = rows_of(arguments or [])
    settings = Settings(*options.head_of(head), seeds_of(seed), threads_of_command() or 1, console.warn)
    if not rows:
        if paper is None:
            advice = "give a checkpoint; --paper alone prints published tables"
            raise UsageError("ROW is missing", advice=advice)
        output.check_creatable()
        records = (figure for each in published for figure in each.figures)
        write([*map(tables.published_table, published)], records, style, output)
        return
    if not (data or pairs):
        advice = "give a folder of test sets (see --help), or a file of pairs: --pairs NAME=FILE"
        raise UsageError("--data or --pairs is missing", advice=advice)
    compared = None if baseline is None else find_baseline(rows, baseline)
    wanted = tables.suites_of(paper, number) if suites is None and paper and number else []
    tests, unused = find_tests(data, suites, wanted, pairs or [], field or [])
    ignored = ignored_flags(
        tests,
        of_intervals=given({"--baseline": baseline is not None, "--intervals": intervals}),
        of_classifiers=given({"--head": head != HEAD, "--seed": seed != SEED}),
    )
    if style != "json" and paper is not None:
        check_tasks(paper, number, tests, data)
    training = training_files(train or [])
    check_paths(console, rows, tests, output, results, [path for path, _ in training])
    models = find_models(rows, **vars(machine))
    console.warn(*ignored, *(f"not used: {path}" for path in unused), *tables.unaveraged(tests))
    progress = TaskProgress(console, "evaluations")
    progress.begin(len(models) * len(tests))
    evaluator = Evaluator(settings, None if results is None else Path(results))
    evaluator.report = lambda rows, tokens: progress.add(0, rows)
    found, failed = evaluator.evaluate_all(models, tests, console.error, progress.add)
    if not found:
        raise AnswerIsNo("all evaluations failed")
    measured = measure(rows, tests, found, intervals=intervals, baseline=compared)
    console.warn(*other_readouts(measured, compared))
    if training:
        measured = with_training(measured, tests, found, training, evaluator, models)
    records = (each.record(compared) for each in measured)
    write(tables.measured_tables(measured, compared, paper, number), records, style, output)
    if failed:
        raise AnswerIsNo(f"{failed} of {len(models) * len(tests)} evaluations failed")


def given(flags: Mapping[str, bool]) -> list[str]:
    return [name for name, is_given in flags.items() if is_given]


def check_tasks(paper: str, number: str | None, tests: "Sequence[TestSet]", data: str | None) -> None:
    """Refuse test sets without a task of the tables."""
    from sentkit.reports.tables import has_task

    if not has_task(paper, number, tests):
        problem = f"{data} has no test set of {paper}" + (f", table {number}" if number else "")
        raise UsageError(problem, advice="--format json prints the values without a table")


def seeds_of(text: str) -> Sequence[int]:
    found = numbers("--seed", text)
    if max(found) > LARGEST_SEED:
        raise UsageError(f"--seed {text}: expected numbers up to {LARGEST_SEED}")
    return found


def training_files(arguments: Sequence[str]) -> list[tuple[str, float | None]]:
    """The paths and the threshold of each FILE[:X]."""
    from sentkit.formats.files import expanded

    files: list[tuple[str, float | None]] = []
    for argument in arguments:
        found = re.fullmatch(r"(.+):(0?\.\d+|1(?:\.0+)?)", argument)
        path, least = (argument, None) if found is None else (found[1], float(found[2]))
        files += [(each, least) for each in expanded([path])]
    return files


def check_paths(
    console: Console,
    rows: "Sequence[Row]",
    tests: "Sequence[TestSet]",
    output: options.OutputFlags,
    results: str | None,
    training: Sequence[str],
) -> None:
    from sentkit.formats.files import check_input

    for path in training:  # they are read last
        check_input(path)
    transforms = [path for row in rows for path in row.transforms if path is not None]
    reads = {"ROW": transforms, "--data": [], "--pairs": [], "--train": [*training]}
    for test in tests:
        reads["--pairs" if test.suite == "pairs" else "--data"] += test.files
    for name in (name for row in rows for name in row.models):
        paths = options.model_paths(name)
        reads["ROW"] += [paths] if isinstance(paths, str) else paths or []
    options.check_paths(console, {"-o": output.path, "--results": results}, reads)
    output.check_creatable()


def write(
    tables: "Sequence[Table]", records: Iterable[dict[str, Any]], form: str, output: options.OutputFlags
) -> None:
    from sentkit.formats.files import json_line
    from sentkit.reports.tables import rendered

    with output.open() as out:
        if form == "json":
            for record in records:
                out.write(json_line(record))
        else:
            width = terminal_width() if output.on_terminal else sys.maxsize
            out.write(rendered(tables, form, width).encode())
