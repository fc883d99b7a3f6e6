"""The optimizers that papers call "Adam" or "AdamW", RMSprop, and schedules of the learning rate."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from sentkit.training.settings import Recipe


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
    betas: tuple[float, float]
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
                if parameter.grad is None:
                    continue
                state = self.state.setdefault(parameter, {"step": 0})
                if not state["step"]:
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
                state["step"] += 1
                by_step[state["step"]].append(parameter)
            for count, parameters in by_step.items():
                self.update(parameters, count, group["lr"], group["weight_decay"], skipped)

    def update(
        self, parameters: list[Tensor], count: int, lr: float, weight_decay: float, skipped: Tensor | None
    ) -> None:
        """Update parameters that have the same number of steps."""
        beta1, beta2 = self.betas
        rate, epsilon = lr, self.epsilon
        corrections = 1 - beta1**count, math.sqrt(1 - beta2**count)  # the kernel divides the moments by these
        if self.late:
            epsilon /= corrections[1]
        if not self.bias_correction:
            rate *= corrections[0] / corrections[1]
        torch._fused_adamw_(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            list(torch.full((len(parameters),), float(count), device=parameters[0].device)),
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=0.0 if self.late else weight_decay,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=skipped,
        )
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


def make_optimizer(recipe: Recipe, named_groups: Sequence[NamedGroup]) -> Adam:
    """Return the optimizer of these settings. Weight decay splits each group: with decay, then without."""
    name, groups = recipe.optimizer, list[Group]()
    for group in named_groups:
        for decay in dict.fromkeys((recipe.weight_decay, 0.0)):
            weights = [each for own, each in group["params"] if decay == recipe.weight_decay * decays(own)]
            if weights:
                groups.append({"params": weights, "lr": group["lr"], "weight_decay": decay})
    return Adam(
        param_groups=groups,
        # rmsprop is Adam without the mean of the gradients and without bias correction.
        betas=(0.0 if name == "rmsprop" else recipe.beta1, recipe.beta2),
        epsilon=recipe.epsilon or (1e-6 if name in ("adamw-hf", "adamw-bert") else 1e-8),
        late=name in ("adamw-hf", "adamw-bert", "rmsprop"),
        bias_correction=name not in ("adamw-bert", "rmsprop"),
    )


def decays(name: str) -> bool:
    """Return true unless the name is that of a bias or of a norm."""
    parts = name.split(".")
    return parts[-1] != "bias" and not any(part.lower().endswith("norm") for part in parts)
