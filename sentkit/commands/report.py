"""`sentkit report`: the tables of the papers, with the values of checkpoints."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sentkit.console import Console, TaskProgress, terminal_width
from sentkit.errors import AnswerIsNo, SentkitError, UsageError
from sentkit.flags import options
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.model import Model
    from sentkit.model.reading import ReadingOptions
    from sentkit.reports.evaluate import Evaluator, Result
    from sentkit.reports.rows import Row
    from sentkit.reports.suites import TestSet
    from sentkit.reports.tables import Table

Models = dict[tuple[str, int], Callable[[], "Model"]]  # by label of the row and place of the checkpoint
Results = dict[tuple[str, int, str, str], "Result"]


def report(
    *,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ROW]...",
            help="[NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]: a row; CHECKPOINT as for -m, a pattern, or a "
            "folder of seeds.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of test sets; see below. Required with ROW.")
    ] = None,
    suites: Annotated[
        str | None,
        typer.Option(
            "--suites",
            metavar="NAME,NAME",
            help="sts, sts-multilingual, clustering, senteval or few-shot. [default: all with files]",
        ),
    ] = None,
    paper: Annotated[
        Literal["sg-bert", "consert", "pairsupcon", "defsent-plus"] | None,
        typer.Option(help="Only the tables of this paper."),
    ] = None,
    table: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --paper: only the table with this number.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compare all rows with this one, with intervals and p."),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="For STS: add 95 % intervals of the values.")
    ] = False,
    form: Annotated[
        Literal["text", "markdown", "latex", "html", "json"] | None,
        typer.Option(
            "--format", help="[default: by the suffix of -o; else text on a terminal, json otherwise]"
        ),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep the results in this folder, and use those it already has."),
    ] = None,
    readout: options.Readout = None,
    max_length: options.MaxLength = None,
    head: Annotated[
        Literal["logreg", "senteval"],
        typer.Option(help="Classifier of senteval: logistic regression, or network of SentEval."),
    ] = "logreg",
    nhid: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="For --head senteval: hidden units; SG-BERT has 50. [default: 0]"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of parallel fits of senteval.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="With --intervals or --baseline: random seed. [default: 0]"),
    ] = None,
    machine: options.MachineFlags,
    batch_tokens: options.BatchTokens = None,
    output: options.OutputFlags,
    run: options.TaskFlags,
) -> None:
    """Print the tables of papers with the values of checkpoints.

    \b
    Examples:
      sentkit report --paper sg-bert --table 1
      sentkit report nano --data data
      sentkit report first=nano second=nano#cls --data data --baseline second
      sentkit report nano --data data --suites sts --format latex

    A ROW is one line of each table. Its checkpoints are the seeds of one method, and
    the line shows their mean and, in parentheses, their standard deviation (of a
    sample). CHECKPOINT is a folder or a name as for "encode -m"; a pattern such as
    'runs/seed-*'; or a folder with the folders seed-0, seed-1 and so on. Arguments with
    the same NAME are seeds of one row, and so are runs/seed-0 and runs/seed-1, which
    have the name runs. #READOUT selects a readout for this row, and @TRANSFORM a file of
    "whiten fit" for its vectors, such as a flow.
    """
    limit_threads(machine.threads)
    from sentkit.model.reading import ReadingOptions
    from sentkit.reports import rows as row_arguments
    from sentkit.reports import tables
    from sentkit.reports.evaluate import Evaluator, Protocol
    from sentkit.reports.measure import Measurement
    from sentkit.reports.rendering import form_of
    from sentkit.reports.suites import find_test_sets

    console = run.console("report")
    if table is not None and paper is None:
        raise UsageError("--table needs --paper")
    number = None if table is None else str(table)
    if not tables.selected(paper, number):
        raise UsageError(f"--table {table}: {paper} has no figures in a table with this number")
    style = form_of(output.path, form, on_terminal=output.on_terminal)
    rows = row_arguments.rows_of(arguments or [], readout)
    given: dict[str, Any] = {"--data": data, "--suites": suites, "--baseline": baseline, "--results": results}
    given |= {"--intervals": intervals or None, "--readout": readout, "--max-length": max_length}
    check_flags(rows, given | {"--head": None if head == "logreg" else head, "--nhid": nhid, "--seed": seed})
    if not rows:
        output.check_creatable()
        write(tables.published_tables(paper, number), published_records(paper, number), style, output)
        return
    compared = None if baseline is None else row_arguments.find_baseline(rows, baseline)
    tests, unused = find_test_sets(str(data), parse_suites(suites))
    if style != "json" and paper is not None and not tables.has_task(paper, number, tests):
        problem = f"{data} has no test set of {paper}" + (f", table {number}" if number else "")
        raise UsageError(problem, advice="--format json prints the values without a table")
    check_paths(console, rows, tests, output, results)
    models = find_models(rows, ReadingOptions(max_length=max_length), machine)
    for warning in warnings(rows, tests, unused):
        console.warn(warning)
    kept = None if results is None else Path(results)
    evaluator = Evaluator(Protocol(head, nhid or 0, jobs), kept, console.warn, batch_tokens)
    progress = TaskProgress(console, run.progress, "evaluations")
    found, failed = evaluate_all(models, tests, evaluator, progress, console)
    measured = Measurement(rows, tests, found, seed or 0, intervals, compared).measure()
    shown = tables.measured_tables(measured, compared, paper, number)
    write(shown, (each.record(compared) for each in measured), style, output)
    if failed:
        raise AnswerIsNo(f"{failed} of {len(models) * len(tests)} evaluations failed")


def check_flags(rows: "Sequence[Row]", given: dict[str, Any]) -> None:
    for flag, value in given.items():
        if not rows and value is not None:
            raise UsageError(f"{flag} needs a ROW", advice="for example nano")
    if rows and given["--data"] is None:
        raise UsageError("--data is missing", advice="give a folder of test sets; see sentkit report --help")
    if given["--nhid"] is not None and given["--head"] is None:
        raise UsageError("--nhid needs --head senteval")
    if given["--seed"] is not None and given["--intervals"] is None and given["--baseline"] is None:
        raise UsageError("--seed needs --intervals or --baseline")


def warnings(rows: "Sequence[Row]", tests: "Sequence[TestSet]", unused: Sequence[str]) -> Iterator[str]:
    """Warnings about files with other names, averages without all tasks, and seeds."""
    from sentkit.reports.published import missing_tasks
    from sentkit.reports.rows import seeds_warning

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
    reads = {"ROW": transforms, "--data": [path for test in tests for path in test.files]}
    for name in (name for row in rows for name in row.models):
        paths = options.model_paths(name)
        reads["ROW"] += [paths] if isinstance(paths, str) else paths or []
    options.check_paths(console, {"-o": output.path, "--results": results}, reads)
    output.check_creatable()


def find_models(rows: "Sequence[Row]", reading: "ReadingOptions", machine: options.MachineFlags) -> Models:
    """Functions that find the models of all checkpoints, which are found once as a check."""
    from sentkit.model import find_encoder

    models: Models = {}
    for row in rows:
        for place, (name, transform) in enumerate(zip(row.models, row.transforms, strict=True)):
            own = replace(reading, readout=row.readout, transform=transform)
            find = partial(find_encoder, name, own, device=machine.device, precision=machine.precision)
            model = find()
            if len(model.readouts) > 1:
                raise UsageError(f'row "{row.label}": expected one readout, found {len(model.readouts)}')
            models[row.label, place] = find
    return models


def parse_suites(text: str | None) -> list[str]:
    from sentkit.reports.suites import SUITES

    names = list(SUITES) if text is None else text.split(",")
    for name in names:
        if name not in SUITES:
            raise UsageError(f'--suites "{name}"', advice=f"available: {', '.join(SUITES)}")
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
        model = find()
        whole = model.tokenizer.whole
        encoder = None if whole else model.encoder()
        for test in tests:
            try:
                result = evaluator.evaluate(encoder, find() if whole else model, test)
                found[label, place, test.suite, test.name] = result
            except SentkitError as error:
                console.warn(f'row "{label}", {test.suite}: {error}')
                failed += 1
            progress.add()
    progress.done()
    return found, failed


def published_records(paper: str | None, number: str | None) -> "list[dict[str, Any]]":
    from sentkit.reports.tables import selected

    return [figure for table in selected(paper, number) for figure in table.figures]


def write(
    tables: "Sequence[Table]",
    records: Iterable[dict[str, Any]],
    form: str,
    output: options.OutputFlags,
) -> None:
    from sentkit.formats.json_files import json_line
    from sentkit.reports import rendering

    with output.open() as out:
        if form == "json":
            for record in records:
                out.write(json_line(record))
        elif form == "text" and output.on_terminal:
            out.write(rendering.text(tables, terminal_width()).encode())
        else:
            out.write(rendering.RENDERINGS[form](tables).encode())
