"""Reads Dense and LayerNorm layers after a readout, and convolutions before it, as sentence-transformers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentkit.errors import DataError, NoInputError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS
from sentkit.formats.json_files import read_object
from sentkit.model.transformer.adapter import Adapter
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import Convolution
from sentkit.model.transformer.weights import read_tensors
from sentkit.transforms.steps import Linear, Norm

ACTIVATION_NAMES = {path.rpartition(".")[2]: word for word, path in DENSE_ACTIVATIONS.items()}


def read_layer(folder: Path) -> Linear | Norm:
    config = read_object(folder / "config.json")
    tensors = read_weights_of(folder)
    if tensors.keys() == {"norm.weight", "norm.bias"}:
        return read_norm(tensors, str(folder))
    name = str(config.get("activation_function", DENSE_ACTIVATIONS["tanh"]))  # default of the library
    class_name = name.rpartition(".")[2]
    activation = ACTIVATION_NAMES.get(class_name) if name.startswith("torch.") else None
    if activation is None:
        problem = f"a dense layer with activation {class_name:.80} is not supported"
        raise DataError(problem, source=str(folder))
    if "linear.weight" not in tensors or not tensors.keys() <= {"linear.weight", "linear.bias"}:
        raise DataError("these are not the tensors of a dense layer", source=str(folder))
    weight = tensors["linear.weight"]
    bias = tensors.get("linear.bias", torch.zeros(len(weight) if weight.ndim else 0))
    if weight.ndim != 2 or 0 in weight.shape:
        raise DataError("the weight or the bias has a wrong shape", source=str(folder))
    return Linear(*as_arrays(weight, bias, str(folder)), activation)


def read_weights_of(folder: Path) -> dict[str, Tensor]:
    files = [path for path in (folder / "model.safetensors", folder / "pytorch_model.bin") if path.is_file()]
    if not files:
        raise NoInputError(f"{folder}: has no model.safetensors and no pytorch_model.bin")
    return read_tensors(files[:1])


def add_convolution(body: Bert | Adapter, checkpoint: Checkpoint) -> None:
    """Give an encoder the convolution of its checkpoint, if the checkpoint has one."""
    folder = checkpoint.declared.convolution
    if folder is None:
        return
    config, tensors, source = read_object(folder / "cnn_config.json"), read_weights_of(folder), str(folder)
    numbers = range(len(tensors) // 2)
    if not tensors or tensors.keys() != {f"convs.{k}.{name}" for k in numbers for name in ("weight", "bias")}:
        raise DataError("these are not the tensors of a convolution", source=source)
    if config.get("stride_sizes") not in (None, [1] * len(numbers)):
        raise DataError("a convolution with strides is not supported", source=source)
    kernels = [tensors[f"convs.{k}.weight"].shape[-1:].numel() for k in numbers]
    channels = tensors["convs.0.bias"].numel()
    wanted = {f"convs.{k}.weight": [channels, body.width, kernel] for k, kernel in enumerate(kernels)}
    wanted |= {f"convs.{k}.bias": [channels] for k in numbers}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if shapes != wanted or not channels or not all(kernel % 2 for kernel in kernels):
        raise DataError("the weight or the bias has a wrong shape", source=source)
    if not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise DataError("the weight or the bias has another type than floating point", source=source)
    body.convolution = Convolution(body.width, channels, kernels)
    body.convolution.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})


def read_norm(tensors: Mapping[str, Tensor], source: str) -> Norm:
    weight, bias = tensors["norm.weight"], tensors["norm.bias"]
    if weight.ndim != 1 or not len(weight):
        raise DataError("the weight or the bias has a wrong shape", source=source)
    return Norm(*as_arrays(weight, bias, source))


def as_arrays(weight: Tensor, bias: Tensor, source: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if bias.shape != weight.shape[:1]:
        raise DataError("the weight or the bias has a wrong shape", source=source)
    if not (weight.is_floating_point() and bias.is_floating_point()):
        raise DataError("the weight or the bias has another type than floating point", source=source)
    return weight.float().numpy(), bias.float().numpy()
