"""Peak memory of one step of SimCSE at batch 1024, whole and in chunks of 64, each in a separate process.

python tests/benchmarks/chunks.py TEXTS.txt[.gz]; the memory of the loaded model is subtracted.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

BATCH, CHUNK = 1024, 64


def peak() -> float:
    """The high-water mark of this process, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def step(path: str, chunk: int) -> None:
    """Compute one gradient and print its memory and time."""
    import torch

    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.training.base import open_base
    from sentkit.training.loop.gradient import Gradient
    from sentkit.training.loop.processes import Processes
    from sentkit.training.methods.simcse import SimCSE
    from sentkit.training.settings import build
    from training import MODEL, corpus_of

    torch.manual_seed(0)
    with TemporaryDirectory() as temporary:
        corpus = corpus_of(Path(path), Path(temporary))
        method = SimCSE.build(open_base(read_checkpoint(MODEL), 32), build(SimCSE.Settings, {}, None, []))
        method.train()
        batch = corpus.batch(range(BATCH))
        before, start = peak(), time.perf_counter()
        Gradient(method, Processes(), chunk).compute(batch)
    print(f"{peak() - before:.0f} {time.perf_counter() - start:.1f}")


def main() -> None:
    if len(sys.argv) > 2:
        step(sys.argv[1], int(sys.argv[2]))
        return
    from texts import read_texts

    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "texts.txt"
        path.write_text("".join(text + "\n" for text in read_texts(sys.argv[1], BATCH)))
        for chunk in (0, CHUNK):
            command = [sys.executable, __file__, str(path), str(chunk)]
            megabytes, seconds = subprocess.check_output(command, text=True).split()
            name = f"--set chunk={chunk}" if chunk else "whole"
            print(f"| one step of simcse, batch {BATCH}, {name} | {megabytes} MB | {seconds} s |")


if __name__ == "__main__":
    main()
