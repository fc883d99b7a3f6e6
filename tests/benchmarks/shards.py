"""Rows per second of examples/parallel.sh with 1, 2 and 4 processes of one thread, into vector folders.

python tests/benchmarks/shards.py TEXTS.txt [MODEL [ROWS]]
"""

import sys
from functools import partial
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import least_of, print_table, process_seconds, read_texts, write_texts

SCRIPT = Path(__file__).parents[2] / "examples/parallel.sh"


def main():
    path, model, count = (*sys.argv[1:], *("nano", "40000")[len(sys.argv) - 2 :])
    texts = read_texts(path, int(count))
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder / "rows.txt", texts)
        outputs = numbers()

        def run(jobs):
            command = ["sh", str(SCRIPT), "rows.txt", f"vectors-{next(outputs)}", "-m", model, "-q"]
            return process_seconds(command, folder, JOBS=str(jobs))

        least = least_of({jobs: partial(run, jobs) for jobs in (1, 2, 4)})
        first, last = (
            [path.read_bytes() for path in sorted((folder / f"vectors-{n}").glob("*.safetensors"))]
            for n in (0, 2)
        )
    assert first == last, "the blocks of one and of four processes are different"
    rows = [(jobs, f"{len(texts) / elapsed:,.0f}", f"{cpu:.1f}") for jobs, (elapsed, cpu) in least.items()]
    print_table("processes | rows/s | CPU seconds", rows)


if __name__ == "__main__":
    main()
