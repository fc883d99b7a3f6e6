"""Checkpoint folders, written: plain Hugging Face, and sentence-transformers' old schema beside it.

The old schema, with all six pooling booleans, is the one that every reader knows. A readout that stock
modules cannot express gets no modules.json: half the truth there would be read as the whole.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.lora import CONFIG as ADAPTER_CONFIG
from sentkit.formats.checkpoints.lora import WEIGHTS as ADAPTER_WEIGHTS
from sentkit.formats.checkpoints.modules import ACTIVATIONS, POOLING, READOUTS, Pooler
from sentkit.formats.checkpoints.readout import POOLED, Readout
from sentkit.formats.json_files import write_json
from sentkit.formats.outputs.temporary import private_folder, publish_folder
from sentkit.formats.vectors.safetensors_header import write_arrays

OLD = "sentence_transformers.models."
BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "LICENSE*")
CARRIED = (*BESIDE_WEIGHTS, "*.md", "model*.safetensors", "pytorch_model*.bin", *ADAPTER_WEIGHTS)
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
INDEXES = {"model.safetensors.index.json", "pytorch_model.bin.index.json"}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer behind the readout: x W' + b."""

    weight: NDArray[np.float32]  # (k, d)
    bias: NDArray[np.float32]  # (k,)
    activation: str = "identity"  # a key of ACTIVATIONS


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: NDArray[np.float32]  # (d,)
    bias: NDArray[np.float32]  # (d,)


Normalise = str  # the word "normalise"


@dataclass(frozen=True, slots=True)
class Declaration:
    """How the written checkpoint is to be read."""

    readout: Readout
    width: int
    depth: int
    max_length: int
    steps: Sequence[Dense | LayerNorm | Normalise] = ()  # behind the readout
    prompt: str = ""
    prompt_is_read: bool = True
    lowercase: bool = False
    template: str | None = None
    full_stop: str = "none"
    pooler: Dense | None = None  # of a readout through it: stock modules have it behind cls or mean
    pooler_note: Pooler = field(default_factory=Pooler)
    lacks_pooler: bool = False  # the family has one, and the weights have none

    @property
    def inexpressible(self) -> str | None:
        """Why stock sentence-transformers cannot read the checkpoint in this way; None where it can."""
        if self.readout.pooled and self.pooler is None:
            return "it reads a pooler inside transformers"
        return inexpressible(self.readout)


def inexpressible(readout: Readout) -> str | None:
    """Why stock modules can never say this readout; None where they can."""
    return "it reads the mask token of a template" if readout.reduction == "token" else None


def export_checkpoint(
    checkpoint: Checkpoint, folder: Path, declaration: Declaration, lineage: Mapping[str, Any], *, force: bool
) -> None:
    """The checkpoint's files in a new folder with this declaration; there when whole, and not before."""
    with new_folder(folder, force=force) as part:
        # The tensors with their heads, which later training may need.
        carry(checkpoint, part, CARRIED)
        declare(part, checkpoint.config, declaration, lineage)


def write_folder(
    folder: Path,
    checkpoint: Checkpoint,
    declaration: Declaration,
    lineage: Mapping[str, Any],
    *,
    write_weights: Callable[[Path], None],
    write_heads: Callable[[Path], None] | None = None,
) -> None:
    """Fill an empty folder with a checkpoint trained from this one: new float32 weights, its other files.

    The base's README stays behind: it describes another model.
    """
    carry(
        checkpoint, folder, BESIDE_WEIGHTS, but=REWRITTEN | INDEXES | {ADAPTER_CONFIG}
    )  # an adapter is in the trained weights
    write_weights(folder / "model.safetensors")
    if write_heads is not None:
        write_heads(folder / "heads.safetensors")
    # transformers takes the type named here, whatever the file holds.
    config = {name: value for name, value in checkpoint.config.items() if name != "torch_dtype"}
    config["dtype"] = "float32"
    write_json(folder / "config.json", config)
    declare(folder, config, declaration, lineage)


@contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill, which bears its name once it is whole; `force` replaces one of ours."""
    name, folder = folder, folder.resolve()
    if folder.exists() and not (force and (folder / "sentkit.json").is_file()):
        advice = "use -f to replace it" if (folder / "sentkit.json").is_file() else "it is not one of ours"
        raise CannotCreateError(f"{name}: exists already", advice=advice)
    if Path.cwd().is_relative_to(folder):
        raise CannotCreateError(f"{name}: is the folder you stand in, and cannot be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(folder, str(name)) as part:
        yield part
        publish_folder(part, folder)


def carry(checkpoint: Checkpoint, folder: Path, patterns: Sequence[str], but: Set[str] = REWRITTEN) -> None:
    """The transformer's own files of these names, unchanged."""
    for pattern in patterns:
        for file in checkpoint.transformer.glob(pattern):
            if file.is_file() and file.name not in but:
                shutil.copyfile(file, folder / file.name)


def declare(
    folder: Path, config: Mapping[str, Any], declaration: Declaration, lineage: Mapping[str, Any]
) -> None:
    """Write into a checkpoint folder how it is to be read."""
    pooler = [] if declaration.pooler is None else [declaration.pooler]
    behind_states = write_steps(folder, [*pooler, *declaration.steps])
    write_json(
        folder / "sentkit.json",
        {
            "readout": declaration.readout.name,
            **({"template": declaration.template} if declaration.template else {}),
            **({"pooler": asdict(note)} if (note := declaration.pooler_note) != Pooler() else {}),
            "full_stop": declaration.full_stop,
            "steps": behind_states[len(pooler) :],  # the readout `pooler` is more than cls: it has its layer
            "prompt": declaration.prompt,
            **({} if declaration.prompt_is_read else {"prompt_is_read": False}),
            "max_length": declaration.max_length,
            "lowercase": declaration.lowercase,
            **lineage,
        },
    )
    lengths = {"max_seq_length": declaration.max_length, "do_lower_case": declaration.lowercase}
    # Else transformers draws a pooler at random and reports it as missing. This is the argument's old name,
    # which every version of sentence-transformers reads.
    without = {"model_args": {"add_pooling_layer": False}} if declaration.lacks_pooler else {}
    write_json(folder / "sentence_bert_config.json", lengths | without)
    if declaration.inexpressible is None:
        layers = declaration.readout.resolved(declaration.depth)
        averaged = layers != (declaration.depth,)
        # sentence-transformers hands the layers on only if the config asks for them.
        write_json(folder / "config.json", {**config, **({"output_hidden_states": True} if averaged else {})})
        write_modules(folder, declaration, behind_states, layers if averaged else ())
        write_prompt(folder, declaration.prompt)


def write_steps(folder: Path, steps: Sequence[Dense | LayerNorm | Normalise]) -> list[str]:
    """The folder of each layer, or the word for unit length, in order."""
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
                "activation_function": ACTIVATIONS[step.activation],
            }
        else:
            kind, layer, config = "LayerNorm", "norm", {"dimension": len(step.weight)}
        name = f"{place}_{kind}"
        write_json(folder / name / "config.json", config)
        arrays = {f"{layer}.weight": step.weight, f"{layer}.bias": step.bias}
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
    reduction = POOLED.get(declaration.readout.reduction, declaration.readout.reduction)
    pooling = {key: READOUTS[word] == reduction for key, word in POOLING.items()}
    if not declaration.prompt_is_read:
        pooling["include_prompt"] = False
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": declaration.width, **pooling})
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
