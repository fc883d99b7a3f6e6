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
    texts = [json.loads(line)["text"] for line in tensors["rows"].tobytes().splitlines()]
    return texts, unit(tensors["embeddings"].astype(np.float32))


def unit(vectors: Float32) -> Float32:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def principal(vectors: Float32, width: int) -> Float32:
    """Unit vectors in the first principal directions: (n, d) -> (n, width)."""
    _, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    return unit(vectors @ directions[:, : -width - 1 : -1].astype(np.float32))


def linear_map(inputs: Float32, targets: Float32, shares: Float32) -> Float32:
    """The matrix M (d, w) of ridge regression from inputs X (n, d) to targets Y (n, w); the errors
    have the weights S, the shares (n,).

    The normal equations with ridge 1: (X' S X + I) M = X' S Y
    """
    weighted = inputs * shares[:, None]
    ridge = np.eye(inputs.shape[1])  # X' S X alone can be singular
    squares = (weighted.T @ inputs).astype(np.float64) + ridge  # (d, d)
    products = (weighted.T @ targets).astype(np.float64)  # (d, w)
    return np.linalg.solve(squares, products).astype(np.float32)


def main(student: str, *paths: str) -> None:
    pair_files = [read(path) for path in paths[:2]]
    passage_files = [read(path) for path in paths[2:]]
    (pairs, pairs_a), (pairs_of_b, pairs_b) = pair_files
    (passages, passages_a), (passages_of_b, passages_b) = passage_files
    count = len(passages_of_b)
    if pairs != pairs_of_b or passages[:count] != passages_of_b:
        sys.exit("the files of the two teachers have other texts")
    texts = [*pairs, *passages]
    encoder = sentkit.Encoder(student)
    chance = np.random.default_rng(0)

    # Vectors of both teachers, one after the other: their cosine is the mean of both cosines.
    of_a = np.concatenate([pairs_a, passages_a[:count]])
    of_b = np.concatenate([pairs_b, passages_b])
    of_both = np.concatenate([of_a, of_b], axis=1) / np.sqrt(2, dtype=np.float32)

    # The width of the student.
    compared = chance.choice(len(texts), min(COMPARED, len(texts)), replace=False)
    of_student = encoder.encode([texts[index] for index in compared])
    of_student = unit(np.asarray(of_student, np.float32))
    targets = principal(of_both, of_student.shape[1])

    # Passages without a vector of B.
    shares = np.repeat(np.float32([SHARE, 1]), [len(pairs), count])
    mapped = unit(passages_a[count:] @ linear_map(of_a, targets, shares))
    targets = np.concatenate([targets, mapped])

    # The rotation that is nearest to the student.
    u, _, vt = np.linalg.svd(targets[compared].T @ of_student)
    targets = targets @ (u @ vt)
    for index in chance.permutation(len(texts)).tolist():
        content = targets[index].astype("<f4").tobytes()
        vector = base64.b64encode(content).decode()
        print(json.dumps({"text": texts[index], "embedding": vector}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
