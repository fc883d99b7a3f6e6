"""Start-up: CPU seconds of whole processes with one thread, relative to `python -c 'import torch'`."""

import os
import subprocess
import sys
from functools import partial

from timing import cpu_of_children, print_table, ratios, rounds_of

TORCH = "python -c 'import torch'"


def main() -> None:
    commands = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import typer'": ["-c", "import typer"],
        "sentkit --help": ["-m", "sentkit", "--help"],
        "sentkit --version": ["-m", "sentkit", "--version"],
        "sentkit encode --dry-run, one sentence": ["-m", "sentkit", "encode", "-n"],
        "sentkit encode, one sentence": ["-m", "sentkit", "encode"],
        "sentkit encode --precision bf16, one sentence": ["-m", "sentkit", "encode", "--precision", "bf16"],
        TORCH: ["-c", "import torch"],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    run = partial(subprocess.run, input=b"a cat\n", capture_output=True, check=True, env=environment)
    ways = {name: partial(run, [sys.executable, *arguments]) for name, arguments in commands.items()}
    seconds = rounds_of(ways, clock=cpu_of_children)
    rows = []
    for name, own in seconds.items():
        least, median = ratios(own, seconds[TORCH])
        rows.append(f"{name} | {min(own):.2f} s | {least:.2f} | {median:.2f}")
    print_table("process | CPU time | relative to the last row: least | median", rows)


if __name__ == "__main__":
    main()
