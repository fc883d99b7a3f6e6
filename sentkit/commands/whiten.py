"""Fit and apply transforms of a vector space.

\b
Examples:
  sentkit whiten fit titles.safetensors --dim 2 -o T.safetensors
  sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

A transform is fitted once and stored with a description of its vectors. It is
then applied to other vectors of the same space by `sentkit whiten apply`, or as a
part of a checkpoint by `sentkit export --transform`.
"""

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Excludes, Named, Needs, Range

if TYPE_CHECKING:
    from sentkit.transforms.fitting import Fitted
    from sentkit.transforms.flow import FlowOptions
    from sentkit.transforms.kinds import IcaOptions


SUBCOMMANDS = ("fit", "apply")


@dataclass(frozen=True)
class TransformFlags(options.OutputFlags):
    """The transform file that a command creates.

    -o, --output PATH: The transform to create, .safetensors; '-' is stdout.
    """

    path: Annotated[str, Named("--output")] = field()

    def check(self) -> None:
        """Refuse an invalid or existing output, before any work."""
        from sentkit.formats.outputs.outputs import refuse_existing
        from sentkit.formats.vectors.store import SUFFIX, is_store

        if self.path != "-" and not is_store(self.path):
            raise UsageError(f"{self.path}: the name of a transform ends in {SUFFIX}")
        refuse_existing(self.path, force=self.force)

    def write(self, fitted: "Fitted", console: Console) -> None:
        with self.open() as out:
            fitted.write(out, self.path)
        console.warn(*fitted.sample.warnings, *fitted.fit.warnings)
        note = fitted.note
        console.note(f"{note['vectors']} vectors of {note['width']} numbers, {note['kept']} kept")


@dataclass(frozen=True)
class IcaFlags:
    """The parameters of ICA.

    --scale NUMBER|auto: For ica: factor of the result; auto: keep the mean deviation of the vectors.
    --variance: For ica, before --scale: 1, or 1 / rows as in scikit-learn < 1.3.
    --seed N: For ica, flow: random seed.
    --iterations N: For ica: maximum number of iterations.
    --tolerance X: For ica: convergence tolerance.
    --keep-width: For ica: set components above the rank to 0 instead of removing them.
    --keep-signs: For ica: keep the signs of scikit-learn instead of positive skewness.
    """

    scale: Annotated[str, Needs("--kind ica")] = "1"
    variance: Annotated[Literal["unit", "arbitrary"], Needs("--kind ica"), Excludes("--scale auto")] = "unit"
    seed: Annotated[int, Range(min=0, max=2**32 - 1), Needs("--kind ica|flow")] = 0
    iterations: Annotated[int, Range(min=1), Needs("--kind ica")] = 1000
    tolerance: Annotated[float, Needs("--kind ica")] = 1e-4
    keep_width: Annotated[bool, Needs("--kind ica")] = False
    keep_signs: Annotated[bool, Needs("--kind ica")] = False

    def ica_options(self) -> "IcaOptions":
        """The parameters of ICA; raises UsageError if a value is wrong."""
        from sentkit.transforms.kinds import IcaOptions

        if not 0 < self.tolerance < 1:
            raise UsageError(f"--tolerance {self.tolerance}: expected a number between 0 and 1")
        return IcaOptions(**vars(self) | {"scale": scale_of(self.scale)})


@dataclass(frozen=True)
class FlowFlags:
    """The parameters of a flow.

    --epochs N: For flow: passes over the vectors.
    --batch N: For flow: vectors per step.
    --lr X: For flow: learning rate.
    """

    epochs: Annotated[int, Range(min=1)] = 1
    batch: Annotated[int, Range(min=1)] = 32
    lr: float = 1e-3

    def flow_options(self, seed: int) -> "FlowOptions":
        """The parameters of the flow; raises UsageError if a value is wrong."""
        from sentkit.transforms.flow import FlowOptions

        if self.lr <= 0:
            raise UsageError(f"--lr {self.lr}: expected a number above 0")
        return FlowOptions(**vars(self), seed=seed)


def fit(
    *,
    output: TransformFlags,
    kind: Literal[
        "whitening", "zca", "pca", "svd", "center", "standardize", "abtt", "ica", "flow", "merge"
    ] = "whitening",
    dim: Annotated[int | None, Range(min=1), Needs("--kind whitening|pca|svd|ica")] = None,
    remove: Annotated[int | None, Range(min=1), Needs("--kind abtt")] = None,
    ica: IcaFlags,
    flow: Annotated[FlowFlags, Needs("--kind flow")],
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Fit a transform to vectors.

    \b
    Examples:
      sentkit whiten fit titles.safetensors --dim 2 -o T.safetensors
      sentkit encode pairs.jsonl | sentkit whiten fit --dim 8 -o T.safetensors
      sentkit whiten fit a.safetensors b.safetensors --kind abtt -o T.safetensors
      sentkit whiten fit shard*.safetensors --kind merge -o T.safetensors

    Most used: [FILE]... --kind --dim -o -f

    Flags:
      --kind: Kind of transform; merge: add up the fits of shards.
      --dim K: For whitening, pca, svd, ica: numbers to keep. [default: all]
      --remove N: For abtt: directions to remove. [default: one per 100 numbers]
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import fit_transform, merge_transforms
    from sentkit.transforms.kinds import FitOptions, IcaOptions

    console = run.console("whiten fit")
    fit_options, flow_options = FitOptions(dim, remove), flow.flow_options(ica.seed)
    ica_options = ica.ica_options() if kind == "ica" else IcaOptions()
    output.check()
    if kind == "merge":
        if "-" in row_flags.paths:
            raise UsageError("--kind merge needs files: transforms of sentkit whiten fit")
        options.check_paths(console, {"-o": output.path}, {"FILE": row_flags.paths})
        output.write(merge_transforms(row_flags.paths), console)
        return
    with row_flags.open(console, output, known=VECTOR_FIELDS) as inputs:
        fitted = fit_transform(inputs, kind, fit_options, ica_options, flow_options)
    output.write(fitted, console)


def scale_of(text: str) -> float | str:
    """Parse a number above 0, or `auto`."""
    if text == "auto":
        return text
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise UsageError(f'--scale "{text}": expected a number above 0, or auto')


def apply(
    *,
    transform: str,
    output: options.VectorOutputFlags,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Apply a transform to vectors.

    \b
    Examples:
      sentkit whiten apply a.safetensors -t whitening.safetensors | sentkit score
      sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

    Most used: [FILE]... -t -o -f

    The new vectors replace the old ones, and "_emb" names their new space, the same as
    of a checkpoint that has the transform. All other fields are copied byte for byte, in
    constant memory. The transform accepts only vectors of the space that it was fitted
    to, so a second application is an error. The new vectors are not scaled to unit
    length; cosine similarity does not need that.

    Flags:
      -t, --transform PATH: A transform from sentkit whiten fit or merge.
    """
    from sentkit.formats.outputs.outputs import refuse_existing
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import apply_transform

    console = run.console("whiten apply")
    refuse_existing(output.path, force=output.force)
    with row_flags.open(console, output, known=VECTOR_FIELDS, reads={"--transform": transform}) as inputs:
        apply_transform(inputs, transform, output.path, output.form(replace=True))
