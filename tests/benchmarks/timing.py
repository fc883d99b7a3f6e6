"""What the scripts share: texts, models, memory, tables, and the times of several ways in turn.

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


def write_texts(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def make_model(folder, layers, width, heads, inner):
    """Write a BERT with random weights and the tokenizer of `nano`."""
    import torch
    from transformers import BertConfig, BertModel

    from sentkit.formats.checkpoints.folders import NANO, find_model

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
    )
    BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes((find_model(NANO) / name).read_bytes())
    return folder


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
    """Print a table of speeds: of so many rows, and relative to the way `base`; with further cells."""
    rows = []
    for name, own in seconds.items():
        least, median = ratios(seconds[base], own)
        cells = [name, f"{count / min(own):,.0f}", f"{least:.2f}", f"{median:.2f}", *more(name)]
        rows.append(" | ".join(cells))
    print_table(columns, rows)


def print_table(columns, rows):
    """Print a Markdown table. Columns and cells are separated by ` | `."""
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}")
    for row in rows:
        print(f"| {row} |")
    print(flush=True)
