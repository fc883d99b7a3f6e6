"""The nearest rows of a corpus in float16, exactly, on a device of torch, beside its topk.

python tests/benchmarks/search.py [DEVICE [ROWS [WIDTH [QUERIES]]]]; by default on cuda, and with 15 GB of
memory for 10,000,000 rows of 768 numbers. On a CPU the figures have no meaning.
"""

import os
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from timing import rounds_of

from sentkit.formats.vectors.store import StoredVectors
from sentkit.formats.vectors.tensors import Storage
from sentkit.metrics.device import Device
from sentkit.metrics.neighbours.search import Searcher

TOP = 10
CHUNK, CHECKED = 1 << 17, 20  # rows made at a time, and queries that are compared with float64


def random_halves(rows, width, device):
    """Random numbers in float16 on the host, made on the device."""
    host = np.empty((rows, width), np.float16)
    torch.manual_seed(0)
    for start in range(0, rows, CHUNK):
        part = torch.from_numpy(host[start : start + CHUNK])
        part.copy_(torch.randn(part.shape, device=device))
    return host


def best_rows(queries, parts):
    """The best rows of parts of unit rows on the device, each with the number of its first row."""
    values, rows = [], []
    for start, part in parts:
        best = torch.topk(queries @ part.T, min(TOP, len(part)), dim=1)
        values.append(best.values)
        rows.append(best.indices + start)
    best = torch.topk(torch.cat(values, 1), TOP, dim=1)
    return torch.cat(rows, 1).gather(1, best.indices).cpu().numpy()


def doubles(rows, device):
    """All rows in float64 with unit length, part by part."""
    for start in range(0, len(rows), CHUNK):
        part = torch.from_numpy(rows[start : start + CHUNK]).to(device).double()
        yield start, part / torch.linalg.vector_norm(part, dim=1, keepdim=True)


def main(name="cuda", rows="10000000", width="768", count="1000"):
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # they copy rows to pinned memory
    device, rows, width, count = torch.device(name), int(rows), int(width), int(count)
    host = random_halves(rows, width, device)

    def corpus_of(codes):
        store = SimpleNamespace(count=len(codes), storage=Storage("float16", width), codes=lambda: codes)
        return StoredVectors([store])

    noise = np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    corpus = corpus_of(host)
    queries = corpus[np.linspace(0, rows - 1, count).astype(np.intp)] * np.float32(0.2) + noise
    Searcher(corpus_of(host[:CHUNK]), "cosine", Device(device)).nearest(queries, TOP)  # prepares the kernels
    searcher, streaming = (Searcher(corpus, "cosine", Device(device)) for _ in range(2))
    streaming.on_device.device.room = 0
    half, exact = (
        torch.from_numpy(each / np.linalg.norm(each, axis=1, keepdims=True)).to(device)
        for each in (queries, queries[:CHECKED].astype(np.float64))
    )
    half, results = half.half(), {}

    def plain():
        parts = ((block.start, own) for block, (own, _) in searcher.on_device.blocks())
        with torch.inference_mode():
            best_rows(half, parts)

    def timed(what, work):
        def run():
            results[what] = work()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return run

    searches = {
        "sentkit, corpus on the device": lambda: searcher.nearest(queries, TOP).rows,
        "sentkit, corpus beyond the memory of the device, so each search copies it": (
            lambda: streaming.nearest(queries, TOP).rows
        ),
        "torch.topk of products in half precision, corpus on the device, not exact": plain,
    }
    ways = {what: timed(what, work) for what, work in searches.items()}
    start = time.perf_counter()
    ways["sentkit, corpus on the device"]()
    first, before = time.perf_counter() - start, results["sentkit, corpus on the device"]
    seconds = rounds_of(ways, 3)
    print(f"{count} queries, top {TOP}, in {rows} rows of {width} random numbers, on {name}")
    blocks = searcher.on_device.blocks
    print(f"blocks that stay on the device: {len(blocks.kept)} of {-(-rows // blocks.size)}")
    print(f"| sentkit, first search, which copies the corpus to the device | {1000 * first:.0f} ms |")
    for what, own in seconds.items():
        print(f"| {what} | {1000 * min(own):.0f} ms |")
    found, streamed, _ = results.values()
    equal = np.mean(found[:CHECKED] == best_rows(exact, doubles(host, device)))
    same = np.array_equal(found, streamed) and np.array_equal(found, before)
    print(f"rows in the same place as in float64: {equal:.2%}; equal in all searches: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
