"""Maps from one space to another, fitted to the vectors of the same texts in both.

A vector x (d,) of the old space becomes (x - mean of the old vectors) @ kernel + mean of the new
ones, (e,). Only sums of the vectors are kept, in float64.
"""

from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float64, Floats

# Of a ridge regression, as multiples of the mean variance of a dimension of the old vectors.
PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-12, 5))


@dataclass(frozen=True, slots=True)
class PairMoments:
    """Moments of pairs of vectors, around their means."""

    count: int
    mean_old: Float64  # (d,)
    mean_new: Float64  # (e,)
    scatter_old: Float64  # (d, d): the sum of (x - mean)'(x - mean)
    cross: Float64  # (d, e): the sum of (x - mean)'(y - mean)

    def __add__(self, other: "PairMoments") -> "PairMoments":
        """The moments of both sets together, by Chan, Golub and LeVeque (1979)."""
        count = self.count + other.count
        weight = self.count * other.count / count
        difference_old = other.mean_old - self.mean_old
        difference_new = other.mean_new - self.mean_new
        share = other.count / count
        return PairMoments(
            count=count,
            mean_old=self.mean_old + difference_old * share,
            mean_new=self.mean_new + difference_new * share,
            scatter_old=self.scatter_old
            + other.scatter_old
            + weight * np.outer(difference_old, difference_old),
            cross=self.cross + other.cross + weight * np.outer(difference_old, difference_new),
        )

    def around(self, center: "PairMoments") -> "PairMoments":
        """The same sums around the means of `center`."""
        difference_old = self.mean_old - center.mean_old
        difference_new = self.mean_new - center.mean_new
        count = self.count
        return PairMoments(
            count=count,
            mean_old=center.mean_old,
            mean_new=center.mean_new,
            scatter_old=self.scatter_old + count * np.outer(difference_old, difference_old),
            cross=self.cross + count * np.outer(difference_old, difference_new),
        )


def pair_moments_of(old: Floats, new: Floats) -> PairMoments:
    """The moments of (n, d) and (n, e) vectors, n >= 1."""
    old_centred = old.astype(np.float64)
    new_centred = new.astype(np.float64)
    mean_old = old_centred.mean(axis=0)
    mean_new = new_centred.mean(axis=0)
    old_centred -= mean_old
    new_centred -= mean_new
    return PairMoments(
        count=len(old),
        mean_old=mean_old,
        mean_new=mean_new,
        scatter_old=old_centred.T @ old_centred,
        cross=old_centred.T @ new_centred,
    )


@dataclass(frozen=True, slots=True)
class SpaceMap:
    """x becomes (x - mean_old) @ kernel + mean_new."""

    kernel: Float64  # (d, e)
    mean_old: Float64  # (d,)
    mean_new: Float64  # (e,)
    penalty: float | None = None  # of the ridge regression, one of PENALTIES; None: orthogonal


def orthogonal_map(moments: PairMoments) -> SpaceMap:
    """The rotation or reflection with the smallest squared error, for spaces of one width.

    It is U V' of the singular value decomposition of the cross sums (Schoenemann 1966).
    """
    u, _, v_transposed = np.linalg.svd(moments.cross)
    return SpaceMap(u @ v_transposed, moments.mean_old, moments.mean_new)


def ridge_map(moments: PairMoments, held_out: PairMoments) -> SpaceMap:
    """The ridge regression with the penalty of the smallest squared error on held-out pairs.

    kernel = (S + p n v I)^-1 C, with the scatter S and the cross sums C of n pairs, v = trace(S) /
    (n d), and a penalty p.
    """
    eigenvalues, axes = np.linalg.eigh(moments.scatter_old)
    rotated_cross = axes.T @ moments.cross
    held_out = held_out.around(moments)
    held_out_scatter = axes.T @ held_out.scatter_old @ axes
    held_out_cross = axes.T @ held_out.cross

    lowest_error = np.inf
    best_penalty = PENALTIES[-1]
    best = np.zeros_like(rotated_cross)
    for penalty in PENALTIES:
        shift = penalty * eigenvalues.mean()
        solution = rotated_cross / (np.maximum(eigenvalues, 0.0) + shift)[:, np.newaxis]
        # The squared error without the squares of the new vectors, which are constant.
        error = np.vdot(solution, held_out_scatter @ solution - 2.0 * held_out_cross)
        if error < lowest_error:
            lowest_error = error
            best_penalty = penalty
            best = solution
    return SpaceMap(axes @ best, moments.mean_old, moments.mean_new, best_penalty)
