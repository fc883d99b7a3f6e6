"""Writes the checkpoint of an encoder: weights, and a declaration that other programs read in the same way.

Weights are trained ones under the names of their base, or random ones in a new folder.

The format is that of Hugging Face, with the old schema of sentence-transformers and its six pooling booleans,
which all versions read. A readout that stock modules cannot express gets no modules.json, because an
incomplete one would give wrong vectors.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints import modules
from sentkit.formats.checkpoints.card import card
from sentkit.formats.checkpoints.folders import ADAPTER, ADAPTER_WEIGHTS, Checkpoint
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS, POOLING, PROMPTS, Pooler
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK, Readout
from sentkit.formats.checkpoints.writing import BESIDE_WEIGHTS, INDEXES, REWRITTEN, carry
from sentkit.formats.files import write_json
from sentkit.formats.outputs.temporary import create
from sentkit.formats.vectors.tensors import OF_WEIGHTS, put_arrays, write_arrays
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    PREFIXES,
    WITH_POOLER,
    Architecture,
    canonical_names,
    modern,
    tensor_shapes,
    words_name,
)
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.readouts import width_of_vectors
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.transforms.flow import Flow
from sentkit.transforms.steps import Linear, Norm, Normalize, Step, Truncate

OLD = "sentence_transformers.models."
RECEIVED = {**POOLED, CONV: "mean"}  # readout -> its reduction in a Pooling module
CARRIED = (*BESIDE_WEIGHTS, "*.md", "model*.safetensors", "pytorch_model*.bin", *ADAPTER_WEIGHTS)


@dataclass(frozen=True, slots=True)
class Declaration:
    """The readout and the input settings of the checkpoint to write."""

    body: Bert | TransformersModel
    readout: Readout
    tokenizer: Tokenizer
    steps: Sequence[Step] = ()  # after the readout
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_is_read: bool = True
    pooler: nn.Linear | None = None  # in the weights to write
    pooler_note: Pooler = field(default_factory=Pooler)

    @property
    def dim(self) -> int | None:
        """The first numbers of the vector to keep, after the other steps."""
        return next((step.dim for step in self.steps[-1:] if isinstance(step, Truncate)), None)

    @property
    def pooler_layer(self) -> Linear | None:
        """What stock modules apply after cls or mean, for a readout through a pooler."""
        activation = self.pooler_note.activation
        if self.pooler is None or not self.readout.pooled or activation not in DENSE_ACTIVATIONS:
            return None
        return Linear(*as_arrays(self.pooler), activation)

    @property
    def inexpressible(self) -> str | None:
        """The reason why stock sentence-transformers cannot read the checkpoint; None if it can."""
        if self.readout.pooled and self.pooler_layer is None:
            return "the readout uses a pooler that transformers runs"
        return modules.inexpressible(self.readout)


def declare_encoder(encoder: TransformerEncoder) -> Declaration:
    """Return the declaration of an encoder. An existing encoder proves that `encode` accepts the options."""
    reading, body, declared = encoder.reading, encoder.body, encoder.checkpoint.declared
    if len(reading.readouts) != 1:
        raise UsageError("a checkpoint declares one readout")
    [readout] = reading.readouts
    if readout.reduction in WK:
        problem = f'readout "{readout.name}": sentence-transformers has no module for this'
        raise UsageError(problem, advice=f"use encode --readout {readout.name}")
    for step in encoder.steps:
        if isinstance(step, Flow):
            problem = "a flow cannot be part of a checkpoint"
            raise UsageError(problem, advice="use sentkit whiten apply")
        if isinstance(step, Truncate) and step is not encoder.steps[-1]:
            problem = "a checkpoint cannot have steps after the truncation of its vectors (truncate_dim)"
            raise UsageError(problem, advice="use sentkit encode")
    pooler = body.pooler if isinstance(body, Bert) else None
    prompts = declared.prompts, declared.prompt_is_read
    return Declaration(body, readout, reading.tokenizer, encoder.steps, *prompts, pooler, declared.pooler)


def as_arrays(layer: nn.Module) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    weight, bias = (layer.get_parameter(name).detach().float().cpu().numpy() for name in ("weight", "bias"))
    return weight, bias


def write_folder(
    folder: Path,
    checkpoint: Checkpoint,
    declaration: Declaration,
    lineage: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    store: str | None = "float32",
    *,
    documents: bool = False,
) -> None:
    """Fill an empty folder: the files of a checkpoint, new weights in the type `store`, and the declaration.

    None: the weights, or their type, are as they were. The tensors include an adapter. `documents` are those
    of the checkpoint, which describe a trained model wrongly.
    """
    config = checkpoint.config
    if tensors is None:
        carry(checkpoint, folder, CARRIED)
    else:
        patterns = (*BESIDE_WEIGHTS, "*.md") if documents else BESIDE_WEIGHTS
        carry(checkpoint, folder, patterns, but=REWRITTEN | INDEXES | {ADAPTER})
        write_weights(folder / "model.safetensors", tensors, store)
        if store is not None:  # transformers uses this type, and ignores that of the file
            config = {name: value for name, value in config.items() if name != "torch_dtype"}
            config["dtype"] = store
        write_json(folder / "config.json", config)
    declare(folder, config, declaration, lineage)


def declare(
    folder: Path, config: Mapping[str, Any], declaration: Declaration, lineage: Mapping[str, Any]
) -> None:
    """Write the declaration files of a checkpoint: sentkit.json, and modules.json if possible."""
    readout, tokenizer, body = declaration.readout, declaration.tokenizer, declaration.body
    template, dim, pooler = tokenizer.template, declaration.dim, declaration.pooler_layer
    steps = declaration.steps if dim is None else declaration.steps[:-1]
    names = write_steps(folder, [*([] if pooler is None else [pooler]), *steps])
    values = {
        "readout": readout.name,
        **({"template": template.text} if template else {}),
        **({"pooler": asdict(note)} if (note := declaration.pooler_note) != Pooler() else {}),
        "full_stop": template.full_stop if template else "none",
        "steps": names[len(names) - len(steps) :],  # the readout `pooler` includes its layer
        **({"dim": dim} if dim else {}),
        "prompt": tokenizer.prompt,
        **({"prompts": declaration.prompts} if declaration.prompts else {}),
        **({} if declaration.prompt_is_read else {"prompt_is_read": False}),
        "max_length": tokenizer.max_length,
        "lowercase": tokenizer.lowercase,
    }
    write_json(folder / "sentkit.json", {**values, **lineage})
    settings: dict[str, Any] = {
        "max_seq_length": tokenizer.max_length,
        "do_lower_case": tokenizer.lowercase,
    }
    if isinstance(body, Bert) and declaration.pooler is None and body.architecture.family in WITH_POOLER:
        # Without this, transformers initialises a random pooler and warns. All versions of
        # sentence-transformers accept this old name of the argument.
        settings["model_args"] = {"add_pooling_layer": False}
    write_json(folder / "sentence_bert_config.json", settings)
    if declaration.inexpressible is not None:
        return
    layers = readout.resolved(body.depth)
    averaged = layers != (body.depth,)
    # sentence-transformers passes the layers on only if output_hidden_states is set.
    write_json(folder / "config.json", {**config, **({"output_hidden_states": True} if averaged else {})})
    write_modules(folder, declaration, names, layers if averaged else ())
    # The default prompt has its own name if it is one of the named ones.
    prompt, prompts, name = tokenizer.prompt, declaration.prompts, None
    if prompt:
        name = next((name for name, text in prompts.items() if text == prompt), "default")
        prompts = {**prompts, name: prompt}
    options = {"prompts": prompts, "default_prompt_name": name, "similarity_fn_name": "cosine"}
    write_json(folder / PROMPTS, {**options, **({"truncate_dim": dim} if dim else {})})


def write_steps(folder: Path, steps: Sequence[Step]) -> list[str]:
    """Write a folder for each layer. Returns the steps in order: a folder name or "normalise"."""
    names = []
    for place, step in enumerate(steps, start=2):
        if isinstance(step, Linear):
            name, layer = f"{place}_Dense", "linear"
            config: dict[str, Any] = {
                "in_features": step.weight.shape[1],
                "out_features": step.weight.shape[0],
                "bias": True,
                "activation_function": DENSE_ACTIVATIONS[step.activation],
            }
        elif isinstance(step, Norm):
            name, layer, config = f"{place}_LayerNorm", "norm", {"dimension": len(step.weight)}
        else:
            assert isinstance(step, Normalize), "declare_encoder refuses other steps"
            names.append("normalise")
            continue
        write_json(folder / name / "config.json", config)
        arrays = {f"{layer}.weight": step.weight, f"{layer}.bias": step.bias}
        write_arrays(folder / name / "model.safetensors", arrays)
        names.append(name)
    return names


def write_modules(
    folder: Path, declaration: Declaration, steps: Sequence[str], layers: Sequence[int]
) -> None:
    body, readout = declaration.body, declaration.readout
    paths = [""]
    if layers:
        paths.append("0_WeightedLayerPooling")
        start = min(layers)
        weights = np.zeros(body.depth + 1 - start, np.float32)
        weights[[layer - start for layer in layers]] = 1.0
        config: dict[str, Any] = {"word_embedding_dimension": body.width, "layer_start": start}
        config["num_hidden_layers"] = body.depth
        write_json(folder / paths[-1] / "config.json", config)
        write_arrays(folder / paths[-1] / "model.safetensors", {"layer_weights": weights})
    if readout.reduction == CONV:
        assert body.convolution is not None, "check_layers refuses this"
        paths.append("0_CNN")
        filters = [as_arrays(layer) for layer in body.convolution.convs]  # (c, d, kernel), and biases (c,)
        config = {
            "in_word_embedding_dimension": body.width,
            "out_channels": body.convolution.channels,
            "kernel_sizes": [weight.shape[2] for weight, _ in filters],
            "stride_sizes": [1] * len(filters),
        }
        write_json(folder / paths[-1] / "cnn_config.json", config)
        arrays = dict[str, NDArray[np.float32]]()
        for number, (weight, bias) in enumerate(filters):
            arrays |= {f"convs.{number}.weight": weight, f"convs.{number}.bias": bias}
        write_arrays(folder / paths[-1] / "model.safetensors", arrays)
    reductions = [RECEIVED.get(part.reduction, part.reduction) for part in readout.parts]
    pooling = {key: name in reductions for name, (_, key) in POOLING.items()}
    if not declaration.prompt_is_read:
        pooling["include_prompt"] = False
    width = width_of_vectors(body, [readout]) // len(reductions)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling})
    paths.append("1_Pooling")
    paths += [f"{k}_Normalize" if step == "normalise" else step for k, step in enumerate(steps, start=2)]
    listing = [
        {"idx": k, "name": str(k), "path": path, "type": OLD + (path.partition("_")[2] or "Transformer")}
        for k, path in enumerate(paths)
    ]
    write_json(folder / "modules.json", listing)


def write_card(folder: Path, lineage: Mapping[str, Any], declaration: Declaration) -> None:
    tokenizer, width = declaration.tokenizer, width_of_vectors(declaration.body, [declaration.readout])
    for step in declaration.steps:
        width = step.width(width)
    text = card(
        lineage,
        declaration.readout.name,
        width=width,
        max_length=tokenizer.max_length,
        stock=declaration.inexpressible is None,
        prompt=tokenizer.prompt,
        unit=any(isinstance(step, Normalize) for step in declaration.steps),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def merged(
    stored: Mapping[str, Tensor], trained: Mapping[str, Tensor], architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint in float32, with trained tensors replaced.

    `stored` has the names of the files, `trained` the plain names of the family. Untrained tensors stay,
    except buffers, which transformers creates, and copies of other tensors in a head.
    """
    words = words_name(architecture)
    old = next((prefix for prefix in PREFIXES if prefix + words in stored), "")
    head = HEADS[architecture.family]
    prefix = old if old in ("", head.encoder) else head.encoder  # transformers knows no wrapper prefixes
    encoder = tensor_shapes(architecture, pooler=True)
    tensors = {
        prefix + modern(name.removeprefix(old)) if name.startswith(old) else modern(name): tensor
        for name, tensor in stored.items()
        if tensor.is_floating_point()
    }
    weight, bias = f"{head.decoder}.weight", f"{head.decoder}.bias"
    # Tied copies would keep old values, and transformers ties them again. Another decoder stays.
    if weight in tensors and torch.equal(tensors[weight].float(), tensors[prefix + words].float()):
        del tensors[weight]
    if bias in tensors:
        copy = tensors.pop(bias)
        tensors.setdefault(head.bias, copy)
    tensors |= {prefix + name if name in encoder else name: tensor for name, tensor in trained.items()}
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def without_language_head(
    tensors: Mapping[str, Tensor], body: Bert | TransformersModel, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors that AutoModel of transformers has; of a classifier, which `predict` reads, all."""
    if "ForSequenceClassification" in str(config.get("architectures")):
        return dict(tensors)
    if isinstance(body, Bert):
        own = {*canonical_names(tensors, body.architecture).values()}
        unused = {name for name in tensors.keys() - own if tensors[name].is_floating_point()}
    else:
        unused = {*body.unused}
    return {name: tensor for name, tensor in tensors.items() if name not in unused}


def encoder_class(body: Bert | TransformersModel) -> str:
    """Return the name of the class that AutoModel of transformers builds."""
    if isinstance(body, Bert):
        return f"{HEADS[body.architecture.family].kind}Model"
    return type(body.model).__name__


def write_weights(path: Path, tensors: Mapping[str, Tensor], store: str | None = "float32") -> None:
    """Write a safetensors file in the type `store` and sync it to disk. The same values give the same bytes.

    None: as they are, except that the other types than float16 become float32. Integer tensors are buffers
    that transformers creates, so they are not written.
    """
    arrays = {}
    for name, tensor in sorted(tensors.items()):
        if tensor.is_floating_point():
            own = tensor.dtype if tensor.dtype == torch.float16 else torch.float32
            dtype = own if store is None else getattr(torch, store)
            arrays[name] = tensor.detach().to("cpu", dtype).numpy()
    with create(path) as file:
        put_arrays(file, arrays, OF_WEIGHTS)
        file.flush()
        os.fsync(file.fileno())
