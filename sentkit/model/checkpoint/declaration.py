"""Builds the declaration that lets other programs read a checkpoint in the same way."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.export import Convolution, DeclarationToWrite, Dense, LayerNorm, Normalize
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS, Pooler
from sentkit.formats.checkpoints.readout import CONV, WK, Readout
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import WITH_POOLER
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.readouts import width_of_vectors
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.transforms.flow import Flow
from sentkit.transforms.steps import Linear, Norm, Step, Truncate


def declare_encoder(encoder: TransformerEncoder) -> DeclarationToWrite:
    """Return the declaration of an encoder. An existing encoder proves that `encode` accepts the options."""
    reading, body = encoder.reading, encoder.body
    if len(reading.readouts) != 1:
        raise UsageError("a checkpoint declares one readout")
    readout = reading.readouts[0]
    if readout.reduction in WK:
        problem = f'readout "{readout.name}": sentence-transformers has no module for this'
        raise UsageError(problem, advice=f"use encode --readout {readout.name}")
    return build_declaration(
        body,
        readout,
        reading.tokenizer,
        pooler=body.pooler if isinstance(body, Bert) else None,
        pooler_note=encoder.checkpoint.declared.pooler,
        steps=encoder.steps,
        prompts=encoder.checkpoint.declared.prompts,
        prompt_is_read=encoder.checkpoint.declared.prompt_is_read,
    )


def build_declaration(
    body: Bert | TransformersModel,
    readout: Readout,
    tokenizer: Tokenizer,
    *,
    pooler: nn.Linear | None,
    pooler_note: Pooler,
    prompts: Mapping[str, str],
    steps: Sequence[Step] = (),
    prompt_is_read: bool = True,
) -> DeclarationToWrite:
    template = tokenizer.template
    last = [step.kept for step in steps[-1:] if isinstance(step, Truncate)]
    return DeclarationToWrite(
        readout=readout,
        width=width_of_vectors(body, [readout]),
        depth=body.depth,
        max_length=tokenizer.max_length,
        steps=[step_to_write(step) for step in steps[: len(steps) - len(last)]],
        dim=last[0] if last else None,
        prompt=tokenizer.prompt,
        prompts=prompts,
        prompt_is_read=prompt_is_read,
        lowercase=tokenizer.lowercase,
        template=template.text if template else None,
        full_stop=template.full_stop if template else "none",
        pooler=dense_layer(pooler, pooler_note.activation) if readout.pooled and pooler is not None else None,
        pooler_note=pooler_note,
        convolution=convolution_layers(body) if readout.reduction == CONV else None,
        lacks_pooler=isinstance(body, Bert) and pooler is None and body.architecture.family in WITH_POOLER,
    )


def dense_layer(linear: nn.Linear, activation: str) -> Dense | None:
    """Return the layer to write, or None if sentence-transformers has no such activation."""
    if activation not in DENSE_ACTIVATIONS:
        return None
    return Dense(*as_arrays(linear), activation)


def as_arrays(layer: nn.Module) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    weight, bias = (layer.get_parameter(name).detach().float().cpu().numpy() for name in ("weight", "bias"))
    return weight, bias


def convolution_layers(body: Bert | TransformersModel) -> Convolution:
    assert body.convolution is not None, "check_layers refuses this"
    return Convolution([as_arrays(layer) for layer in body.convolution.convs])


def step_to_write(step: Step) -> Dense | LayerNorm | Normalize:
    if isinstance(step, Flow):
        problem = "a flow cannot be part of a checkpoint"
        raise UsageError(problem, advice="use sentkit whiten apply")
    if isinstance(step, Truncate):
        problem = "a checkpoint cannot have steps after the truncation of its vectors (truncate_dim)"
        raise UsageError(problem, advice="use sentkit encode")
    if isinstance(step, Linear):
        return Dense(step.weight, step.bias, step.activation)
    return LayerNorm(step.weight, step.bias) if isinstance(step, Norm) else "normalise"
