"""CPU time of each row besides network and tokenizer: host.py TEXTS.txt[.gz] [MODEL]

The network is replaced by vectors of ones. The command runs in this process with one thread, for few and for
all rows, so that its start is not counted; the time of the tokenizer alone is subtracted.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = "1"

import json
import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from timing import print_table, read_texts

from sentkit.cli import status
from sentkit.model import find_encoder
from sentkit.model.encoding import LAST_GROUP
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.readouts import width_of_vectors

FEW, ALL, ROUNDS = 8_192, 32_768, 5
OUTPUTS = {
    "text to vector file": ("txt", ["-fo", "out.safetensors"]),
    "JSONL to vector file": ("jsonl", ["-fo", "out.safetensors"]),
    "JSONL to vector folder": ("jsonl", ["-o", "out/"]),
    "JSONL to JSONL with base64": ("jsonl", ["--vectors", "base64", "-fo", "out.jsonl"]),
}


def cpu(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def tokenize(tokenizer, texts):
    if tokenizer.words is not None:
        tokenizer.words.forget()  # as in a new command
    for start in range(0, len(texts), LAST_GROUP):
        tokenizer(texts[start : start + LAST_GROUP])


def run(arguments):
    for file in Path("out").glob("*"):
        file.unlink()
    assert status(arguments) == 0, arguments


def free_network():
    """Replace the network by vectors of ones, to measure the other work."""

    def start(self, batch):
        shape = len(batch), width_of_vectors(self.body, self.reading.readouts)
        return lambda: [np.ones(shape, np.float32) for _ in self.reading.readouts]

    TransformerEncoder._start = start


def main():
    texts, model = read_texts(sys.argv[1], ALL), (*sys.argv[2:], "nano")[0]
    free_network()
    os.chdir(tempfile.mkdtemp())
    sizes = {"few": FEW, "all": len(texts)}
    for name, count in sizes.items():
        Path(f"{name}.txt").write_text("".join(f"{text}\n" for text in texts[:count]))
        rows = (json.dumps({"id": place, "text": text}) + "\n" for place, text in enumerate(texts[:count]))
        Path(f"{name}.jsonl").write_text("".join(rows))
    tokenizer = find_encoder(model, ReadingOptions()).tokenizer
    works = {"tokenizer alone": [partial(tokenize, tokenizer, texts[:count]) for count in sizes.values()]}
    for what, (suffix, output) in OUTPUTS.items():
        lines = [["encode", f"{name}.{suffix}", "-m", model, "-q", *output] for name in sizes]
        works[what] = [partial(run, line) for line in lines]
    least = {what: [math.inf, math.inf] for what in works}
    for _ in range(ROUNDS):  # in turn, so that a busy machine changes all of them alike
        for what, pair in works.items():
            least[what] = [min(each) for each in zip(least[what], map(cpu, pair), strict=True)]
    per_row = {what: (longer - shorter) / (len(texts) - FEW) for what, (shorter, longer) in least.items()}
    words = per_row.pop("tokenizer alone")
    table = [f"tokenizer alone | {1e6 * words:.1f}"]
    table += [f"{what} | {1e6 * (seconds - words):.1f}" for what, seconds in per_row.items()]
    print_table("what | microseconds of CPU for each row", table)


if __name__ == "__main__":
    main()
