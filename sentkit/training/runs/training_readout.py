"""Selects the readout of a run: from the settings, else from the base, else from the method.

A causal language model without a declaration trains `last`: only its last token attends to the whole text.
"""

from dataclasses import replace
from typing import Any

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.reading import default_readout
from sentkit.training.base import Base
from sentkit.training.method import Method
from sentkit.training.settings import AS_BASE, notes, usual_readout, with_readout_of_base


def settle(name: str, kind: type[Method], settings: Any, base: Base) -> tuple[Any, str]:
    """Return the settings with `base` replaced by a readout, and a line with the choice and its reason."""
    if "readout" not in type(settings).__dataclass_fields__:
        return settings, f"readout {kind.readouts(settings)[0]}: {name} always uses it"
    declared = base.declared
    who = base.checkpoint.name if base.parents else "a new encoder"
    says = f"{who} declares {'none' if declared is None else declared.name}"
    chosen, reason = settings.readout, f"as set; {says}"
    if chosen == AS_BASE and declared is not None:
        chosen, reason = declared.name, f"{who} declares it"
    elif chosen == AS_BASE:
        usual = usual_readout(type(settings))
        chosen = usual.name
        reason = f"{says}; {'the paper uses it' if usual.of_paper else 'it is a common choice'}"
        if default_readout(base.checkpoint.config).name == "last":
            chosen, reason = "last", f"{says}; it is a causal language model"
    try:
        settled = replace(settings, readout=chosen)
        settled = with_readout_of_base(settled, None if declared is None else declared.name)
        check(kind, settled, base)
    except UsageError as error:
        if settings.readout != AS_BASE or declared is None:
            raise
        usual = usual_readout(type(settings))
        problem = f"{who} declares the readout {chosen}, which {name} cannot train"
        raise UsageError(problem, advice=f"use --set readout={usual.name}, or another") from error
    return settled, f"readout {chosen}: {reason}"


def check(kind: type[Method], settings: Any, base: Base) -> None:
    """Raise a UsageError for a readout that the method or the base does not support."""
    choices = notes(type(settings))["readout"].choices
    if choices and settings.readout not in choices:
        raise UsageError(f"readout={settings.readout}", advice=f"available: {', '.join(choices)}")
    for readout in map(parse_readout, kind.readouts(settings)):
        if readout.reduction not in kind.needs.reductions:
            raise UsageError(f"readout={readout.name}: this method cannot train it")
        if base.architecture is not None:
            readout.resolved(base.architecture.depth)
