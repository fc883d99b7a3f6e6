"""Evaluate a model with mteb on local data: python examples/mteb_task.py DATA OUT.json [MODEL
[TASK]]

It needs `pip install mteb`. DATA is a file of pairs (text_a, text_b, score from 0 to 5). With TASK,
a task of mteb such as STSBenchmark, DATA is a folder with the data set of this task as the hub has
it: hf download --repo-type dataset mteb/stsbenchmark-sts --local-dir DATA. OUT.json is a result of
mteb.
"""

import sys
from pathlib import Path

import datasets
import mteb
from mteb.abstasks.sts import AbsTaskSTS

import sentkit

REVISION = "local"  # of the data


class Pairs(AbsTaskSTS):
    column_names = ("text_a", "text_b")
    metadata = mteb.TaskMetadata(
        name="Pairs",
        description="local pairs",
        type="STS",
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        dataset={"path": "local/pairs", "revision": REVISION},
    )


def task_of_pairs(path):
    task = Pairs()
    task.dataset = {"test": datasets.Dataset.from_json(path)}
    task.data_loaded = True
    return task


def task_of_folder(folder, name):
    """A task of mteb that reads its data set from a folder instead of the hub."""
    task = mteb.get_task(name)
    data_set = {**task.metadata.dataset, "path": str(Path(folder).resolve()), "revision": REVISION}
    task.metadata = task.metadata.model_copy(update={"dataset": data_set})
    return task


def main(data, out, model="nano", name=None):
    task = task_of_pairs(data) if name is None else task_of_folder(data, name)
    encoder = sentkit.Encoder(model, precision="fp32")
    result = mteb.evaluate(encoder, task, cache=None)
    result.task_results[0].to_disk(Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
