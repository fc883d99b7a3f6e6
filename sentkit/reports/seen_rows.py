"""The rows of test sets that occur in training files, or nearly do, and the test sets without them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import SentkitError
from sentkit.formats.files import json_line
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import rows_in
from sentkit.metrics.retrieval import RunReader, read_qrels
from sentkit.metrics.seen import normal_form, texts_of
from sentkit.model import find_encoder
from sentkit.model.encoding import Tally
from sentkit.model.query_encoder import encode_list, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.reports.evaluate import Evaluator, Models
from sentkit.reports.measure import Measured, Measurement, task_of
from sentkit.reports.suites import TestSet

Forms = Mapping[str, str]  # normal form of a text -> text
NEAR_TEXTS = 256  # training texts to compare at once


def with_training(
    measured: Sequence[Measured],
    measurement: Measurement,
    files: Sequence[tuple[str, float | None]],
    evaluator: Evaluator,
    models: Models,
) -> list[Measured]:
    """Add the number of rows that occur in the training files, and the values without these rows.

    A file with a threshold also has all texts whose cosine with one of its texts is not below the threshold.
    """

    with TemporaryDirectory(prefix="sentkit-report-") as folder:

        def failed(problem: str, _: str | None) -> None:
            own = problem.replace(f"{folder}/", "")
            evaluator.warn(f"without the rows that occur in --train: {own}")

        found = without_seen(measurement.tests, files, folder)
        changed = [test for _, near, test in found if near]
        results, _ = evaluator.evaluate_all(models, changed, failed, lambda: None)
    names = {(test.suite, test.name) for test in changed}
    others = {key: result for key, result in measurement.results.items() if key[2:] not in names}
    cleaned = replace(measurement, results=others | results).measure()
    counts = {task_of(test): (seen, near) for seen, near, test in found}
    values = {
        (each.row, each.task): each.value for each in cleaned if each.task in counts or each.task[1] == "avg"
    }
    with_near = any(least is not None for _, least in files)
    added = []
    for each in measured:
        seen, near = counts.get(each.task, (None, None))
        without = values.get((each.row, each.task))
        added.append(replace(each, seen=seen, near=near if with_near else None, without=without))
    return added


def without_seen(
    tests: Sequence[TestSet], files: Sequence[tuple[str, float | None]], folder: str
) -> list[tuple[int, int, TestSet]]:
    """For each test set, how many of its rows occur in the files, also nearly, and the set without these.

    A row occurs if all of its texts do, in any rows. With a test part, only this part counts, and of
    retrieval only the queries. Test sets that cannot be read are left out. `folder` gets the changed files.
    """
    rows: list[tuple[TestSet, list[Forms]]] = []
    for test in tests:
        with suppress(SentkitError):  # the evaluation of this test set reports it
            rows.append((test, [forms for _, forms in rows_of(test)]))
    wanted = {form: text for _, own in rows for forms in own for form, text in forms.items() if form}
    seen, near = set[str](), set[str]()
    for path, least in files:
        for texts in Inputs([path], vector_file=rows_in).read(lambda row: texts_of(row, {})):
            seen.update(form for form in map(normal_form, texts) if form in wanted)
        if least is not None:
            near |= near_texts(path, wanted, least)
    near |= seen
    found = []
    for test, own in rows:
        count = sum(near.issuperset(forms) for forms in own)
        if count:
            clean = Path(folder, f"{test.suite}-{test.name}.jsonl")
            with clean.open("wb") as file:
                for records, forms in rows_of(test):
                    if not near.issuperset(forms):
                        file.writelines(map(json_line, records))
            part = next((part for part in ("qrels", "test") if part in test.parts), None)
            parts = {**test.parts, part: str(clean)} if part else test.parts
            test = replace(test, path=test.path if part else str(clean), parts=parts)
        found.append((sum(seen.issuperset(forms) for forms in own), count, test))
    return found


def near_texts(path: str, wanted: Forms, least: float) -> set[str]:
    """The forms whose texts have a cosine of at least `least` with a text of the file, by static."""
    model = find_encoder("static", ReadingOptions(normalize=True))
    encoder, forms = model.encoder(), np.array([*wanted], object)

    def encode(texts: Sequence[str]) -> Float32:
        done = encode_list(prepare_list(texts, model.tokenizer), encoder, Tally())
        return np.concatenate([group.vectors[0][:, 0] for group in done])

    found = np.zeros(len(wanted), bool)
    ours = encode([*wanted.values()]).T if wanted else None
    rows = Inputs([path], vector_file=rows_in).read(lambda row: texts_of(row, {}))
    texts = chain.from_iterable(rows)
    while ours is not None and (block := [*islice(texts, NEAR_TEXTS)]):
        found |= (encode(block) @ ours >= least).any(axis=0)
    return {*forms[found]}


def rows_of(test: TestSet) -> Iterator[tuple[list[dict[str, Any]], Forms]]:
    """Rows that have a value, or judgements of queries, each with its texts; a blank one occurs nowhere."""
    texts = TextParser(test.fields)

    def parse(row: Row) -> tuple[Row, Forms]:
        return row, {normal_form(text): text for text in texts(row)[1]}

    part, qrels = ("queries" if test.suite == "retrieval" else "test"), test.parts.get("qrels", "")
    inputs = Inputs([test.parts.get(part, test.path)], fields=test.fields, vector_file=rows_in)
    judged = read_qrels(Inputs([qrels]), qrels) if qrels else {}
    reader = RunReader(inputs, judged)
    for row, forms in inputs.read(parse):
        if not qrels:
            yield [dict(row.values)], forms
        elif relevant := judged.get(query := reader.id_of(row, "query")):
            pairs = relevant.items()
            yield [{"query-id": query, "corpus-id": each, "score": score} for each, score in pairs], forms
