"""Checkpoint folders, written: plain Hugging Face, and sentence-transformers' old schema beside it.

The old schema, with all six pooling booleans, is the one that every reader knows. A readout that stock
modules cannot express gets no modules.json: half the truth there would be read as the whole.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints import Checkpoint
from sentkit.formats.jsonfiles import write_json
from sentkit.formats.modules import POOLING
from sentkit.formats.readout import Readout
from sentkit.formats.tensors import write_arrays

OLD = "sentence_transformers.models."
CARRIED = ("*.json", "*.txt", "*.model", "*.md", "LICENSE*", "model*.safetensors", "pytorch_model*.bin")
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", "config_sentence_transformers.json"}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer behind the readout: x W' + b."""

    weight: NDArray[np.float32]  # (k, d)
    bias: NDArray[np.float32]  # (k,)
    activation: str = "torch.nn.modules.linear.Identity"


Normalise = str  # the word "normalise"


@dataclass(frozen=True, slots=True)
class Declaration:
    """How the written checkpoint is to be read."""

    readout: Readout
    width: int
    depth: int
    max_length: int
    steps: Sequence[Dense | Normalise] = ()
    prompt: str = ""
    lowercase: bool = False
    template: str | None = None
    full_stop: str = "none"


def inexpressible(readout: Readout) -> str | None:
    """Why stock sentence-transformers cannot read a checkpoint in this way; None where it can."""
    reasons = {
        "token": "it reads the mask token of a template",
        "pooler": "it reads the pooler",
    }
    return reasons.get(readout.reduction)


def export_checkpoint(
    checkpoint: Checkpoint, folder: Path, declaration: Declaration, lineage: Mapping[str, Any], *, force: bool
) -> None:
    """The checkpoint's files in a new folder with this declaration; there when whole, and not before."""
    name, folder = folder, folder.resolve()
    if folder.exists() and not (force and (folder / "sentkit.json").is_file()):
        advice = "use -f to replace it" if (folder / "sentkit.json").is_file() else "it is not one of ours"
        raise CannotCreateError(f"{name}: exists already", advice=advice)
    if Path.cwd().is_relative_to(folder):
        raise CannotCreateError(f"{name}: is the folder you stand in, and cannot be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    part.chmod(0o777 & ~current_umask())
    try:
        carry(checkpoint, part)
        declare(part, checkpoint.config, declaration, lineage)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def current_umask() -> int:
    """What mkdtemp does not go by: a checkpoint is for others to read."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def carry(checkpoint: Checkpoint, folder: Path) -> None:
    """The transformer's own files, unchanged; the tensors with their heads, which later training may need."""
    for pattern in CARRIED:
        for file in checkpoint.transformer.glob(pattern):
            if file.is_file() and file.name not in REWRITTEN:
                shutil.copyfile(file, folder / file.name)


def declare(
    folder: Path, config: Mapping[str, Any], declaration: Declaration, lineage: Mapping[str, Any]
) -> None:
    """Write into a checkpoint folder how it is to be read."""
    steps = write_steps(folder, declaration.steps)
    write_json(
        folder / "sentkit.json",
        {
            "readout": declaration.readout.name,
            **({"template": declaration.template} if declaration.template else {}),
            "full_stop": declaration.full_stop,
            "steps": steps,
            "prompt": declaration.prompt,
            "max_length": declaration.max_length,
            "lowercase": declaration.lowercase,
            **lineage,
        },
    )
    lengths = {"max_seq_length": declaration.max_length, "do_lower_case": declaration.lowercase}
    write_json(folder / "sentence_bert_config.json", lengths)
    if inexpressible(declaration.readout) is None:
        layers = declaration.readout.resolved(declaration.depth)
        averaged = layers != (declaration.depth,)
        # sentence-transformers hands the layers on only if the config asks for them.
        write_json(folder / "config.json", {**config, **({"output_hidden_states": True} if averaged else {})})
        write_modules(folder, declaration, steps, layers if averaged else ())
        write_prompt(folder, declaration.prompt)


def write_steps(folder: Path, steps: Sequence[Dense | Normalise]) -> list[str]:
    """The folder of each dense layer, or the word for unit length, in order."""
    names = []
    for place, step in enumerate(steps, start=2):
        if isinstance(step, str):
            names.append(step)
            continue
        name = f"{place}_Dense"
        write_json(
            folder / name / "config.json",
            {
                "in_features": step.weight.shape[1],
                "out_features": step.weight.shape[0],
                "bias": True,
                "activation_function": step.activation,
            },
        )
        arrays = {"linear.weight": step.weight, "linear.bias": step.bias}
        write_arrays(folder / name / "model.safetensors", arrays, {"format": "pt"})
        names.append(name)
    return names


def write_modules(
    folder: Path, declaration: Declaration, steps: Sequence[str], layers: Sequence[int]
) -> None:
    modules = [("Transformer", "")]
    if layers:
        write_layers(folder / "0_WeightedLayerPooling", declaration, layers)
        modules.append(("WeightedLayerPooling", "0_WeightedLayerPooling"))
    pooling = {key: word == declaration.readout.reduction for key, word in POOLING.items()}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": declaration.width, **pooling})
    modules.append(("Pooling", "1_Pooling"))
    for place, step in enumerate(steps, start=2):
        modules.append(("Normalize", f"{place}_Normalize") if step == "normalise" else ("Dense", step))
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": OLD + kind}
        for place, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)


def write_layers(folder: Path, declaration: Declaration, layers: Sequence[int]) -> None:
    start = min(layers)
    weights = np.zeros(declaration.depth + 1 - start, np.float32)
    weights[[layer - start for layer in layers]] = 1.0
    config = {
        "word_embedding_dimension": declaration.width,
        "layer_start": start,
        "num_hidden_layers": declaration.depth,
    }
    write_json(folder / "config.json", config)
    write_arrays(folder / "model.safetensors", {"layer_weights": weights}, {"format": "pt"})


def write_prompt(folder: Path, prompt: str) -> None:
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"default": prompt} if prompt else {},
            "default_prompt_name": "default" if prompt else None,
            "similarity_fn_name": "cosine",
        },
    )
