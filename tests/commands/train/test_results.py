"""The checkpoint, the log and the printed results of `sentkit train`."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from commands.train.records import log_of, record_of
from sentkit.training.loop.trainer import Trainer
from support import (
    BY_HAND,
    PAIRS,
    SMALL,
    contents,
    copy_tokenizer,
    declare_modules,
    in_jsonl,
    without_command,
)


def test_encode_reads_the_checkpoint(train, sentkit, tmp_path, tiny):
    """With the readout of its method, and other vectors than the base gives."""
    result = train("--lr", 0.01)
    record = record_of()
    trained = sentkit("encode", "-m", "out", stdin="a cat\n")
    base = sentkit("encode", "-m", tiny, stdin="a cat\n")

    assert (result.code, result.err) == (0, "")
    unscored = {"step": 3, "dev_before": None, "dev": None}
    assert result.rows == [
        {"checkpoint": "out", "seed": 0, "method": "simcse", "readout": "cls", **unscored}
    ]
    expected = {"readout": "cls", "method": "simcse", "parents": [str(tiny)], "rows": 9}
    assert {name: record[name] for name in expected} == expected
    assert trained.rows[0]["_emb"].startswith("out/cls:")
    assert np.abs(trained.vectors() - base.vectors()).max() > 1e-3
    assert not (tmp_path / "out.part").exists()


def test_each_of_several_seeds_is_a_separate_run(train, tmp_path, dev):
    """Each has the bytes of a run alone, in every file. The weights differ. Finished runs do not
    change.

    The table has mean and deviation.
    """
    first = train("--seed", "0..1", "--dev", dev, output="runs")
    before = (tmp_path / "runs/seed-1/sentkit.json").stat().st_mtime_ns
    with_third = train("--seed", "0..2", "--dev", dev, output="runs")
    train("--seed", 1, "--dev", dev, output="alone")
    *rows, table_row = with_third.rows
    scores = [row["dev"] for row in rows]
    seed_0 = without_command(tmp_path / "runs/seed-0")
    seed_1 = without_command(tmp_path / "runs/seed-1")
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())

    assert first.code == with_third.code == 0
    assert seed_1 == without_command(tmp_path / "alone")
    assert seed_1["model.safetensors"] != seed_0["model.safetensors"]
    assert names == ["seed-0", "seed-1", "seed-2"]
    assert (tmp_path / "runs/seed-0/steps.jsonl").exists()
    assert (tmp_path / "runs/seed-1/sentkit.json").stat().st_mtime_ns == before
    assert [row["checkpoint"] for row in rows] == [f"runs/seed-{n}" for n in range(3)]
    assert table_row["checkpoint"] == "runs"
    assert table_row["dev_mean"] == pytest.approx(np.mean(scores))
    assert table_row["dev_sd"] == pytest.approx(np.std(scores, ddof=1))


def test_the_best_step_is_kept(train, tmp_path, dev):
    """Judged before training, every N steps and after each epoch. The other lines are those without
    --dev.
    """
    flags = ("--epochs", 3, "--lr", 0.01)
    train("--dev", dev, "--set", "eval_every=2", *flags)
    train(*flags, output="without")
    log = log_of()
    record = record_of()
    before, *scored = [row for row in log if "dev" in row]
    best = max(scored, key=lambda row: row["dev"])

    assert before["step"] == 0
    assert [row["step"] for row in scored] == [2, 3, 4, 6, 8, 9]
    assert (record["step"], record["dev"]) == (best["step"], best["dev"])
    assert record["dev_before"] == before["dev"]
    assert {"step", "of", "epoch", "loss", "terms", "lr", "norm", "tokens"} == log[1].keys()
    assert [row for row in log if "dev" not in row] == log_of("without")


def test_a_run_of_an_earlier_version_is_resumed_with_its_schedule(train, tmp_path, dev, stop_at):
    """There, eval_every was 0 if it was not given. A finished run is not started again."""
    flags = ("--dev", dev, "--epochs", 2, "--save-every", 1)
    recorded = ("--set", "eval_every=0")
    train(*flags, *recorded, method="contrast", rows=dev, output="whole")
    with stop_at(2):
        train(*flags, *recorded, method="contrast", rows=dev)
    other = train(*flags, "--set", "eval_every=1", "--resume", method="contrast", rows=dev)
    resumed = train(*flags, "--resume", method="contrast", rows=dev)
    finished = train(*flags, "--resume", method="contrast", rows=dev)

    assert (other.code, "eval_every (1, was 0)" in other.err) == (65, True)
    assert without_command(tmp_path / "out") == without_command(tmp_path / "whole")
    assert resumed.code == finished.code == 0
    assert resumed.rows == finished.rows


def test_a_run_with_other_evaluations_is_another_run(train, tmp_path, dev, stop_at):
    """Also if they are not given."""
    flags = ("--dev", dev, "--epochs", 2, "--save-every", 1, "--set", "final=last")
    with stop_at(2):
        train(*flags, "--set", "eval_every=1", method="contrast", rows=dev)
    resumed = train(*flags, "--resume", method="contrast", rows=dev)

    assert (resumed.code, "eval_every (none, was 1)" in resumed.err) == (65, True)


def test_rows_of_dev_without_a_score_have_a_warning(sentkit, tiny, texts, tmp_path, jsonl):
    rows = [*PAIRS, {"text_a": "a", "text_b": "b", "score": None}]
    (tmp_path / "some.jsonl").write_bytes(jsonl(*rows))
    words = ("train", "simcse", texts, "-m", tiny, "-o", "out", "--batch", 3, "--threads", 1)
    done = sentkit(*words, "--dev", "some.jsonl")

    assert done.code == 0
    warning = "sentkit train: warning: some.jsonl: 1 row skipped: no score"
    assert warning in done.told


def test_a_limit_of_steps_ends_the_run_and_its_schedule(train, tmp_path, dev, stop_at):
    """Four of six steps, from 0.1 to 0 in four steps; also of a run that was stopped after
    step 2.
    """
    flags = ("--dev", dev, "--epochs", 2, "--lr", 0.1, "--set", "steps=4", "--save-every", 1)
    assert train(*flags, output="whole").code == 0
    with stop_at(2):
        train(*flags)
    assert train(*flags, "--resume").code == 0
    rates = [row["lr"][0] for row in log_of("whole") if "lr" in row]

    assert rates == pytest.approx([0.1 * (4 - step) / 4 for step in range(4)])
    assert [row["step"] for row in log_of("whole") if "dev" in row] == [0, 3, 4]
    assert record_of("whole")["run"]["steps"] == 4
    assert without_command(tmp_path / "out") == without_command(tmp_path / "whole")


def test_dev_before_uses_the_readout_of_the_base(sentkit, tiny, copy_of, texts, dev, tmp_path):
    """Which `encode` and `score` read; the choice is stated, and each score is reported."""
    base = copy_of(tiny, "base")
    (base / "sentkit.json").write_text('{"readout":"mean"}')
    command = ("train", "simcse", texts, "-m", base, "--dev", dev, "--batch", 3, "--threads", 1)
    with_mean = sentkit(*command, "-o", "mean")
    with_cls = sentkit(*command, "-o", "cls", "--set", "readout=cls")
    scores = {}
    for name, model in (("base", base), ("mean", "mean"), ("cls", "cls")):
        vectors = sentkit("encode", dev, "-m", model, "-q", "--precision", "fp32").out
        report = sentkit("score", "--gold", "score", "-q", stdin=vectors)
        scores[name] = json.loads(report.out)["spearman"]

    steps = [re.search(r"step (\d+):  dev ", line) for line in with_mean.told]
    assert [step[1] for step in steps if step] == ["0", "3"]
    assert f"sentkit train: readout mean: {base} declares it" in with_mean.told
    assert f"sentkit train: readout cls: as set; {base} declares mean" in with_cls.told
    for result, readout in ((with_mean, "mean"), (with_cls, "cls")):
        row = result.rows[0]
        assert row["readout"] == readout
        assert row["dev_before"] == pytest.approx(scores["base"], rel=1e-6)
        assert row["dev"] == pytest.approx(scores[readout], rel=1e-6)


@pytest.fixture
def with_dense(copy_of, tiny):
    """A base with a dense layer after the mean, of which vectors have the first three numbers."""
    base = copy_of(tiny, "base")
    declare_modules(
        base,
        *("mean_tokens", 16, "2_Dense"),
        **{"config_sentence_transformers": {"truncate_dim": 3}, "2_Dense/config": {}},
    )
    weight = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    save_file({"linear.weight": weight}, base / "2_Dense/model.safetensors")
    return base


def test_dev_before_has_the_steps_after_the_readout_of_the_base(
    sentkit, with_dense, texts, dev, tmp_path
):
    """As `encode` reads the base. The new checkpoint does not have the steps."""
    command = ("train", "simcse", texts, "-m", with_dense, "--dev", dev, "--batch", 3)
    result = sentkit(*command, "--threads", 1, "-o", "out")
    scores = {}
    for model in (with_dense, "out"):
        vectors = sentkit("encode", dev, "-m", model, "-q", "--precision", "fp32").out
        report = sentkit("score", "--gold", "score", "-q", stdin=vectors)
        scores[model] = json.loads(report.out)["spearman"]

    assert result.code == 0, result.err
    assert result.rows[0]["dev_before"] == pytest.approx(scores[with_dense], rel=1e-6)
    assert result.rows[0]["dev"] == pytest.approx(scores["out"], rel=1e-6)
    assert scores[with_dense] != pytest.approx(scores["out"], rel=1e-2)


def test_the_steps_of_a_better_base_are_named(sentkit, with_dense, texts, dev, monkeypatch):
    scores = iter([54.9, 39.5])
    monkeypatch.setattr(Trainer, "_score", lambda *_: next(scores))
    command = ("train", "simcse", texts, "-m", with_dense, "--dev", dev)
    result = sentkit(*command, "--threads", 1, "-o", "out")

    steps = "readout mean, then 2_Dense, truncate_dim=3"
    assert f"54.90 before training ({steps}), 39.50 at step 1, which is kept (readout mean)" in (
        result.err
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "2_Dense/config.json",
            '{"activation_function": "torch.nn.modules.activation.Mish"}',
            "2_Dense: a dense layer with activation Mish is not supported",
        )
    ],
)
def test_steps_that_encode_cannot_apply_are_refused_with_dev(
    sentkit, with_dense, texts, dev, name, content, problem
):
    """Before the first step, as `encode` does. Without --dev, they are not read."""
    (with_dense / name).write_text(content)
    command = ("train", "simcse", texts, "-m", with_dense, "--threads", 1, "--batch", 3)
    refused = sentkit(*command, "--dev", dev, "-o", "out")
    encoded = sentkit("encode", texts, "-m", with_dense)

    assert refused.code == encoded.code == 65
    assert problem in refused.err
    assert problem in encoded.err
    assert "step 1" not in refused.err
    assert sentkit(*command, "-o", "out", "-f").code == 0


WORSE = "every scored step is worse than the base on --dev: "
EQUAL = "no scored step is better than the base on --dev: "
TRY = (
    "; try a lower --lr than 3e-05, or more rows, or rows that are closer to those of --dev; "
    "else keep "
)
TRY += "the base"
TRY_EQUAL = "; try a higher --lr than 3e-05, or more --epochs; else keep the base"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (math.nan, 10.0, ""),  # undefined: a base gives equal vectors
        (85.8551, 85.8549, WORSE + "85.86 before training (readout cls), 85.85 at step 1"),
        (54.9, 39.5, WORSE + "54.90 before training (readout cls), 39.50 at step 1"),
        (85.86, 85.86, EQUAL + "85.86 before training (readout cls), 85.86 at step 1"),
        (85.85, 85.86, ""),
        # As many decimals as make the numbers different, up to five, as in the report.
        (74.4946, 74.4911, WORSE + "74.495 before training (readout cls), 74.491 at step 1"),
        (74.49002, 74.49001, WORSE + "74.49002 before training (readout cls), 74.49001 at step 1"),
        (74.490002, 74.490001, EQUAL + "74.49 before training (readout cls), 74.49 at step 1"),
    ],
)
def test_scores_before_training_are_compared(
    sentkit, tiny, texts, dev, monkeypatch, before, after, problem
):
    scores = iter([before, after])
    monkeypatch.setattr(Trainer, "_score", lambda *_: next(scores))
    command = ("train", "simcse", texts, "-m", tiny, "--dev", dev)
    result = sentkit(*command, "--threads", 1, "-o", "out")
    warnings = [line for line in result.told if "than the base on --dev" in line]

    reported = [result.rows[0]["dev_before"], result.rows[0]["dev"]]
    assert reported == [None if before != before else float(f"{before:.7g}"), float(f"{after:.7g}")]
    advice = TRY_EQUAL if problem.startswith(EQUAL) else TRY
    expected = f"sentkit train: warning: {problem}, which is kept (readout cls){advice}"
    assert warnings == ([expected] if problem else [])


@pytest.mark.parametrize(("final", "kept_step"), [("best", 2), ("last", 3)])
def test_of_steps_that_are_worse_than_the_base_the_best_is_kept(
    sentkit, copy_of, tiny, texts, dev, monkeypatch, final, kept_step
):
    """The weights are those of that step, not of the base, and the message says how to train
    better.
    """
    base = copy_of(tiny, "base")
    (base / "sentkit.json").write_text('{"readout":"mean"}')
    command = ["train", "simcse", texts, "-m", base, "--batch", 9, "--threads", 1, "--lr", "1e-2"]
    command += ["--set", "readout=cls", "--set", "schedule=constant"]
    scores = iter([54.9, 39.0, 39.5, 38.0])
    monkeypatch.setattr(Trainer, "_score", lambda *_: next(scores))
    judged = ("--dev", dev, "--epochs", 3, "--set", "eval_every=0", "--set", f"final={final}")
    result = sentkit(*command, "-o", "out", *judged)
    assert sentkit(*command, "-o", "short", "--epochs", kept_step).code == 0
    [row] = result.rows
    [warning] = [line for line in result.told if "than the base on --dev" in line]
    saved = {2: 39.5, 3: 38.0}[kept_step]

    assert (row["step"], row["dev"], row["dev_before"]) == (kept_step, saved, 54.9)
    weights = [contents(Path(name))["model.safetensors"] for name in ("out", "short")]
    assert weights[0] == weights[1]
    assert warning.partition("; try ")[2] == (
        "a lower --lr than 0.01, fewer --epochs, --set readout=mean, that of the base, or more "
        "rows, or rows that are closer to those of --dev; else keep the base"
    )
    message = "every scored step is worse" if final == "best" else "the result is not better"
    assert (
        f"warning: {message} than the base on --dev: 54.90 before training (readout mean), "
        in warning
    )
    assert f"{saved:.2f} at step {kept_step}, which is kept (readout cls)" in warning


def test_a_base_through_transformers_can_be_trained(train, sentkit):
    """SimCSE needs its vectors alone."""
    import transformers

    config = transformers.BertConfig(**SMALL, hidden_act="quick_gelu")
    transformers.BertModel(config).save_pretrained("other")
    copy_tokenizer(Path("other"))
    result = train(model="other")

    assert (result.code, result.err) == (0, "")
    assert sentkit("encode", "-m", "out", "-q", stdin="a cat\n").code == 0


ANCHORS = [
    "a cat",
    "the dog sat",
    "a cat",
    "rain",
    "the sea",
    "dogs play",
    "the sea",
    "a dog",
    "cats",
    "sea",
]
POSITIVES = ["cats", "a dog sat", "the cat", "the rain", "sea", "a dog plays"]
POSITIVES += ["sea", "cats", "a sea", "the cat"]


def cosines_of(sentkit, texts):
    """All cosines of the texts by the trained encoder, through `encode`."""
    rows = in_jsonl(*({"text": text} for text in texts))
    encoded = sentkit("encode", "-m", "out", "--precision", "fp32", "-q", stdin=rows)
    vectors = encoded.vectors().tolist()
    return [[BY_HAND["cosine"](a, b) for b in vectors] for a in vectors]


def test_pairs_without_scores_have_the_mrr_of_their_positives(train, sentkit, tmp_path):
    """Among all positives; other positives of the same anchor, and equal texts, do not compete."""
    pairs = list(zip(ANCHORS, POSITIVES, strict=True))
    rows = [{"query": anchor, "answer": positive} for anchor, positive in pairs]
    (tmp_path / "dev.jsonl").write_text(in_jsonl(*rows))
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*({"text": text} for text in ANCHORS)))
    fields = ["--field=text_a=query", "--field=text_b=answer"]
    row = train("--dev", "dev.jsonl", *fields, "--lr", 0.01, rows="rows.jsonl").rows[0]
    cosines = cosines_of(sentkit, [*ANCHORS, *POSITIVES])
    total = 0.0
    for n, (anchor, positive) in enumerate(pairs):
        competing = [m for m, (a, p) in enumerate(pairs) if a != anchor and p != positive]
        rank = 1 + sum(cosines[n][10 + m] >= cosines[n][10 + n] - 1e-6 for m in competing)
        total += 1 / rank if rank <= 10 else 0

    assert 20 < row["dev"] < 100
    assert row["dev"] == pytest.approx(100 * total / 10, rel=1e-6)
    assert record_of()["metric"] == "MRR@10"
    assert "| dev, MRR@10 x 100 |" in (tmp_path / "out/README.md").read_text()


def test_triplets_have_the_share_of_closer_positives(train, sentkit, tmp_path):
    negatives = POSITIVES[3:] + POSITIVES[:3]
    rows = [
        {"anchor": anchor, "positive": positive, "negative": negative}
        for anchor, positive, negative in zip(ANCHORS, POSITIVES, negatives, strict=True)
    ]
    (tmp_path / "dev.jsonl").write_text(in_jsonl(*rows))
    row = train("--dev", "dev.jsonl", "--lr", 0.01).rows[0]
    cosines = cosines_of(sentkit, [*ANCHORS, *POSITIVES, *negatives])
    is_closer = np.array([cosines[n][10 + n] > cosines[n][20 + n] for n in range(10)])
    record = record_of()

    assert 0 < is_closer.sum() < 10
    assert row["dev"] == pytest.approx(10 * is_closer.sum())
    drawn = np.random.Generator(np.random.Philox(0)).integers(0, 10, size=(50, 10))
    interval = np.percentile(100 * is_closer[drawn].mean(axis=1), [2.5, 97.5])
    assert record["metric"] == "accuracy of triplets"
    assert record["dev_ci95"] == pytest.approx(interval)


def test_the_interval_of_dev_is_that_of_score(train, sentkit, tmp_path, monkeypatch):
    monkeypatch.setattr("sentkit.metrics.statistics.resamples_for", lambda pairs, count=1000: count)
    rows = [
        {"text_a": a, "text_b": p, "score": n * 7 % 5}
        for n, (a, p) in enumerate(zip(ANCHORS, POSITIVES, strict=True))
    ]
    (tmp_path / "dev.jsonl").write_text(in_jsonl(*rows))
    row = train("--dev", "dev.jsonl", "--lr", 0.01).rows[0]
    pairs = sentkit("encode", "dev.jsonl", "-m", "out", "--precision", "fp32", "-q").out
    [expected] = sentkit("score", "--gold", "score", stdin=pairs).rows
    record = record_of()

    assert row["dev"] == pytest.approx(expected["spearman"], abs=1e-4)
    assert record["dev_ci95"] == pytest.approx(expected["spearman_ci95"], abs=1e-4)
