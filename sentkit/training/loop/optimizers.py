"""The optimizers that papers call "Adam" or "AdamW", RMSprop, and schedules of the learning rate."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import sqrt
from typing import Any, TypedDict

import torch
from torch import Tensor, nn


def schedule_factor(name: str, step: int, total: int, warmup: int) -> float:
    """Return the factor of the learning rate in a step. Warm-up increases it from 0 in `warmup` steps.

    linear then decreases it to 0 at `total`. ct has the rates of CT, relative to the first: the next rate
    every 500 steps, four times.
    """
    if name == "ct":
        return (1.0, 0.8, 0.6, 0.4, 0.2)[min(step // 500, 4)]
    if name == "constant":
        return 1.0
    if step < warmup:
        return step / warmup
    return 1.0 if name == "warmup-constant" else max(0.0, (total - step) / max(1, total - warmup))


def warmup_steps(fraction: float, total: int) -> int:
    """Return the number of warm-up steps, rounded up."""
    # Use the decimal value: as floats, 0.07 * 100 is 7.000000000000001, which rounds up to 8.
    return math.ceil(Fraction(str(fraction)) * total)


Betas = tuple[float, float]
Group = dict[str, Any]  # parameters with "params", "lr" and "weight_decay"


class NamedGroup(TypedDict):
    params: Sequence[tuple[str, nn.Parameter]]
    lr: float


@dataclass(slots=True, kw_only=True, eq=False)
class Adam:
    """Adam of torch, with decoupled weight decay, or AdamW of transformers before version 5 (`late`).

    The latter differs in two points. Epsilon is added to the root of the uncorrected second moment, and
    weight decay follows the step: it multiplies the new weights by 1 - lr * weight_decay. The bias correction
    is a factor of the step size and is optional. Without it, as in Google's BERT, the first step is
    (1 - beta1) / sqrt(1 - beta2) = 3.16 times as long (betas 0.9 and 0.999).

    The numbers are those of the fused kernel of torch, which reads and writes each of them once. This is not
    a torch.optim.Optimizer, because these import torch._dynamo, which takes a second.
    """

    param_groups: list[Group]
    betas: Betas
    epsilon: float
    late: bool = False
    bias_correction: bool = True
    state: dict[Tensor, dict[str, Any]] = field(default_factory=dict)

    @torch.no_grad()
    def step(self, skipped: Tensor | None = None) -> None:
        """Change the weights, unless `skipped`, a number on their device, is 1. The host does not wait."""
        for group in self.param_groups:
            by_step = defaultdict(list)  # one list, unless some parameters skipped steps without gradient
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_step[self.count(parameter)].append(parameter)
            for count, parameters in by_step.items():
                self.update(parameters, count, group["lr"], group["weight_decay"], skipped)

    def count(self, parameter: Tensor) -> int:
        """Increment and return the number of steps of a parameter."""
        state = self.state.setdefault(parameter, {})
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(parameter)}
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        return state["step"]

    def counts(self) -> dict[Tensor, int]:
        return {parameter: state["step"] for parameter, state in self.state.items()}

    def restore_counts(self, counts: Mapping[Tensor, int]) -> None:
        """Set the numbers of steps to those before skipped steps."""
        self.state = {each: {**self.state[each], "step": count} for each, count in counts.items()}

    def update(
        self, parameters: list[Tensor], count: int, lr: float, weight_decay: float, skipped: Tensor | None
    ) -> None:
        """Update parameters that have the same number of steps."""
        beta1, beta2 = self.betas
        rate, epsilon = lr, self.epsilon
        corrections = 1 - beta1**count, sqrt(1 - beta2**count)  # the kernel divides the moments by these
        if self.late:
            epsilon /= corrections[1]
        if not self.bias_correction:
            rate *= corrections[0] / corrections[1]
        tensors = (
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
        )
        move = fused_adam if fused_adam_works(parameters[0].device.type) else plain_adam
        decay = 0.0 if self.late else weight_decay
        move(tensors, count, skipped, beta1=beta1, beta2=beta2, lr=rate, weight_decay=decay, eps=epsilon)
        if self.late and weight_decay:
            for parameter in parameters:
                decayed = parameter if skipped is None else parameter * (1 - skipped)
                parameter.add_(decayed, alpha=-lr * weight_decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments by the place of the parameter, and the groups with these places."""
        places = self.places()
        names = ("betas", "epsilon", "late", "bias_correction")
        settings = {name: getattr(self, name) for name in names}
        return {
            "state": {place: self.state[each] for each, place in places.items() if each in self.state},
            "param_groups": [
                {**settings, **group, "params": [places[parameter] for parameter in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the moments of a checked state. The groups are those of this run."""
        self.state = {
            parameter: {
                name: value.to(parameter, copy=True) if isinstance(value, Tensor) else value
                for name, value in saved["state"][place].items()
            }
            for parameter, place in self.places().items()
            if place in saved["state"]
        }

    def places(self) -> dict[Tensor, int]:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {parameter: place for place, parameter in enumerate(parameters)}


Tensors = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]  # weights, gradients, both moments


def fused_adam(tensors: Tensors, count: int, skipped: Tensor | None, **settings: Any) -> None:
    """Step number `count` with the kernel of torch, which is undocumented."""
    from torch.optim.adam import adam

    counts = list(torch.full((len(tensors[0]),), count - 1.0, device=tensors[0][0].device))
    fixed = {"fused": True, "amsgrad": False, "maximize": False, "decoupled_weight_decay": True}
    kernel: Any = adam
    kernel(*tensors, [], counts, found_inf=skipped, **fixed, **settings)


def plain_adam(
    tensors: Tensors,
    count: int,
    skipped: Tensor | None,
    *,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
) -> None:
    """The same step; its last bits differ, and it reads and writes each number several times."""
    if skipped is not None and bool(skipped):  # the host waits
        return
    for weight, gradient, mean, square in zip(*tensors, strict=True):
        weight.mul_(1 - lr * weight_decay)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = square.sqrt().div_(sqrt(1 - beta2**count)).add_(eps)
        weight.addcdiv_(mean, root, value=-lr / (1 - beta1**count))


@cache
def fused_adam_works(device: str) -> bool:
    """Return true if the kernel exists on this kind of device and gives the result of `plain_adam`."""
    values = [torch.tensor([value], device=device) for value in (0.5, 0.2, -0.1, 0.3)]
    found, expected = ([[value.clone()] for value in values] for _ in range(2))
    settings = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.5, "eps": 0.01}
    try:
        for skipped in (1.0, 0.0):
            flag = torch.full((), skipped, device=device)
            fused_adam((found[0], found[1], found[2], found[3]), 2, flag, **settings)
    except (ImportError, AttributeError, RuntimeError, TypeError):
        return False
    plain_adam((expected[0], expected[1], expected[2], expected[3]), 2, None, **settings)
    return all(torch.allclose(ours, theirs) for [ours], [theirs] in zip(found, expected, strict=True))


def make_optimizer(
    name: str,
    named_groups: Sequence[NamedGroup],
    *,
    betas: Betas,
    weight_decay: float,
    epsilon: float | None = None,
) -> Adam:
    """Return the named optimizer. Biases and norms have no weight decay."""
    groups = decay_groups(named_groups, weight_decay)
    epsilon = epsilon or (1e-6 if name in ("adamw-hf", "adamw-bert") else 1e-8)
    if name in ("adam", "rmsprop"):
        # The decay of these is part of the gradient, unlike decoupled decay. The settings refuse it.
        assert not any(group["weight_decay"] for group in groups), f"{name} has no decoupled decay"
    if name == "rmsprop":  # Adam without the mean of the gradients and without bias correction
        betas = (0.0, betas[1])
    return Adam(
        param_groups=groups,
        betas=betas,
        epsilon=epsilon,
        late=name in ("adamw-hf", "adamw-bert", "rmsprop"),
        bias_correction=name not in ("adamw-bert", "rmsprop"),
    )


def decay_groups(groups: Sequence[NamedGroup], weight_decay: float) -> list[Group]:
    """Return groups of parameters. With weight decay, split each group: with decay, then without."""
    result: list[Group] = []
    for group in groups:
        for decay in dict.fromkeys((weight_decay, 0.0)):
            weights = [each for name, each in group["params"] if decay == weight_decay * decays(name)]
            if weights:
                result.append({"params": weights, "lr": group["lr"], "weight_decay": decay})
    return result


def decays(name: str) -> bool:
    """Return true unless the name is that of a bias or of a norm."""
    parts = name.split(".")
    return parts[-1] != "bias" and not any(part.lower().endswith("norm") for part in parts)
