"""Numbers for people: rounded to the precision of float32, and names in the order of their numbers."""

import math
import re
from collections.abc import Iterable
from typing import Any

DIGITS = 7
BRACKETS = {"(": "(a): standard deviation", "[": "[a, b]: 95 % interval"}


def significant(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def rounded(value: Any) -> Any:
    """Round every float in a JSON record to seven significant digits."""
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def natural(name: str) -> tuple[str | tuple[int, str], ...]:
    """The key of an order in which "class 2" is before "class 10"."""
    texts = re.split(r"([0-9]+)", name)  # text and numbers in turn
    return tuple(
        (len(each.lstrip("0")), each.lstrip("0")) if place % 2 else each for place, each in enumerate(texts)
    )


def decimals(value: float | None, digits: int = 2) -> str:
    """A number of a table."""
    return "undefined" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def meaning_of_brackets(cells: Iterable[str]) -> list[str]:
    """The meaning of the brackets that cells with numbers have."""
    together = "".join(cells)
    return [meaning for sign, meaning in BRACKETS.items() if sign in together]
