"""Shell completion by typer: the values of flags. Listing them imports neither a model nor numpy."""

import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

VARIABLE = "_SENTKIT_COMPLETE"  # with it, the shell calls the program at each Tab


def readouts() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import NAMED

    return NAMED


def templates() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import TEMPLATES

    return TEMPLATES


def methods() -> Iterable[tuple[str, str]]:
    from sentkit.training.catalogue import METHODS

    return [(method, listing.summary) for method, listing in METHODS.items()]


def settings_and_presets(context: Any) -> tuple[list[str], list[str]]:
    """Those of the method or of the command on the line."""
    from sentkit.commands import cluster, translate
    from sentkit.training.catalogue import METHODS, names_of

    own = {"cluster": cluster.AlgorithmSettings, "translate": translate.SearchSettings}
    if context.command.name in own:
        return [each.name for each in fields(own[context.command.name])], []
    # The line as bash, zsh and fish pass it, because typer does not parse a line that ends with a flag alone.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    method = next(filter(METHODS.__contains__, line.split()), None)
    return ([], []) if method is None else names_of(method)


def settings(ctx: Any) -> Iterable[str]:
    return [f"{name}=" for name in settings_and_presets(ctx)[0]]


def presets(ctx: Any) -> Iterable[str]:
    return settings_and_presets(ctx)[1]


VALUES: dict[str, Callable[..., Any]] = {  # name of a parameter -> its values
    "readout": readouts,
    "template": templates,
    "method": methods,
    "set_": settings,
    "preset": presets,
    "device": lambda: ("auto", "cpu", "cuda"),
}
