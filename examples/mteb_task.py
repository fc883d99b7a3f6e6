"""Evaluate a model with mteb on local pairs: python examples/mteb_task.py PAIRS.jsonl OUT.json
[MODEL]

It needs `pip install mteb`. A pair has text_a, text_b and a score from 0 to 5. Model also runs the
tasks of mteb.get_tasks(["STS12"]).
"""

import json
import sys
from pathlib import Path

import datasets
import mteb
from mteb.abstasks.sts import AbsTaskSTS
from mteb.models.abs_encoder import AbsEncoder

import sentkit


class Model(AbsEncoder):
    def __init__(self, model):
        self.encoder = sentkit.Encoder(model, precision="fp32")

    def encode(self, inputs, **about_the_task):
        return self.encoder.encode([text for batch in inputs for text in batch["text"]])


class Pairs(AbsTaskSTS):
    column_names = ("text_a", "text_b")
    metadata = mteb.TaskMetadata(
        name="Pairs",
        description="local pairs",
        type="STS",
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        dataset={"path": "", "revision": ""},
    )


def main(pairs, out, model="nano"):
    task = Pairs()
    task.dataset = {"test": datasets.Dataset.from_json(pairs)}
    task.data_loaded = True
    result = mteb.evaluate(Model(model), task, cache=None)
    Path(out).write_text(json.dumps(result.task_results[0].scores["test"][0]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
