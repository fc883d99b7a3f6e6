"""Fit and apply transforms of a vector space."""

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flags import Excludes, Named, Needs, Range, options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.transforms.fitting import Fitted


@dataclass(frozen=True)
class TransformFlags(options.OutputFlags):
    """The transform file that a command creates.

    -o, --output PATH: The transform to create, .safetensors; '-' is stdout.
    """

    path: Annotated[str, Named("--output")] = field()

    def check(self) -> None:
        """Refuse an invalid or existing output, before any work."""
        from sentkit.formats.files import is_safetensors

        if self.path != "-" and not is_safetensors(self.path):
            raise UsageError(f"{self.path}: the name of a transform ends in .safetensors")
        self.check_creatable()

    def write(self, fitted: "Fitted", console: Console) -> None:
        with self.open() as out:
            fitted.write(out, self.path)
        console.warn(*fitted.sample.warnings, *fitted.fit.warnings)
        note = fitted.note
        console.note(f"{note['vectors']} vectors of {note['width']} numbers, {note['kept']} kept")


def fit(
    *,
    output: TransformFlags,
    kind: Literal[
        "whitening", "zca", "pca", "svd", "center", "standardize", "abtt", "ica", "flow", "merge"
    ] = "whitening",
    dim: Annotated[int | None, Range(min=1), Needs("--kind whitening|pca|svd|ica")] = None,
    remove: Annotated[int | None, Range(min=1), Needs("--kind abtt")] = None,
    scale: Annotated[str, Needs("--kind ica")] = "1",
    variance: Annotated[Literal["unit", "arbitrary"], Needs("--kind ica"), Excludes("--scale auto")] = "unit",
    seed: Annotated[int, Range(min=0, max=2**32 - 1), Needs("--kind ica|flow")] = 0,
    iterations: Annotated[int, Range(min=1), Needs("--kind ica")] = 1000,
    tolerance: Annotated[float, Needs("--kind ica")] = 1e-4,
    keep_width: Annotated[bool, Needs("--kind ica")] = False,
    keep_signs: Annotated[bool, Needs("--kind ica")] = False,
    epochs: Annotated[int, Range(min=1), Needs("--kind flow")] = 1,
    batch: Annotated[int, Range(min=1), Needs("--kind flow")] = 32,
    lr: Annotated[float, Needs("--kind flow")] = 1e-3,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Fit a transform to vectors.

    Flags:
      --kind: Kind of transform; merge: add up the fits of shards.
      --dim K: For whitening, pca, svd, ica: numbers to keep. [default: all]
      --remove N: For abtt: directions to remove. [default: one per 100 numbers]
      --scale NUMBER|auto: For ica: factor of the result; auto: keep the mean deviation of the vectors.
      --variance: For ica, before --scale: 1, or 1 / rows as in scikit-learn < 1.3.
      --seed N: For ica, flow: random seed.
      --iterations N: For ica: maximum number of iterations.
      --tolerance X: For ica: convergence tolerance.
      --keep-width: For ica: set components above the rank to 0 instead of removing them.
      --keep-signs: For ica: keep the signs of scikit-learn instead of positive skewness.
      --epochs N: For flow: passes over the vectors.
      --batch N: For flow: vectors per step.
      --lr X: For flow: learning rate.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import fit_transform, merge_transforms
    from sentkit.transforms.kinds import FitOptions

    if not 0 < tolerance < 1:
        raise UsageError(f"--tolerance {tolerance}: expected a number between 0 and 1")
    if lr <= 0:
        raise UsageError(f"--lr {lr}: expected a number above 0")
    factor = scale_of(scale)
    output.check()
    if kind == "merge":
        if "-" in row_flags.paths:
            raise UsageError("--kind merge needs files: transforms of sentkit whiten fit")
        options.check_paths(console, {"-o": output.path}, {"FILE": row_flags.paths})
        output.write(merge_transforms(row_flags.paths), console)
        return
    with row_flags.open(console, output, known=VECTOR_FIELDS) as inputs:
        of_ica = (factor, variance, iterations, tolerance, keep_width, keep_signs)
        wanted = FitOptions(dim, remove, seed, *of_ica, epochs=epochs, batch=batch, lr=lr)
        fitted = fit_transform(inputs, kind, wanted)
    output.write(fitted, console)


def scale_of(text: str) -> float | Literal["auto"]:
    """Parse a number above 0, or `auto`."""
    if text == "auto":
        return "auto"
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise UsageError(f'--scale "{text}": expected a number above 0, or auto')


def apply(
    *,
    transform: str,
    output: options.OutputFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Apply a transform to vectors.

    Flags:
      -t, --transform PATH: A transform from sentkit whiten fit or merge.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import apply_transform

    output.check_creatable()
    with row_flags.open(console, output, known=VECTOR_FIELDS, reads={"--transform": transform}) as inputs:
        apply_transform(inputs, transform, output.path, output.vectors(replace=True))
