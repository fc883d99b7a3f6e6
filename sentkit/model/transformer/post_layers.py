"""Reads Dense and LayerNorm layers after a readout, in the format of sentence-transformers."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sentkit.errors import DataError, NoInputError
from sentkit.formats.checkpoints.modules import ACTIVATIONS
from sentkit.formats.json_files import read_object
from sentkit.model.transformer.weights import read_tensors
from sentkit.transforms.steps import Linear, Norm

WORDS = {path.rpartition(".")[2]: word for word, path in ACTIVATIONS.items()}


def read_layer(folder: Path) -> Linear | Norm:
    config = read_object(folder / "config.json")
    files = [path for path in (folder / "model.safetensors", folder / "pytorch_model.bin") if path.is_file()]
    if not files:
        raise NoInputError(f"{folder}: has no model.safetensors and no pytorch_model.bin")
    tensors = read_tensors(files[:1])
    if tensors.keys() == {"norm.weight", "norm.bias"}:
        return read_norm(tensors, str(folder))
    name = str(config.get("activation_function", ACTIVATIONS["tanh"]))  # default of sentence-transformers
    word = WORDS.get(name.rpartition(".")[2]) if name.startswith("torch.") else None
    if word is None:
        problem = f"a dense layer with activation {name.rpartition('.')[2]:.80}, which sentkit cannot run"
        raise DataError(problem, source=str(folder))
    if "linear.weight" not in tensors or not tensors.keys() <= {"linear.weight", "linear.bias"}:
        raise DataError("its tensors are not those of a dense layer", source=str(folder))
    weight = tensors["linear.weight"]
    bias = tensors.get("linear.bias", torch.zeros(len(weight) if weight.ndim else 0))
    if weight.ndim != 2 or 0 in weight.shape or bias.shape != weight.shape[:1]:
        raise DataError("its weight and its bias do not fit each other", source=str(folder))
    check_kind(weight, bias, str(folder))
    return Linear(weight.float().numpy(), bias.float().numpy(), word)


def read_norm(tensors: Mapping[str, Tensor], source: str) -> Norm:
    weight, bias = tensors["norm.weight"], tensors["norm.bias"]
    if weight.ndim != 1 or bias.shape != weight.shape or not len(weight):
        raise DataError("its weight and its bias do not fit each other", source=source)
    check_kind(weight, bias, source)
    return Norm(weight.float().numpy(), bias.float().numpy())


def check_kind(weight: Tensor, bias: Tensor, source: str) -> None:
    if not (weight.is_floating_point() and bias.is_floating_point()):
        raise DataError("its weight or its bias is not of floating-point numbers", source=source)
