"""The operations after a readout, and the space that results: its name, and the hash of the weights.

The operations of the checkpoint are first, then those of the flags.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import declared_in
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.readout import CONV, Readout, parse_readout
from sentkit.formats.files import readable
from sentkit.formats.vectors.fingerprint import Spec, digest, name_for_label
from sentkit.model.reading import Reading, ReadingOptions
from sentkit.transforms.steps import Normalize, Step, Truncate, check_fitted, read_transform


class Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


T = TypeVar("T", bound=Shaped)


def hash_of_weights(
    weights: Mapping[str, T], as_float32: Callable[[T], Float32], *, with_pooler: bool, threads: int
) -> str:
    """Return 32 hex digits that depend only on names, shapes and values; tensors are converted one by one."""
    names = sorted(name for name in weights if with_pooler or not name.startswith("pooler."))
    with ThreadPoolExecutor(threads) as pool:  # hashlib releases the interpreter lock
        digests = list(pool.map(lambda name: array_digest(as_float32(weights[name])), names))
    whole = hashlib.blake2b(digest_size=16)
    for name, one in zip(names, digests, strict=True):
        whole.update(f"{name} {by(weights[name].shape)}\n".encode() + one)
    return whole.hexdigest()


def array_digest(values: Float32) -> bytes:
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return hashlib.blake2b(raw.data, digest_size=16).digest()


def by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def all_steps(declared: Sequence[Step], options: ReadingOptions) -> list[Step]:
    """Return the declared steps, truncation to `dim`, normalization and the transform, in this order.

    A final declared normalization moves after the truncation, so that truncated vectors have unit length.
    """
    steps = list(declared)
    last = [steps.pop()] if steps and isinstance(steps[-1], Normalize) else []
    if options.dim is not None:
        steps.append(Truncate(options.dim))
    if last or options.normalize:
        steps.append(Normalize())
    return steps if options.transform is None else [*steps, read_transform(options.transform)]


def width_behind(steps: Sequence[Step], width: int) -> int:
    """Return the vector width after the steps; raise an error if a step does not fit."""
    for step in steps:
        width = step.width(width)
    return width


def spec_behind(steps: Sequence[Step], spec: Spec, transform: str | None) -> Spec:
    """Return `spec` with the steps added.

    `transform` is the file of the last step, or None; an error is raised if it was fitted to another space.
    """
    for step in steps:
        if step is steps[-1] and transform is not None:
            check_fitted(transform, spec.emb)
        spec = spec.after(step.suffix, step.hash)
    return (
        spec if transform is None else replace(spec, record={**spec.record, "transform": readable(transform)})
    )


def steps_of_checkpoint(
    checkpoint: Checkpoint, reading: Reading, before: int, read_layer: Callable[[Path], Step]
) -> list[Step]:
    """Return the steps of a checkpoint and of the flags; `before` is the vector width of the readout."""
    declared: list[Step] = [
        Normalize() if name == "normalise" else read_layer(checkpoint.folder / name) for name in reading.steps
    ]
    if reading.declared_dim is not None:
        declared.append(Truncate(reading.declared_dim))
    with declared_in(place_of_declaration(checkpoint)):
        width_behind(declared, before)
    return all_steps(declared, reading.options)


def place_of_declaration(checkpoint: Checkpoint) -> str:
    return str(checkpoint.folder / checkpoint.declared.source)


def spec_of_readout(
    checkpoint: Checkpoint,
    reading: Reading,
    readout: Readout,
    weights: str,
    rules: Sequence[Any],
    steps: Sequence[Step],
    *,
    layers: Sequence[int],
    kernels: str = "",
    machine: Mapping[str, Any],
) -> Spec:
    """Return the origin of the vectors behind the steps.

    `weights` and `kernels` are hashes of the encoder and of its convolution, `rules` the config values that
    change the vectors for equal weights, `layers` those of the readout. `machine` is recorded, not hashed.
    """
    tokenizer, pooler = reading.tokenizer, checkpoint.declared.pooler
    read_as: list[Any] = [sorted(layers), readout.reduction]
    if tokenizer.template is not None:
        read_as.append(tokenizer.template.text)
    if readout.pooled and pooler.activation != "tanh":
        read_as.append(pooler.activation)
    if readout.reduction == CONV:
        read_as.append(kernels)
    record = {
        "model": readable(checkpoint.name),
        "weights": weights,
        "tokenizer": tokenizer.hash,
        "readout": readout.name,
        "template": tokenizer.template.text if tokenizer.template else None,
        "full_stop": tokenizer.template.full_stop if tokenizer.template else None,
        "prompt": reading.sides or tokenizer.prompt,
        "max_length": tokenizer.max_length,
        **machine,
    }
    label = f"{name_for_label(checkpoint.name)}/{readout.name}"
    if pooler.lands_in and readout.reduction == parse_readout(pooler.readout).reduction:
        label += f">{pooler.lands_in}"  # the pooler was trained with this readout to match another space
    spec = Spec(label, digest([weights, rules, tokenizer.hash, read_as]), record)
    return spec_behind(steps, spec, reading.options.transform)
