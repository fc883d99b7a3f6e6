"""Converts an encoder to the declaration that lets other programs read its checkpoint in the same way."""

from torch import nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.export import Declaration, Dense, LayerNorm, Normalise
from sentkit.formats.checkpoints.modules import ACTIVATIONS
from sentkit.model.transformer.adapter import Adapter
from sentkit.model.transformer.architecture import WITH_POOLER
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.encoder import Encoder
from sentkit.transforms.steps import Linear, Norm, Step


def declaration_of(encoder: Encoder) -> Declaration:
    """Return the declaration of an encoder. An existing encoder proves that `encode` accepts the options."""
    reading, tokenizer = encoder.reading, encoder.reading.tokenizer
    if len(reading.readouts) != 1:
        raise UsageError("a checkpoint declares one readout")
    readout = reading.readouts[0]
    return Declaration(
        readout=readout,
        width=encoder.body.width,
        depth=encoder.body.depth,
        max_length=tokenizer.max_length,
        steps=[declared(step) for step in encoder.steps],
        prompt=tokenizer.prompt,
        prompt_is_read=encoder.checkpoint.declared.prompt_is_read,
        lowercase=tokenizer.lowercase,
        template=tokenizer.template.text if tokenizer.template else None,
        full_stop=tokenizer.template.full_stop if tokenizer.template else "none",
        pooler=pooler_of(encoder.body) if readout.pooled else None,
        pooler_note=encoder.checkpoint.declared.pooler,
        lacks_pooler=isinstance(encoder.body, Bert) and lacks_pooler(encoder.body),
    )


def lacks_pooler(body: Bert) -> bool:
    return body.pooler is None and body.architecture.family in WITH_POOLER


def pooler_of(body: Bert | Adapter) -> Dense | None:
    """Return the pooler as a dense layer, or None if sentence-transformers modules cannot express it."""
    if isinstance(body, Adapter) or body.pooler is None:
        return None
    return dense_layer(body.pooler, body.architecture.pooler_activation)


def dense_layer(linear: nn.Linear, activation: str) -> Dense | None:
    if activation not in ACTIVATIONS:
        return None
    weight, bias = (tensor.detach().float().cpu().numpy() for tensor in (linear.weight, linear.bias))
    return Dense(weight, bias, activation)


def declared(step: Step) -> Dense | LayerNorm | Normalise:
    if isinstance(step, Linear):
        return Dense(step.weight, step.bias, step.activation)
    return LayerNorm(step.weight, step.bias) if isinstance(step, Norm) else "normalise"
