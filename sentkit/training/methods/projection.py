"""The layer between a vector and what it is to predict: the base's pooler, or its language model's first."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.model.checkpoint.lm_head import HEADS, read_head
from sentkit.model.transformer.architecture import ROBERTA
from sentkit.model.transformer.weights import canonical
from sentkit.training.base import Base


@dataclass(frozen=True, slots=True)
class Projection:
    layer: nn.Linear
    activation: str  # of model.bert.ACTIVATIONS


def projection_of(base: Base, wanted: str) -> Projection:
    """A copy to train: `checkpoint` is the pooler, `lm-head` the head's first layer, `auto` what was trained.

    A pooler that was never trained is a random projection that looks like a trained one: RoBERTa's is such,
    unless a checkpoint of ours says that it trained it.
    """
    pooler, head = pooler_of(base), head_of(base) if wanted != "checkpoint" else None
    if wanted == "auto":
        wanted = "checkpoint" if pooler is not None and was_trained(base) else "lm-head"
    found = pooler if wanted == "checkpoint" else head
    if found is None:
        has = "no pooler" if wanted == "checkpoint" else "no language model's head"
        if wanted == "lm-head" and pooler is not None and not was_trained(base):
            has += ", and a pooler that may never have been trained"
        has_head = wanted == "checkpoint" and head_of(base) is not None
        advice = "--set pooler=lm-head takes its language model's head"
        if not has_head:
            advice = "sentkit train mlm --set head=fresh gives it a head; --set pooler= says which is taken"
        raise UsageError(f"{base.checkpoint.name} has {has}", advice=advice)
    return found


def was_trained(base: Base) -> bool:
    assert base.architecture is not None, "needs_packed is refused before"
    return base.architecture.family not in ROBERTA or bool(base.checkpoint.declared.pooler.readout)


def pooler_of(base: Base) -> Projection | None:
    assert base.architecture is not None, "needs_packed is refused before"
    named = canonical(base.stored, base.architecture)
    if "pooler.dense.weight" not in named:
        return None
    layer = linear(named["pooler.dense.weight"], named["pooler.dense.bias"])
    return Projection(layer, base.architecture.pooler_activation)


def head_of(base: Base) -> Projection | None:
    assert base.architecture is not None, "needs_packed is refused before"
    head = read_head(base.stored, base.architecture, source=base.checkpoint.name)
    if head is None:
        return None
    activation = HEADS[base.architecture.family].activation or base.architecture.activation
    return Projection(linear(head.dense.weight, head.dense.bias), activation)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    with torch.device("meta"):  # no random numbers for weights that are replaced at once
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    state = {"weight": weight.detach().float().clone(), "bias": bias.detach().float().clone()}
    layer.load_state_dict(state, assign=True)
    return layer.requires_grad_()
