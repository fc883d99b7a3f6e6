"""Start-up: whole processes, against `python -c pass` and `python -c 'import torch'`."""

import subprocess
import sys

from timing import in_turn

TORCH = "python -c 'import torch'"


def run(*arguments: str, stdin: bytes = b""):
    return lambda: subprocess.run([sys.executable, *arguments], input=stdin, capture_output=True, check=True)


def main() -> None:
    seconds = in_turn(
        {
            "python -c pass": run("-c", "pass"),
            "python -c 'import typer'": run("-c", "import typer"),
            "sentkit --help": run("-m", "sentkit", "--help"),
            "sentkit --version": run("-m", "sentkit", "--version"),
            "sentkit encode --dry-run, one sentence": run("-m", "sentkit", "encode", "-n", stdin=b"a cat\n"),
            TORCH: run("-c", "import torch"),
            "sentkit encode, one sentence": run("-m", "sentkit", "encode", stdin=b"a cat\n"),
        }
    )
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} s | {value / seconds[TORCH]:.2f} x import torch |")


if __name__ == "__main__":
    main()
