"""One gradient of `train contrast`, in chunks, and the cached loss of sentence-transformers, on equal rows.

python tests/benchmarks/cached.py ROWS.jsonl MODEL [BATCH]: rows of `sentkit mine`, all with the same number
of negatives. Each side runs in separate processes with one thread and encodes 64 texts at a time. The memory
of the loaded model is subtracted.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from chunks import peak

BATCH, TEXTS, LENGTH, ROUNDS = 4096, 64, 128, 3


def ours(path: Path, model: str) -> Callable[[], object]:
    """The step of sentkit, with loaded model and rows."""
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.rows import Inputs
    from sentkit.training.base import open_base
    from sentkit.training.data.corpus import map_corpus, write_corpus
    from sentkit.training.data.examples import ExampleParser
    from sentkit.training.loop.gradient import Gradient
    from sentkit.training.loop.processes import Processes
    from sentkit.training.methods.contrast import Contrast
    from sentkit.training.settings import build

    base = open_base(read_checkpoint(model), LENGTH)
    settings = build(Contrast.Settings, Contrast.presets, None, [])
    folder = path.parent / f"corpus{os.getpid()}"
    folder.mkdir()
    parser = ExampleParser("contrast", Contrast.reads(base, settings), {})
    write_corpus(folder, Inputs([str(path)]), parser, base.training_tokenizer)
    corpus = map_corpus(folder)
    method = Contrast.build(base, settings)
    method.train()
    chunk = TEXTS // corpus.columns
    batch = corpus.batch(np.arange(len(corpus)))
    return lambda: Gradient(method, Processes(), chunk).compute(batch)


def theirs(path: Path, model: str) -> Callable[[], object]:
    """The step of sentence-transformers, with loaded model and tokenized rows."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    from sentkit.formats.checkpoints.folders import read_checkpoint

    body = Transformer(str(read_checkpoint(model).transformer), max_seq_length=LENGTH)
    pooling = Pooling(body.get_word_embedding_dimension(), "mean")
    encoder = SentenceTransformer(modules=[body, pooling], device="cpu").train()
    loss = CachedMultipleNegativesRankingLoss(encoder, scale=20.0, mini_batch_size=TEXTS)
    rows = [json.loads(line) for line in path.open()]
    columns = zip(*([row["anchor"], row["positive"], *row["negatives"]] for row in rows), strict=True)
    features = [encoder.tokenize(list(column)) for column in columns]
    return lambda: loss(features, None).backward()


SIDES = {"sentkit": ours, "sentence-transformers": theirs}


def measure(side: str, path: str, model: str) -> None:
    """Compute one gradient and print its memory and its CPU seconds."""
    import torch

    torch.manual_seed(0)
    step = SIDES[side](Path(path), model)
    before, start = peak(), time.process_time()
    step()
    print(f"{peak() - before:.0f} {time.process_time() - start:.1f}")


def main() -> None:
    if sys.argv[1] in SIDES:
        measure(*sys.argv[1:])
        return
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else BATCH
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "rows.jsonl"
        with Path(sys.argv[1]).open() as file:
            path.write_text("".join(islice(file, batch)))
        for _ in range(ROUNDS):
            for side, results in found.items():
                command = [sys.executable, __file__, side, str(path), sys.argv[2]]
                megabytes, seconds = subprocess.check_output(command, text=True, env=environment).split()
                results.append((float(megabytes), float(seconds)))
                print(f"{side}: {megabytes} MB, {seconds} s", file=sys.stderr)
    for side, results in found.items():
        megabytes, seconds = (min(column) for column in zip(*results, strict=True))
        print(f"| contrast at batch {batch}, {side} | {megabytes:.0f} MB | {seconds:.1f} s of CPU time |")


if __name__ == "__main__":
    main()
