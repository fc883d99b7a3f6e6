"""Score pairs as RankEncoder does (arXiv:2209.04333).

Usage: python examples/rank_scores.py PAIRS CORPUS [WEIGHT]

PAIRS and CORPUS are vector files of one encoder: pairs with a "score", and about 10,000 other
sentences. The similarity of a pair is (1 - WEIGHT) cosine + WEIGHT rank: the Spearman correlation
of the cosines of both vectors with all vectors of CORPUS. The output is the Spearman correlation x
100 with the scores, of the cosines alone and with WEIGHT, from 0 to 1; 0.1 as in the paper.
"""

import json
import math
import sys

import numpy as np
from safetensors import safe_open
from scipy.stats import rankdata, spearmanr


def read(path):
    """The unit vectors of a file, its rows, and its space."""
    with safe_open(path, "numpy") as file:
        vectors = file.get_tensor("embeddings")
        space = json.loads(file.metadata()["sentkit"])["_emb"]
        rows = [json.loads(line) for line in file.get_tensor("rows").tobytes().splitlines()]
    if vectors.dtype != np.float32:
        sys.exit(f"{path}: the vectors are {vectors.dtype}, expected float32")
    return unit(vectors.astype(np.float64)), rows, space


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def rankings(vectors, corpus):
    """Unit vectors whose products are rank correlations."""
    # float32: equal vectors of the corpus have equal ranks.
    cosines = (vectors @ corpus.T).astype(np.float32)
    return unit(rankdata(cosines, axis=-1) - (len(corpus) + 1) / 2)


def number(text):
    """The number, or NaN if the text is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def gold_scores(path, rows):
    scores = [number(row.get("score")) for row in rows]
    for line, score in enumerate(scores, 1):
        if not math.isfinite(score):
            sys.exit(f'{path}: row {line}: "score" is missing or not a number')
    return scores


def main(pairs, corpus, weight="0.1"):
    rank_weight = number(weight)
    if not 0 <= rank_weight <= 1:
        sys.exit(f"WEIGHT is {weight}, expected a number from 0 to 1")
    vectors, rows, space = read(pairs)
    if vectors.ndim != 3 or vectors.shape[1] != 2:  # (pairs, 2, d)
        sys.exit(f"{pairs}: expected pairs, with two vectors in each row; first PAIRS, then CORPUS")
    gold = gold_scores(pairs, rows)
    corpus_vectors, _, corpus_space = read(corpus)
    if space.rpartition(":")[2] != corpus_space.rpartition(":")[2]:
        sys.exit(f"{pairs} and {corpus} are of different spaces, {space} and {corpus_space}")
    corpus_vectors = corpus_vectors.reshape(-1, corpus_vectors.shape[-1])

    # The similarities of the pairs; chunks limit the memory.
    cosines = np.vecdot(vectors[:, 0], vectors[:, 1])
    ranks = []
    for chunk in np.array_split(vectors, len(vectors) // 64 + 1):
        rankings_a = rankings(chunk[:, 0], corpus_vectors)
        rankings_b = rankings(chunk[:, 1], corpus_vectors)
        ranks.append(np.vecdot(rankings_a, rankings_b))
    mixed = (1 - rank_weight) * cosines + rank_weight * np.concatenate(ranks)

    report = {
        "pairs": len(rows),
        "cosine": 100 * spearmanr(cosines, gold).statistic,
        "with_ranks": 100 * spearmanr(mixed, gold).statistic,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
