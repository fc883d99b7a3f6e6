"""Writes the checkpoint of an encoder: weights, and a declaration that other programs read in the
same way.

Trained weights have the names of their base.

The format is that of Hugging Face, with the old schema of sentence-transformers and its six pooling
booleans, which all versions read; only vectors that are joined in another order need the new
schema. A readout that stock modules cannot express gets no modules.json, because an incomplete one
would give wrong vectors.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.arrays import Float32
from sentkit.errors import UsageError
from sentkit.formats.checkpoints import modules
from sentkit.formats.checkpoints.card import card
from sentkit.formats.checkpoints.folders import ADAPTER, ADAPTER_WEIGHTS, Checkpoint
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS, POOLING, PROMPTS, Pooler
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK_REDUCTIONS, Readout
from sentkit.formats.checkpoints.writing import (
    BESIDE_WEIGHTS,
    INDEXES,
    REWRITTEN,
    carry,
    copy_files,
)
from sentkit.formats.files import write_json
from sentkit.formats.outputs.temporary import create
from sentkit.formats.vectors.tensors import OF_WEIGHTS, put_arrays, write_arrays
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    PREFIXES,
    Architecture,
    canonical_names,
    modern,
    tensor_shapes,
    words_name,
)
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.families import WITH_POOLER
from sentkit.model.transformer.readouts import width_of_vectors
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.transforms.flow import Flow
from sentkit.transforms.steps import Linear, Norm, Normalize, Step, Truncate

OLD = "sentence_transformers.models."
STOCK_REDUCTIONS = {**POOLED, CONV: "mean"}  # readout -> its reduction in a Pooling module
LICENSES = ("LICENSE*",)
DOCUMENTS = ("*.md", *LICENSES)
# The ends of class names of transformers that have a head for a task, and the values in config.json
# that describe it.
HEADS_OF_TASKS = ("Classification", "ForQuestionAnswering", "ForMultipleChoice")
VALUES_OF_TASKS = ("id2label", "label2id", "num_labels", "problem_type")
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
    similarity: object = None  # the declared metric; None: cosine

    @property
    def dim(self) -> int | None:
        """The first numbers of the vector to keep, after the other steps."""
        if self.steps and isinstance(self.steps[-1], Truncate):
            return self.steps[-1].dim
        return None

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt before every text, which is its own if it is a named one; None
        without a prompt.
        """
        prompt = self.tokenizer.prompt
        if not prompt:
            return None
        return next((name for name, text in self.prompts.items() if text == prompt), "default")

    @property
    def all_prompts(self) -> Mapping[str, str]:
        """The prompts by name, with the one before every text."""
        if self.default_prompt_name is None:
            return self.prompts
        return {**self.prompts, self.default_prompt_name: self.tokenizer.prompt}

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
    """Return the declaration of an encoder. An existing encoder proves that `encode` accepts the
    options.
    """
    reading = encoder.reading
    body = encoder.body
    declared = encoder.checkpoint.declaration

    # What the modules of sentence-transformers cannot express.
    if len(reading.readouts) != 1:
        raise UsageError("a checkpoint declares one readout")
    [readout] = reading.readouts
    if readout.reduction in WK_REDUCTIONS:
        problem = f'readout "{readout.name}": sentence-transformers has no module for this'
        raise UsageError(problem, advice=f"use encode --readout {readout.name}")
    for step in encoder.steps:
        if isinstance(step, Flow):
            problem = "a flow cannot be part of a checkpoint"
            raise UsageError(problem, advice="use sentkit whiten apply")
        if isinstance(step, Truncate) and step is not encoder.steps[-1]:
            problem = (
                "a checkpoint cannot have steps after the truncation of its vectors (truncate_dim)"
            )
            raise UsageError(problem, advice="use sentkit encode")
    return Declaration(
        body,
        readout,
        reading.tokenizer,
        steps=encoder.steps,
        prompts=declared.prompts,
        prompt_is_read=declared.prompt_is_read,
        pooler=body.pooler if isinstance(body, Bert) else None,
        pooler_note=declared.pooler,
        similarity=declared.similarity,
    )


def as_arrays(layer: nn.Module) -> tuple[Float32, Float32]:
    """Return weight and bias of a layer."""
    weight = layer.get_parameter("weight").detach().float().cpu().numpy()
    bias = layer.get_parameter("bias").detach().float().cpu().numpy()
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
    """Fill an empty folder: the files of a checkpoint, new weights in the type `store`, and the
    declaration.

    None: the weights, or their type, are as they were. The tensors include an adapter. `documents`
    are those of the checkpoint, which describe a trained model wrongly.
    """
    config = checkpoint.config
    if checkpoint.folder != checkpoint.transformer_folder:  # the documents are in the outer one
        beside = DOCUMENTS if tensors is None or documents else LICENSES
        copy_files(checkpoint.folder, folder, beside, but=set())
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
    readout = declaration.readout
    tokenizer = declaration.tokenizer
    body = declaration.body
    dim = declaration.dim

    # The folders of the steps, after that of the pooler: for sentkit, the readout includes this
    # layer.
    steps = list(declaration.steps if dim is None else declaration.steps[:-1])
    pooler_layers: list[Step] = (
        [] if declaration.pooler_layer is None else [declaration.pooler_layer]
    )
    names = write_steps(folder, [*pooler_layers, *steps])
    step_names = names[len(pooler_layers) :]

    write_json(folder / "sentkit.json", {**declared_values(declaration, step_names), **lineage})
    settings: dict[str, Any] = {
        "max_seq_length": tokenizer.max_length,
        "do_lower_case": tokenizer.lowercase,
    }
    if (
        isinstance(body, Bert)
        and declaration.pooler is None
        and body.architecture.family in WITH_POOLER
    ):
        # Without this, transformers initialises a random pooler and warns. All versions of
        # sentence-transformers accept this old name of the argument.
        settings["model_args"] = {"add_pooling_layer": False}
    write_json(folder / "sentence_bert_config.json", settings)
    if declaration.inexpressible is not None:
        return
    layers = readout.layers_in(body.depth)
    if layers == (body.depth,):
        write_json(folder / "config.json", config)
        write_modules(folder, declaration, names, ())
    else:  # sentence-transformers passes the layers on only if output_hidden_states is set
        write_json(folder / "config.json", {**config, "output_hidden_states": True})
        write_modules(folder, declaration, names, layers)
    write_prompts(folder, declaration)


def declared_values(declaration: Declaration, step_names: Sequence[str]) -> dict[str, Any]:
    """Return the content of sentkit.json about the readout and the texts."""
    tokenizer = declaration.tokenizer
    template = tokenizer.template
    values: dict[str, Any] = {"readout": declaration.readout.name}
    if template:
        values["template"] = template.text
    if declaration.pooler_note != Pooler():
        values["pooler"] = asdict(declaration.pooler_note)
    values["full_stop"] = template.full_stop if template else "none"
    values["steps"] = step_names
    if declaration.dim:
        values["dim"] = declaration.dim
    values["prompt"] = tokenizer.prompt
    if declaration.prompts:
        values["prompts"] = declaration.all_prompts
    if not declaration.prompt_is_read:
        values["prompt_is_read"] = False
    values["max_length"] = tokenizer.max_length
    values["lowercase"] = tokenizer.lowercase
    # The modules of sentence-transformers declare it, if there are any.
    if declaration.inexpressible is not None and isinstance(declaration.similarity, str):
        values["similarity"] = declaration.similarity
    return values


def write_prompts(folder: Path, declaration: Declaration) -> None:
    """Write the prompts of stock modules."""
    options: dict[str, Any] = {
        "prompts": declaration.all_prompts,
        "default_prompt_name": declaration.default_prompt_name,
        "similarity_fn_name": declaration.similarity or "cosine",
    }
    if declaration.dim:
        options["truncate_dim"] = declaration.dim
    write_json(folder / PROMPTS, options)


def write_steps(folder: Path, steps: Sequence[Step]) -> list[str]:
    """Write a folder for each layer. Returns the steps in order: a folder name or "normalise"."""
    names = []
    for number, step in enumerate(steps, start=2):
        if isinstance(step, Linear):
            name = f"{number}_Dense"
            layer = "linear"
            config: dict[str, Any] = {
                "in_features": step.weight.shape[1],
                "out_features": step.weight.shape[0],
                "bias": True,
                "activation_function": DENSE_ACTIVATIONS[step.activation],
            }
        elif isinstance(step, Norm):
            name = f"{number}_LayerNorm"
            layer = "norm"
            config = {"dimension": len(step.weight)}
        else:
            assert isinstance(step, Normalize), "declare_encoder refuses other steps"
            names.append("normalise")
            continue

        # The folder of the layer, with its settings and its weights.
        write_json(folder / name / "config.json", config)
        arrays = {f"{layer}.weight": step.weight, f"{layer}.bias": step.bias}
        write_arrays(folder / name / "model.safetensors", arrays)
        names.append(name)
    return names


def write_modules(
    folder: Path, declaration: Declaration, steps: Sequence[str], layers: Sequence[int]
) -> None:
    """Write the stock modules and their list. Without `layers`, the last layer is pooled.

    `steps` are the folder names of the layers after the readout, or "normalise".
    """
    paths = ["", *write_modules_before_pooling(folder, declaration, layers)]
    write_pooling(folder / "1_Pooling", declaration)
    paths.append("1_Pooling")
    for number, step in enumerate(steps, start=2):
        paths.append(f"{number}_Normalize" if step == "normalise" else step)
    modules_of_paths = []
    for number, path in enumerate(paths):
        module = path.partition("_")[2] or "Transformer"
        modules_of_paths.append(
            {"idx": number, "name": str(number), "path": path, "type": OLD + module}
        )
    write_json(folder / "modules.json", modules_of_paths)


def write_modules_before_pooling(
    folder: Path, declaration: Declaration, layers: Sequence[int]
) -> list[str]:
    """Write the mean of several layers, and the convolutions. Returns the names of their
    folders.
    """
    body = declaration.body
    names = []
    if layers:
        name = "0_WeightedLayerPooling"
        first_layer = min(layers)
        weights = np.zeros(body.depth + 1 - first_layer, np.float32)
        weights[[layer - first_layer for layer in layers]] = 1.0
        config: dict[str, Any] = {
            "word_embedding_dimension": body.width,
            "layer_start": first_layer,
            "num_hidden_layers": body.depth,
        }
        write_json(folder / name / "config.json", config)
        write_arrays(folder / name / "model.safetensors", {"layer_weights": weights})
        names.append(name)
    if declaration.readout.reduction == CONV:
        assert body.convolution is not None, "check_layers refuses this"
        name = "0_CNN"
        # (c, d, kernel), and biases (c,)
        filters = [as_arrays(layer) for layer in body.convolution.convs]
        config = {
            "in_word_embedding_dimension": body.width,
            "out_channels": body.convolution.channels,
            "kernel_sizes": [weight.shape[2] for weight, _ in filters],
            "stride_sizes": [1] * len(filters),
        }
        write_json(folder / name / "cnn_config.json", config)
        arrays: dict[str, Float32] = {}
        for number, (weight, bias) in enumerate(filters):
            arrays[f"convs.{number}.weight"] = weight
            arrays[f"convs.{number}.bias"] = bias
        write_arrays(folder / name / "model.safetensors", arrays)
        names.append(name)
    return names


def write_pooling(folder: Path, declaration: Declaration) -> None:
    """Write the six booleans of a Pooling module.

    They join vectors in one order. Another order needs "pooling_mode", which
    sentence-transformers reads since version 5.4.
    """
    readout = declaration.readout
    names = [joined.reduction for joined in readout.joined_readouts]
    reductions = [STOCK_REDUCTIONS.get(name, name) for name in names]
    width = width_of_vectors(declaration.body, [readout]) // len(reductions)
    config: dict[str, Any]
    if reductions == [name for name in POOLING if name in reductions]:
        config = {"word_embedding_dimension": width}
        for name, (_, key) in POOLING.items():
            config[key] = name in reductions
    else:
        modes = [POOLING[name][0] for name in reductions]
        config = {"embedding_dimension": width, "pooling_mode": modes}
    if not declaration.prompt_is_read:
        config["include_prompt"] = False
    write_json(folder / "config.json", config)


def write_card(folder: Path, lineage: Mapping[str, Any], declaration: Declaration) -> None:
    tokenizer = declaration.tokenizer
    width = width_of_vectors(declaration.body, [declaration.readout])
    for step in declaration.steps:
        width = step.output_width(width)
    text = card(
        lineage,
        declaration.readout.name,
        width=width,
        max_length=tokenizer.max_length,
        stock=declaration.inexpressible is None,
        prompt=tokenizer.prompt,
        unit=bool(declaration.steps) and isinstance(declaration.steps[-1], Normalize),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def merged(
    stored: Mapping[str, Tensor], trained: Mapping[str, Tensor], architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint in float32, with trained tensors replaced.

    `stored` has the names of the files, `trained` the plain names of the family. Untrained tensors
    stay, except buffers, which transformers creates, and copies of other tensors in a head.
    """
    words = words_name(architecture)
    head = HEADS[architecture.family]
    stored_prefix = next((prefix for prefix in PREFIXES if prefix + words in stored), "")
    prefix = stored_prefix
    if prefix not in ("", head.encoder):  # of a wrapper, which transformers does not know
        prefix = head.encoder

    # The stored tensors.
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if not tensor.is_floating_point():
            continue
        if name.startswith(stored_prefix):
            tensors[prefix + modern(name.removeprefix(stored_prefix))] = tensor
        else:
            tensors[modern(name)] = tensor

    # Tied copies would keep old values, and transformers ties them again. Another decoder stays.
    decoder_weight = f"{head.decoder}.weight"
    decoder_bias = f"{head.decoder}.bias"
    if decoder_weight in tensors and torch.equal(
        tensors[decoder_weight].float(), tensors[prefix + words].float()
    ):
        del tensors[decoder_weight]
    if decoder_bias in tensors:
        copy = tensors.pop(decoder_bias)
        tensors.setdefault(head.bias, copy)

    # The trained ones.
    encoder_names = tensor_shapes(architecture, pooler=True)
    for name, tensor in trained.items():
        tensors[prefix + name if name in encoder_names else name] = tensor
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def without_language_head(
    tensors: Mapping[str, Tensor], body: Bert | TransformersModel, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors that AutoModel of transformers has, without those of another head.

    All tensors of a classifier stay, because `predict` reads its head.
    """
    if "ForSequenceClassification" in str(config.get("architectures")):
        return dict(tensors)
    if isinstance(body, Bert):
        # The names in the file. Integer tensors are buffers, not of a head.
        stored_names = {*canonical_names(tensors, body.architecture).values()}
        unused_names = {
            name for name in tensors.keys() - stored_names if tensors[name].is_floating_point()
        }
    else:
        unused_names = {*body.unused_names}
    return {name: tensor for name, tensor in tensors.items() if name not in unused_names}


def without_task_head(
    tensors: Mapping[str, Tensor], architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of the encoder and its pooler, with the names of the file."""
    names = canonical_names(tensors, architecture).values()
    return {name: tensors[name] for name in names}


def has_task_head(config: Mapping[str, Any]) -> bool:
    """Return true for a classifier of texts or tokens, and for a model that answers questions."""
    classes = config.get("architectures")
    if not isinstance(classes, list) or not classes:
        return False
    return str(classes[0]).endswith(HEADS_OF_TASKS)


def config_of_encoder(config: Mapping[str, Any], body: Bert | TransformersModel) -> dict[str, Any]:
    """Return the config of a model with the head of a task as that of its encoder."""
    values = {name: value for name, value in config.items() if name not in VALUES_OF_TASKS}
    return {**values, "architectures": [encoder_class(body)]}


def encoder_class(body: Bert | TransformersModel) -> str:
    """Return the name of the class that AutoModel of transformers builds."""
    if isinstance(body, Bert):
        return f"{HEADS[body.architecture.family].kind}Model"
    return type(body.model).__name__


def write_weights(path: Path, tensors: Mapping[str, Tensor], store: str | None = "float32") -> None:
    """Write a safetensors file in the type `store` and sync it to disk. The same values give the
    same bytes.

    None: float16 stays, and all other types become float32. Integer tensors are buffers
    that transformers creates, so they are not written.
    """
    arrays = {}
    for name, tensor in sorted(tensors.items()):
        if tensor.is_floating_point():
            if store is not None:
                dtype = getattr(torch, store)
            elif tensor.dtype == torch.float16:
                dtype = torch.float16
            else:
                dtype = torch.float32
            arrays[name] = tensor.detach().to("cpu", dtype).numpy()
    with create(path) as file:
        put_arrays(file, arrays, OF_WEIGHTS)
        file.flush()
        os.fsync(file.fileno())
