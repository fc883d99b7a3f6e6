"""`encode` in threads and in processes: parallel.py threads|shards TEXTS.txt MODEL ROWS

threads: with one and two threads, alone and beside a busy loop for each CPU
shards: examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders
"""

import os
import subprocess
import sys
from functools import partial
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import least_of, print_table, process_seconds, read_texts, write_texts

BUSY = [sys.executable, "-c", "while True: pass"]
ENCODE = [
    sys.executable,
    "-m",
    "sentkit",
    "encode",
    "rows.txt",
    "--precision",
    "fp32",
    "-q",
    "-f",
    "-m",
]
SCRIPT = Path(__file__).parents[2] / "examples/parallel.sh"


def threads(folder, model, rows):
    def run(number, loops):
        others = [subprocess.Popen(BUSY) for _ in range(loops)]
        try:
            flags = ["-o", f"{number}.safetensors", "--threads", str(number)]
            return process_seconds([*ENCODE, model, *flags], folder)
        finally:
            for other in others:
                other.kill()

    least = least_of({key: partial(run, *key) for key in product((1, 2), (0, os.cpu_count() or 1))})
    one, two = ((folder / f"{number}.safetensors").read_bytes() for number in (1, 2))
    print(f"equal bytes: {one == two}")
    table = [(*key, *(f"{figure:.1f}" for figure in figures)) for key, figures in least.items()]
    print_table("threads | busy loops | seconds | CPU seconds", table)


def shards(folder, model, rows):
    outputs = count()

    def run(jobs):
        command = ["sh", str(SCRIPT), "rows.txt", f"vectors-{next(outputs)}", "-m", model, "-q"]
        return process_seconds(command, folder, JOBS=str(jobs))

    least = least_of({jobs: partial(run, jobs) for jobs in (1, 2, 4)})
    folders = (sorted((folder / f"vectors-{number}").glob("*.safetensors")) for number in (0, 2))
    first, last = ([path.read_bytes() for path in own] for own in folders)
    assert first == last, "the blocks of one and of four processes are different"
    table = [
        (jobs, f"{rows / elapsed:,.0f}", f"{cpu:.1f}") for jobs, (elapsed, cpu) in least.items()
    ]
    print_table("processes | rows/s | CPU seconds", table)


def main():
    what, path, model, rows = sys.argv[1:]
    with TemporaryDirectory() as name:
        write_texts(Path(name, "rows.txt"), texts := read_texts(path, int(rows)))
        {"threads": threads, "shards": shards}[what](Path(name), model, len(texts))


if __name__ == "__main__":
    main()
