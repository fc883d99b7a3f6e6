"""What follows a readout: the declared steps, then those that are asked for; and the space they lead to."""

from collections.abc import Sequence

from sentkit.formats.vectors.fingerprint import Spec
from sentkit.transforms.affine import check_fitted, read_affine
from sentkit.transforms.steps import Normalise, Step, Truncate


def all_steps(
    declared: Sequence[Step], *, dim: int | None, normalise: bool, transform: str | None
) -> list[Step]:
    """The declared steps, with unit length asked of the numbers that `dim` keeps, then the transform."""
    steps = list(declared)
    last = [steps.pop()] if steps and isinstance(steps[-1], Normalise) else []
    if dim is not None:
        steps.append(Truncate(dim))
    if last or normalise:
        steps.append(Normalise())
    return steps if transform is None else [*steps, read_affine(transform)[0]]


def width_behind(steps: Sequence[Step], width: int) -> int:
    """How many numbers are left; a step that cannot be applied is refused."""
    for step in steps:
        width = step.width(width)
    return width


def spec_behind(steps: Sequence[Step], spec: Spec, transform: str | None) -> Spec:
    """`transform` is the file of the last step, where there is one: it may be made for one space only."""
    for step in steps:
        if step is steps[-1] and transform is not None:
            check_fitted(transform, spec.emb)
        spec = spec.after(step.suffix, step.hash)
    return spec
