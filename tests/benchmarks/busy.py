"""The time of a training step, and the share of the threads that is busy.

python tests/benchmarks/busy.py TEXTS.txt[.gz] MODEL METHOD LENGTH PRECISION THREADS [first]

METHOD is one of `sentkit train`, or sentence-transformers for SimCSE by its trainer, which needs
`pip install accelerate datasets`.
With `first`, the process gets real-time priority after its first steps, for a few seconds: other
work on the machine waits. The system must allow it.
"""

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from usage import check_arguments

from sentkit.process import limit_threads

BATCH = 64
STEPS = 12
WARM = 3  # uncounted steps
PEER = "sentence-transformers"


def raise_priority():
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))


def main():
    check_arguments(__doc__, least=6, most=7)
    path, model, method, length, precision, threads, *first = sys.argv[1:]
    limit_threads(int(threads))  # before torch is imported
    import torch
    from timing import read_texts, write_texts

    from training import train_theirs, trainer_of

    torch.set_num_threads(int(threads))
    texts = read_texts(path, BATCH * STEPS)
    settings = [f"batch={BATCH}", f"max_length={length}", f"precision={precision}"]
    times = []

    def mark(*_):
        if len(times) == WARM and first:
            raise_priority()
        times.append((time.perf_counter(), time.process_time()))

    if method == PEER:
        train_theirs(model, texts, precision, int(length), mark)
    else:
        with TemporaryDirectory() as temporary:
            rows = write_texts(Path(temporary) / "texts.txt", texts)
            trainer = trainer_of(model, method, rows, Path(temporary), settings)
            trainer.reporter.step = mark
            trainer.train()
    times = times[WARM:]
    elapsed = [end[0] - start[0] for start, end in pairwise(times)]
    cpu = times[-1][1] - times[0][1]
    busy = cpu / (int(threads) * sum(elapsed))
    print(
        f"{method}, {length} tokens, {precision}, {threads} threads: {min(elapsed):.3f} s a step, "
        f"{cpu / len(elapsed):.3f} s of CPU time, {100 * busy:.0f} % busy"
    )


if __name__ == "__main__":
    main()
