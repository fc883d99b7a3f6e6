"""Rows per second of examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders.

python tests/benchmarks/shards.py TEXTS.txt [MODEL [ROWS]]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import print_table, process_seconds, read_texts, write_texts

SCRIPT = Path(__file__).parents[2] / "examples/parallel.sh"
ROUNDS = 3


def main():
    path, model, count = (*sys.argv[1:], *("nano", "40000")[len(sys.argv) - 2 :])
    texts = read_texts(path, int(count))
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder / "rows.txt", texts)
        found = {1: [], 2: [], 4: []}
        for round_ in range(ROUNDS):
            for jobs, figures in found.items():
                command = ["sh", str(SCRIPT), "rows.txt", f"vectors-{jobs}-{round_}", "-m", model, "-q"]
                figures.append(process_seconds(command, folder, JOBS=str(jobs)))
        first = b"".join(path.read_bytes() for path in sorted((folder / "vectors-1-0").glob("*.safetensors")))
        last = b"".join(path.read_bytes() for path in sorted((folder / "vectors-4-0").glob("*.safetensors")))
    assert first == last, "the blocks of one and of four processes are different"
    least = {jobs: [*map(min, zip(*figures, strict=True))] for jobs, figures in found.items()}
    rows = [f"{jobs} | {len(texts) / elapsed:,.0f} | {cpu:.1f}" for jobs, (elapsed, cpu) in least.items()]
    print_table("processes | rows/s | CPU seconds", rows)


if __name__ == "__main__":
    main()
