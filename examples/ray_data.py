"""Encode rows with Ray Data: python examples/ray_data.py ROWS.jsonl OUT [MODEL]

It needs `pip install 'ray[data]'`. A row has a unique "id" and a "text". OUT is a folder of JSON
lines with the vectors, in the order of the ids. Each actor loads the model once. Its batches do not
follow the input order, so the result is sorted.
"""

import sys

import ray

import sentkit


def main(rows, out, model="nano"):
    dataset = ray.data.read_json(rows, lines=True)
    dataset = dataset.map_batches(
        sentkit.Encoder,
        # In bf16, a vector depends slightly on the other texts of its batch.
        fn_constructor_kwargs={"model": model, "precision": "fp32"},
        batch_size=4096,
        concurrency=(1, 4),  # from 1 to 4 actors
    )
    # pandas writes 10 decimals by default, and float32 needs up to 15.
    dataset.sort("id").write_json(out, double_precision=15)


if __name__ == "__main__":
    main(*sys.argv[1:])
