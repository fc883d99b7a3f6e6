"""Encoding and training of a model of the size of BERT-base on a GPU, in bf16, with random weights.

python tests/benchmarks/gpu.py LIMIT TEXTS.txt[.gz] [--count 20000] [--length 128] [--size base]

LIMIT is the speed of the GPU in TFLOP/s for dense products in bf16, from its data sheet. Only the
products of the network and of its attention are counted. With `--device cpu --size tiny` it runs to
its end on a CPU; those figures have no meaning.

The tables: encode beside sentence-transformers, steps of training beside a plain loop over a model
of transformers, and the kernels that take the most time, with the share of the time in which the
GPU works.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from encode import least_cosine
from runtimes import write_families
from timing import (
    make_model,
    print_table,
    read_texts,
    rounds_of,
    sentence_transformers,
    write_texts,
)
from torch import nn
from torch.nn import functional as F

import sentkit
from sentkit.model.encoding import plan_batches
from sentkit.model.transformer.kernels.inference import CudaBlock
from training import trainer_of

SIZES = {"base": (12, 768, 12, 3072), "tiny": (2, 32, 2, 64)}  # layers, width, heads, inner width
WARM = 3  # uncounted steps of training
SHAPES = ((64, 32), (512, 32), (512, 128))  # texts and most tokens of a step
KERNELS = 20  # rows of a profile


@dataclass(frozen=True)
class Machine:
    folder: Path  # the checkpoint
    device: str
    size: str
    rounds: int  # of encode; training takes twice as many counted steps

    def wait(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def timed(self, way):
        def run():
            way()
            self.wait()

        return run

    def flops(self, lengths):
        """Return the operations of a forward pass of these texts."""
        layers, width, _, inner = SIZES[self.size]
        products = 2 * (4 * width * width + 2 * width * inner)
        return float((layers * lengths * (products + 4 * lengths * width)).sum())


def trainer_in(folder, machine, texts, method, settings):
    rows = write_texts(Path(folder, "texts.txt"), texts)
    model = str(machine.folder)
    return trainer_of(model, method, rows, Path(folder), [*settings, "epochs=1"], machine.device)


def seconds_of_plain_step(machine, texts, batch, length):
    """Take steps of SimCSE with the model of transformers under autocast."""
    from transformers import AutoTokenizer, BertModel

    device = torch.device(machine.device)
    model = BertModel.from_pretrained(machine.folder, attn_implementation="sdpa").to(device).train()
    tokenizer = AutoTokenizer.from_pretrained(machine.folder)
    head = nn.Linear(*[model.config.hidden_size] * 2)
    parameters = [*model.parameters(), *head.to(device).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-5, fused=device.type != "cpu")
    times = []
    for start in range(0, len(texts), batch):
        inputs = tokenizer(
            list(texts[start : start + batch]),
            truncation=True,
            max_length=length,
            padding=True,
            return_tensors="pt",
        ).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            views = [torch.tanh(head(model(**inputs).last_hidden_state[:, 0])) for _ in range(2)]
        view_a, view_b = (F.normalize(view.float(), dim=1) for view in views)
        positives = torch.arange(len(view_a), device=device)
        loss = F.cross_entropy(view_a @ view_b.T / 0.05, positives)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        machine.wait()
        times.append(time.perf_counter())
    return (times[-1] - times[WARM - 1]) / (len(times) - WARM)


def seconds_of_own_step(machine, trainer):
    """Take all steps. The values of a step are read after the start of later ones, which are not
    counted.
    """
    started = []  # time, and the steps until then
    reads = 0

    def read(record):
        nonlocal reads
        reads += 1
        if reads in (WARM, trainer.order.steps):
            machine.wait()
            started.append((time.perf_counter(), trainer.position.step))

    trainer.reporter.step = read
    trainer.train()
    (start, steps_before), (end, steps) = started
    return (end - start) / (steps - steps_before)


def profile(machine, title, way):
    """Print the share of the time in which the GPU works, and the kernels that take the most time.

    On a CPU, print the operations that take the most time.
    """
    on_gpu = machine.device != "cpu"
    device_type = "CPU"
    attribute = "self_cpu_time_total"
    unit = "operations"
    if on_gpu:
        device_type = "CUDA"
        attribute = "self_device_time_total"
        unit = "kernels"
    machine.wait()
    start = time.perf_counter()
    with torch.profiler.profile() as profiler:  # of all devices
        way()
        machine.wait()
    wall = time.perf_counter() - start
    averages = profiler.key_averages()
    events = [event for event in averages if event.device_type.name == device_type]
    times = {event: 1e-3 * getattr(event, attribute) for event in events}
    calls = sum(event.count for event in events)
    busy = sum(times.values()) / wall / 1e3
    print(f"{title}: {1e3 * wall:.0f} ms, {calls} {unit} take {busy:.0%} of it\n")
    slowest = sorted(events, key=times.get, reverse=True)[:KERNELS]
    rows = [
        [event.key[:80].replace("|", "/"), f"{times[event]:.2f}", event.count] for event in slowest
    ]
    print_table(f"{unit} | ms | calls", rows)


def encode(machine, texts, length, batch, limit):
    folder = str(machine.folder)
    half, full = (
        sentkit.Encoder(
            folder, device=machine.device, precision=precision, readout="mean", max_length=length
        )
        for precision in ("bf16", "fp32")
    )
    tokens = half.tokenizer(texts)
    lengths = np.asarray(tokens.lengths)
    print(f"{len(texts)} texts of {lengths.mean():.1f} tokens\n")
    batches = [
        tokens.take(indices) for indices in plan_batches(tokens, half.loaded.tokens_per_batch)
    ]
    ways = {
        "the tokenizer alone": lambda: half.tokenizer(texts),
        "sentkit: tokens to vectors": lambda: list(half.loaded.encode(batches)),
        "sentkit: texts to vectors": lambda: half.encode(texts),
    }
    try:
        for size in dict.fromkeys((32, batch)):
            peer = sentence_transformers(machine.folder, "bf16", machine.device, batch_size=size)
            ways[f"sentence-transformers, batch {size}"] = partial(peer, texts)
    except ImportError:
        print("sentence-transformers is not installed\n")
    rows = []
    timed = {name: machine.timed(way) for name, way in ways.items()}
    for name, seconds_of_rounds in rounds_of(timed, machine.rounds).items():
        seconds = statistics.median(seconds_of_rounds)
        speed = machine.flops(lengths) / seconds / 1e12
        products = [f"{speed:.3g} TFLOP/s", f"{speed / limit:.1%}"]
        if name == "the tokenizer alone":
            products = ["", ""]
        rows.append([name, f"{len(texts) / seconds:.0f} texts/s", *products])
    print_table("encode | texts | products | of LIMIT", rows)
    first_texts = texts[: 4 * batch]
    cosine = least_cosine(half.encode(first_texts), full.encode(first_texts))
    print(f"lowest cosine of bf16 with fp32: {cosine:.5f}")
    if is_packed(half):
        print("attention: one kernel without padding\n")
    else:
        print("attention: not the kernel for GPUs\n")
    some_batches = batches[: max(1, len(batches) // 4)]
    profile(machine, "encode", lambda: list(half.loaded.encode(some_batches)))


def is_packed(encoder):
    modules = encoder.loaded.network.modules()
    return any(isinstance(module, CudaBlock) for module in modules)


def families(machine, texts, length, batch):
    """Encode with a model of each family, of random weights, beside sentence-transformers."""
    import transformers

    rows = []
    for folder in write_families(transformers, machine.folder):
        half, full = (
            sentkit.Encoder(folder, device=machine.device, precision=precision, max_length=length)
            for precision in ("bf16", "fp32")
        )
        peer = sentence_transformers(folder, "bf16", machine.device, batch_size=batch)
        ways = {
            "sentkit": machine.timed(partial(half.encode, texts)),
            "peer": machine.timed(partial(peer, texts)),
        }
        seconds = rounds_of(ways, machine.rounds)
        least = min(seconds["sentkit"])
        least_of_peer = min(seconds["peer"])
        cosine = least_cosine(half.encode(texts[:batch]), full.encode(texts[:batch]))
        speeds = [f"{len(texts) / least:.0f}", f"{len(texts) / least_of_peer:.0f}"]
        ratio = f"{least_of_peer / least:.2f}"
        padding = "no" if is_packed(half) else "yes"
        rows.append([Path(folder).name, *speeds, ratio, padding, f"{cosine:.5f}"])
    head = "model, bf16 | sentkit, texts/s | sentence-transformers, texts/s | ratio | padding"
    print_table(f"{head} | lowest cosine with fp32", rows)


def train(machine, texts, shapes, limit):
    rows = []

    def take(title, batch, length, method, *settings):
        count = (WARM + 2 * machine.rounds) * batch
        repeated = [texts[i % len(texts)] for i in range(count)]
        if machine.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        with TemporaryDirectory() as folder:
            sizes = [f"batch={batch}", f"max_length={length}"]
            trainer = trainer_in(folder, machine, repeated, method or "simcse", [*sizes, *settings])
            [token_ids] = trainer.run.corpus.batch(np.arange(count)).texts
            lengths = np.array([len(ids) for ids in token_ids])
            if method:
                seconds = seconds_of_own_step(machine, trainer)
            else:
                seconds = seconds_of_plain_step(machine, repeated, batch, length)
        # Two passes over each text, and a backward pass that takes twice the operations of a
        # forward pass.
        speed = 6 * machine.flops(lengths) / trainer.order.steps / seconds / 1e12
        memory = 0.0
        if machine.device != "cpu":
            memory = torch.cuda.max_memory_allocated() / 2**30
        cells = [f"{1e3 * seconds:.1f} ms", f"{speed:.3g} TFLOP/s", f"{speed / limit:.1%}"]
        rows.append([f"{title}, {batch} x {length}", *cells, f"{memory:.1f} GiB"])

    for batch, length in shapes:
        take("`train simcse`, bf16", batch, length, "simcse", "precision=bf16")
        take("plain loop of transformers, bf16", batch, length, "")
    take("`train simcse`, fp32", *shapes[0], "simcse", "precision=fp32")
    take("`train sg-bert`, bf16", *shapes[0], "sg-bert", "precision=bf16")
    print_table("training | a step | products | of LIMIT | memory", rows)
    batch, length = shapes[0]
    with TemporaryDirectory() as folder:
        settings = [f"batch={batch}", f"max_length={length}", "precision=bf16"]
        trainer = trainer_in(folder, machine, texts[: 8 * batch], "simcse", settings)
        title = f"train simcse, {trainer.order.steps} steps of {batch} x {length}"
        profile(machine, title, trainer.train)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("limit", type=float, metavar="LIMIT", help="TFLOP/s of the GPU in bf16")
    parser.add_argument(
        "texts", metavar="TEXTS", help="a file with one text in each line, also .gz"
    )
    parser.add_argument("--count", type=int, default=20_000, help="texts to encode")
    parser.add_argument("--length", type=int, default=128, help="most tokens of a text to encode")
    parser.add_argument("--batch", type=int, default=512, help="texts of sentence-transformers")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of encode; twice as many steps of training"
    )
    parser.add_argument(
        "--families", action="store_true", help="compare only other families, in encode"
    )
    options = parser.parse_args(arguments)
    on_gpu = options.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        parser.error(
            "no CUDA device; --device cpu --size tiny runs the script without meaningful figures"
        )
    name = "CPU"
    shapes = [(options.batch, options.length)]
    if on_gpu:
        name = torch.cuda.get_device_name(options.device)
        shapes = SHAPES
    versions = f"torch {torch.__version__}, sentkit {sentkit.__version__}"
    print(f"{name}, {versions}, model {options.size}")
    with TemporaryDirectory() as temporary:
        machine = Machine(Path(temporary), options.device, options.size, options.rounds)
        texts = read_texts(options.texts, options.count)
        if options.families:
            families(machine, texts, options.length, options.batch)
            return
        make_model(machine.folder, *SIZES[options.size])
        encode(machine, texts, options.length, options.batch, options.limit)
        train(machine, texts, shapes, options.limit)


if __name__ == "__main__":
    main()
