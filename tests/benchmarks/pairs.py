"""score over JSONL pairs with base64 vectors, against the least that any program must do: CPU
seconds.

python tests/benchmarks/pairs.py
"""

import base64
import io
import time
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import orjson
from timing import print_table, ratios, rounds_of
from usage import check_arguments

COUNT = 20_000
WIDTH = 384


def write_pairs(path):
    random = np.random.default_rng(0)
    with open(path, "wb") as file:  # noqa: PTH123
        for number in range(COUNT):
            a, b = random.standard_normal((2, WIDTH), dtype=np.float32)
            row = {
                "id": number,
                "text_a": f"sentence number {number}",
                "text_b": f"another sentence, number {number}",
                "score": number % 6,
                "_emb": "made/mean:000000000000",
                "embedding_a": base64.b64encode(a.tobytes()).decode(),
                "embedding_b": base64.b64encode(b.tobytes()).decode(),
            }
            file.write(orjson.dumps(row) + b"\n")


def bare_loop(path):
    """orjson, b64decode, cosine, append: no check of anything."""
    out = io.BytesIO()
    with open(path, "rb") as file:  # noqa: PTH123
        for line in file:
            row = orjson.loads(line)
            a = np.frombuffer(base64.b64decode(row["embedding_a"]), np.float32)
            b = np.frombuffer(base64.b64decode(row["embedding_b"]), np.float32)
            cosine = a.dot(b) / np.sqrt(a.dot(a) * b.dot(b))
            out.write(line[:-2] + b',"similarity":%r}\n' % float(cosine))


def sentkit(path, *, gold):
    from sentkit.cli import program

    command = ["score", path, "-o", "/dev/null"]
    if gold:
        command += ["--gold", "score"]
    program("score")(command, standalone_mode=False)


def main():
    check_arguments(__doc__, most=0)
    with TemporaryDirectory() as folder:
        path = f"{folder}/pairs.jsonl"
        write_pairs(path)
        ways = {
            "loop of orjson, b64decode, cosine and append": partial(bare_loop, path),
            "`score`": partial(sentkit, path, gold=False),
            "`score --gold`, 1,000 resamples": partial(sentkit, path, gold=True),
        }
        seconds = rounds_of(ways, clock=time.process_time)
    base = next(iter(seconds.values()))
    rows = []
    for name, seconds_of_rounds in seconds.items():
        relative = [f"{ratio:.2f}" for ratio in ratios(seconds_of_rounds, base)]
        rows.append((name, f"{COUNT / min(seconds_of_rounds):,.0f}", *relative))
    print_table("what | rows/s | time relative to the first row: least | median", rows)


if __name__ == "__main__":
    main()
