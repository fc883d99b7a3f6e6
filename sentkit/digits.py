"""How many digits of a number are printed: no more than its float32 input supports."""

from typing import Any

DIGITS = 7


def significant(value: float) -> float:
    """The number with seven significant digits."""
    return float(f"{value:.{DIGITS}g}")


def rounded(value: Any) -> Any:
    """A record for JSON in which every float has seven significant digits."""
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
