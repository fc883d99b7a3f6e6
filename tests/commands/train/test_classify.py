"""`sentkit train classify`: labelled rows for training, --dev and --test."""

import json
from pathlib import Path

import pytest

from sentkit.training.loop.trainer import Trainer
from support import PAIRS, TEXTS, make_classifier, write_rows

ROWS = [{"text": text, "label": ("bad", "good")[number % 2]} for number, text in enumerate(TEXTS)]
OF_LABELS = {"id2label": {"0": "bad", "1": "good"}}
OF_SCORES = {"id2label": {"0": "score"}, "problem_type": "regression"}


@pytest.mark.parametrize(
    ("rows", "flags", "metric", "described"),
    [
        (ROWS, (), "accuracy", OF_LABELS),
        (ROWS, ("--set", "metric=f1"), "f1", OF_LABELS),
        (PAIRS, ("--preset", "stsb"), "pearson", OF_SCORES),
    ],
)
def test_dev_and_test_have_the_same_metric(train, tmp_path, rows, flags, metric, described):
    write_rows(tmp_path, {"rows": rows, "held": rows[:5]})
    held = ("--dev", "held.jsonl", "--test", "held.jsonl", "--epochs", 2, "--lr", 0.01)
    [record] = train(*held, *flags, method="classify", rows="rows.jsonl").rows
    note = json.loads(Path("out/sentkit.json").read_text())
    config = json.loads(Path("out/config.json").read_text())
    card = Path("out/README.md").read_text()
    low, high = note["dev_ci95"]
    interval = f"{record['dev']:.2f} [{low:.2f}, {high:.2f}; 95 %]"

    assert record["test"]["rows"] == 5
    assert record["test"][metric] == record["dev"]
    assert (note["metric"], note["test_ci95"][metric]) == (metric, [low, high])
    assert config.items() >= described.items()
    assert low <= record["dev"] <= high
    for name in ("dev", "test"):
        assert f"| {name}, {metric} x 100 | {interval}" in card
    if rows is ROWS:
        assert record["test"].keys() == {"rows", "accuracy", "f1", "matthews"}
        assert note["labels"] == ["bad", "good"]
        assert record["dev"] % 20 == 0 or metric == "f1"


@pytest.mark.parametrize(
    ("scores", "advice"),
    [
        ([50.0, 50.0, 50.0], "a higher --lr than 2e-05, or more --epochs"),
        (
            [50.0, 40.0, 45.0],
            "another --lr than 2e-05, more --epochs, or more rows, or rows that are closer to "
            "those of --dev",
        ),
    ],
)
def test_a_head_that_learns_nothing_is_not_the_one_to_keep(
    sentkit, tiny, tmp_path, monkeypatch, scores, advice
):
    """The score before training is that of a new head with random weights."""
    write_rows(tmp_path, {"rows": ROWS, "held": ROWS[:5]})
    remaining = iter(scores)
    monkeypatch.setattr(Trainer, "_score", lambda *_: next(remaining))
    command = ("train", "classify", "rows.jsonl", "-m", tiny, "-o", "out", "--threads", 1)
    result = sentkit(*command, "--dev", "held.jsonl", "--epochs", 2, "--set", "eval_every=0")
    [warning] = [line for line in result.told if "than the base on --dev" in line]

    assert warning.endswith(f"which is kept; try {advice}")


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert", "albert", "llama"]
)
def test_a_classifier_as_base_loses_its_head(sentkit, train, tmp_path, kind):
    """Its head does not fit the encoder after other training. transformers finds no tensors in the
    new checkpoint that its encoder does not have.
    """
    import transformers

    config = {}
    if kind == "albert":
        config = {"embedding_size": 16}
    base = make_classifier(kind, 3, tmp_path / "base", **config)
    trained = train("--set", "readout=mean", model=base)
    refused = sentkit("predict", "-m", "out", stdin=b'{"text": "a"}\n')
    model, report = transformers.AutoModel.from_pretrained("out", output_loading_info=True)

    assert trained.code == 0, trained.err
    assert refused.code == 65
    assert f"out: not a classifier: config.json has {type(model).__name__}" in refused.err
    assert not report["unexpected_keys"]
    assert {name for name in report["missing_keys"] if not name.startswith("pooler.")} == set()
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}  # the default of transformers


def test_a_classifier_of_a_classifier_has_a_new_head(sentkit, train, tmp_path):
    """With the classes of the new rows."""
    base = make_classifier("roberta", 3, tmp_path / "base")
    write_rows(tmp_path, {"rows": ROWS})
    flags = ("--set", "max_length=64")
    trained = train(*flags, method="classify", model=base, rows="rows.jsonl")
    [row] = sentkit("predict", "-m", "out", stdin=b'{"text": "a"}\n').rows

    assert trained.code == 0, trained.err
    assert row["label"] in ("bad", "good")
