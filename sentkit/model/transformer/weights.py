"""Reads checkpoint files as named tensors; renames, checks and hashes them, and adds LoRA adapters.

An adapter changes a weight to W + scale * B A. The encoder uses only the sum.
"""

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sentkit.arrays import Float32
from sentkit.errors import DataError, NoInputError
from sentkit.formats.checkpoints.folders import is_adapter, read_lora_config, weight_files
from sentkit.model.checkpoint_reading import by, hash_of_weights
from sentkit.model.transformer.architecture import (
    Architecture,
    canonical_names,
    has_pooler,
    tensor_shapes,
)

LISTED = 3  # most names in one message


def read_tensors(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return all tensors of `.safetensors` or `.bin` files unchanged, including heads and
    buffers.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    tensors: dict[str, Tensor] = {}
    for path in files:
        is_unicode = str(path).encode(errors="replace").decode() == str(path)
        try:
            if path.suffix != ".safetensors":
                tensors |= read_pickle(path)
            elif is_unicode:
                tensors |= load_file(path)
            else:  # the library cannot open such paths
                tensors |= load(path.read_bytes())
        except SafetensorError as error:
            raise DataError(
                f"not a safetensors file, or incomplete ({error})", source=str(path)
            ) from error
        except OSError as error:
            raise NoInputError(f"{path}: {error.strerror or error}") from error
    return tensors


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a `torch.save` file. The option `weights_only` prevents code
    execution.
    """
    problem = "not a checkpoint of plain tensors"
    advice = "save it as safetensors, which cannot contain code"
    try:
        with warnings.catch_warnings(action="ignore"):  # errors are enough
            content = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # invalid bytes can raise any error in the unpickler
        raise DataError(f"{problem}, or incomplete", source=str(path), advice=advice) from error
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(name, str) and is_plain(value) for name, value in content.items())
    ):
        raise DataError(problem, source=str(path), advice=advice)
    return {name: tensor.detach() for name, tensor in content.items()}


def is_plain(value: object) -> bool:
    """Return true for a tensor of stored numbers. An expanded tensor could have any size."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def aligned(weight: Tensor) -> Tensor:
    """Return the weight at a multiple of 64 bytes: elsewhere, as in mapped files, MKL rounds
    differently.
    """
    if weight.data_ptr() % 64 == 0:
        return weight
    return weight.clone()


def canonical(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return the tensors of the encoder and its pooler in float32, under the plain names of the
    family.
    """
    canonical_tensors: dict[str, Tensor] = {}
    for name, stored_name in canonical_names(tensors, architecture).items():
        tensor = tensors[stored_name]
        canonical_tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return canonical_tensors


def fit(tensors: Mapping[str, Tensor], architecture: Architecture, *, source: str) -> None:
    """Raise a DataError if the canonical tensors do not fit the architecture. The pooler is
    optional.
    """
    shapes = tensor_shapes(architecture, pooler=has_pooler(tensors))
    check_tensors(tensors, shapes, source=source)


def check_tensors(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    source: str,
    what: str = "weights",
) -> None:
    """Raise a DataError if a tensor is missing or has another shape or type."""
    refuse_missing([name for name in shapes if name not in tensors], source=source, what=what)
    wrong = [
        f'"{name}" is {form(tensors[name])}, expected {by(shape)}'
        for name, shape in shapes.items()
        if tuple(tensors[name].shape) != shape or not tensors[name].is_floating_point()
    ]
    if wrong:
        raise DataError(f"{what} and config.json do not match: {listed(wrong)}", source=source)


def refuse_missing(names: Sequence[str], *, source: str, what: str = "weights") -> None:
    if names:
        missing = listed([f'"{name}"' for name in names])
        raise DataError(f"{what} and config.json do not match: missing {missing}", source=source)


def listed(names: list[str]) -> str:
    text = ", ".join(names[:LISTED])
    if len(names) > LISTED:
        text += f" and {len(names) - LISTED} more"
    return text


def form(tensor: Tensor) -> str:
    shape = by(tuple(tensor.shape))
    if tensor.is_floating_point():
        return shape
    return f"{shape} of {str(tensor.dtype).removeprefix('torch.')}"


def weights_hash(tensors: Mapping[str, Tensor], *, with_pooler: bool = False) -> str:
    """Return 32 hex digits that depend only on the canonical tensors, not on the file format."""
    return hash_of_weights(
        tensors, as_float32, with_pooler=with_pooler, threads=torch.get_num_threads()
    )


def as_float32(tensor: Tensor) -> Float32:
    return tensor.detach().to("cpu", torch.float32).numpy()


LORA_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


def read_weights(folder: Path, name: str) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, with its adapter added."""
    tensors = read_tensors(weight_files(folder, name))
    if not is_adapter(folder):
        return tensors
    config = read_lora_config(folder)
    for module, (a, b) in read_halves(config.file).items():
        weight_name = weight_of(module, tensors)
        if weight_name is None:
            raise DataError(
                f'the adapter changes "{module:.80}", which has no weights', source=str(folder)
            )
        weight = tensors[weight_name]
        shape = (a.shape[1], len(b)) if config.transposed else (len(b), a.shape[1])
        # the product can be larger than memory
        if weight.shape != shape or not weight.is_floating_point():
            shapes = f"{by(shape)}, and the weight is {by(tuple(weight.shape))}"
            raise DataError(f'the adapter\'s "{module:.80}" is {shapes}', source=str(folder))
        change = config.scale(len(a)) * (b @ a)
        if config.transposed:
            change = change.T
        tensors[weight_name] = weight.float() + change
    return tensors


def weight_of(module: str, names: Collection[str]) -> str | None:
    """Return the name of the weight of a module; wrappers and models with a head have longer names.

    None if several of these fit, as those of an encoder and a decoder.
    """
    weight = f"{module}.weight"
    if weight in names:
        return weight
    matches = [name for name in names if name.endswith(f".{weight}") or weight.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    return None


def read_halves(file: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A (rank, inputs) and B (outputs, rank) of each module that an adapter changes, by its
    name.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors([file]).items():
        match = LORA_NAME.fullmatch(name)
        if match is None or tensor.ndim != 2 or not tensor.is_floating_point():
            problem = f'"{name:.80}": only LoRA adapters of linear layers are supported'
            raise DataError(problem, source=str(file))
        halves.setdefault(match[1], {})[match[2]] = tensor.float()
    for module, pair in sorted(halves.items()):
        if (
            pair.keys() != {"A", "B"}
            or pair["A"].shape[0] != pair["B"].shape[1]
            or not len(pair["A"])
        ):
            raise DataError(f'lora_A and lora_B of "{module:.80}" do not match', source=str(file))
    return {module: (pair["A"], pair["B"]) for module, pair in sorted(halves.items())}
