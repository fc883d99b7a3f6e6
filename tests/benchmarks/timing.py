"""What the scripts share: texts, models, memory, tables, and the times of several ways in turn.

In turn in one process, so that a busy machine is busy for all.
"""

import gzip
import os
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
    found = [{name: way() for name, way in ways.items()} for _ in range(rounds)]
    return {name: [*map(min, zip(*(each[name] for each in found), strict=True))] for name in ways}


def read_texts(path, count):
    """The first lines of a text file, plain or .gz."""
    with gzip.open(path, "rt") if path.endswith(".gz") else Path(path).open() as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]


def write_texts(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def make_model(folder, layers, width, heads, inner):
    """Write a BERT with random weights and the tokenizer of `nano`."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    more = {"intermediate_size": inner, "max_position_embeddings": 512, "vocab_size": 30522}
    return make_bert(folder, **sizes, **more)


def sentence_transformers(folder, precision, device="cpu", **how):
    """A function from texts to vectors, by sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": dtype})
    return lambda texts: model.encode(list(texts), show_progress_bar=False, **how)


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


def print_speeds(columns, seconds, base, count, more=lambda name: ()):
    """Print a table of speeds: of so many rows, and relative to the way `base`; with
    further cells.
    """
    rows = []
    for name, own in seconds.items():
        speeds = (f"{ratio:.2f}" for ratio in ratios(seconds[base], own))
        rows.append([name, f"{count / min(own):,.0f}", *speeds, *more(name)])
    print_table(columns, rows)


def print_table(columns, rows):
    """Print a Markdown table of rows of cells; the columns are separated by ` | `."""
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}")
    print("".join(f"| {' | '.join(map(str, row))} |\n" for row in rows), flush=True)
