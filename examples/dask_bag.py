"""Encode rows with Dask Bag: python examples/dask_bag.py ROWS.jsonl OUT [MODEL]

It needs `pip install dask`. A row has a "text". OUT is a folder of JSON lines with the vectors, one
file for each part of the input. The parts are computed in any order, but a bag keeps the order of
its rows: no id is necessary to restore it.
"""

import sys
from functools import cache

import dask.bag
import orjson

import sentkit


@cache
def load(model):
    """Each process loads the model once. In bf16, a vector depends slightly on its batch."""
    return sentkit.Encoder(model, precision="fp32")


def encode(lines, model):
    encoder = load(model)
    rows = [orjson.loads(line) for line in lines]
    vectors = encoder.encode([row["text"] for row in rows])
    for row, vector in zip(rows, vectors, strict=True):
        row |= {"_emb": encoder.space, "embedding": vector}
        yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def main(rows, out, model="nano"):
    bag = dask.bag.read_text(rows, blocksize="1MiB").map_partitions(encode, model)
    bag.to_textfiles(f"{out}/*.jsonl")


if __name__ == "__main__":
    main(*sys.argv[1:])
