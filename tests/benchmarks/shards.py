"""Rows per second of examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders.

python tests/benchmarks/shards.py TEXTS.txt [MODEL [ROWS]]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import process_seconds, read_texts

SCRIPT = Path(__file__).parents[2] / "examples/parallel.sh"
ROUNDS = 3


def main():
    path, model, count = (*sys.argv[1:], *("nano", "40000")[len(sys.argv) - 2 :])
    texts = read_texts(path, int(count))
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.txt").write_text("".join(f"{text}\n" for text in texts))
        found = {1: [], 2: [], 4: []}
        for round_ in range(ROUNDS):
            for jobs, figures in found.items():
                command = ["sh", str(SCRIPT), "rows.txt", f"vectors-{jobs}-{round_}", "-m", model, "-q"]
                figures.append(process_seconds(command, folder, JOBS=str(jobs)))
        first = b"".join(path.read_bytes() for path in sorted((folder / "vectors-1-0").glob("*.safetensors")))
        last = b"".join(path.read_bytes() for path in sorted((folder / "vectors-4-0").glob("*.safetensors")))
    assert first == last, "the blocks of one and of four processes are different"
    print("| processes | rows/s | CPU seconds |\n|---|---|---|")
    for jobs, figures in found.items():
        elapsed, cpu = map(min, zip(*figures, strict=True))
        print(f"| {jobs} | {len(texts) / elapsed:,.0f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
