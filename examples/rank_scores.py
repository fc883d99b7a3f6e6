"""Score pairs as RankEncoder does (arXiv:2209.04333): python examples/rank_scores.py PAIRS CORPUS
[WEIGHT]

PAIRS and CORPUS are vector files of one encoder: pairs with a "score", and about 10,000 other
sentences. The similarity of a pair is (1 - WEIGHT) cosine + WEIGHT rank: the Spearman correlation
of the cosines of both vectors with all vectors of CORPUS. The output is the Spearman correlation x
100 with the scores, of the cosines alone and with WEIGHT, 0.1 as in the paper.
"""

import json
import sys

import numpy as np
from safetensors import safe_open
from scipy.stats import rankdata, spearmanr


def read(path):
    """The unit vectors of a file, its rows, and its space."""
    with safe_open(path, "numpy") as file:
        vectors, space = (
            file.get_tensor("embeddings"),
            json.loads(file.metadata()["sentkit"])["_emb"],
        )
        rows = [json.loads(line) for line in file.get_tensor("rows").tobytes().splitlines()]
    if vectors.dtype != np.float32:
        sys.exit(f"{path}: the vectors are {vectors.dtype}, expected float32")
    return unit(vectors.astype(np.float64)), rows, space


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def rankings(vectors, corpus):
    """Unit vectors whose products are rank correlations."""
    cosines = (vectors @ corpus.T).astype(
        np.float32
    )  # equal vectors of the corpus have equal ranks
    return unit(rankdata(cosines, axis=-1) - (len(corpus) + 1) / 2)


def main(pairs, corpus, weight="0.1"):
    vectors, rows, space = read(pairs)
    others, _, their_space = read(corpus)
    if space.rpartition(":")[2] != their_space.rpartition(":")[2]:
        sys.exit(f"{pairs} and {corpus} are of different spaces, {space} and {their_space}")
    others = others.reshape(-1, others.shape[-1])
    cosines = np.vecdot(vectors[:, 0], vectors[:, 1])
    parts = np.array_split(np.arange(len(vectors)), len(vectors) // 64 + 1)  # limits the memory
    ranks = np.concatenate(
        [np.vecdot(*(rankings(vectors[part, side], others) for side in (0, 1))) for part in parts]
    )
    both = (1 - float(weight)) * cosines + float(weight) * ranks
    gold = [row["score"] for row in rows]
    report = {
        "pairs": len(rows),
        "cosine": spearmanr(cosines, gold),
        "with_ranks": spearmanr(both, gold),
    }
    print(
        json.dumps(
            {
                name: each if name == "pairs" else 100 * each.statistic
                for name, each in report.items()
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
