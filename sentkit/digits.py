"""Numbers for people: rounded to the precision of float32, and names in the order of their
numbers.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

DIGITS = 7
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
BRACKETS = {"(": "(a): standard deviation", "[": "[a, b]: 95 % interval"}


def significant(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def rounded(value: Any) -> Any:
    """Round every float in a JSON record to seven significant digits."""
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, dict):
        return {name: rounded(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(element) for element in value]
    return value


def natural(name: str) -> tuple[str | tuple[int, str], ...]:
    """The key of an order in which "class 2" is before "class 10"."""
    key = list[str | tuple[int, str]]()
    for text in re.split(r"([0-9]+)", name):  # text and digits in turn, which makes keys comparable
        if len(key) % 2 == 0:
            key.append(text)
        else:
            digits = text.lstrip("0")
            key.append((len(digits), digits))  # the order of the numbers
    return tuple(key)


def decimals(value: float | None, digits: int = 2) -> str:
    """A number of a table."""
    if value is None or math.isnan(value):
        return "undefined"
    return f"{value:.{digits}f}"


def meaning_of_brackets(cells: Iterable[str]) -> list[str]:
    """The meaning of the brackets that cells with numbers have."""
    text = "".join(cells)
    return [meaning for bracket, meaning in BRACKETS.items() if bracket in text]


def in_clock_time(seconds: float) -> str:
    """A duration for people: 4:39, or 1:02:03 with hours."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


def in_byte_units(count: int) -> str:
    """A number of bytes for people, with three digits: 147 MB, 1.47 GB."""
    value = float(count)
    unit = 0
    while value >= 999.5 and unit < len(BYTE_UNITS) - 1:
        value /= 1000
        unit += 1
    if unit == 0 or value >= 99.95:
        return f"{value:,.0f} {BYTE_UNITS[unit]}"
    return f"{value:.{1 if value >= 9.995 else 2}f} {BYTE_UNITS[unit]}"
