"""The kinds of storage of a vector file: hits that are kept, and the time of a search.

python tests/benchmarks/storage.py VECTORS.safetensors

VECTORS are of float32. The last 1,000 rows are the queries, the others the corpus. The recall
compares the hits with those of float32. Times are CPU seconds.
"""

import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
from timing import print_table, rounds_of
from usage import check_arguments

from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.tensors import STORES, Storage, scales_of
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.neighbours.sign_search import SignSearcher

QUERIES = 1000
TOP = 10


def stored(kind, vectors):
    scales = None
    if kind == "int8":
        scales = scales_of(np.abs(vectors).max(axis=0))
    storage = Storage(kind, vectors.shape[1], scales)
    codes = storage.encode(vectors)
    return StoredVectors([SimpleNamespace(count=len(codes), storage=storage, codes=lambda: codes)])


def recall(hits, expected):
    """The share of the expected rows (queries, top) among the hits, in percent."""
    count = 0
    for a, b in zip(hits.tolist(), expected.tolist(), strict=True):
        count += len(set(a) & set(b))
    return 100 * count / expected.size


def main():
    check_arguments(__doc__, least=1, most=1)
    (path,) = sys.argv[1:]
    vectors = VectorFile(path).memory_mapped()[:, 0]
    corpus = np.array(vectors[:-QUERIES])
    queries = np.array(vectors[-QUERIES:])
    of_kind = {kind: stored(kind, corpus) for kind in STORES}
    signs = of_kind["binary"]
    exact = Searcher(corpus)
    searchers = {
        "float32": exact,
        "float16": Searcher(of_kind["float16"]),
        "int8": Searcher(of_kind["int8"]),
        "binary, only Hamming distance": SignSearcher(signs, signs, "cosine", TOP),
        **{
            f"binary, {count} candidates{name}": SignSearcher(signs, second, "cosine", count)
            for name, second in (
                (", signs", signs),
                (", int8", of_kind["int8"]),
                (", float32", corpus),
            )
            for count in (100, 400, 1000)
        },
    }
    print(f"{QUERIES} queries, {len(corpus)} rows of {corpus.shape[1]} numbers, top {TOP}")
    expected = exact.nearest(queries, TOP).rows
    one = queries[:1]
    measure = partial(rounds_of, clock=time.process_time)
    blocks = measure(
        {name: lambda s=s: s.nearest(queries[:100], TOP) for name, s in searchers.items()}
    )
    single = measure({name: lambda s=s: s.nearest(one, TOP) for name, s in searchers.items()})
    rows = []
    for name, searcher in searchers.items():
        hits = [searcher.nearest(queries[n : n + 100], TOP).rows for n in range(0, QUERIES, 100)]
        times = []
        for seconds, count in ((blocks, 100), (single, 1)):
            least = min(seconds[name])
            relative = least / min(seconds["float32"])
            times.append(f"{1000 * least / count:.2f} ms, {relative:.2f} x")
        rows.append([name, f"{recall(np.concatenate(hits), expected):.2f}", *times])
    print_table("corpus | recall | in blocks | alone", rows)


if __name__ == "__main__":
    main()
