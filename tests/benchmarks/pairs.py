"""score over JSONL pairs with base64 vectors, against the least that any program must do with them."""

import base64
import io
import sys
from tempfile import TemporaryDirectory

import numpy as np
import orjson
from timing import in_turn

COUNT, WIDTH = 50_000, 384


def write_pairs(path: str) -> None:
    random = np.random.default_rng(0)
    with open(path, "wb") as file:  # noqa: PTH123
        for number in range(COUNT):
            left, right = random.standard_normal((2, WIDTH), dtype=np.float32)
            row = {
                "id": number,
                "text_a": f"sentence number {number}",
                "text_b": f"another sentence, number {number}",
                "score": number % 6,
                "_emb": "made/mean:000000000000",
                "embedding_a": base64.b64encode(left.tobytes()).decode(),
                "embedding_b": base64.b64encode(right.tobytes()).decode(),
            }
            file.write(orjson.dumps(row) + b"\n")


def bare_loop(path: str) -> None:
    """orjson, b64decode, cosine, append: no check of anything."""
    out = io.BytesIO()
    with open(path, "rb") as file:  # noqa: PTH123
        for line in file:
            row = orjson.loads(line)
            left = np.frombuffer(base64.b64decode(row["embedding_a"]), np.float32)
            right = np.frombuffer(base64.b64decode(row["embedding_b"]), np.float32)
            cosine = left.dot(right) / np.sqrt(left.dot(left) * right.dot(right))
            out.write(line[:-2] + b',"similarity":%r}\n' % float(cosine))


def sentkit(path: str, *, gold: bool) -> None:
    from sentkit.cli import program

    flags = ["--gold", "score"] if gold else []
    program(["score", path, "-o", "/dev/null", *flags], standalone_mode=False)


def main() -> None:
    with TemporaryDirectory() as folder:
        path = f"{folder}/pairs.jsonl"
        write_pairs(path)
        seconds = in_turn(
            {
                "bare loop": lambda: bare_loop(path),
                "sentkit score": lambda: sentkit(path, gold=False),
                "sentkit score --gold": lambda: sentkit(path, gold=True),
            }
        )
    for name, value in seconds.items():
        print(
            f"| {name} | {COUNT / value:,.0f} rows/s | {value / seconds['bare loop']:.2f} x the bare loop |"
        )


if __name__ == "__main__":
    sys.exit(main())
