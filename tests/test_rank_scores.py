"""`examples/rank_scores.py` beside loops with scipy's correlation."""

import json
import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from support import ROOT, in_jsonl, normal_rows


def cosine(a, b):
    return float(np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b)))


@pytest.mark.parametrize("weight", [0.1, 0.25, 1.0])
def test_correlations_are_those_of_loops(tmp_path, execute, weight):
    rows_a, rows_b, corpus = (
        normal_rows(count, 6, seed) for seed, count in enumerate((80, 80, 30))
    )
    gold = [n % 7 for n in range(80)]
    pairs = [
        {
            "embedding_a": a.tolist(),
            "embedding_b": b.tolist(),
            "_emb": "m:100000000000",
            "score": score,
        }
        for a, b, score in zip(rows_a, rows_b, gold, strict=True)
    ]
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*pairs))
    rows = [{"embedding": row.tolist(), "_emb": "m:100000000000"} for row in corpus]
    (tmp_path / "corpus.jsonl").write_text(in_jsonl(*rows))
    script = ROOT / "examples/rank_scores.py"
    line = "for n in pairs corpus; do sentkit cat $n.jsonl -o $n.safetensors; done; "
    completed = execute(
        ["sh", "-ec", line + f"python3 {script} pairs.safetensors corpus.safetensors {weight}"],
        tmp_path,
    )
    measured = json.loads(completed.stdout)
    plain = [cosine(a, b) for a, b in zip(rows_a, rows_b, strict=True)]
    ranks = [
        spearmanr([cosine(a, row) for row in corpus], [cosine(b, row) for row in corpus]).statistic
        for a, b in zip(rows_a, rows_b, strict=True)
    ]
    combined = [
        (1 - weight) * similarity + weight * rank_score
        for similarity, rank_score in zip(plain, ranks, strict=True)
    ]

    assert measured["pairs"] == 80
    assert measured["cosine"] == pytest.approx(100 * spearmanr(plain, gold).statistic, abs=1e-3)
    assert measured["with_ranks"] == pytest.approx(
        100 * spearmanr(combined, gold).statistic, abs=1e-2
    )


PAIR = {"embedding_a": [1, 2], "embedding_b": [2, 1], "_emb": "m:100000000000"}


@pytest.mark.parametrize(
    ("scores", "words", "problem"),
    [
        (["1", None], "pairs corpus", 'pairs.safetensors: row 2: "score" is missing or not a'),
        (["1", "x"], "pairs corpus", 'pairs.safetensors: row 2: "score" is missing or not a'),
        (
            [1, 2],
            "corpus pairs",
            "corpus.safetensors: expected pairs, with two vectors in each row",
        ),
        ([1, 2], "pairs corpus 1.5", "WEIGHT is 1.5, expected a number from 0 to 1"),
        ([1, 2], "pairs corpus x", "WEIGHT is x, expected a number from 0 to 1"),
    ],
)
def test_wrong_inputs_are_named(tmp_path, execute, scores, words, problem):
    done = rank_scores(tmp_path, execute, scores, words.split())

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(problem)


def test_scores_of_a_csv_are_numbers(tmp_path, execute):
    """As texts, "10" is before "9"."""
    done = rank_scores(tmp_path, execute, ["8", "9", "10", "11"], ["pairs", "corpus"])
    numbers = rank_scores(tmp_path, execute, [8, 9, 10, 11], ["pairs", "corpus"])

    assert done.stdout == numbers.stdout != ""


def rank_scores(folder, execute, scores, words):
    """Run the script for pairs with these scores, and None for a missing one."""
    pairs = []
    for number, score in enumerate(scores):
        pair = {**PAIR, "embedding_b": [2, number]}
        if score is not None:
            pair["score"] = score
        pairs.append(pair)
    corpus = [{"embedding": vector, "_emb": PAIR["_emb"]} for vector in ([1, 0], [2, 1], [0, 3])]
    (folder / "pairs.jsonl").write_text(in_jsonl(*pairs))
    (folder / "corpus.jsonl").write_text(in_jsonl(*corpus))
    files = [f"{word}.safetensors" if word in ("pairs", "corpus") else word for word in words]
    line = "for n in pairs corpus; do sentkit cat $n.jsonl -o $n.safetensors -f; done; "
    script = ROOT / "examples/rank_scores.py"
    return execute(["sh", "-ec", line + f"python3 {script} {' '.join(files)}"], folder)


def test_another_space_is_refused(tmp_path, execute):
    for name, emb in (("a", "m:100000000000"), ("b", "m:200000000000")):
        row = {"embedding_a": [1, 2], "embedding_b": [2, 1], "_emb": emb, "score": 1}
        (tmp_path / f"{name}.jsonl").write_text(in_jsonl(row))
    line = "for n in a b; do sentkit cat $n.jsonl -o $n.safetensors; done; "
    script = ROOT / "examples/rank_scores.py"
    completed = execute(
        ["sh", "-ec", line + f"python3 {script} a.safetensors b.safetensors"], tmp_path
    )

    assert completed.returncode == 1
    assert "of different spaces" in completed.stderr
