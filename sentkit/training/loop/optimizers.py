"""The optimizers that papers call "Adam" or "AdamW", RMSprop, and schedules of the learning
rate.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from sentkit.training.recipe import Recipe


def schedule_factor(name: str, step: int, total: int, warmup: int) -> float:
    """Return the factor of the learning rate in a step. Warm-up increases it from 0 in `warmup`
    steps.

    linear then decreases it to 0 at `total`. ct has the rates of CT, relative to the first: the
    next rate every 500 steps, four times.
    """
    if name == "ct":
        return (1.0, 0.8, 0.6, 0.4, 0.2)[min(step // 500, 4)]
    if name == "constant":
        return 1.0
    if step < warmup:
        return step / warmup
    if name == "warmup-constant":
        return 1.0
    return max(0.0, (total - step) / max(1, total - warmup))


def warmup_steps(fraction: float, total: int) -> int:
    """Return the number of warm-up steps, rounded up."""
    # Use the decimal value: as floats, 0.07 * 100 is 7.000000000000001, which rounds up to 8.
    return math.ceil(Fraction(str(fraction)) * total)


# As in torch.optim: "params" and "lr", in the optimizer also "weight_decay". The parameters of a
# method's groups have names: (name, parameter).
Group = dict[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class Adam:
    """Adam of torch, with decoupled weight decay, or AdamW of transformers before version 5
    (`late`).

    The latter differs in two points. Epsilon is added to the root of the uncorrected second moment,
    and weight decay follows the step: it multiplies the new weights by 1 - lr * weight_decay. The
    bias correction is a factor of the step size and is optional. Without it, as in Google's BERT,
    the first step is (1 - beta1) / sqrt(1 - beta2) = 3.16 times as long (betas 0.9 and 0.999).

    The numbers are those of the fused kernel of torch, which reads and writes each of them once.
    This is not a torch.optim.Optimizer, because these import torch._dynamo, which takes a second.
    """

    param_groups: list[Group]
    betas: tuple[float, float]
    epsilon: float
    late: bool = False
    bias_correction: bool = True
    # its step and moments, by parameter
    state: dict[Tensor, dict[str, Any]] = field(default_factory=dict)

    @torch.no_grad()
    def step(self, skipped: Tensor | None = None) -> None:
        """Change the weights, unless `skipped`, a number on their device, is 1. The host does not
        wait.
        """
        for group in self.param_groups:
            # Parameters by their step: one list, unless some had no gradient in other steps.
            parameters_of_step: defaultdict[int, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state.setdefault(parameter, {"step": 0})
                if not state["step"]:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                parameters_of_step[state["step"]].append(parameter)
            for step, parameters in parameters_of_step.items():
                self.update(parameters, step, group["lr"], group["weight_decay"], skipped)

    def update(
        self,
        parameters: list[Tensor],
        step: int,
        lr: float,
        weight_decay: float,
        skipped: Tensor | None,
    ) -> None:
        """Update parameters that have the same number of steps."""
        beta1, beta2 = self.betas
        # The kernel divides the first moment and the root of the second one by these.
        mean_correction = 1 - beta1**step
        root_correction = math.sqrt(1 - beta2**step)
        epsilon = self.epsilon
        kernel_decay = weight_decay
        if self.late:
            epsilon /= root_correction
            kernel_decay = 0.0
        rate = lr
        if not self.bias_correction:
            rate *= mean_correction / root_correction
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            # adamw adds the step that begins.
            list(torch.full((len(parameters),), step - 1.0, device=parameters[0].device)),
            fused=True,
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=kernel_decay,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=skipped,
        )
        if self.late and weight_decay:
            for parameter in parameters:
                decayed: Tensor = parameter
                if skipped is not None:
                    decayed = parameter * (1 - skipped)
                parameter.add_(decayed, alpha=-lr * weight_decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments by the index of the parameter, and the groups with these indices."""
        indices = self.indices()
        settings = {
            "betas": self.betas,
            "epsilon": self.epsilon,
            "late": self.late,
            "bias_correction": self.bias_correction,
        }
        groups: list[Group] = []
        for group in self.param_groups:
            group_indices = [indices[parameter] for parameter in group["params"]]
            groups.append({**settings, **group, "params": group_indices})
        states = {
            index: self.state[parameter]
            for parameter, index in indices.items()
            if parameter in self.state
        }
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the moments of a checked state. The groups are those of this run."""
        self.state = {}
        for parameter, index in self.indices().items():
            if index not in saved["state"]:
                continue
            state = dict(saved["state"][index])
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(parameter, copy=True)
            self.state[parameter] = state

    def indices(self) -> dict[Tensor, int]:
        """Return the index of each parameter in all groups together."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {parameter: index for index, parameter in enumerate(parameters)}


def make_optimizer(
    recipe: Recipe,
    named_groups: Sequence[Group],
    norm_parameters: Collection[nn.Parameter] = (),
) -> Adam:
    """Return the optimizer of these settings. Weight decay splits each group: with decay, then
    without. `norm_parameters` do not decay, whatever their names are.
    """
    groups: list[Group] = []
    for named_group in named_groups:
        with_decay: list[nn.Parameter] = []
        without_decay: list[nn.Parameter] = []
        for name, parameter in named_group["params"]:
            decays = name_decays(name) and parameter not in norm_parameters
            if recipe.weight_decay and decays:
                with_decay.append(parameter)
            else:
                without_decay.append(parameter)
        lr = named_group["lr"]
        if with_decay:
            groups.append({"params": with_decay, "lr": lr, "weight_decay": recipe.weight_decay})
        if without_decay:
            groups.append({"params": without_decay, "lr": lr, "weight_decay": 0.0})

    name = recipe.optimizer
    epsilon = recipe.epsilon
    if epsilon is None:
        epsilon = 1e-6 if name in ("adamw-hf", "adamw-bert") else 1e-8
    beta1 = recipe.beta1
    if name == "rmsprop":  # Adam without the mean of the gradients and without bias correction
        beta1 = 0.0
    return Adam(
        param_groups=groups,
        betas=(beta1, recipe.beta2),
        epsilon=epsilon,
        late=name in ("adamw-hf", "adamw-bert", "rmsprop"),
        bias_correction=name not in ("adamw-bert", "rmsprop"),
    )


def parameters_of_norms(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of all modules whose class is a norm, such as RMSNorm."""
    return {
        parameter
        for module in model.modules()
        if type(module).__name__.endswith("Norm")
        for parameter in module.parameters(recurse=False)
    }


def name_decays(name: str) -> bool:
    """Return true unless the name is that of a bias or of a norm."""
    words = name.split(".")
    return words[-1] != "bias" and not any(word.lower().endswith("norm") for word in words)
