"""Moments of vectors, and the transforms that are computed from them, each affine: (x - mean) @
kernel.

The moments are count, mean, and scatter around the mean. Those of two sets can be added.
Independent components also need the vectors. They are those of FastICA of scikit-learn (Hyvärinen
1999): symmetric, with log cosh. Only the signs differ: the skewness of each component is positive,
unless the signs are kept. For 60,000 vectors of 128 numbers, one thread takes 2.3 s of CPU time and
126 MB besides the input.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from sentkit.arrays import Float32, Float64, Floats
from sentkit.errors import UsageError

# maximum vector width with a full scatter: 128 MiB, and seconds for its eigenvalues
MAX_SCATTER_WIDTH = 4096
MOMENTS = ("count", "mean", "scatter")  # the names of their tensors in a file
CONSTANT = 1e-12  # relative to the mean; a smaller deviation is a rounding error


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments in float64. The scatter is centred: sums of raw squares lose precision if the mean is
    large.
    """

    count: int
    mean: Float64  # (d,)
    scatter: Float64  # (d, d): the sum of (x - mean)'(x - mean)

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def squares(self) -> Float64:
        """For each number, the sum of squared distances from the mean, (d,)."""
        return np.diagonal(self.scatter)

    @property
    def deviations(self) -> Float64:
        """The population standard deviation of each number, (d,); exactly 0 if the number is
        constant.
        """
        deviations: Float64 = np.sqrt(self.squares / self.count)
        return np.where(deviations <= CONSTANT * np.abs(self.mean), 0.0, deviations)

    def __add__(self, other: "Moments") -> "Moments":
        """The moments of both sets together, by Chan, Golub and LeVeque (1979)."""
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        between = np.outer(difference, difference)
        between *= self.count * other.count / count
        scatter = self.scatter + other.scatter
        scatter += between  # in place, to save memory
        return Moments(count, mean, scatter)


def moments_of(vectors: Floats) -> Moments:
    """The moments of (n, d) vectors, n >= 1."""
    centred = vectors.astype(np.float64)
    mean = centred.mean(axis=0)
    centred -= mean
    return Moments(len(centred), mean, centred.T @ centred)


FLOOR = 1e-12  # relative to the largest eigenvalue; a smaller eigenvalue counts as zero


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The parameters of a fit; each kind uses some of them."""

    dim: int | None = None  # numbers of an output vector; None: all
    remove: int | None = None  # abtt: directions to remove; None: one per 100 numbers
    seed: int = 0  # ica, flow
    # ica
    scale: float | Literal["auto"] = 1.0  # auto: the mean standard deviation of the input
    variance: str = "unit"  # arbitrary: S'S = I as in scikit-learn < 1.3, so the variance is 1 / n
    iterations: int = 1000
    tolerance: float = 1e-4
    keep_width: bool = False  # pad with zeros if the rank is below the requested number
    keep_signs: bool = False  # the signs of scikit-learn instead of positive skewness
    # flow: the values of BERT-flow. Its code takes a step for 32 pairs of texts, which it encodes
    # with dropout. This fit has fixed vectors.
    epochs: int = 1
    batch: int = 32
    lr: float = 1e-3


@dataclass(frozen=True, slots=True)
class Fit:
    kernel: Float64  # (d, k)
    mean: Float64  # (d,)
    record: Mapping[str, Any] = field(default_factory=dict)  # fields for the note in the file
    warnings: tuple[str, ...] = ()


def principal(
    moments: Moments, max_dim: int, done: str, *, centred: bool = True
) -> tuple[Float64, Float64, tuple[str, ...]]:
    """The first `max_dim` principal directions, or fewer if the vectors have fewer independent
    ones.

    Returns axes (d, r), columns of unit length in descending order of variance; the sum of squares
    along each axis, (r,); and warnings. If not `centred`, the axes are the right singular vectors
    of the vectors. The largest number of each is positive. `done` says in the warning what happens
    to them.
    """
    count = moments.count
    if centred:
        scatter = moments.scatter
        highest_rank = count - 1
        after = " after centering"
    else:
        scatter = moments.scatter + count * np.outer(moments.mean, moments.mean)
        highest_rank = count
        after = ""

    # Eigenvalues and eigenvectors, which `eigh` gives in ascending order.
    eigenvalues, eigenvectors = np.linalg.eigh(scatter)
    scatters = eigenvalues[::-1]
    axes = eigenvectors[:, ::-1]
    rank = min(int((scatters > FLOOR * scatters[0]).sum()), highest_rank)
    dim = min(max_dim, rank)

    # The signs.
    largest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[largest, range(len(largest))] < 0, -1.0, 1.0)

    warnings: tuple[str, ...] = ()
    if dim < max_dim:
        problem = (
            f"{count} vectors of {moments.width} numbers have only {rank} independent "
            f"directions{after}: {dim} of {max_dim} are {done}"
        )
        is_one_short = rank == moments.width - 1
        if is_one_short and rank < highest_rank:
            problem += ", and more vectors add none (a layer norm at the end removes one)"
        warnings = (problem,)
    return axes[:, :dim], scatters[:dim], warnings


def requested_dim(moments: Moments, options: FitOptions) -> int:
    """The numbers of a result, by default as many as the vectors have."""
    if options.dim is None:
        return moments.width
    if options.dim > moments.width:
        raise UsageError(f"--dim {options.dim}: the vectors have only {moments.width} numbers")
    return options.dim


def rotated(
    moments: Moments, options: FitOptions, *, scaled: bool = False, centred: bool = True
) -> Fit:
    """Rotate the vectors to their principal directions, or if not `centred`, to right singular
    vectors.

    `scaled`: to sample covariance I, by U / sqrt(eigenvalues), as in BERT-whitening
    (arXiv:2103.15316).
    """
    dim = requested_dim(moments, options)
    kernel, scatters, warnings = principal(moments, dim, "kept", centred=centred)
    if scaled:
        kernel = kernel / np.sqrt(scatters / (moments.count - 1))
    mean = moments.mean if centred else np.zeros(moments.width)
    return Fit(kernel, mean, {"dim": dim}, warnings)


def zca(moments: Moments, options: FitOptions) -> Fit:
    """Whitening, then the rotation back to the old axes: of all whitenings, the nearest to the
    vectors.
    """
    axes, scatters, warnings = principal(moments, moments.width, "scaled, and the rest are 0")
    kernel = axes / np.sqrt(scatters / (moments.count - 1)) @ axes.T
    return Fit(kernel, moments.mean, warnings=warnings)


def center(moments: Moments, options: FitOptions) -> Fit:
    return Fit(np.eye(moments.width), moments.mean)


def standardize(moments: Moments, options: FitOptions) -> Fit:
    """Scale each number to population standard deviation 1. A constant number becomes 0.

    Division by a small floor instead would let the slightest change in later vectors dominate the
    result.
    """
    deviations = moments.deviations
    is_constant = deviations == 0
    factors = np.where(is_constant, 0.0, 1.0) / np.where(is_constant, 1.0, deviations)
    warnings: tuple[str, ...] = ()
    if is_constant.any():
        warnings = (
            f"{is_constant.sum()} of {moments.width} numbers are the same in all vectors and "
            f"become 0",
        )
    return Fit(np.diag(factors), moments.mean, warnings=warnings)


def abtt(moments: Moments, options: FitOptions) -> Fit:
    """All-but-the-top (arXiv:1702.01417): remove the mean and the first directions; by default 1
    per 100.
    """
    if moments.width < 2:
        raise UsageError("--kind abtt needs vectors of at least 2 numbers")
    default_count = max(1, round(moments.width / 100))
    removed_count = default_count if options.remove is None else options.remove
    if removed_count >= moments.width:
        problem = (
            f"--remove {removed_count}: expected less than {moments.width}, the length of "
            f"the vectors"
        )
        raise UsageError(problem)
    axes, _, _ = principal(moments, moments.width, "removed")
    rank = axes.shape[1]
    axes = axes[:, :removed_count]
    warnings: tuple[str, ...] = ()
    if rank <= removed_count:
        problem = (
            f"{moments.count} vectors of {moments.width} numbers have only {rank} independent "
            f"directions after centering: {rank} of {removed_count} are removed, and nothing of "
            f"these vectors remains"
        )
        warnings = (problem,)
    kernel = np.eye(moments.width) - axes @ axes.T
    return Fit(kernel, moments.mean, {"remove": removed_count}, warnings)


KINDS: Mapping[str, Callable[[Moments, FitOptions], Fit]] = {
    "whitening": partial(rotated, scaled=True),
    "zca": zca,
    "pca": rotated,
    "svd": partial(rotated, centred=False),
    "center": center,
    "standardize": standardize,
    "abtt": abtt,
}


def ica(blocks: Sequence[Float32], moments: Moments, options: FitOptions) -> Fit:
    """Independent components of vectors in blocks of (n, d), whose moments are known."""
    dim = requested_dim(moments, options)
    done = "kept, and the rest are 0" if options.keep_width else "kept"
    axes, scatters, warnings = principal(moments, dim, done)

    # Whitened vectors (n, k): mean 0 and variance 1.
    axes = axes * np.where(axes[0] < 0, -1.0, 1.0)
    whitener = axes / np.sqrt(scatters / moments.count)  # (d, k)
    whitened = np.empty((moments.count, whitener.shape[1]))
    start = 0
    for block in blocks:
        stop = start + len(block)
        whitened[start:stop] = (block.astype(np.float64) - moments.mean) @ whitener
        start = stop

    # The rotation (k, k), with a component in each row.
    rotation, iterations, converged = fast_ica(whitened, options)
    if not options.keep_signs:
        skewness = ((whitened @ rotation.T) ** 3).sum(axis=0)
        rotation = rotation * np.where(skewness < 0, -1.0, 1.0)[:, np.newaxis]

    # The scale of the result.
    if options.scale == "auto":
        scale = float(moments.deviations.mean())
    elif options.variance == "arbitrary":
        scale = options.scale * moments.count**-0.5
    else:
        scale = options.scale
    kernel = whitener @ rotation.T * scale  # (d, k)
    if options.keep_width:
        kernel = np.pad(kernel, ((0, 0), (0, dim - kernel.shape[1])))

    record: dict[str, Any] = {"dim": dim}
    if options.keep_width:
        record["keep_width"] = True
    if options.keep_signs:
        record["keep_signs"] = True
    for name in ("scale", "variance", "seed", "tolerance"):
        record[name] = getattr(options, name)
    record["iterations"] = iterations
    record["converged"] = converged

    if not converged:
        warnings += (f"not converged after {iterations} iterations; the last result is written",)
    return Fit(kernel, moments.mean, record, warnings)


def fast_ica(whitened: Float64, options: FitOptions) -> tuple[Float64, int, bool]:
    """Return the orthogonal matrix (k, k) with a component in each row, the iterations, and
    convergence.
    """
    import warnings

    from sklearn.decomposition import fastica
    from sklearn.exceptions import ConvergenceWarning

    k = whitened.shape[1]
    with warnings.catch_warnings(record=True) as raised_warnings:
        warnings.simplefilter("always", ConvergenceWarning)
        _, matrix, _, iterations = fastica(
            whitened,
            whiten=False,
            fun="logcosh",
            max_iter=options.iterations,
            tol=options.tolerance,
            w_init=np.random.RandomState(options.seed).normal(size=(k, k)),
            return_n_iter=True,
            compute_sources=False,
        )
    converged = not any(
        issubclass(raised.category, ConvergenceWarning) for raised in raised_warnings
    )
    return matrix, iterations, converged
