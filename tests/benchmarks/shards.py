"""Rows per second of examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders.

python tests/benchmarks/shards.py TEXTS.txt [MODEL [ROWS]]
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from texts import read_texts

SCRIPT = Path(__file__).parents[2] / "examples/parallel.sh"
ROUNDS = 3


def main() -> None:
    path, model, count = (*sys.argv[1:], *("nano", "40000")[len(sys.argv) - 2 :])
    texts = read_texts(path, int(count))
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.txt").write_text("".join(f"{text}\n" for text in texts))
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: [], 4: []}
        for round_ in range(ROUNDS):
            for jobs, figures in found.items():
                figures.append(seconds(folder, f"vectors-{jobs}-{round_}", model, jobs))
        first = b"".join(path.read_bytes() for path in sorted((folder / "vectors-1-0").glob("*.safetensors")))
        last = b"".join(path.read_bytes() for path in sorted((folder / "vectors-4-0").glob("*.safetensors")))
    assert first == last, "the blocks of one and of four processes are different"
    print("| processes | rows/s | CPU seconds |\n|---|---|---|")
    for jobs, figures in found.items():
        elapsed, cpu = map(min, zip(*figures, strict=True))
        print(f"| {jobs} | {len(texts) / elapsed:,.0f} | {cpu:.1f} |")


def seconds(folder: Path, name: str, model: str, jobs: int) -> tuple[float, float]:
    """Elapsed seconds and CPU seconds."""
    command = ["sh", str(SCRIPT), "rows.txt", name, "-m", model, "-q"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "JOBS": str(jobs), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
