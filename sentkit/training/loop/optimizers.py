"""The four optimizers that sentence embedding papers call "Adam" or "AdamW"."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam

Betas = tuple[float, float]
Group = dict[str, Any]  # a parameter group of torch with "params", "lr" and "weight_decay"


class NamedGroup(TypedDict):
    params: Sequence[tuple[str, nn.Parameter]]
    lr: float


class HuggingFaceAdamW(Optimizer):
    """AdamW of transformers before version 5, with or without `correct_bias`.

    It differs from AdamW of torch in three points. Epsilon is 1e-6, added to the root of the uncorrected
    second moment. Weight decay follows the step: it multiplies the new weights by 1 - lr * weight_decay. The
    bias correction is a factor of the step size and is optional. Without it, as in Google's BERT, the first
    step is (1 - beta1) / sqrt(1 - beta2) = 3.16 times as long (betas 0.9 and 0.999). Each group must have
    "lr" and "weight_decay".
    """

    def __init__(
        self, groups: Iterable[Group], *, betas: Betas, bias_correction: bool, epsilon: float = 1e-6
    ) -> None:
        super().__init__(groups, {"betas": betas, "bias_correction": bias_correction, "epsilon": epsilon})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # closures are not supported
        for group in self.param_groups:
            by_step = defaultdict(list)  # one list, unless some parameters skipped steps without gradient
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_step[self.count(parameter)].append(parameter)
            for count, parameters in by_step.items():
                self.update(parameters, count, group)

    def count(self, parameter: Tensor) -> int:
        """Increment and return the number of steps of a parameter."""
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(parameter)}
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        return state["step"]

    def update(self, parameters: list[Tensor], count: int, group: Group) -> None:
        """Update parameters that have the same number of steps."""
        beta1, beta2 = group["betas"]
        corrections = 1 - beta1**count, 1 - beta2**count
        # The kernel of torch divides both moments by their corrections. These two factors cancel that.
        rate = group["lr"] * (1.0 if group["bias_correction"] else corrections[0] / sqrt(corrections[1]))
        steps = torch.full((len(parameters),), count - 1.0, device=parameters[0].device)
        adam(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            list(steps),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=0.0,
            eps=group["epsilon"] / sqrt(corrections[1]),
            maximize=False,
        )
        if group["weight_decay"]:
            torch._foreach_add_(parameters, parameters, alpha=-group["lr"] * group["weight_decay"])


def make_optimizer(
    name: str, named_groups: Sequence[NamedGroup], *, betas: Betas, weight_decay: float
) -> Optimizer:
    """Return the named optimizer. Biases and norms have no weight decay."""
    groups = decay_groups(named_groups, weight_decay)
    # `fused` is fixed: torch selects kernels by a heuristic, and their results differ in bits. The fused
    # kernel reads and writes each number once.
    match name:
        case "adam":
            # The decay of Adam is part of the gradient, unlike decoupled decay. The settings refuse it.
            assert not any(group["weight_decay"] for group in groups), "Adam has no decoupled decay"
            return torch.optim.Adam(groups, betas=betas, eps=1e-8, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, betas=betas, eps=1e-8, fused=True)
        case "adamw-hf":
            return HuggingFaceAdamW(groups, betas=betas, bias_correction=True)
        case "adamw-bert":
            return HuggingFaceAdamW(groups, betas=betas, bias_correction=False)
        case "rmsprop":
            # RMSprop is Adam without the mean of the gradients and without bias correction.
            assert not any(group["weight_decay"] for group in groups), "RMSprop has no decoupled decay"
            betas = (0.0, betas[1])
            return HuggingFaceAdamW(groups, betas=betas, bias_correction=False, epsilon=1e-8)
    raise ValueError(name)


def decay_groups(groups: Sequence[NamedGroup], weight_decay: float) -> list[Group]:
    """Return parameter groups of torch. With weight decay, split each group: with decay, then without."""
    result: list[Group] = []
    for group in groups:
        decaying = [weight for name, weight in group["params"] if weight_decay and decays(name)]
        steady = [weight for name, weight in group["params"] if not (weight_decay and decays(name))]
        # Set it even if it is 0, because the default of AdamW is 0.01.
        result += [
            {"params": weights, "lr": group["lr"], "weight_decay": decay}
            for weights, decay in ((decaying, weight_decay), (steady, 0.0))
            if weights
        ]
    return result


def decays(name: str) -> bool:
    """Return true unless the name is that of a bias or of a norm."""
    parts = name.split(".")
    return parts[-1] != "bias" and not any(part.lower().endswith("norm") for part in parts)
