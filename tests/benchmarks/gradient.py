"""Memory and CPU time of one gradient, each measured in separate processes with one thread.

python tests/benchmarks/gradient.py TEXTS.txt [BATCH]
    SimCSE at batch 1024, whole and in chunks of 64
python tests/benchmarks/gradient.py ROWS.jsonl [BATCH [MODEL]]
    `train contrast` and the cached loss of sentence-transformers, 64 texts at a time, on rows of
    `sentkit mine` that have equal numbers of negatives

The memory of the loaded model is subtracted.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import least_of, peak, print_table, read_texts, write_texts
from usage import check_arguments

from sentkit.formats.checkpoints.folders import read_checkpoint
from training import MODEL, trainer_of

TEXTS = 64
LENGTH = {"simcse": 32, "contrast": 128}


def ours(method, texts, path, model):
    """The step of sentkit, with loaded model and rows."""
    folder = path.with_suffix(f".{os.getpid()}")
    folder.mkdir()
    settings = [f"batch={len(path.read_text().splitlines())}", f"max_length={LENGTH[method]}"]
    trainer = trainer_of(model, method, path, folder, settings)
    trainer.method.train()
    trainer.gradient.chunk = texts // trainer.run.corpus.columns
    batch = trainer.batch(0)
    return lambda: trainer.gradient.compute(batch)


def theirs(path, model):
    """The step of sentence-transformers, with loaded model and tokenized rows."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(
        str(read_checkpoint(model).transformer_folder),
        max_seq_length=LENGTH["contrast"],
        model_kwargs={"dtype": torch.float32},  # the files of a checkpoint can have float16
    )
    pooling = Pooling(body.get_embedding_dimension(), "mean")
    encoder = SentenceTransformer(modules=[body, pooling], device="cpu").train()
    loss = CachedMultipleNegativesRankingLoss(encoder, scale=20.0, mini_batch_size=TEXTS)
    rows = map(json.loads, path.read_text().splitlines())
    columns = zip(
        *([row["anchor"], row["positive"], *row["negatives"]] for row in rows), strict=True
    )
    features = [encoder.tokenize(list(column)) for column in columns]
    return lambda: loss(features, None).backward()


SIDES = {
    "simcse, whole": partial(ours, "simcse", 0),
    f"simcse, --set chunk={TEXTS}": partial(ours, "simcse", TEXTS),
    "contrast, sentkit": partial(ours, "contrast", TEXTS),
    "contrast, sentence-transformers": theirs,
}


def measure(side, path, model):
    """Compute one gradient and print its memory and its CPU seconds."""
    import torch

    torch.manual_seed(0)
    step = SIDES[side](Path(path), model)
    memory_before = peak()
    start = time.process_time()
    step()
    seconds = time.process_time() - start
    print(f"{peak() - memory_before:.0f} {seconds:.1f}")


def main():
    check_arguments(__doc__, least=1, most=3)
    if sys.argv[1] in SIDES:
        measure(*sys.argv[1:])
        return
    source, *options = sys.argv[1:]
    method = "simcse"
    batch = "1024"
    model = MODEL
    name = "rows.txt"
    if ".jsonl" in source:
        method = "contrast"
        batch = "4096"
        name = "rows.jsonl"
    if options:
        batch = options[0]
    if len(options) > 1:
        model = options[1]
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / name
        write_texts(path, read_texts(source, int(batch)))

        def run(side):
            command = [sys.executable, __file__, side, str(path), model]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            figures = subprocess.check_output(command, text=True, env=environment)
            return [float(figure) for figure in figures.split()]

        sides = [side for side in SIDES if side.startswith(method)]
        fastest = least_of({side: partial(run, side) for side in sides})
    rows = []
    for side, (memory, seconds) in fastest.items():
        rows.append((side, f"{memory:.0f} MB", f"{seconds:.1f} s"))
    print_table(f"one gradient at batch {batch} | memory | CPU time", rows)


if __name__ == "__main__":
    main()
