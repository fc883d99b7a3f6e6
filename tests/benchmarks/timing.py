"""What the scripts share: the first lines of a file, memory, and the times of several ways in turn.

In turn in one process, so that a busy machine is busy for all.
"""

import gzip
import os
import resource
import statistics
import subprocess
import time
from itertools import islice
from pathlib import Path

ROUNDS = 5


def in_turn(ways, rounds=ROUNDS):
    """Median seconds of each way."""
    return {name: statistics.median(found) for name, found in rounds_of(ways, rounds).items()}


def rounds_of(ways, rounds=ROUNDS, clock=time.perf_counter):
    """Seconds of each way in each round, after one uncounted round."""
    seconds = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            start = clock()
            way()
            if round_:
                seconds[name].append(clock() - start)
    return seconds


def read_texts(path, count):
    """The first lines of a text file, plain or .gz."""
    with gzip.open(path, "rt") if path.endswith(".gz") else Path(path).open() as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]


def peak():
    """The high-water mark of this process, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def process_seconds(command, folder, **variables):
    """Elapsed seconds and CPU seconds of a process."""
    before, start = cpu_of_children(), time.perf_counter()
    environment = {**os.environ, **variables, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start, cpu_of_children() - before


def cpu_of_children():
    """CPU seconds of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ratios(own, base):
    """Ratio of the least seconds, and median ratio of a round."""
    each = [mine / other for mine, other in zip(own, base, strict=True)]
    return min(own) / min(base), statistics.median(each)


def print_table(columns, rows):
    """Print a Markdown table. Columns and cells are separated by ` | `."""
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}")
    for row in rows:
        print(f"| {row} |")
    print(flush=True)
