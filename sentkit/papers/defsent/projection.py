"""The trainable layer before the prediction: a checkpoint's pooler, or the first layer of its head."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.checkpoint.heads import HEADS, read_head
from sentkit.model.transformer.architecture import ROBERTA
from sentkit.model.transformer.weights import canonical
from sentkit.training.base import Base, open_base
from sentkit.training.recipe import SHORTEST


@dataclass(frozen=True, slots=True)
class Projection:
    layer: nn.Linear
    activation: str  # a key of ACTIVATIONS

    @property
    def hash(self) -> str:
        parts = [weight.detach().numpy().tobytes().hex() for weight in self.layer.parameters()]
        return digest([*parts, self.activation])


def projection_from(name: str, wanted: str) -> Projection:
    """Read a checkpoint and return its layer, like `projection_of`."""
    other = open_base(read_checkpoint(name), SHORTEST)
    if other.architecture is None:
        problem = f"{name}: sentkit runs {other.why_not_packed} through transformers"
        raise UsageError(problem, advice="projection_from needs a checkpoint that sentkit runs itself")
    return projection_of(other, wanted)


def projection_of(base: Base, wanted: str) -> Projection:
    """Return a copy of a layer: `checkpoint` is the pooler, `lm-head` is the first layer of the head.

    `auto` is the pooler if it was trained, else the head. An untrained pooler has random weights. The pooler
    of RoBERTa is untrained unless the checkpoint declares a trained one.
    """
    pooler, head = pooler_of(base), head_of(base) if wanted != "checkpoint" else None
    if wanted == "auto":
        wanted = "checkpoint" if pooler is not None and was_trained(base) else "lm-head"
    chosen = pooler if wanted == "checkpoint" else head
    if chosen is None:
        has = "no pooler" if wanted == "checkpoint" else "no language model head"
        if wanted == "lm-head" and pooler is not None and not was_trained(base):
            has += ", and its pooler is probably not trained"
        has_head = wanted == "checkpoint" and head_of(base) is not None
        advice = "to use the language model head, add --set pooler=lm-head"
        if not has_head:
            advice = "to use the layer of another checkpoint, add --set projection_from=CHECKPOINT"
            if pooler is not None:
                advice += "; to use the pooler, add --set pooler=checkpoint"
        raise UsageError(f"{base.checkpoint.name} has {has}", advice=advice)
    return chosen


def was_trained(base: Base) -> bool:
    return base.packed.family not in ROBERTA or bool(base.checkpoint.declared.pooler.readout)


def pooler_of(base: Base) -> Projection | None:
    named = canonical(base.stored, base.packed)
    if "pooler.dense.weight" not in named:
        return None
    layer = linear(named["pooler.dense.weight"], named["pooler.dense.bias"])
    return Projection(layer, base.packed.pooler_activation)


def head_of(base: Base) -> Projection | None:
    head = read_head(base.stored, base.packed, source=base.checkpoint.name)
    if head is None:
        return None
    activation = HEADS[base.packed.family].activation or base.packed.activation
    return Projection(linear(head.dense.weight, head.dense.bias), activation)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    with torch.device("meta"):  # skip the random initialisation, because the weights are replaced
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    state = {"weight": weight.detach().float().clone(), "bias": bias.detach().float().clone()}
    layer.load_state_dict(state, assign=True)
    return layer.requires_grad_()
