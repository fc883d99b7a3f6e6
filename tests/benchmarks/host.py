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
from usage import check_arguments

from sentkit.cli import run_command_line
from sentkit.model import find_encoder
from sentkit.model.groups import LAST_GROUP
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder

FIRST_ROWS = 8_192
ROWS = 32_768
TOKENIZER = "tokenizer alone"
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
    assert run_command_line(arguments) == 0, arguments


def main():
    check_arguments(__doc__, least=1, most=2)
    path, *options = sys.argv[1:]
    texts = read_texts(path, ROWS)
    model = "nano"
    if options:
        model = options[0]
    TransformerEncoder.free_network()
    os.chdir(tempfile.mkdtemp())
    tokenizer = find_encoder(model, ReadingOptions()).tokenizer
    ways = {}  # (name, number of rows) -> what is measured
    for size in (FIRST_ROWS, len(texts)):
        write_texts(Path(f"{size}.txt"), texts[:size])
        rows = (json.dumps({"id": index, "text": text}) for index, text in enumerate(texts[:size]))
        write_texts(Path(f"{size}.jsonl"), rows)
        ways[TOKENIZER, size] = partial(tokenize, tokenizer, texts[:size])
        for name, (suffix, output) in OUTPUTS.items():
            command = ["encode", f"{size}.{suffix}", "-m", model, "-q", *output]
            ways[name, size] = partial(run, command)
    seconds = rounds_of(ways, clock=time.process_time)
    microseconds = {}  # of a row
    for name in (TOKENIZER, *OUTPUTS):
        difference = min(seconds[name, len(texts)]) - min(seconds[name, FIRST_ROWS])
        microseconds[name] = 1e6 * difference / (len(texts) - FIRST_ROWS)
    table = [(TOKENIZER, f"{microseconds[TOKENIZER]:.1f}")]
    for name in OUTPUTS:
        table.append((name, f"{microseconds[name] - microseconds[TOKENIZER]:.1f}"))
    print_table("what | microseconds of CPU for each row", table)


if __name__ == "__main__":
    main()
