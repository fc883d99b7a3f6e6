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
from usage import check_arguments

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
        busy_loops = [subprocess.Popen(BUSY) for _ in range(loops)]
        try:
            flags = ["-o", f"{number}.safetensors", "--threads", str(number)]
            return process_seconds([*ENCODE, model, *flags], folder)
        finally:
            for busy_loop in busy_loops:
                busy_loop.kill()

    loads = product((1, 2), (0, os.cpu_count() or 1))  # threads and busy loops
    fastest = least_of({load: partial(run, *load) for load in loads})
    by_one, by_two = ((folder / f"{number}.safetensors").read_bytes() for number in (1, 2))
    print(f"equal bytes: {by_one == by_two}")
    table = [(*key, *(f"{figure:.1f}" for figure in figures)) for key, figures in fastest.items()]
    print_table("threads | busy loops | seconds | CPU seconds", table)


def shards(folder, model, rows):
    outputs = count()

    def run(jobs):
        command = ["sh", str(SCRIPT), "rows.txt", f"vectors-{next(outputs)}", "-m", model, "-q"]
        return process_seconds(command, folder, JOBS=str(jobs))

    fastest = least_of({jobs: partial(run, jobs) for jobs in (1, 2, 4)})
    by_one = blocks_of(folder / "vectors-0")
    by_four = blocks_of(folder / "vectors-2")
    assert by_one == by_four, "the blocks of one and of four processes are different"
    table = []
    for jobs, (elapsed, cpu) in fastest.items():
        table.append((jobs, f"{rows / elapsed:,.0f}", f"{cpu:.1f}"))
    print_table("processes | rows/s | CPU seconds", table)


def blocks_of(folder):
    return [path.read_bytes() for path in sorted(folder.glob("*.safetensors"))]


def main():
    check_arguments(__doc__, least=4, most=4)
    way, path, model, rows = sys.argv[1:]
    measure = {"threads": threads, "shards": shards}[way]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        texts = read_texts(path, int(rows))
        write_texts(folder / "rows.txt", texts)
        measure(folder, model, len(texts))


if __name__ == "__main__":
    main()
