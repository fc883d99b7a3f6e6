"""Kinds of transforms that are computed from moments alone. Each is affine: (x - mean) @ kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sentkit.errors import UsageError
from sentkit.transforms.moments import Moments, Wide

FLOOR = 1e-12  # times the largest eigenvalue: what is below is no direction of the vectors


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a fit; None is the kind's own choice."""

    dim: int | None = None  # how many numbers a vector keeps
    remove: int | None = None  # how many directions are taken out


@dataclass(frozen=True, slots=True)
class Fit:
    kernel: Wide  # (d, k)
    mean: Wide  # (d,)
    record: Mapping[str, Any] = field(default_factory=dict)  # what its file says of how it was fitted
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Principal:
    """The principal directions along which vectors differ, the widest first."""

    axes: Wide  # (d, r): columns of unit length
    scatters: Wide  # (r,): the sum of squares along each
    warnings: tuple[str, ...] = ()


def principal(moments: Moments, wanted: int, done: str) -> Principal:
    """As many as are wanted, or as there are; the sign makes each one's largest number positive."""
    scatters, axes = np.linalg.eigh(moments.scatter)
    scatters, axes = scatters[::-1], axes[:, ::-1]
    rank = min(int((scatters > FLOOR * scatters[0]).sum()), moments.count - 1)
    kept = min(wanted, rank)
    largest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[largest, range(len(largest))] < 0, -1.0, 1.0)
    found = f"{moments.count} vectors of {moments.width} numbers differ in {rank} directions"
    told = f"{found}: {kept} of {wanted} are {done}"
    return Principal(axes[:, :kept], scatters[:kept], (told,) if kept < wanted else ())


def wanted_dim(moments: Moments, asked: Asked) -> int:
    if asked.dim is not None and asked.dim > moments.width:
        raise UsageError(f"--dim {asked.dim}: the vectors have {moments.width} numbers")
    return moments.width if asked.dim is None else asked.dim


def whitening(moments: Moments, asked: Asked) -> Fit:
    """Covariance I, of a sample: U / sqrt(eigenvalues), as BERT-whitening (arXiv:2103.15316)."""
    wanted = wanted_dim(moments, asked)
    found = principal(moments, wanted, "kept")
    kernel = found.axes / np.sqrt(found.scatters / (moments.count - 1))
    return Fit(kernel, moments.mean, {"dim": wanted}, found.warnings)


def pca(moments: Moments, asked: Asked) -> Fit:
    """The vectors turned to their principal directions, lengths kept."""
    wanted = wanted_dim(moments, asked)
    found = principal(moments, wanted, "kept")
    return Fit(found.axes, moments.mean, {"dim": wanted}, found.warnings)


def center(moments: Moments, asked: Asked) -> Fit:
    return Fit(np.eye(moments.width), moments.mean)


def standardize(moments: Moments, asked: Asked) -> Fit:
    """Each number with deviation 1 over the population. One that never changes becomes 0 for good:

    over a floor in place of its deviation, the least change in other vectors would outweigh all the rest.
    """
    deviations = moments.deviations
    still = deviations == 0
    factors = np.where(still, 0.0, 1.0) / np.where(still, 1.0, deviations)
    told = f"{still.sum()} of {moments.width} numbers never change, and become 0"
    return Fit(np.diag(factors), moments.mean, warnings=(told,) if still.any() else ())


def abtt(moments: Moments, asked: Asked) -> Fit:
    """All but the top (arXiv:1702.01417): mean and widest directions taken out; by default one in 100."""
    wanted = max(1, round(moments.width / 100)) if asked.remove is None else asked.remove
    if wanted >= moments.width:
        raise UsageError(f"--remove {wanted}: nothing would be left of vectors of {moments.width} numbers")
    found = principal(moments, wanted, "removed")
    kernel = np.eye(moments.width) - found.axes @ found.axes.T
    return Fit(kernel, moments.mean, {"remove": wanted}, found.warnings)


KINDS: Mapping[str, Callable[[Moments, Asked], Fit]] = {
    "whitening": whitening,
    "pca": pca,
    "center": center,
    "standardize": standardize,
    "abtt": abtt,
}
