"""Write a declaration as modules of sentence-transformers, in the old schema that all its versions read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS, JOINED, POOLING, PROMPTS, READOUTS, Pooler
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK, Readout
from sentkit.formats.json_files import write_json
from sentkit.formats.vectors.safetensors_header import write_arrays

OLD = "sentence_transformers.models."
RECEIVED = {**POOLED, CONV: "mean"}  # readout -> its reduction in a Pooling module


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer after the readout: activation(x W' + b)."""

    weight: NDArray[np.float32]  # (k, d)
    bias: NDArray[np.float32]  # (k,)
    activation: str = "identity"  # a key of DENSE_ACTIVATIONS


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: NDArray[np.float32]  # (d,)
    bias: NDArray[np.float32]  # (d,)


@dataclass(frozen=True, slots=True)
class Convolution:
    """Convolutions over the token states, each with the same number of channels; see `CONV`."""

    layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]  # weights (c, d, kernel), biases (c,)


Normalize = str  # the word "normalise"


@dataclass(frozen=True, slots=True)
class DeclarationToWrite:
    """The readout and the input settings of the checkpoint to write."""

    readout: Readout
    width: int
    depth: int
    max_length: int
    steps: Sequence[Dense | LayerNorm | Normalize] = ()  # after the readout
    dim: int | None = None  # the first numbers of the vector to keep, after the steps
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_is_read: bool = True
    lowercase: bool = False
    template: str | None = None
    full_stop: str = "none"
    pooler: Dense | None = None  # for a readout through the pooler; stock modules apply it after cls or mean
    pooler_note: Pooler = field(default_factory=Pooler)
    convolution: Convolution | None = None  # for the readout `conv`
    lacks_pooler: bool = False  # the architecture has a pooler, but the weights do not contain it

    @property
    def inexpressible(self) -> str | None:
        """The reason why stock sentence-transformers cannot read the checkpoint; None if it can."""
        if self.readout.pooled and self.pooler is None:
            return "the readout uses a pooler that transformers runs"
        return inexpressible(self.readout)


def inexpressible(readout: Readout) -> str | None:
    """The reason why stock modules cannot express this readout; None if they can."""
    if readout.reduction in WK:
        return "the readout weights the layers of each token"
    order = [READOUTS[word] for word in JOINED]
    parts = [part.reduction for part in readout.parts]
    if len(parts) > 1 and parts != [name for name in order if name in parts]:
        return "the readout joins vectors in another order than a Pooling module"
    return "the readout uses the mask token of a template" if readout.reduction == "token" else None


def write_steps(folder: Path, steps: Sequence[Dense | LayerNorm | Normalize]) -> list[str]:
    """Write a folder for each layer. Returns the steps in order: a folder name or "normalise"."""
    names = []
    for place, step in enumerate(steps, start=2):
        if isinstance(step, str):
            names.append(step)
            continue
        config: dict[str, Any]
        if isinstance(step, Dense):
            kind, layer = "Dense", "linear"
            config = {
                "in_features": step.weight.shape[1],
                "out_features": step.weight.shape[0],
                "bias": True,
                "activation_function": DENSE_ACTIVATIONS[step.activation],
            }
        else:
            kind, layer, config = "LayerNorm", "norm", {"dimension": len(step.weight)}
        name = f"{place}_{kind}"
        write_json(folder / name / "config.json", config)
        arrays = {f"{layer}.weight": step.weight, f"{layer}.bias": step.bias}
        write_arrays(folder / name / "model.safetensors", arrays)
        names.append(name)
    return names


def write_modules(
    folder: Path, declaration: DeclarationToWrite, steps: Sequence[str], layers: Sequence[int]
) -> None:
    modules = [("Transformer", "")]
    if layers:
        write_layers(folder / "0_WeightedLayerPooling", declaration, layers)
        modules.append(("WeightedLayerPooling", "0_WeightedLayerPooling"))
    if declaration.convolution is not None:
        write_convolution(folder / "0_CNN", declaration.convolution)
        modules.append(("CNN", "0_CNN"))
    reductions = [RECEIVED.get(part.reduction, part.reduction) for part in declaration.readout.parts]
    pooling = {key: READOUTS[word] in reductions for key, word in POOLING.items()}
    if not declaration.prompt_is_read:
        pooling["include_prompt"] = False
    width = declaration.width // len(reductions)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling})
    modules.append(("Pooling", "1_Pooling"))
    for place, step in enumerate(steps, start=2):
        modules.append(
            ("Normalize", f"{place}_Normalize") if step == "normalise" else (step.partition("_")[2], step)
        )
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": OLD + kind}
        for place, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)


def write_convolution(folder: Path, convolution: Convolution) -> None:
    config = {
        "in_word_embedding_dimension": convolution.layers[0][0].shape[1],
        "out_channels": len(convolution.layers[0][0]),
        "kernel_sizes": [weight.shape[2] for weight, _ in convolution.layers],
        "stride_sizes": [1] * len(convolution.layers),
    }
    write_json(folder / "cnn_config.json", config)
    arrays = {
        f"convs.{number}.{name}": array
        for number, layer in enumerate(convolution.layers)
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }
    write_arrays(folder / "model.safetensors", arrays)


def write_layers(folder: Path, declaration: DeclarationToWrite, layers: Sequence[int]) -> None:
    start = min(layers)
    weights = np.zeros(declaration.depth + 1 - start, np.float32)
    weights[[layer - start for layer in layers]] = 1.0
    config = {
        "word_embedding_dimension": declaration.width,
        "layer_start": start,
        "num_hidden_layers": declaration.depth,
    }
    write_json(folder / "config.json", config)
    write_arrays(folder / "model.safetensors", {"layer_weights": weights})


def write_prompts(folder: Path, declaration: DeclarationToWrite) -> None:
    """Write all prompts. The default prompt has its own name if it is one of the named ones."""
    prompt, prompts = declaration.prompt, declaration.prompts
    name = next((name for name, text in prompts.items() if text == prompt), "default") if prompt else None
    write_json(
        folder / PROMPTS,
        {
            "prompts": prompts if name is None else {**prompts, name: prompt},
            "default_prompt_name": name,
            "similarity_fn_name": "cosine",
            **({"truncate_dim": declaration.dim} if declaration.dim else {}),
        },
    )
