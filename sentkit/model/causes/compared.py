"""The agreement of vectors with the target, the vectors that are to be explained.

Axes: n texts, d the width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.model.causes.settings import Variant

# Limits of the distance, which is 0 for equal vectors; see `compare`. Measured with
# all-MiniLM-L6-v2: other programs in float16 8e-7, in bfloat16 1e-5 to 5e-5; int8 4e-4 with a scale
# per row, 5e-2 with one scale.
EQUAL = 2e-6
CLOSE = 5e-4  # of a text under a change that explains it: other programs also round
FARTHEST = 1e6  # of vectors of which one is nearly zero
SAME_FACTOR = 2e-3  # largest logarithm of a factor between lengths that rounding can explain


@dataclass(frozen=True, slots=True)
class Result:
    """The agreement of the vectors under some variants with the target.

    A factor between the norms that is the same for all texts counts apart: it has no part in the
    distance.
    """

    variants: tuple[Variant, ...]
    distances: Float64  # (n,)
    cosines: Float64  # (n,)
    ratios: Float64  # (n,), of the norms: these by the target
    factor: float | None  # of the target's norms by these, if it is not 1

    @property
    def distance(self) -> float:
        return float(self.distances.mean())

    @property
    def name(self) -> str:
        if not self.variants:
            return "as declared"
        return "with " + " and ".join(variant.name for variant in self.variants)

    def explained(self, limit: float) -> int:
        """The number of texts with a distance within the limit."""
        return int((self.distances <= limit).sum())

    def record(self) -> dict[str, Any]:
        cosine = {"lowest": float(self.cosines.min()), "mean": float(self.cosines.mean())}
        ratio = {"lowest": float(self.ratios.min()), "highest": float(self.ratios.max())}
        changes = [variant.name for variant in self.variants]
        return {
            "changes": changes,
            "texts": len(self.distances),
            "cosine": cosine,
            "norm_ratio": ratio,
        }


def compare(variants: tuple[Variant, ...], target: Float32, vectors: Float32) -> Result:
    """Compare vectors (n, d) with the target ones.

    The distance of a and b is |a - b|^2 / (2 |a| |b|), so it is 0 only for equal vectors: unit
    length does not change a cosine. Before, b is multiplied by the median of |a| / |b|.
    """
    a = target.astype(np.float64)
    b = vectors.astype(np.float64)
    norms_of_a = np.maximum(np.linalg.norm(a, axis=1), 1e-8)
    norms_of_b = np.maximum(np.linalg.norm(b, axis=1), 1e-8)
    cosines = np.vecdot(a, b) / (norms_of_a * norms_of_b)
    ratios = norms_of_b / norms_of_a
    factor = 1.0 / float(np.median(ratios))
    if abs(np.log(factor)) <= SAME_FACTOR:
        factor = 1.0
    scaled = factor * ratios
    distances = np.nan_to_num((scaled + 1 / scaled) / 2 - cosines, nan=FARTHEST)
    distances = np.minimum(distances, FARTHEST)
    return Result(variants, distances, cosines, ratios, None if factor == 1.0 else factor)
