"""CPU time of each row besides network and tokenizer: host.py TEXTS.txt[.gz] [MODEL]

The network is replaced by vectors of ones. The command runs in this process with one thread, for few and for
all rows, so that its start is not counted; the time of the tokenizer alone is subtracted.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = "1"

import json
import sys
import tempfile
import time
from pathlib import Path

from texts import read_texts
from timing import print_table

from sentkit.cli import status
from sentkit.model import find_encoder
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder

FEW, ALL, ROUNDS = 8_192, 32_768, 3
OUTPUTS = {
    "text to vector file": ("txt", ["-fo", "out.safetensors"]),
    "JSONL to vector file": ("jsonl", ["-fo", "out.safetensors"]),
    "JSONL to vector folder": ("jsonl", ["-o", "out/"]),
    "JSONL to JSONL with base64": ("jsonl", ["--vectors", "base64", "-fo", "out.jsonl"]),
}


def cpu(arguments: list[str]) -> float:
    """The least CPU seconds of a command line."""
    seconds = []
    for _ in range(ROUNDS):
        for file in Path("out").glob("*"):
            file.unlink()
        start = time.process_time()
        code = status(arguments)
        seconds.append(time.process_time() - start)
        assert code == 0, arguments
    return min(seconds)


def tokenizing(model: str, texts: list[str]) -> float:
    tokenizer, seconds = find_encoder(model, ReadingOptions()).tokenizer, []
    for _ in range(ROUNDS):
        start = time.process_time()
        tokenizer(texts)
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    texts, model = read_texts(sys.argv[1], ALL), (*sys.argv[2:], "nano")[0]
    TransformerEncoder.free_network()
    os.chdir(tempfile.mkdtemp())
    sizes = {"few": FEW, "all": len(texts)}
    for name, count in sizes.items():
        Path(f"{name}.txt").write_text("".join(f"{text}\n" for text in texts[:count]))
        rows = (json.dumps({"id": place, "text": text}) + "\n" for place, text in enumerate(texts[:count]))
        Path(f"{name}.jsonl").write_text("".join(rows))
    more = len(texts) - FEW
    words = (tokenizing(model, texts) - tokenizing(model, texts[:FEW])) / more
    table = [f"tokenizer alone | {1e6 * words:.1f}"]
    for what, (suffix, output) in OUTPUTS.items():
        seconds = [cpu(["encode", f"{name}.{suffix}", "-m", model, "-q", *output]) for name in sizes]
        table.append(f"{what} | {1e6 * ((seconds[1] - seconds[0]) / more - words):.1f}")
    print_table("what | microseconds of CPU for each row", table)


if __name__ == "__main__":
    main()
