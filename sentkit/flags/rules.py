"""The rules between the flags of a command, and rules for their values. An error names the flags."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sentkit.errors import UsageError

MAY_BE_EMPTY = ("--prompt",)

Values = Mapping[str, object]  # a flag, as the user types it -> its value


def is_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def needs(flags: Values, others: Values) -> None:
    """Refuse each of `flags` that is given, unless one of `others` is given or true."""
    if any(map(is_given, others.values())):
        return
    for flag, value in flags.items():
        if is_given(value):
            raise UsageError(f"{flag} needs {' or '.join(others)}")


def refuse_together(flags: Values, others: Values, because: str = "") -> None:
    """Refuse each of `flags` that is given together with one of `others`. `because` ends the message."""
    for flag, value in flags.items():
        for other, other_value in others.items():
            if is_given(value) and is_given(other_value):
                raise UsageError(f"{flag} cannot be used with {other}{because}")


def check_values(parameters: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Refuse an empty text, as of an unset variable of the shell, and a number that is NaN or infinite.

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
    """Refuse the name of a new field that JSON would have to escape."""
    if name is None or (name.isprintable() and not {'"', "\\"} & set(name)):
        return
    raise UsageError(f"{flag} {name!r}: expected a printable name without quotes and backslashes")


def check_threshold(threshold: float | None, metric: str) -> None:
    """Refuse a threshold that no similarity reaches, or that every similarity reaches."""
    least, most = {"cosine": (-1.0, 1.0), "dot": (-math.inf, math.inf)}.get(metric, (-math.inf, 0.0))
    if threshold is None or least <= threshold <= most:
        return
    expected = "0 or less: distances are made negative"
    if metric == "cosine":
        expected = "a number from -1 to 1"
    raise UsageError(f"--threshold {threshold:g}: expected {expected}")


def check_device_of_metric(device: str, metric: str) -> None:
    """Refuse another device than the CPU for the metrics that only the CPU compares."""
    refuse_together(
        {"--device": device != "cpu"},
        {"--metric euclidean or manhattan": metric in ("euclidean", "manhattan")},
        ", which the CPU compares",
    )
