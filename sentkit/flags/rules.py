"""The rules between the flags of a command, and rules for their values. An error names the
flags.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sentkit.errors import UsageError

MAY_BE_EMPTY = ("--prompt",)

# A flag, or a flag and its value, as the user types it -> the value, or whether the flag has this
# value.
Values = Mapping[str, object]


def is_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def needs(flags: Values, conditions: Values) -> None:
    """Refuse each of `flags` that is given, unless one of the conditions is given or true."""
    if any(map(is_given, conditions.values())):
        return
    for flag, value in flags.items():
        if is_given(value):
            raise UsageError(f"{flag} needs {' or '.join(conditions)}")


def refuse_together(flags: Values, conditions: Values, because: str = "") -> None:
    """Refuse each of `flags` that is given together with a condition. `because` ends the
    message.
    """
    for flag, value in flags.items():
        for condition, condition_value in conditions.items():
            if is_given(value) and is_given(condition_value):
                raise UsageError(f"{flag} cannot be used with {condition}{because}")


def check_values(parameters: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Refuse an empty text, as of an unset variable of the shell, and a number that is NaN or
    infinite.

    `parameters` are those of typer; `values` are by the name of the parameter.
    """
    for parameter in parameters:
        value = values.get(parameter.name)
        if value == parameter.default:
            continue
        flag = parameter.opts[-1]
        if not flag.startswith("-"):
            flag = parameter.metavar.strip("[].")
        has_empty_text = value == "" or (isinstance(value, list) and "" in value)
        if has_empty_text and flag not in MAY_BE_EMPTY:
            raise UsageError(f'{flag} "": the value is empty')
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{flag} {value}: expected a finite number")


def check_name(flag: str, name: str | None) -> None:
    """Refuse the name of a new field that JSON would have to escape, or of a vector."""
    from sentkit.formats.rows.kinds import EMBEDDED

    if name is None:
        return
    if not name.isprintable() or {'"', "\\"} & set(name):
        problem = f"{flag} {name!r}: expected a printable name without quotes and backslashes"
        raise UsageError(problem)
    if name in EMBEDDED:
        raise UsageError(f"{flag} {name}: this name is only for vectors and their space")


def check_threshold(threshold: float | None, metric: str) -> None:
    """Refuse a threshold that no similarity reaches, or that every similarity reaches."""
    if threshold is None or metric == "dot":
        return
    if metric == "cosine":
        if not -1 <= threshold <= 1:
            raise UsageError(f"--threshold {threshold:g}: expected a number from -1 to 1")
    elif threshold > 0:
        expected = "0 or less: distances are made negative"
        raise UsageError(f"--threshold {threshold:g}: expected {expected}")
