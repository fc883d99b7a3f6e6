"""A reading of a checkpoint -> the declaration that makes others read it so."""

from sentkit.errors import UsageError
from sentkit.formats.checkpoints import Checkpoint
from sentkit.formats.export import Declaration, Dense
from sentkit.model.encoder import read_dense
from sentkit.model.reading import Reading, depth_of, width_of
from sentkit.transforms.affine import read_affine
from sentkit.transforms.steps import Linear

ACTIVATIONS = {False: "torch.nn.modules.linear.Identity", True: "torch.nn.modules.activation.Tanh"}


def declaration_of(checkpoint: Checkpoint, reading: Reading) -> Declaration:
    if len(reading.readouts) != 1:
        raise UsageError("a checkpoint declares one readout")
    tokenizer = reading.tokenizer
    steps = [
        step if step == "normalise" else dense(read_dense(checkpoint.folder / step)) for step in reading.steps
    ]
    if reading.normalise and steps[-1:] != ["normalise"]:
        steps.append("normalise")
    if reading.transform is not None:
        steps.append(dense(read_affine(reading.transform)[0]))
    return Declaration(
        readout=reading.readouts[0],
        width=width_of(checkpoint.config),
        depth=depth_of(checkpoint.config),
        max_length=tokenizer.max_length,
        steps=steps,
        prompt=tokenizer.prompt,
        lowercase=tokenizer.lowercase,
        template=tokenizer.template.text if tokenizer.template else None,
        full_stop=tokenizer.template.full_stop if tokenizer.template else "none",
    )


def dense(layer: Linear) -> Dense:
    return Dense(layer.weight, layer.bias, ACTIVATIONS[layer.tanh])
