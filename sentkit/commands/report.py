"""`sentkit report`: values of checkpoints on test sets, beside the tables of papers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, TaskProgress, terminal_width
from sentkit.errors import AnswerIsNo, SentkitError, UsageError
from sentkit.flags import options
from sentkit.flags.rules import Named, Needs, Range
from sentkit.process import threads_of_command

if TYPE_CHECKING:
    from sentkit.model import Model
    from sentkit.model.reading import ReadingOptions
    from sentkit.reports.evaluate import Evaluator, Result
    from sentkit.reports.rows import Row
    from sentkit.reports.suites import PaperTable, TestSet
    from sentkit.reports.tables import Table

# By label of the row and place of the checkpoint: a function from the name of a prompt, or None, to the model
Models = dict[tuple[str, int], Callable[[str | None], "Model"]]
Results = dict[tuple[str, int, str, str], "Result"]


def report(
    *,
    arguments: Annotated[list[str] | None, Named("[ROW]...")] = None,
    data: str | None = None,
    pairs: list[str] | None = None,
    field: Annotated[list[str] | None, Needs("--pairs")] = None,
    suites: Annotated[str | None, Needs("--data")] = None,
    paper: Literal["sg-bert", "consert", "pairsupcon", "defsent-plus"] | None = None,
    table: Annotated[int | None, Range(min=1), Needs("--paper")] = None,
    baseline: str | None = None,
    intervals: bool = False,
    form: Annotated[Literal["text", "markdown", "latex", "json"] | None, Named("--format")] = None,
    results: str | None = None,
    head: str = "logreg",
    machine: options.MachineFlags,
    output: options.OutputFlags,
    run: options.RunFlags,
) -> None:
    """Evaluate checkpoints, beside the tables of papers.

    \b
    Examples:
      sentkit report nano words:binary --pairs titles=pairs.jsonl
      sentkit report nano first=nano#cls --data data --baseline nano
      sentkit report nano --data data --paper sg-bert --table 1
      sentkit report --paper sg-bert --table 1

    Most used: [ROW]... --data --pairs --paper --table --baseline --format -o

    A ROW is one line of the table. Its checkpoints are the seeds of one method, and
    the line shows their mean and, in parentheses, their standard deviation (of a
    sample). CHECKPOINT is a folder or a name as for "encode -m"; a pattern such as
    'runs/seed-*'; or a folder with the folders seed-0, seed-1 and so on. Arguments with
    the same NAME are seeds of one row, and so are runs/seed-0 and runs/seed-1, which
    have the name runs. #READOUT selects a readout for this row, and @TRANSFORM a file of
    "whiten fit" for its vectors, such as a flow.

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
      --table N: With --paper: append the rows to the table with this number.
      --baseline NAME: Compare all rows with this one, with intervals and p.
      --intervals: For pairs with scores: add 95 % intervals of the values.
      --results DIR: Keep the results in this folder, and use those it already has.
      --head NAME: Classifier of senteval: logreg, or its network: senteval; senteval:50 has 50 hidden units.
    """
    from sentkit.model.reading import ReadingOptions
    from sentkit.reports import tables
    from sentkit.reports.evaluate import Evaluator
    from sentkit.reports.measure import Measurement
    from sentkit.reports.rows import find_baseline, rows_of

    console = run.console("report")
    number = None if table is None else str(table)
    published = find_published(paper, number)
    style = tables.form_of(output.path, form, on_terminal=output.on_terminal)
    rows = rows_of(arguments or [])
    given: dict[str, Any] = {"--data": data, "--pairs": pairs, "--field": field, "--suites": suites}
    given |= {"--baseline": baseline, "--results": results, "--intervals": intervals or None}
    given["--head"] = None if head == "logreg" else head
    check_flags(rows, paper, given)
    classifier, hidden = options.head_of(head)
    if not rows:
        output.check_creatable()
        records = (figure for each in published for figure in each.figures)
        write([*map(tables.published_table, published)], records, style, output)
        return
    compared = None if baseline is None else find_baseline(rows, baseline)
    wanted = parse_suites(suites, paper, number)
    tests, unused = find_tests(data, wanted, pairs or [], field or [])
    if style != "json" and paper is not None and not tables.has_task(paper, number, tests):
        problem = f"{data} has no test set of {paper}" + (f", table {number}" if number else "")
        raise UsageError(problem, advice="--format json prints the values without a table")
    check_paths(console, rows, tests, output, results)
    models = find_models(rows, ReadingOptions(), machine)
    console.warn(*warnings(rows, tests, unused))
    kept, jobs = None if results is None else Path(results), threads_of_command() or 1
    evaluator = Evaluator(classifier, hidden, jobs, kept, console.warn)
    progress = TaskProgress(console, "evaluations")
    found, failed = evaluate_all(models, tests, evaluator, progress, console)
    if not found:
        raise AnswerIsNo("all evaluations failed")
    measured = Measurement(rows, tests, found, intervals, compared).measure()
    shown = tables.measured_tables(measured, compared, paper, number)
    write(shown, (each.record(compared) for each in measured), style, output)
    if failed:
        raise AnswerIsNo(f"{failed} of {len(models) * len(tests)} evaluations failed")


def find_published(paper: str | None, number: str | None) -> "Sequence[PaperTable]":
    from sentkit.reports.tables import selected

    if paper is None:
        return []
    if tables := selected(paper, number):
        return tables
    raise UsageError(f"--table {number}: {paper} has no figures in a table with this number")


def check_flags(rows: "Sequence[Row]", paper: str | None, given: dict[str, Any]) -> None:
    for flag, value in given.items():
        if not rows and value:
            raise UsageError(f"{flag} needs a ROW", advice="for example nano")
    if not rows and paper is None:
        raise UsageError("ROW is missing", advice="give a checkpoint; --paper alone prints published tables")
    if rows and not given["--data"] and not given["--pairs"]:
        advice = (
            "give a folder of test sets (see sentkit report --help), or a file of pairs: --pairs NAME=FILE"
        )
        raise UsageError("--data or --pairs is missing", advice=advice)


def find_tests(
    data: str | None, suites: Sequence[str], pairs: Sequence[str], field: Sequence[str]
) -> "tuple[list[TestSet], list[str]]":
    """The test sets of --pairs and --data, and the files of the folder that are not used."""
    from sentkit.formats.rows.rows import parse_fields
    from sentkit.reports.suites import find_test_sets, sets_of_pairs

    own = sets_of_pairs(pairs, parse_fields(field, ("text_a", "text_b", "score")))
    found, unused = ([], []) if data is None else find_test_sets(data, suites)
    return [*found, *own], unused


def warnings(rows: "Sequence[Row]", tests: "Sequence[TestSet]", unused: Sequence[str]) -> Iterator[str]:
    """Warnings about files with other names, averages without all tasks, and seeds."""
    from sentkit.reports.rows import seeds_warning
    from sentkit.reports.suites import missing_tasks

    yield from (f"not used: {path}" for path in unused)
    for suite in dict.fromkeys(test.suite for test in tests):
        missing = missing_tasks(suite, {"avg", *(test.task for test in tests if test.suite == suite)})
        if missing:
            yield f"{suite} has no average: no test set of {', '.join(missing)}"
    if warning := seeds_warning(rows):
        yield warning


def check_paths(
    console: Console,
    rows: "Sequence[Row]",
    tests: "Sequence[TestSet]",
    output: options.OutputFlags,
    results: str | None,
) -> None:
    transforms = [path for row in rows for path in row.transforms if path is not None]
    reads = {"ROW": transforms, "--data": [], "--pairs": []}
    for test in tests:
        reads["--pairs" if test.suite == "pairs" else "--data"] += test.files
    for name in (name for row in rows for name in row.models):
        paths = options.model_paths(name)
        reads["ROW"] += [paths] if isinstance(paths, str) else paths or []
    options.check_paths(console, {"-o": output.path, "--results": results}, reads)
    output.check_creatable()


def find_model(
    name: str, reading: "ReadingOptions", machine: options.MachineFlags, prompt: str | None
) -> "Model":
    from sentkit.model import find_encoder

    return find_encoder(name, replace(reading, prompt_name=prompt), **vars(machine))


def find_models(rows: "Sequence[Row]", reading: "ReadingOptions", machine: options.MachineFlags) -> Models:
    """Functions that find the models of all checkpoints, which are found once as a check."""
    models: Models = {}
    for row in rows:
        for place, (name, transform) in enumerate(zip(row.models, row.transforms, strict=True)):
            own = replace(reading, readout=row.readout, transform=transform)
            find = partial(find_model, name, own, machine)
            model = find(None)
            if len(model.readouts) > 1:
                raise UsageError(f'row "{row.label}": expected one readout, found {len(model.readouts)}')
            models[row.label, place] = find
    return models


def parse_suites(text: str | None, paper: str | None, number: str | None) -> Sequence[str]:
    """The names of --suites; without it those of --table, else all."""
    from sentkit.reports.suites import IN_FOLDERS
    from sentkit.reports.tables import suites_of

    if text is None:
        return IN_FOLDERS if paper is None or number is None else suites_of(paper, number) or IN_FOLDERS
    names = text.split(",")
    for name in names:
        if name not in IN_FOLDERS:
            raise UsageError(f'--suites "{name}"', advice=f"available: {', '.join(IN_FOLDERS)}")
    return names


def evaluate_all(
    models: Models,
    tests: "Sequence[TestSet]",
    evaluator: "Evaluator",
    progress: TaskProgress,
    console: Console,
) -> tuple[Results, int]:
    """The results of all checkpoints, and the number of evaluations that failed."""
    found: Results = {}
    failed = 0
    progress.begin(len(models) * len(tests))
    for (label, place), find in models.items():
        model = find(None)
        whole = model.tokenizer.whole
        encoder = None if whole else model.encoder()
        for test in tests:
            try:
                result = evaluator.evaluate(encoder, find(None) if whole else model, test, find)
                found[label, place, test.suite, test.name] = result
            except SentkitError as error:
                console.error(f'row "{label}", {test.suite}: {error}', error.advice)
                failed += 1
            progress.add()
    progress.done()
    return found, failed


def write(
    tables: "Sequence[Table]",
    records: Iterable[dict[str, Any]],
    form: str,
    output: options.OutputFlags,
) -> None:
    from sentkit.formats.json_files import json_line
    from sentkit.reports.tables import rendered

    with output.open() as out:
        if form == "json":
            for record in records:
                out.write(json_line(record))
        else:
            out.write(rendered(tables, form, terminal_width()).encode())
