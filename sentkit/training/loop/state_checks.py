"""Checks of a saved state before it is used: all fields, their types and their ranges."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sentkit.errors import DataError
from sentkit.training.loop.optimizers import Adam
from sentkit.training.loop.sealed_files import BadFile
from sentkit.training.settings import differences

FIELDS = {
    "position": dict,
    "identity": dict,
    "method": dict,
    "optimizer": dict,
    "random_states": list,
    "device_random_states": list,
}
SCORES = ("first_score", "last_score", "best_score")
POSITION_FIELDS = ("step", "evaluated", "best_step", "waited", "log_bytes", *SCORES)
PARAMETER_FIELDS = ("step", "exp_avg", "exp_avg_sq")  # fields of all optimizers here, per parameter
MAX_SCORE = 100.001  # maximum of Spearman's correlation x 100, with rounding
MAX_LOG_BYTES = 1 << 62  # bytes of a log


@dataclass(frozen=True, slots=True)
class Expected:
    """The run that a state must match."""

    identity: Mapping[str, Any]
    environment: Mapping[str, Any]  # can differ in its values
    steps: int
    tensors: Mapping[str, Tensor]  # tensors of the method
    optimizer: Adam
    keeps_best: bool  # the run needs the separate file of the best weights


def check_state(content: Mapping[str, Any], step: int, expected: Expected, source: str) -> None:
    """Raise a BadFile if this run cannot have saved the state in the file of that step.

    For a state of a different run, raise a DataError, which names `source`.
    """
    check_names("the state", content, FIELDS)
    for name, kind in FIELDS.items():
        if type(content[name]) is not kind:
            raise BadFile(f'"{name}" is a {type(content[name]).__name__}, expected a {kind.__name__}')
    check_saved_identity(content, expected, source)
    check_position(content["position"], step, expected.steps)
    check_tensors("method", content["method"], expected.tensors)
    check_optimizer(content["optimizer"], step, expected.optimizer)
    check_random_states(content["random_states"], content["device_random_states"])


def check_saved_identity(content: Mapping[str, Any], expected: Expected, source: str) -> None:
    saved = content["identity"]
    check_names('"identity"', saved, ("run", "environment"))
    if not all(type(part) is dict for part in saved.values()):
        raise BadFile('"identity" does not hold two dicts')
    before = saved["environment"]
    check_names('"environment"', before, expected.environment)
    for name, value in expected.environment.items():
        if type(before[name]) is not type(value):
            raise BadFile(f'"{name}" is {before[name]!r:.40}, expected a {type(value).__name__}')
    if before["threads"] < 1 or before["ranks"] != len(content["random_states"]):
        raise BadFile(f"{before['threads']} threads, and {before['ranks']} processes")
    advice = "use the same settings and rows, or start over with -f and without --resume"
    check_identity(expected.identity, saved["run"], source, advice)


def check_identity(ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str, advice: str) -> None:
    changes = differences(ours, theirs)
    if changes:
        raise DataError(f"belongs to a different run: {', '.join(changes)}", source=source, advice=advice)


def check_names(what: str, fields: Mapping[Any, Any], expected: Collection[Any]) -> None:
    missing = next((name for name in expected if name not in fields), None)
    if missing is not None:
        raise BadFile(f'{what} has no "{missing}"')
    unknown = next((name for name in fields if name not in expected), None)
    if unknown is not None:
        raise BadFile(f'{what} has an unknown "{unknown!s:.40}"')


def check_position(position: Mapping[str, Any], step: int, steps: int) -> None:
    check_names('"position"', position, POSITION_FIELDS)
    if step > steps:
        raise BadFile(f"the state is of step {step}, but the run has only {steps} steps")
    check_whole(position, "step", step, step)
    check_whole(position, "evaluated", -1, step)
    check_whole(position, "best_step", -1, step)
    check_whole(position, "waited", 0, step + 1)
    check_whole(position, "log_bytes", 0, MAX_LOG_BYTES)
    for name in SCORES:
        score = position[name]
        if score is not None and not (type(score) is float and not abs(score) > MAX_SCORE):
            raise BadFile(f'"{name}" is {score!r:.40}, expected a correlation x 100')
    best, score = position["best_step"], position["best_score"]
    if best == 0 or (best < 0) != (score is None) or (score is not None and math.isnan(score)):
        raise BadFile(f'"best_step" is {best}, and "best_score" is {score!r:.40}')


def check_whole(fields: Mapping[str, Any], name: str, least: int, most: int) -> None:
    value = fields[name]
    if type(value) is not int or not least <= value <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise BadFile(f'"{name}" is {value!r:.40}, expected {wanted}')


def check_tensors(what: str, tensors: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    check_names(f'"{what}"', tensors, expected)
    for name, tensor in expected.items():
        check_tensor(f"{what}: {name}", tensors[name], tensor)


def check_tensor(what: str, value: object, expected: Tensor) -> None:
    """Raise a BadFile unless dtype and shape match and all values are finite."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise BadFile(f"{what} is a {type(value).__name__}, expected a tensor")
    for name, ours, theirs in (
        ("shape", list(expected.shape), list(value.shape)),
        ("dtype", expected.dtype, value.dtype),
    ):
        if ours != theirs:
            raise BadFile(f"{what} has the {name} {theirs}, expected {ours}")
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise BadFile(f"{what} contains NaN or infinity")


def check_optimizer(saved: Mapping[str, Any], step: int, optimizer: Adam) -> None:
    """Compare the groups with those of the run. The learning rate can differ, because each step sets it."""
    check_names('"optimizer"', saved, ("state", "param_groups"))
    groups, states = saved["param_groups"], saved["state"]
    ours = optimizer.state_dict()["param_groups"]
    if type(groups) is not list or not all(type(group) is dict for group in groups):
        raise BadFile('"param_groups" is not a list of dicts')
    if [without_rate(group) for group in groups] != [without_rate(group) for group in ours]:
        raise BadFile("the optimizer has other groups of parameters, or other settings")
    for group in groups:
        rate = group["lr"]
        if type(rate) is not float or not math.isfinite(rate) or rate < 0:
            raise BadFile(f'"lr" is {rate!r:.40}, expected a number of 0 or more')
    if type(states) is not dict or bool(states) != bool(step):
        raise BadFile('the optimizer\'s "state" does not fit the step')
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    for place, state in states.items():
        if type(place) is not int or not 0 <= place < len(parameters) or type(state) is not dict:
            raise BadFile(f"the optimizer has a state of parameter {place!r:.40}")
        check_moments(f"optimizer: parameter {place}", state, step, parameters[place])


def without_rate(group: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields without the learning rate. `repr` distinguishes 1, 1.0 and True."""
    return sorted((name, "" if name == "lr" else repr(value)) for name, value in group.items())


def check_moments(what: str, state: Mapping[str, Any], step: int, parameter: Tensor) -> None:
    check_names(what, state, PARAMETER_FIELDS)
    for name in ("exp_avg", "exp_avg_sq"):
        check_tensor(f"{what}: {name}", state[name], parameter)
    if bool((state["exp_avg_sq"] < 0).any()):
        raise BadFile(f"{what}: exp_avg_sq is negative")
    if type(state["step"]) is not int or not 1 <= state["step"] <= step:
        raise BadFile(f"{what}: step is {state['step']!r:.40}, expected 1 to {step}")


def check_random_states(on_host: Sequence[Any], on_device: Sequence[Any]) -> None:
    """Check the random states of all processes and of their devices."""
    if not on_host or len(on_device) not in (0, len(on_host)):
        raise BadFile(f"random states of {len(on_host)} processes, and of {len(on_device)} devices")
    example = torch.Generator().get_state()
    for state in on_host:
        check_tensor("a random state", state, example)
        try:
            torch.Generator().set_state(state)
        except RuntimeError as error:
            raise BadFile("a random state is not valid for torch") from error
    for state in on_device:
        check_tensor("a device's random state", state, on_device[0])
        if state.dtype != torch.uint8 or state.ndim != 1:
            raise BadFile("a device's random state is not a row of bytes")
