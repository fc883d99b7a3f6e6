"""What the learning rate is multiplied with, as pure functions of the step: nothing to save or to resume."""

import math
from collections.abc import Callable
from fractions import Fraction


def constant(step: int, total: int, warmup: int) -> float:
    return 1.0


def linear(step: int, total: int, warmup: int) -> float:
    """Up from 0 in `warmup` steps, then down to 0 at `total`; the first step is number 0."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def warmup_constant(step: int, total: int, warmup: int) -> float:
    return step / warmup if step < warmup else 1.0


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {  # (step, total, warmup) -> factor
    "constant": constant,
    "linear": linear,
    "warmup-constant": warmup_constant,
}


def warmup_steps(fraction: float, total: int) -> int:
    """The fraction of all steps, rounded up."""
    # As the decimal that was written: 0.07 * 100 is 7.000000000000001 in floats, whose ceiling is 8.
    return math.ceil(Fraction(str(fraction)) * total)
