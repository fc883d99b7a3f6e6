"""Similarities of vectors that also compare their rankings of a corpus: RankEncoder (arXiv 2209.04333).

The rank similarity of two vectors is the Spearman correlation of their cosines with the corpus.
"""

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.storage import every_vector
from sentkit.formats.vectors.table import read_table
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.metrics.similarity import SIMILARITIES, SMALLEST_NORM

FEWEST = 3  # vectors of a corpus: two have only the correlations 1 and -1
CONVERTED = 1 << 22  # cosines at a time


class RankSimilarity:
    """(1 - weight) * cosine + weight * rank similarity."""

    def __init__(self, inputs: Inputs, path: str, weight: float) -> None:
        """Read the corpus. `inputs` are the files of the pairs; the corpus is read with the same flags."""
        self.table, self.weight = read_table(inputs.other(path), lambda row: None), weight
        vectors = np.asarray(every_vector(self.table.vectors)[:], np.float64)
        if len(vectors) < FEWEST:
            raise DataError(f"{len(vectors)} vectors, a ranking needs {FEWEST} or more", source=path)
        self.corpus = unit_rows(vectors)  # (n, d)

    @property
    def name(self) -> str:
        return f"{1 - self.weight:g} cosine + {self.weight:g} rank"

    def check(self, row: VectorRow, emb: str | None) -> None:
        """Refuse a row of another space than that of the corpus."""
        self.table.check_space(row, emb, "pair")

    def __call__(self, left: Float32, right: Float32) -> Float64:
        ranked = np.empty(len(left))
        rows = max(1, CONVERTED // len(self.corpus))
        for start in range(0, len(left), rows):
            part = slice(start, start + rows)
            ranked[part] = np.vecdot(self.rankings(left[part]), self.rankings(right[part]))
        cosines = SIMILARITIES["cosine"](left, right)
        return (1 - self.weight) * cosines + self.weight * np.clip(ranked, -1.0, 1.0)

    def rankings(self, vectors: Float32) -> Float64:
        """Return unit vectors, (b, n): their products are rank similarities. Equal cosines give zeros."""
        from scipy.stats import rankdata

        # Equal vectors of the corpus have equal ranks only if rounding differences are removed.
        cosines = (unit_rows(vectors.astype(np.float64)) @ self.corpus.T).astype(np.float32)
        ranks: Float64 = rankdata(cosines, axis=1) - (len(self.corpus) + 1) / 2
        return unit_rows(ranks)


def unit_rows(rows: Float64) -> Float64:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST_NORM)
