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

QUERIES, ROWS, WIDTH, TOP, FLAT = 1000, 50_000, 384, 10, "faiss IndexFlatIP"
CHUNK, CHECKED = 1 << 17, 20  # rows made at a time, and queries that are compared with float64


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_halves(rows, width, device):
    """Random numbers in float16 on the host, made on the device."""
    import torch

    host = np.empty((rows, width), np.float16)
    torch.manual_seed(0)
    for start in range(0, rows, CHUNK):
        part = torch.from_numpy(host[start : start + CHUNK])
        part.copy_(torch.randn(part.shape, device=device))
    return host


def best_rows(queries, parts):
    """The best rows of parts of unit rows on the device, each with the number of its first row."""
    import torch

    values, rows = [], []
    for start, part in parts:
        best = torch.topk(queries @ part.T, min(TOP, len(part)), dim=1)
        values.append(best.values)
        rows.append(best.indices + start)
    best = torch.topk(torch.cat(values, 1), TOP, dim=1)
    return torch.cat(rows, 1).gather(1, best.indices).cpu().numpy()


def doubles(rows, device):
    """All rows in float64 with unit length, part by part."""
    import torch

    for start in range(0, len(rows), CHUNK):
        part = torch.from_numpy(rows[start : start + CHUNK]).to(device).double()
        yield start, part / torch.linalg.vector_norm(part, dim=1, keepdim=True)


def on_device(name, count, rows, width):
    import torch

    from sentkit.metrics.device import Device

    torch.set_num_threads(len(os.sched_getaffinity(0)))  # they copy rows to pinned memory
    device = torch.device(name)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    start = time.perf_counter()
    host = random_halves(rows, width, device)
    wait()
    print(
        f"{rows} rows of {width} random numbers made in {time.perf_counter() - start:.1f} s",
        flush=True,
    )
    storage = Storage("float16", width)
    corpus = StoredVectors([SimpleNamespace(count=rows, storage=storage, codes=lambda: host)])
    noise = np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    queries = corpus[np.linspace(0, rows - 1, count).astype(np.intp)] * np.float32(0.2) + noise
    few = SimpleNamespace(count=min(rows, CHUNK), storage=storage, codes=lambda: host[:CHUNK])
    Searcher(StoredVectors([few]), "cosine", Device(device)).nearest(
        queries, TOP
    )  # prepares the kernels

    def seconds(work, rounds=1):
        least = float("inf")
        for _ in range(rounds):
            wait()
            start = time.perf_counter()
            result = work()
            wait()
            least = min(least, time.perf_counter() - start)
        return result, least

    searcher = Searcher(corpus, "cosine", Device(device))
    found, first = seconds(lambda: searcher.nearest(queries, TOP))
    again, resident = seconds(lambda: searcher.nearest(queries, TOP), 3)
    units = torch.from_numpy(unit(queries)).half().to(device)
    with torch.inference_mode():
        blocks = searcher.on_device.blocks
        _, plain = seconds(
            lambda: best_rows(units, ((each.start, rows) for each, (rows, _) in blocks())), 3
        )
        exact = torch.from_numpy(unit(queries[:CHECKED].astype(np.float64))).to(device)
        expected = best_rows(exact, doubles(host, device))
    streaming = Searcher(corpus, "cosine", Device(device))
    streaming.on_device.device.free_bytes = 0
    streamed, copied = seconds(lambda: streaming.nearest(queries, TOP), 2)
    print(
        f"{count} queries, top {TOP}, on "
        f"{torch.cuda.get_device_name() if device.type == 'cuda' else name}"
    )
    print(f"blocks that stay on the device: {len(blocks.resident)} of {-(-rows // blocks.size)}")
    for what, took in {
        "sentkit, first search, which copies the corpus to the device": first,
        "sentkit, corpus on the device": resident,
        "sentkit, corpus beyond the memory of the device, so each search copies it": copied,
        "torch.topk of products in half precision, corpus on the device, not exact": plain,
    }.items():
        print(f"| {what} | {1000 * took:.0f} ms |", flush=True)
    same = np.array_equal(found.rows, again.rows) and np.array_equal(found.rows, streamed.rows)
    equal = np.mean(found.rows[:CHECKED] == expected)
    print(f"rows in the same place as in float64: {equal:.2%}; equal in all searches: {same}")


def against_faiss():
    import faiss

    random = np.random.default_rng(0)
    corpus = random.standard_normal((ROWS, WIDTH), dtype=np.float32)
    queries = random.standard_normal((QUERIES, WIDTH), dtype=np.float32)
    unit_corpus, unit_queries = unit(corpus), unit(queries)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(unit_corpus)
    cosine, dot = Searcher(corpus, "cosine"), Searcher(unit_corpus, "dot")
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    print(f"{QUERIES} queries, {ROWS} rows of {WIDTH} random numbers, top {TOP}, {threads} threads")
    seconds = rounds_of(
        {
            FLAT: lambda: index.search(unit_queries, TOP),
            "sentkit cosine": lambda: cosine.nearest(queries, TOP),
            "sentkit dot": lambda: dot.nearest(unit_queries, TOP),
        }
    )
    rows = [
        [
            name,
            f"{1000 * min(own):.0f} ms",
            *(f"{ratio:.2f}" for ratio in ratios(own, seconds[FLAT])),
        ]
        for name, own in seconds.items()
    ]
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
    given = parser.parse_args()
    if given.device is None:
        against_faiss()
    else:
        on_device(given.device, given.queries, given.rows, given.width)


if __name__ == "__main__":
    main()
