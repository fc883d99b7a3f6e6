"""The nearest rows of a corpus, exactly, against faiss's flat index, which is to be installed beside sentkit.

Both hold the corpus already: the index is filled, and the lengths of the rows are known.
"""

import os
import statistics

import numpy as np
from timing import rounds_of

from sentkit.metrics.neighbours.search import Searcher

QUERIES, ROWS, WIDTH, TOP = 1000, 50_000, 384, 10


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def flat_index(rows):
    import faiss

    index = faiss.IndexFlatIP(WIDTH)
    index.add(rows)
    return index


def naive(queries, corpus):
    products = queries @ corpus.T
    best = np.argpartition(-products, TOP, axis=1)[:, :TOP]
    return np.take_along_axis(best, np.take_along_axis(-products, best, 1).argsort(axis=1), 1)


def main() -> None:
    random = np.random.default_rng(0)
    corpus = random.standard_normal((ROWS, WIDTH), dtype=np.float32)
    queries = random.standard_normal((QUERIES, WIDTH), dtype=np.float32)
    unit_corpus, unit_queries = unit(corpus), unit(queries)
    index = flat_index(unit_corpus)
    cosine, dot = Searcher(corpus, "cosine"), Searcher(unit_corpus, "dot")
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    print(f"{QUERIES} queries, {ROWS} rows of {WIDTH} random numbers, top {TOP}, {threads} threads")
    seconds = rounds_of(
        {
            "faiss IndexFlatIP": lambda: index.search(unit_queries, TOP),
            "sentkit cosine": lambda: cosine.nearest(queries, TOP),
            "sentkit dot": lambda: dot.nearest(unit_queries, TOP),
            "numpy, one product and argpartition": lambda: naive(unit_queries, unit_corpus),
        }
    )
    theirs = seconds["faiss IndexFlatIP"]
    for name, found in seconds.items():
        ratios = [f"{of(found) / of(theirs):.2f}" for of in (min, statistics.median)]
        times = [f"{1000 * of(found):.0f}" for of in (min, statistics.median)]
        print(f"| {name} | {' and '.join(times)} ms | {' and '.join(ratios)} x faiss, best and median |")
    equal = np.mean(cosine.nearest(queries, TOP).rows == index.search(unit_queries, TOP)[1])
    print(f"rows in the same place as faiss has them: {equal:.2%}")


if __name__ == "__main__":
    main()
