"""The nearest rows of a corpus, exactly, against faiss's flat index, which is to be installed
beside sentkit.

Both hold the corpus already: the index is filled, and the lengths of the rows are known. With
--device, the corpus is in float16 in memory, and candidates are selected on a device of torch,
against its topk.
"""

import argparse
import os
import time
from types import SimpleNamespace

import numpy as np
from timing import print_table, ratios, rounds_of

from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.tensors import Storage
from sentkit.metrics.neighbours.search import Searcher

QUERIES = 1000
ROWS = 50_000
WIDTH = 384
TOP = 10
FLAT = "faiss IndexFlatIP"
CHUNK = 1 << 17  # rows made at a time
CHECKED = 20  # queries that are compared with float64


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_halves(rows, width, device):
    """Random numbers in float16 on the host, made on the device."""
    import torch

    host = np.empty((rows, width), np.float16)
    torch.manual_seed(0)
    for start in range(0, rows, CHUNK):
        chunk = torch.from_numpy(host[start : start + CHUNK])
        chunk.copy_(torch.randn(chunk.shape, device=device))
    return host


def best_rows(queries, chunks):
    """The best rows (queries, TOP); chunks of unit rows on the device, each with the number of its
    first row.
    """
    import torch

    values = []
    rows = []
    for start, chunk in chunks:
        best = torch.topk(queries @ chunk.T, min(TOP, len(chunk)), dim=1)
        values.append(best.values)
        rows.append(best.indices + start)
    best = torch.topk(torch.cat(values, 1), TOP, dim=1)
    best_of_chunks = torch.cat(rows, 1).gather(1, best.indices)
    return best_of_chunks.cpu().numpy()


def doubles(rows, device):
    """All rows in float64 with unit length, in chunks."""
    import torch

    for start in range(0, len(rows), CHUNK):
        chunk = torch.from_numpy(rows[start : start + CHUNK]).to(device).double()
        yield start, chunk / torch.linalg.vector_norm(chunk, dim=1, keepdim=True)


def on_device(name, count, rows, width):
    import torch

    from sentkit.metrics.device import Device

    torch.set_num_threads(len(os.sched_getaffinity(0)))  # they copy rows to pinned memory
    device = torch.device(name)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    # Corpus and queries.
    start = time.perf_counter()
    host = random_halves(rows, width, device)
    wait()
    made_in = time.perf_counter() - start
    print(f"{rows} rows of {width} random numbers made in {made_in:.1f} s", flush=True)
    storage = Storage("float16", width)
    corpus = StoredVectors([SimpleNamespace(count=rows, storage=storage, codes=lambda: host)])
    noise = np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    queries = corpus[np.linspace(0, rows - 1, count).astype(np.intp)] * np.float32(0.2) + noise
    first_rows = SimpleNamespace(
        count=min(rows, CHUNK), storage=storage, codes=lambda: host[:CHUNK]
    )
    warm = Searcher(StoredVectors([first_rows]), "cosine", Device(device))
    warm.nearest(queries, TOP)  # prepares the kernels

    def timed(way, rounds=1):
        """The result, and the least seconds of the rounds."""
        seconds = []
        for _ in range(rounds):
            wait()
            start = time.perf_counter()
            result = way()
            wait()
            seconds.append(time.perf_counter() - start)
        return result, min(seconds)

    # Searches with the corpus on the device.
    searcher = Searcher(corpus, "cosine", Device(device))
    hits, seconds_of_first = timed(lambda: searcher.nearest(queries, TOP))
    next_hits, seconds_resident = timed(lambda: searcher.nearest(queries, TOP), 3)
    blocks = searcher.on_device.blocks
    unit_queries = torch.from_numpy(unit(queries)).half().to(device)

    def with_topk():
        chunks = ((block.start, rows) for block, (rows, _) in blocks())
        return best_rows(unit_queries, chunks)

    with torch.inference_mode():
        _, seconds_of_topk = timed(with_topk, 3)
        exact_queries = unit(queries[:CHECKED].astype(np.float64))
        exact_queries = torch.from_numpy(exact_queries).to(device)
        expected = best_rows(exact_queries, doubles(host, device))

    # A search with a corpus that is copied each time.
    streaming = Searcher(corpus, "cosine", Device(device))
    streaming.on_device.device.free_bytes = 0
    streamed_hits, seconds_streamed = timed(lambda: streaming.nearest(queries, TOP), 2)

    if device.type == "cuda":
        name = torch.cuda.get_device_name()
    print(f"{count} queries, top {TOP}, on {name}")
    print(f"blocks that stay on the device: {len(blocks.resident)} of {-(-rows // blocks.size)}")
    for title, seconds in {
        "sentkit, first search, which copies the corpus to the device": seconds_of_first,
        "sentkit, corpus on the device": seconds_resident,
        "sentkit, corpus beyond the memory of the device, so each search copies it": (
            seconds_streamed
        ),
        "torch.topk of products in half precision, corpus on the device, not exact": (
            seconds_of_topk
        ),
    }.items():
        print(f"| {title} | {1000 * seconds:.0f} ms |", flush=True)
    same_next = np.array_equal(hits.rows, next_hits.rows)
    same = same_next and np.array_equal(hits.rows, streamed_hits.rows)
    equal = np.mean(hits.rows[:CHECKED] == expected)
    print(f"rows in the same place as in float64: {equal:.2%}; equal in all searches: {same}")


def against_faiss():
    import faiss

    random = np.random.default_rng(0)
    corpus = random.standard_normal((ROWS, WIDTH), dtype=np.float32)
    queries = random.standard_normal((QUERIES, WIDTH), dtype=np.float32)
    unit_corpus = unit(corpus)
    unit_queries = unit(queries)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(unit_corpus)
    cosine = Searcher(corpus, "cosine")
    dot = Searcher(unit_corpus, "dot")
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    print(f"{QUERIES} queries, {ROWS} rows of {WIDTH} random numbers, top {TOP}, {threads} threads")
    seconds = rounds_of(
        {
            FLAT: lambda: index.search(unit_queries, TOP),
            "sentkit cosine": lambda: cosine.nearest(queries, TOP),
            "sentkit dot": lambda: dot.nearest(unit_queries, TOP),
        }
    )
    rows = []
    for name, seconds_of_rounds in seconds.items():
        relative = [f"{ratio:.2f}" for ratio in ratios(seconds_of_rounds, seconds[FLAT])]
        rows.append([name, f"{1000 * min(seconds_of_rounds):.0f} ms", *relative])
    print_table("what | time | time relative to faiss: least | median", rows)
    equal = np.mean(cosine.nearest(queries, TOP).rows == index.search(unit_queries, TOP)[1])
    print(f"rows in the same place as faiss has them: {equal:.2%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="a device of torch: cuda, or cpu for a trial")
    parser.add_argument(
        "--rows", type=int, default=10_000_000, help="with --device; 15 GB of memory"
    )
    parser.add_argument("--width", type=int, default=768, help="with --device")
    parser.add_argument("--queries", type=int, default=QUERIES, help="with --device")
    options = parser.parse_args()
    if options.device is None:
        against_faiss()
    else:
        on_device(options.device, options.queries, options.rows, options.width)


if __name__ == "__main__":
    main()
