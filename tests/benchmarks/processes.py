"""Whole processes: processes.py NAME ARGUMENT...

start: CPU time of the start of commands with one thread, relative to that of `python -c 'import torch'`
lines TEXTS.txt [PYTHON STATIC ONNX]: the same of processes that start, load, encode 1, 10 and 1,000 lines,
    and print all numbers as text
memory: the peak of encode and score over ten times the rows
threads TEXTS.txt MODEL ROWS: `encode` with one and two threads, alone and beside a busy loop for each CPU
shards TEXTS.txt MODEL ROWS: examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders

PYTHON is an interpreter with model2vec and fastembed, STATIC a folder of model2vec, and ONNX a folder with
onnx/model.onnx, an export of all-MiniLM-L6-v2 whose output is the last layer, and its tokenizer.
"""

import json
import os
import subprocess
import sys
from functools import partial
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import (
    MODEL,
    cpu_of_children,
    least_of,
    make_model,
    print_table,
    print_times,
    process_seconds,
    ratios,
    read_texts,
    rounds_of,
    run_named,
    write_texts,
)

from sentkit.formats.checkpoints.folders import read_checkpoint

TORCH = "python -c 'import torch'"
SENTKIT = [sys.executable, "-m", "sentkit"]
STARTS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import typer'": [sys.executable, "-c", "import typer"],
    "sentkit --help": [*SENTKIT, "--help"],
    "sentkit --version": [*SENTKIT, "--version"],
    "sentkit encode --dry-run, one sentence": [*SENTKIT, "encode", "-n"],
    "sentkit encode, one sentence": [*SENTKIT, "encode"],
    "sentkit encode --precision bf16, one sentence": [*SENTKIT, "encode", "--precision", "bf16"],
    TORCH: [sys.executable, "-c", "import torch"],
}
COUNTS = (1, 10, 1000)
PROGRAM = """import json, sys
def read(): return sys.stdin.read().splitlines()
{}
for vector in vectors: print(json.dumps([float(number) for number in vector]))"""
SENTENCE_TRANSFORMERS = PROGRAM.format("""from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer(sys.argv[1], device="cpu").encode(read())""")
MODEL2VEC = PROGRAM.format("""from model2vec import StaticModel
vectors = StaticModel.from_pretrained(sys.argv[1]).encode(read())""")
FASTEMBED = PROGRAM.format("""from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model("local/minilm", PoolingType.MEAN, True, ModelSource("local/minilm"), 384)
vectors = TextEmbedding("local/minilm", specific_model_path=sys.argv[1]).embed(read())""")
WITH_PEAK = f"""import sys
sys.path.append({str(Path(__file__).parent)!r})
from sentkit.cli import program
program()(sys.argv[1:], standalone_mode=False)
from timing import peak
print(peak(), file=sys.stderr)"""


def start():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = partial(subprocess.run, input=b"a cat\n", capture_output=True, check=True, env=environment)
    seconds = rounds_of({name: partial(run, words) for name, words in STARTS.items()}, clock=cpu_of_children)
    columns = "process | CPU time | relative to the last row: least | median"
    print_times(columns, seconds, TORCH, lambda least: f"{least:.2f} s")


def lines(path, *other):
    encode, texts = [*SENTKIT, "encode"], read_texts(path, COUNTS[-1])
    minilm = str(read_checkpoint(MODEL).folder)
    commands = {
        "sentkit, `nano`": encode,
        "sentkit, all-MiniLM-L6-v2": [*encode, "-m", MODEL],
        "the same with `--precision bf16`": [*encode, "-m", MODEL, "--precision", "bf16"],
        "sentence-transformers, all-MiniLM-L6-v2": [sys.executable, "-c", SENTENCE_TRANSFORMERS, minilm],
    }
    if other:
        python, static, onnx = other
        commands["fastembed, all-MiniLM-L6-v2"] = [python, "-c", FASTEMBED, onnx]
        commands["model2vec, potion-base-4M"] = [python, "-c", MODEL2VEC, static]
        commands["sentkit, potion-base-4M"] = [*encode, "-m", static]
    with TemporaryDirectory() as cache:  # an installed package has its bytecode
        settings = {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": str(Path.cwd())}
        environment = {**os.environ, **settings, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        run = partial(subprocess.run, capture_output=True, check=True, env=environment)
        calls = {(TORCH, 0): partial(run, STARTS[TORCH], input=b"")}
        for (name, command), size in product(commands.items(), COUNTS):
            stdin = "".join(f"{text}\n" for text in texts[:size]).encode()
            calls[name, size] = partial(run, command, input=stdin)
        seconds = rounds_of(calls, 2, cpu_of_children)
    base, rows = seconds[TORCH, 0], []
    for name in commands:
        found = [ratio for size in COUNTS for ratio in ratios(seconds[name, size], base)]
        rows.append([name, *(f"{ratio:.2f}" for ratio in found)])
    print_table("process | " + " | ".join(f"{size:,} lines: least | median" for size in COUNTS), rows)
    print(f"`{TORCH}` took {min(base):.2f} s.")


def memory():
    sentence = "a man plays the guitar while some people sing and dance on green grass near old houses"
    words, found = sentence.split(), []
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, vectors = make_model(folder / "tiny", 2, 32, 2, 64), folder / "rows.safetensors"
        encode = ["encode", folder / "rows.jsonl", "-m", model, "-q", "--readout", "mean", "-f", "-o"]
        commands = {
            "`encode` to a vector file": [*encode, vectors],
            "`encode` to JSONL": [*encode, "/dev/null"],
            "`score --gold`": ["score", vectors, "--gold", "score", "-f", "-o", "/dev/null"],
        }
        for size in (100_000, 1_000_000):
            texts = (" ".join(words[n * k % len(words)] for k in range(1, 6 + n % 7)) for n in range(size))
            rows = (
                json.dumps({"text_a": text, "text_b": f"{n} people", "score": n % 6})
                for n, text in enumerate(texts)
            )
            write_texts(folder / "rows.jsonl", rows)
            run = partial(subprocess.run, capture_output=True, text=True, check=True)
            done = [run([sys.executable, "-c", WITH_PEAK, *each]).stderr for each in commands.values()]
            found.append([f"{float(each.splitlines()[-1]):.0f} MB" for each in done])
    rows = zip(commands, *found, strict=True)
    print_table("peak memory, pairs and a tiny model | 100,000 rows | 1,000,000 rows", rows)


def threads(path, model, count):
    encode = [*SENTKIT, "encode", "rows.txt", "--precision", "fp32", "-q", "-f", "-m", model]
    with TemporaryDirectory() as folder:
        write_texts(Path(folder, "rows.txt"), read_texts(path, int(count)))

        def run(number, loops):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
            try:
                flags = ["-o", f"{number}.safetensors", "--threads", str(number)]
                return process_seconds([*encode, *flags], folder)
            finally:
                for other in others:
                    other.kill()

        least = least_of({key: partial(run, *key) for key in product((1, 2), (0, os.cpu_count() or 1))})
        one, two = (Path(folder, f"{number}.safetensors").read_bytes() for number in (1, 2))
    print(f"equal bytes: {one == two}")
    table = [(*key, *(f"{figure:.1f}" for figure in figures)) for key, figures in least.items()]
    print_table("threads | busy loops | seconds | CPU seconds", table)


def shards(path, model, rows):
    script, outputs = Path(__file__).parents[2] / "examples/parallel.sh", count()
    with TemporaryDirectory() as folder:
        write_texts(Path(folder, "rows.txt"), read_texts(path, int(rows)))

        def run(jobs):
            command = ["sh", str(script), "rows.txt", f"vectors-{next(outputs)}", "-m", model, "-q"]
            return process_seconds(command, folder, JOBS=str(jobs))

        least = least_of({jobs: partial(run, jobs) for jobs in (1, 2, 4)})
        made = (sorted(Path(folder, f"vectors-{number}").glob("*.safetensors")) for number in (0, 2))
        first, last = ([block.read_bytes() for block in own] for own in made)
        assert first == last, "the blocks of one and of four processes are different"
    table = [(jobs, f"{int(rows) / elapsed:,.0f}", f"{cpu:.1f}") for jobs, (elapsed, cpu) in least.items()]
    print_table("processes | rows/s | CPU seconds", table)


if __name__ == "__main__":
    run_named(start, lines, memory, threads, shards)
