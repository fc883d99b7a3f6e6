"""Results of checkpoints in the form of mteb: a file for each task, and the model-index of a card.

Only tasks with the protocol of mteb have one: the correlations of pairs with scores, and nDCG@10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sentkit.errors import AnswerIsNo, CannotCreateError, UsageError
from sentkit.formats.outputs.temporary import private_folder, publish_folder
from sentkit.formats.vectors.fingerprint import name_for_label
from sentkit.metrics.statistics import pearson, spearman
from sentkit.reports.evaluate import Results, Row
from sentkit.reports.suites import Result, TestSet

REVISION = "local"  # of the data: they are files of the user, not a revision of the hub
NO_REVISION = "no_revision_available"  # of the model; the name is that of mteb
ENGLISH = "eng-Latn"
DEFAULT = "default"  # the subset of a task in one language
STS = "STS"
RETRIEVAL = "Retrieval"
MAIN_SCORES = {STS: "cosine_spearman", RETRIEVAL: "ndcg_at_10"}


@dataclass(frozen=True, slots=True)
class MtebTask:
    """A task of mteb, or a task of the user in its form, and one of its subsets."""

    name: str
    kind: str
    dataset: str  # on the hub
    subset: str = DEFAULT
    language: str = ENGLISH

    @property
    def main_score(self) -> str:
        return MAIN_SCORES[self.kind]


STS17 = "mteb/sts17-crosslingual-sts"
TASKS = {
    **{f"sts{year}": MtebTask(f"STS{year}", STS, f"mteb/sts{year}-sts") for year in range(12, 17)},
    "stsb": MtebTask("STSBenchmark", STS, "mteb/stsbenchmark-sts"),
    "sickr": MtebTask("SICK-R", STS, "mteb/sickr-sts"),
    "sts17_track1_arar": MtebTask("STS17", STS, STS17, "ar-ar", "ara-Arab"),
    "sts17_track3_eses": MtebTask("STS17", STS, STS17, "es-es", "spa-Latn"),
    "sts17_track5_enen": MtebTask("STS17", STS, STS17, "en-en"),
}


def mteb_task(test: TestSet) -> MtebTask | None:
    """The task of a test set; None if mteb has another protocol for it, or not this set."""
    if test.suite in ("sts", "sts-multilingual"):
        return TASKS.get(test.name)
    if test.suite == "pairs":
        return MtebTask(test.name, STS, REVISION)
    if test.suite == "retrieval":
        return MtebTask(test.name, RETRIEVAL, REVISION)
    return None


def without_task(tests: Sequence[TestSet]) -> Iterator[str]:
    """Warnings about test sets that have no task."""
    for test in tests:
        if mteb_task(test) is None:
            problem = "mteb has another protocol for it, or no such task"
            yield f"{test.name} is not written: {problem}; see examples/mteb_task.py"


def refuse_tests_without_task(tests: Sequence[TestSet]) -> None:
    """Refuse test sets of which none has a task, before any work."""
    if all(mteb_task(test) is None for test in tests):
        names = ", ".join(test.name for test in tests)
        problem = f"--format mteb: no test set has a task of mteb: {names}"
        raise UsageError(problem, advice="examples/mteb_task.py runs tasks of mteb itself")


def undefined_values(
    rows: Sequence[Row], tests: Sequence[TestSet], results: Results
) -> Iterator[str]:
    """Warnings about results without a value, such as a correlation of equal cosines."""
    for row in rows:
        for test in tests:
            if mteb_task(test) is None:
                continue
            for result in results.get((row.label, test.suite, test.name), []):
                if result.value is None:
                    yield f'row "{row.label}": {test.name} is not written: its value is undefined'


def scores_of(result: Result) -> dict[str, float]:
    """The scores of a result by their names in mteb, from 0 to 1."""
    if result.similarities is not None and result.gold is not None:
        return {
            "cosine_pearson": pearson(result.similarities, result.gold),
            "cosine_spearman": spearman(result.similarities, result.gold),
        }
    assert result.values is not None, "a retrieval has a value for each query"
    return {"ndcg_at_10": float(np.mean(result.values)) / 100.0}


def task_record(task: MtebTask, subsets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of a result file, which `TaskResult.from_disk` of mteb reads."""
    return {
        "dataset_revision": REVISION,
        "task_name": task.name,
        "mteb_version": None,
        "scores": {"test": list(subsets)},
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }


def subset_record(task: MtebTask, scores: dict[str, float]) -> dict[str, Any]:
    return {
        **scores,
        "main_score": scores[task.main_score],
        "hf_subset": task.subset,
        "languages": [task.language],
    }


def index_entry(task: MtebTask, scores: dict[str, float]) -> dict[str, Any]:
    """A result of the model-index of a card; the values are x 100, as in the cards of mteb."""
    metrics = [
        {"type": name, "value": round(100.0 * value, 4)}
        for name, value in {**scores, "main_score": scores[task.main_score]}.items()
    ]
    dataset = {
        "type": task.dataset,
        "name": f"MTEB {task.name}",
        "config": task.subset,
        "split": "test",
        "revision": REVISION,
    }
    return {"task": {"type": task.kind}, "dataset": dataset, "metrics": metrics}


def model_card(name: str, entries: Sequence[dict[str, Any]]) -> bytes:
    """The first lines of a README.md. Each result is JSON, which is also YAML."""
    lines = [b"---", b"model-index:", b"- name: " + orjson.dumps(name), b"  results:"]
    lines += [b"  - " + orjson.dumps(entry) for entry in entries]
    return b"\n".join([*lines, b"---", b""])


def write_results(
    folder: str, rows: Sequence[Row], tests: Sequence[TestSet], results: Results
) -> None:
    """Write a folder: MODEL/REVISION/TASK.json of each checkpoint, and MODEL/README.md."""
    target = Path(folder).resolve()
    with private_folder(target, folder) as temporary:
        for row in rows:
            for index, name in enumerate(names_of(row)):
                write_checkpoint(temporary / name, name, row, index, tests, results)
        if not any(temporary.iterdir()):
            raise AnswerIsNo("no result file was written: no evaluation has a value")
        try:
            publish_folder(temporary, target, force=False, name=folder)
        except CannotCreateError as error:
            advice = "another process created it; choose another -o"
            raise CannotCreateError(str(error), advice=advice) from error


def check_new_folder(path: str) -> None:
    """Refuse standard output and an existing folder, before any work."""
    if path == "-":
        raise UsageError("--format mteb writes a folder", advice="name it with -o DIR")
    if Path(path).exists():
        raise CannotCreateError(f"{path}: already exists", advice="choose another -o")


def refuse_equal_names(rows: Sequence[Row], tests: Sequence[TestSet]) -> None:
    """Refuse checkpoints with one folder and test sets with one result, before any work."""
    model_of_folder: dict[str, str] = {}
    for row in rows:
        for model, folder in zip(row.models, names_of(row), strict=True):
            if folder in model_of_folder:
                earlier = model_of_folder[folder]
                problem = f"--format mteb: {earlier} and {model} have the name {folder}"
                raise UsageError(
                    problem, advice=f"give each another name, for example first={earlier}"
                )
            model_of_folder[folder] = model

    tasks_of_file: dict[str, list[MtebTask]] = {}
    for test in tests:
        task = mteb_task(test)
        if task is None:
            continue
        tasks = tasks_of_file.setdefault(name_for_label(task.name), [])
        for earlier_task in tasks:
            if earlier_task.dataset != task.dataset or earlier_task.subset == task.subset:
                problem = f"--format mteb: two test sets have the name {task.name}"
                raise UsageError(problem, advice="give one of them another name")
        tasks.append(task)


def names_of(row: Row) -> list[str]:
    """The names of the checkpoints of a row as folders; mteb has __ between organization and
    name.
    """
    label = name_for_label(row.label)
    if len(row.models) == 1:
        return [f"sentkit__{label}"]
    return [f"sentkit__{label}-{name_for_label(model)}" for model in row.models]


def write_checkpoint(
    folder: Path,
    name: str,
    row: Row,
    index: int,
    tests: Sequence[TestSet],
    results: Results,
) -> None:
    """Write the results of one checkpoint, `index` in its row."""
    subsets_of_task: dict[str, list[dict[str, Any]]] = {}
    task_of_name: dict[str, MtebTask] = {}
    entries: list[dict[str, Any]] = []
    for test in tests:
        task = mteb_task(test)
        of_row = results.get((row.label, test.suite, test.name), [])
        has_failed = len(of_row) != len(row.models)
        if task is None or has_failed or of_row[index].value is None:
            continue
        scores = scores_of(of_row[index])
        task_of_name[task.name] = task
        subsets_of_task.setdefault(task.name, []).append(subset_record(task, scores))
        entries.append(index_entry(task, scores))
    if not entries:
        return
    of_revision = folder / NO_REVISION
    of_revision.mkdir(parents=True)
    for task_name, subsets in subsets_of_task.items():
        record = task_record(task_of_name[task_name], subsets)
        content = orjson.dumps(record, option=orjson.OPT_INDENT_2)
        (of_revision / f"{name_for_label(task_name)}.json").write_bytes(content + b"\n")
    (folder / "README.md").write_bytes(model_card(name.replace("__", "/"), entries))
