"""Encoding and training of a model of the size of BERT-base on a GPU, in bf16, with random weights.

python tests/benchmarks/gpu.py LIMIT [--texts 20000] [--length 128] [--batch 512] [--size base]

LIMIT is the speed of the GPU in TFLOP/s for dense products in bf16, from its data sheet. Only the products of
the network and of its attention are counted. This script has never run on a GPU. With `--device cpu --size
tiny` it runs to its end on a CPU; those figures have no meaning.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from encode import least_cosine
from timing import in_turn

import sentkit
from sentkit.formats.checkpoints.folders import NANO, find_model, read_checkpoint
from sentkit.formats.rows.rows import Inputs
from sentkit.model.encoding import plan_batches
from sentkit.model.transformer.inference import CudaBlock
from sentkit.training.base import open_base
from sentkit.training.data.corpus import map_corpus, write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import Trainer
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.options import Run, TrainOptions
from sentkit.training.run_folders import RunFolders
from sentkit.training.settings import build

SIZES = {"base": (12, 768, 12, 3072), "tiny": (2, 32, 2, 64)}  # layers, width, heads, inner width
WARM, STEPS = 3, 10  # uncounted and counted steps of training
FILES = ("tokenizer.json", "tokenizer_config.json")


def make_model(folder: Path, size: str, length: int) -> list[str]:
    """Write a checkpoint with random weights. Return words that are one token each."""
    from transformers import BertConfig, BertModel

    layers, width, heads, inner = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=max(512, length),
    )
    BertModel(config).save_pretrained(folder)
    for name in FILES:
        (folder / name).write_bytes((find_model(NANO) / name).read_bytes())
    tokenizer = sentkit.Encoder(str(folder), device="cpu").tokenizer
    words = [f"{a}{b}{c}" for a in "bcdfghlmnprst" for b in "aeiou" for c in "bdgklmnprst"]
    return [word for word, tokens in zip(words, tokenizer(words), strict=True) if len(tokens.ids) == 3]


def make_texts(words: Sequence[str], count: int, length: int) -> list[str]:
    """Different texts of `length` tokens, two of which are special."""
    drawn = np.random.default_rng(0).choice(words, (count, length - 2))
    return [" ".join(text) for text in drawn]


def flops(size: str, length: int) -> float:
    """Return the operations of a forward pass for each text."""
    layers, width, _, inner = SIZES[size]
    products = 2 * (4 * width * width + 2 * width * inner)
    attention = 2 * 2 * length * width
    return layers * length * (products + attention)


def theirs(folder: Path, device: str, texts: list[str], batch: int) -> Callable[[], np.ndarray]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": torch.bfloat16})
    return lambda: model.encode(texts, batch_size=batch, show_progress_bar=False, convert_to_numpy=True)


def seconds_of_a_step(folder: Path, device: str, texts: list[str], batch: int, length: int) -> float:
    """Return the seconds of one step of SimCSE, which encodes each text twice."""
    settings = build(
        SimCSE.Settings, {}, None, [f"batch={batch}", f"max_length={length}", "precision=bf16", "epochs=1"]
    )
    base = open_base(read_checkpoint(str(folder)), length)
    own = folder / "training"
    own.mkdir()
    (own / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    parser = ExampleParser("simcse", SimCSE.reads(base, settings), {})
    write_corpus(own, Inputs([str(own / "texts.txt")]), parser, base.training_tokenizer)
    method = SimCSE.build(base, settings).to(device)
    folders = RunFolders(own / "out", [0])
    options = TrainOptions(method="simcse", kind=SimCSE, settings=settings, folders=folders)
    run = Run(options, 0, base, map_corpus(own))
    trainer = Trainer(run, method, Keeper(own), Processes(device=torch.device(device)))
    times: list[float] = []
    trainer.reporter.step = lambda record: times.append(
        time.perf_counter()
    )  # the loss was read: it is computed
    trainer.train()
    return (times[-1] - times[WARM - 1]) / (len(times) - WARM)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("limit", type=float, metavar="LIMIT", help="TFLOP/s of the GPU in bf16")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=512, help="texts of sentence-transformers and of a step")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    wanted = parser.parse_args(arguments)
    if wanted.device != "cpu" and not torch.cuda.is_available():
        parser.error("no CUDA device; --device cpu --size tiny runs the script without meaningful figures")
    name = torch.cuda.get_device_name(wanted.device) if wanted.device != "cpu" else "CPU"
    print(f"{name}, torch {torch.__version__}, {wanted.texts} texts of {wanted.length} tokens, {wanted.size}")

    def show(what: str, seconds: float, texts: int, passes: int = 1) -> None:
        speed = passes * texts * flops(wanted.size, wanted.length) / seconds / 1e12
        share = speed / wanted.limit
        print(f"| {what} | {texts / seconds:.0f} texts/s | {speed:.3g} TFLOP/s | {share:.1%} |", flush=True)

    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        texts = make_texts(make_model(folder, wanted.size, wanted.length), wanted.texts, wanted.length)
        half, full = (
            sentkit.Encoder(
                str(folder), device=wanted.device, precision=kind, readout="mean", max_length=wanted.length
            )
            for kind in ("bf16", "fp32")
        )
        tokens = half.tokenizer(texts)
        assert {*tokens.lengths.tolist()} == {wanted.length}
        batches = [tokens.take(own) for own in plan_batches(tokens, half.loaded.budget)]
        ways: dict[str, Callable[[], object]] = {
            "sentkit: tokens to vectors": lambda: list(half.loaded.encode(batches)),
            "sentkit: texts to vectors": lambda: half.encode(texts),
        }
        try:
            for batch in dict.fromkeys((32, wanted.batch)):
                way = theirs(folder, wanted.device, texts, batch)
                ways[f"sentence-transformers, batch {batch}"] = way
        except ImportError:
            print("sentence-transformers is not installed")
        for what, seconds in in_turn(ways).items():
            show(what, seconds, len(texts))
        some = texts[: 4 * wanted.batch]
        print(f"lowest cosine of bf16 with fp32: {least_cosine(half.encode(some), full.encode(some)):.5f}")
        packed = any(isinstance(module, CudaBlock) for module in half.loaded.network.modules())
        print(f"attention: {'one kernel without padding' if packed else 'not the kernel for GPUs'}")
        some = make_texts(texts[0].split(), (WARM + STEPS) * wanted.batch, wanted.length)
        step = seconds_of_a_step(folder, wanted.device, some, wanted.batch, wanted.length)
        # Two passes over each text, and a backward pass that takes twice the operations of a forward pass.
        show(f"train simcse, batch {wanted.batch}", step, wanted.batch, passes=6)


if __name__ == "__main__":
    main()
