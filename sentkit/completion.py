"""Shell completion by typer: the values of flags. Listing them imports neither a model nor
numpy.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import fields

VARIABLE = "_SENTKIT_COMPLETE"  # with it, the shell calls the program at each Tab


def devices() -> Iterable[str]:
    return ("auto", "cpu", "cuda")


def readouts() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import NAMED

    return NAMED


def input_formats() -> Iterable[str]:
    from sentkit.formats.rows.rows import FORMATS

    return FORMATS


def templates() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import TEMPLATES

    return TEMPLATES


def methods() -> Iterable[tuple[str, str]]:
    from sentkit.training.catalogue import METHODS

    return [(method, listing.summary) for method, listing in METHODS.items()]


def method_on_the_line() -> str | None:
    """The first word of the command line that is a method of `train`.

    It is as bash, zsh and fish pass it: typer does not parse a line that ends with a flag alone.
    """
    from sentkit.training.catalogue import METHODS

    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return next((word for word in line.split() if word in METHODS), None)


def settings_of_method() -> Iterable[str]:
    from sentkit.training.catalogue import names_of

    method = method_on_the_line()
    if method is None:
        return []
    settings, _ = names_of(method)
    return [f"{name}=" for name in settings]


def presets_of_method() -> Iterable[str]:
    from sentkit.training.catalogue import names_of

    method = method_on_the_line()
    if method is None:
        return []
    _, presets = names_of(method)
    return presets


def settings_of(record: type) -> Callable[[], Iterable[str]]:
    """The completion of --set NAME=VALUE, for a record of settings."""
    return lambda: [f"{field.name}=" for field in fields(record)]
