"""The readout that a run trains: that of the settings, of the base, or of the method."""

from dataclasses import replace
from typing import Any

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.training.base import Base
from sentkit.training.method import Method, first_readout
from sentkit.training.settings import AS_BASE, notes, usual_readout, with_readout_of_base


def settle(
    method_name: str, method_class: type[Method], settings: Any, base: Base
) -> tuple[Any, str]:
    """Return the settings with `base` replaced by a readout, and a line with the choice and its
    reason.

    The readout is that of the settings, else of the base, else of the method. A causal language
    model without a declaration trains `last`: only its last token attends to the whole text.
    """
    if "readout" not in type(settings).__dataclass_fields__:
        readout = first_readout(method_class, base, settings)
        return settings, f"readout {readout}: {method_name} always uses it"

    # The readout and the reason.
    base_name = base.checkpoint.name
    declared: str | None = None
    if base.declared is not None:
        declared = base.declared.name
    declaration = f"{base_name} declares {declared or 'none'}"
    if settings.readout != AS_BASE:
        readout = settings.readout
        reason = f"as set; {declaration}"
    elif declared is not None:
        readout = declared
        reason = f"{base_name} declares it"
    elif base.is_causal:
        readout = readout_of_causal(method_class, settings)
        reason = f"{declaration}; it is a causal language model"
    else:
        readout, of_paper = usual_readout(type(settings))
        if ":" in method_name:  # a method of a user
            reason = f"{declaration}; it is the default of {method_name}"
        elif of_paper:
            reason = f"{declaration}; the paper uses it"
        else:
            reason = f"{declaration}; it is a common choice"

    # Whether the method can train it.
    try:
        settled = with_readout_of_base(replace(settings, readout=readout), declared)
        check_readout(method_class, settled, base)
    except UsageError as error:
        if settings.readout != AS_BASE or declared is None or base.is_causal:
            raise
        problem = f"{base_name} declares the readout {readout}, which {method_name} cannot train"
        usual, _ = usual_readout(type(settings))
        raise UsageError(problem, advice=f"use --set readout={usual}, or another") from error
    return settled, f"readout {readout}: {reason}"


def readout_of_causal(method_class: type[Method], settings: Any) -> str:
    """The readout of a causal language model: its last token, or the mean if the method cannot
    train that one.
    """
    choices = notes(type(settings))["readout"].choices
    if "last" in method_class.needs.reductions and (not choices or "last" in choices):
        return "last"
    return "mean"


def check_readout(method_class: type[Method], settings: Any, base: Base) -> None:
    """Raise a UsageError if the method cannot train the readout, or if the base has not its
    layers.
    """
    choices = notes(type(settings))["readout"].choices
    if choices and settings.readout not in choices:
        raise UsageError(f"readout={settings.readout}", advice=f"available: {', '.join(choices)}")
    for name in method_class.readouts(settings):
        readout = parse_readout(name)
        if readout.reduction not in method_class.needs.reductions:
            raise UsageError(f"readout={readout.name}: this method cannot train it")
        if readout.reduction == "cls" and base.is_causal:
            problem = f"readout={readout.name}: the first token attends only to itself"
            best = readout_of_causal(method_class, settings)
            raise UsageError(problem, advice=f"use --set readout={best}")
        if base.architecture is not None:
            readout.layers_in(base.architecture.depth)
