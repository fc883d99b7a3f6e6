"""`sentkit train` on a static model: its folder, its record and its errors."""

import json

import pytest

from support import contents, in_jsonl

TEXTS = ["the cat sat", "a dog", "the dog plays.", "a cat playing", "cats sat", "dogs play", "the cat", "sat"]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(in_jsonl(*({"text": text, "embedding": [n, 1, n % 3]} for n, text in enumerate(TEXTS))))
    return path


def test_the_score_on_dev_is_that_of_the_encoded_pairs(train, sentkit, model2vec, rows, tmp_path):
    texts = enumerate(zip(TEXTS[:4], TEXTS[4:], strict=True))
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(in_jsonl(*({"text_a": a, "text_b": b, "score": n} for n, (a, b) in texts)))
    base = model2vec(normalize=True)
    flags = ("--epochs", 5, "--lr", 0.1, "--dev", pairs, "--set", "final=last")
    [result] = train(*flags, method="distill", rows=rows, model=base).rows
    scores = []
    for name in (base, "out"):
        encoded = sentkit("encode", "-q", "-m", name, pairs).out
        [report] = sentkit("score", "--gold", "score", stdin=encoded).rows
        scores.append(report["spearman"])

    assert scores == pytest.approx([result["dev_before"], result["dev"]], abs=1e-4)
    assert (result["step"], result["readout"]) == (15, "mean")
    assert sentkit("inspect", "out").code == 0


def test_a_resumed_run_and_a_replay_have_the_same_bytes(train, sentkit, execute, model2vec, rows, tmp_path):
    base = model2vec(normalize=True)
    assert train("--epochs", 3, method="distill", rows=rows, model=base).code == 0
    made, replay = contents(tmp_path / "out"), sentkit("inspect", "out", "--replay").out.decode()
    (tmp_path / "out").rename(tmp_path / "first")
    done = execute(["sh", "-c", replay.replace("torchrun", "false")], tmp_path)

    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out")["model.safetensors"] == made["model.safetensors"]
    assert json.loads(made["sentkit.json"])["command"]["inputs"][1]["path"] == str(base)


@pytest.mark.parametrize("method", ["simcse", "tsdae", "mlm", "promptbert"])
def test_a_method_with_dropout_or_states_is_refused(train, model2vec, method):
    done = train(method=method, model=model2vec())

    assert done.code == 2
    assert done.told == [
        f"sentkit train: {method} cannot train a static model, which has no layers and no dropout",
        "  use pairsupcon, contrast, simcse-sup, sbert, cosent, angle, distill",
    ]


def test_a_text_without_known_tokens_is_a_bad_row(train, model2vec, rows):
    rows.write_text(rows.read_text() + in_jsonl({"text": "zebra", "embedding": [1, 2, 3]}))
    done = train(method="distill", rows=rows, model=model2vec())

    assert done.code == 65
    assert done.told[0].endswith("rows.jsonl:9: the text has no known tokens")


def test_word_vectors_are_refused(train, tmp_path, rows):
    (tmp_path / "words.txt").write_text("cat 1 2\ndog 2 1\n")
    done = train(method="distill", rows=rows, model="words.txt")

    assert done.code in (2, 66)
    assert "is a file, expected a checkpoint folder" in done.err
