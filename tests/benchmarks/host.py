"""CPU time of each row besides network and tokenizer: host.py TEXTS.txt[.gz] [MODEL]

The network is replaced by vectors of ones. The command runs in this process with one thread, for
few and for all rows, so that its start is not counted; the time of the tokenizer alone is
subtracted.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = (
    "1"
)

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from timing import print_table, read_texts, rounds_of, write_texts

from sentkit.cli import status
from sentkit.model import find_encoder
from sentkit.model.encoding import LAST_GROUP
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder

FEW, ALL = 8_192, 32_768
OUTPUTS = {
    "text to vector file": ("txt", ["-fo", "out.safetensors"]),
    "JSONL to vector file": ("jsonl", ["-fo", "out.safetensors"]),
    "JSONL to vector folder": ("jsonl", ["-o", "out/"]),
    "JSONL to JSONL with base64": ("jsonl", ["--vectors", "base64", "-fo", "out.jsonl"]),
}


def tokenize(tokenizer, texts):
    if tokenizer.words is not None:
        tokenizer.words.forget()  # as in a new command
    for start in range(0, len(texts), LAST_GROUP):
        tokenizer(texts[start : start + LAST_GROUP])


def run(arguments):
    for file in Path("out").glob("*"):
        file.unlink()
    assert status(arguments) == 0, arguments


def main():
    texts, model = read_texts(sys.argv[1], ALL), (*sys.argv[2:], "nano")[0]
    TransformerEncoder.free_network()
    os.chdir(tempfile.mkdtemp())
    tokenizer = find_encoder(model, ReadingOptions()).tokenizer
    alone, works = "tokenizer alone", {}
    for size in (FEW, len(texts)):
        write_texts(Path(f"{size}.txt"), texts[:size])
        rows = (json.dumps({"id": place, "text": text}) for place, text in enumerate(texts[:size]))
        write_texts(Path(f"{size}.jsonl"), rows)
        works[alone, size] = partial(tokenize, tokenizer, texts[:size])
        for what, (suffix, output) in OUTPUTS.items():
            works[what, size] = partial(
                run, ["encode", f"{size}.{suffix}", "-m", model, "-q", *output]
            )
    least = {key: min(own) for key, own in rounds_of(works, clock=time.process_time).items()}
    per_row = {
        what: 1e6 * (least[what, len(texts)] - least[what, FEW]) / (len(texts) - FEW)
        for what in (alone, *OUTPUTS)
    }
    table = [
        (what, f"{own - per_row[alone] * (what != alone):.1f}") for what, own in per_row.items()
    ]
    print_table("what | microseconds of CPU for each row", table)


if __name__ == "__main__":
    main()
