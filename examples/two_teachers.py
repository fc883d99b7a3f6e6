"""Writes rows for `sentkit train distill`: texts with vectors from two teachers.

Usage: python examples/two_teachers.py STUDENT PAIRS_A PAIRS_B PASSAGES_A PASSAGES_B > ROWS
    STUDENT      the encoder that learns: the vectors get its width and, as far as possible, its
                 directions
    PAIRS_A      a vector file: short texts by the teacher A
    PAIRS_B      the same texts by the teacher B
    PASSAGES_A   longer texts by A
    PASSAGES_B   the first of these by B, which can be slower

The cosine of two texts becomes the mean of their cosines for both teachers, as far as the width
allows. A passage without a vector of B gets that which a linear map computes from its vector of A.
"""

import base64
import json
import sys

import numpy as np
from safetensors.numpy import load_file

import sentkit
from sentkit.arrays import Float32

SHARE = 0.3  # of a pair, compared with a passage, in the errors of the linear map
COMPARED = 8_000  # texts that the student encodes, for the rotation of all vectors


def read(path: str) -> tuple[list[str], Float32]:
    """The texts of a vector file, and its vectors with unit length."""
    tensors = load_file(path)
    lines = tensors["rows"].tobytes().splitlines()
    return [json.loads(line)["text"] for line in lines], unit(
        tensors["embeddings"].astype(np.float32)
    )


def unit(vectors: Float32) -> Float32:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def principal(vectors: Float32, width: int) -> Float32:
    _, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    return unit(vectors @ directions[:, : -width - 1 : -1].astype(np.float32))


def mapped(known: Float32, targets: Float32, shares: Float32, others: Float32) -> Float32:
    """The targets of other vectors, by the linear map with the least squares for the known ones."""
    weighted = known * shares[:, None]
    products = (weighted.T @ known).astype(np.float64) + np.eye(known.shape[1])
    return unit(
        others
        @ np.linalg.solve(products, (weighted.T @ targets).astype(np.float64)).astype(np.float32)
    )


def main(student: str, *paths: str) -> None:
    (pairs, pairs_a), (same, pairs_b), (passages, long_a), (first, long_b) = map(read, paths)
    if pairs != same or passages[: len(first)] != first:
        sys.exit("the files of the two teachers have other texts")
    encoder, chance, texts = sentkit.Encoder(student), np.random.default_rng(0), [*pairs, *passages]
    both = np.concatenate([pairs_a, long_a[: len(first)]])
    joined = np.concatenate([both, np.concatenate([pairs_b, long_b])], axis=1) / np.sqrt(
        2, dtype=np.float32
    )
    some = chance.choice(len(texts), min(COMPARED, len(texts)), replace=False)
    own = unit(np.asarray(encoder.encode([texts[place] for place in some]), np.float32))
    targets = principal(joined, own.shape[1])
    shares = np.repeat(np.float32([SHARE, 1]), [len(pairs), len(first)])
    targets = np.concatenate([targets, mapped(both, targets, shares, long_a[len(first) :])])
    left, _, right = np.linalg.svd(
        targets[some].T @ own
    )  # the rotation that is nearest to the student
    targets = targets @ (left @ right)
    for place in chance.permutation(len(texts)).tolist():
        vector = base64.b64encode(targets[place].astype("<f4").tobytes()).decode()
        print(json.dumps({"text": texts[place], "embedding": vector}, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
