"""Steps of training with one thread: training.py NAME ARGUMENT...

steps TEXTS.txt[.gz] [STEPS [LENGTH]]: CPU time of a step of `train simcse` beside the trainer of
    sentence-transformers: the same model, texts, batch and length, without loading and the first steps; needs
    `pip install accelerate datasets`, which that trainer asks for. LENGTH is the maximum number of tokens
gradient TEXTS.txt [BATCH]: memory and CPU time of a gradient of SimCSE, whole and in chunks of 64
gradient ROWS.jsonl [BATCH [MODEL]]: the same of `train contrast` and of the cached loss of
    sentence-transformers, 64 texts at a time, on rows of `sentkit mine` with equal numbers of negatives; the
    memory of the loaded model is subtracted
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from timing import MODEL, least_of, peak, print_table, read_texts, run_named, write_texts

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.rows import Inputs
from sentkit.model.transformer.device import gain_of_bf16
from sentkit.training.base import open_base
from sentkit.training.catalogue import load
from sentkit.training.data.corpus import map_corpus, write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import Trainer
from sentkit.training.options import Run, RunFolders, TrainOptions
from sentkit.training.settings import build

BATCH, WARM, CHUNK = 64, 3, 64
LENGTH = {"simcse": 32, "contrast": 128}


def trainer_of(model, name, rows, folder, settings, device="cpu"):
    """A trainer over the rows of a file, whose tokens and states are in this folder."""
    kind = load(name).kind
    wanted = build(kind.Settings, {}, None, settings)
    base = open_base(read_checkpoint(model), wanted.max_length)
    parser = ExampleParser(name, kind.reads(base, wanted), {})
    write_corpus(folder, Inputs([str(rows)]), parser, base.training_tokenizer)
    method = kind.build(base, wanted).to(device)
    options = TrainOptions(method=name, kind=kind, settings=wanted, folders=RunFolders(folder / "out", [0]))
    run = Run(options, 0, base, map_corpus(folder))
    return Trainer(run, method, Keeper(folder), Processes(device=torch.device(device)))


def stock(model, length, pooling):
    """The modules of a model as sentence-transformers trains it, and their width."""
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(str(read_checkpoint(model).transformer), max_seq_length=length)
    width = body.get_word_embedding_dimension()
    return [body, Pooling(width, pooling)], width


def steps_of_sentkit(rows, precision, length):
    times = []
    settings = [f"batch={BATCH}", f"max_length={length}", f"precision={precision}"]
    with TemporaryDirectory() as temporary:
        trainer = trainer_of(MODEL, "simcse", rows, Path(temporary), settings)
        trainer.reporter.step = lambda _: times.append(time.process_time())
        trainer.train()
    return seconds_of_step(times)


def steps_of_sentence_transformers(texts, precision, length):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Dense
    from transformers import TrainerCallback

    times = []

    class Tick(TrainerCallback):
        def on_step_end(self, *_, **__):
            times.append(time.process_time())

    modules, width = stock(MODEL, length, "cls")
    head = Dense(width, width, activation_function=torch.nn.Tanh())
    model = SentenceTransformer(modules=[*modules, head], device="cpu")
    rows = Dataset.from_dict({"anchor": texts, "positive": texts})
    with TemporaryDirectory() as temporary:
        arguments = Arguments(
            temporary, num_train_epochs=1, per_device_train_batch_size=BATCH, learning_rate=3e-5,
            bf16=precision == "bf16", use_cpu=True, save_strategy="no", logging_strategy="no",
            report_to="none", disable_tqdm=True,
        )  # fmt: skip
        SentenceTransformerTrainer(
            model, arguments, rows, loss=MultipleNegativesRankingLoss(model), callbacks=[Tick()]
        ).train()
    return seconds_of_step(times)


def seconds_of_step(times):
    """CPU seconds of a step, without the first ones, from the time at the end of each."""
    return ((times[-1] - times[WARM]) / (len(times) - 1 - WARM),)


def padding_factor(corpus):
    """Padded tokens for each real one, in batches of any order."""
    lengths = np.diff(corpus.ends.reshape(-1), prepend=0)
    lengths = np.random.default_rng(0).permutation(lengths)
    batches = np.array_split(lengths, len(lengths) // BATCH)
    return float(sum(len(batch) * batch.max() for batch in batches) / lengths.sum())


def steps(path, count="15", length="32"):
    torch.set_num_threads(1)
    texts = read_texts(path, int(count) * BATCH)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = write_texts(folder / "texts.txt", texts)
        corpus = trainer_of(MODEL, "simcse", rows, folder, [f"max_length={length}"]).run.corpus
        factor, tokens = padding_factor(corpus), len(corpus.ids) / len(corpus)
        print(f"{len(texts)} texts, {tokens:.1f} tokens each, batch {BATCH}, padding factor {factor:.2f}")
        for precision in ("fp32", "bf16") if gain_of_bf16() > 1.3 else ("fp32",):
            sides = {
                "ours": partial(steps_of_sentkit, rows, precision, int(length)),
                "theirs": partial(steps_of_sentence_transformers, texts, precision, int(length)),
            }
            [one], [two] = least_of(sides).values()
            ratio = two / one
            print(f"| train simcse, {precision} | {BATCH / one:.0f} sentences/s, theirs {BATCH / two:.0f} |")
            print(f"| | {ratio:.2f} x theirs, {ratio / factor:.2f} of the padding factor |")


def gradient_of_sentkit(method, texts, path, model):
    """A function that computes a gradient, with loaded model and rows."""
    folder = path.with_suffix(f".{os.getpid()}")
    folder.mkdir()
    settings = [f"batch={len(path.read_text().splitlines())}", f"max_length={LENGTH[method]}"]
    trainer = trainer_of(model, method, path, folder, settings)
    trainer.method.train()
    trainer.gradient.chunk = texts // trainer.run.corpus.columns
    batch = trainer.batch(0)
    return lambda: trainer.gradient.compute(batch)


def gradient_of_sentence_transformers(path, model):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

    modules, _ = stock(model, LENGTH["contrast"], "mean")
    encoder = SentenceTransformer(modules=modules, device="cpu").train()
    loss = CachedMultipleNegativesRankingLoss(encoder, scale=20.0, mini_batch_size=CHUNK)
    rows = map(json.loads, path.read_text().splitlines())
    columns = zip(*([row["anchor"], row["positive"], *row["negatives"]] for row in rows), strict=True)
    features = [encoder.tokenize(list(column)) for column in columns]
    return lambda: loss(features, None).backward()


SIDES = {
    "simcse, whole": partial(gradient_of_sentkit, "simcse", 0),
    f"simcse, --set chunk={CHUNK}": partial(gradient_of_sentkit, "simcse", CHUNK),
    "contrast, sentkit": partial(gradient_of_sentkit, "contrast", CHUNK),
    "contrast, sentence-transformers": gradient_of_sentence_transformers,
}


def side(name, path, model):
    """Compute one gradient and print its memory and its CPU seconds, in a process of its own."""
    torch.manual_seed(0)
    compute = SIDES[name](Path(path), model)
    before, start = peak(), time.process_time()
    compute()
    print(f"{peak() - before:.0f} {time.process_time() - start:.1f}")


def gradient(source, batch=None, model=MODEL):
    method, usual = ("contrast", "4096") if ".jsonl" in source else ("simcse", "1024")
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / f"rows.{'jsonl' if method == 'contrast' else 'txt'}"
        write_texts(path, read_texts(source, int(batch or usual)))

        def run(name):
            command = [sys.executable, __file__, "side", name, str(path), model]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            return map(float, subprocess.check_output(command, text=True, env=environment).split())

        least = least_of({name: partial(run, name) for name in SIDES if name.startswith(method)})
    rows = [(name, f"{memory:.0f} MB", f"{seconds:.1f} s") for name, (memory, seconds) in least.items()]
    print_table(f"one gradient at batch {batch or usual} | memory | CPU time", rows)


if __name__ == "__main__":
    run_named(steps, gradient, side)
