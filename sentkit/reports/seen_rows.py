"""The rows of test sets that occur in training files, and the test sets without them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sentkit.errors import SentkitError
from sentkit.formats.files import json_line
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import rows_in
from sentkit.metrics.seen import normal_form, texts_of
from sentkit.reports.evaluate import Evaluator, Models
from sentkit.reports.measure import Measured, Measurement, task_of
from sentkit.reports.suites import TestSet

Forms = tuple[str, ...]  # the normal forms of the texts of a row


def with_training(
    measured: Sequence[Measured],
    measurement: Measurement,
    paths: Sequence[str],
    evaluator: Evaluator,
    models: Models,
) -> list[Measured]:
    """Add the number of rows that occur in the training files, and the values without these rows."""

    with TemporaryDirectory(prefix="sentkit-report-") as folder:

        def failed(problem: str, _: str | None) -> None:
            own = problem.replace(f"{folder}/", "")
            evaluator.warn(f"without the rows that occur in --train: {own}")

        found = without_seen(measurement.tests, paths, folder)
        changed = [test for count, test in found if count]
        results, _ = evaluator.evaluate_all(models, changed, failed, lambda: None)
    names = {(test.suite, test.name) for test in changed}
    others = {key: result for key, result in measurement.results.items() if key[2:] not in names}
    cleaned = replace(measurement, results=others | results).measure()
    counts = {task_of(test): count for count, test in found}
    values = {
        (each.row, each.task): each.value for each in cleaned if each.task in counts or each.task[1] == "avg"
    }
    return [
        replace(each, seen=counts.get(each.task), without=values.get((each.row, each.task)))
        for each in measured
    ]


def without_seen(tests: Sequence[TestSet], paths: Sequence[str], folder: str) -> list[tuple[int, TestSet]]:
    """For each test set, the number of its rows that occur in the files, and the test set without them.

    A row occurs if all of its texts do, in any rows. With a test part, only this part counts. Test sets for
    retrieval, and those that cannot be read, are left out. Their files without the rows are in `folder`.
    """
    rows: list[tuple[TestSet, list[Forms]]] = []
    for test in (test for test in tests if test.suite != "retrieval"):
        with suppress(SentkitError):  # the evaluation of this test set reports it
            rows.append((test, [forms for _, forms in rows_of(test)]))
    wanted, seen = {form for _, own in rows for forms in own for form in forms if form}, set[str]()
    for path in paths:
        for texts in Inputs([path], vector_file=rows_in).read(lambda row: texts_of(row, {})):
            seen |= wanted.intersection(map(normal_form, texts))
    found = []
    for test, own in rows:
        count = sum(seen.issuperset(forms) for forms in own)
        if count:
            clean = Path(folder, f"{test.suite}-{test.name}.jsonl")
            with clean.open("wb") as file:
                file.writelines(json_line(row.values) for row, forms in rows_of(test) if not seen >= {*forms})
            parts = dict(test.parts)
            changes = {"parts": parts | {"test": str(clean)}} if "test" in parts else {"path": str(clean)}
            test = replace(test, **changes)
        found.append((count, test))
    return found


def rows_of(test: TestSet) -> Iterator[tuple[Row, Forms]]:
    """The rows that have a value, with the normal forms of their texts; a blank text occurs nowhere."""
    texts = TextParser(test.fields)

    def parse(row: Row) -> tuple[Row, Forms]:
        return row, tuple(normal_form(text) for text in texts(row)[1])

    return Inputs([test.parts.get("test", test.path)], fields=test.fields, vector_file=rows_in).read(parse)
