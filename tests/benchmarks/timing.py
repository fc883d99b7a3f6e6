"""What the scripts share: texts, models, memory, tables, and the times of several ways in turn.

In turn in one process, so that a busy machine is busy for all.
"""

import gzip
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from support import make_bert  # of the tests, which are not installed

ROUNDS = 5


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


def least_of(ways, rounds=3):
    """The least of each figure that a way returns, of rounds in which all ways have their turn."""
    figures = {name: [] for name in ways}  # a tuple of figures for each round
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(tuple(way()))
    minima = {}
    for name, rounds_of_way in figures.items():
        minima[name] = [min(column) for column in zip(*rounds_of_way, strict=True)]
    return minima


def read_texts(path, count):
    """The first lines of a text file, plain or .gz."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]


def write_texts(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def make_model(folder, layers, width, heads, inner):
    """Write a BERT with random weights and the tokenizer of `nano`."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    more = {"intermediate_size": inner, "max_position_embeddings": 512, "vocab_size": 30522}
    return make_bert(folder, **sizes, **more)


def sentence_transformers(folder, precision, device="cpu", **options):
    """A function from texts to vectors, by sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": dtype})
    return lambda texts: model.encode(list(texts), show_progress_bar=False, **options)


def peak():
    """The high-water mark of this process, in megabytes."""
    status = Path("/proc/self/status").read_text()
    [kilobytes] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) / 1024


def process_seconds(command, folder, **variables):
    """Elapsed seconds and CPU seconds of a process."""
    start = time.perf_counter()
    cpu_before = cpu_of_children()
    environment = {**os.environ, **variables, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start, cpu_of_children() - cpu_before


def cpu_of_children():
    """CPU seconds of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ratios(seconds, base):
    """Ratio of the least seconds, and median ratio of a round."""
    ratios_of_rounds = [a / b for a, b in zip(seconds, base, strict=True)]
    return min(seconds) / min(base), statistics.median(ratios_of_rounds)


def print_speeds(columns, seconds, base, count, more=lambda name: ()):
    """Print a table of speeds: of so many rows, and relative to the way `base`; with
    further cells.
    """
    rows = []
    for name, seconds_of_rounds in seconds.items():
        speeds = [f"{ratio:.2f}" for ratio in ratios(seconds[base], seconds_of_rounds)]
        rows.append([name, f"{count / min(seconds_of_rounds):,.0f}", *speeds, *more(name)])
    print_table(columns, rows)


def print_table(columns, rows):
    """Print a Markdown table of rows of cells; the columns are separated by ` | `."""
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}")
    for row in rows:
        cells = [str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |")
    print(flush=True)
