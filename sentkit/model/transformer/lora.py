"""Adds LoRA adapters to the weights: W + scale * B A. The encoder uses only the sum."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import weight_files
from sentkit.formats.checkpoints.lora import LoraConfig, is_adapter, read_lora_config
from sentkit.model.transformer.weight_names import PREFIXES
from sentkit.model.transformer.weights import read_tensors
from sentkit.model.weights_hash import by

HALF = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


def read_weights(folder: Path, name: str) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint of a packed family, with its adapter added."""
    tensors = read_tensors(weight_files(folder, name))
    for module, change in changes(folder):
        target = next((each for each in names_of(module) if f"{each}.weight" in tensors), None)
        if target is None:
            raise DataError(f'the adapter changes "{module:.80}", which has no weights', source=str(folder))
        weight = tensors[f"{target}.weight"]
        check_shape(module, weight, change.shape, folder)
        tensors[f"{target}.weight"] = weight.float() + change.matrix()
    return tensors


def add_adapter(model: nn.Module, folder: Path) -> None:
    """Add the adapter in `folder`, if there is one, to the weights of a transformers model."""
    modules = dict(model.named_modules())
    for module, change in changes(folder):
        target = next((modules[name] for name in (module, module.partition(".")[2]) if name in modules), None)
        weight = getattr(target, "weight", None)
        if not isinstance(weight, Tensor) or isinstance(target, nn.Embedding):
            raise DataError(
                f'the adapter changes "{module:.80}", and only linear layers can be changed',
                source=str(folder),
            )
        # A Conv1D of transformers is a linear layer that stores its weight transposed.
        turned = not isinstance(target, nn.Linear)
        check_shape(module, weight, change.shape[::-1] if turned else change.shape, folder)
        with torch.no_grad():
            weight.add_(change.matrix().T if turned else change.matrix())


def names_of(module: str) -> Iterator[str]:
    """Yield the possible names of a module in a file, with and without the prefixes of wrappers."""
    yield module
    bare = next((module.removeprefix(each) for each in PREFIXES if each and module.startswith(each)), module)
    yield from (prefix + bare for prefix in PREFIXES)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a weight. Its shape is known before the product, which can be larger than memory."""

    a: Tensor  # (rank, inputs)
    b: Tensor  # (outputs, rank)
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.b), self.a.shape[1]

    def matrix(self) -> Tensor:
        return self.scale * (self.b @ self.a)


def changes(folder: Path) -> Iterator[tuple[str, Change]]:
    """Yield each module that the adapter changes, with the change of its weight."""
    if not is_adapter(folder):
        return
    config = read_lora_config(folder)
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors([config.file]).items():
        match = HALF.fullmatch(name)
        if match is None or tensor.ndim != 2 or not tensor.is_floating_point():
            raise DataError(
                f'"{name:.80}": only LoRA adapters of linear layers are supported', source=str(config.file)
            )
        halves.setdefault(match[1], {})[match[2]] = tensor.float()
    for module, pair in sorted(halves.items()):
        yield module, change_of(pair, module, config)


def change_of(pair: Mapping[str, Tensor], module: str, config: LoraConfig) -> Change:
    if pair.keys() != {"A", "B"} or pair["A"].shape[0] != pair["B"].shape[1] or not len(pair["A"]):
        problem = f'lora_A and lora_B of "{module:.80}" do not match'
        raise DataError(problem, source=str(config.file))
    return Change(pair["A"], pair["B"], config.scale(len(pair["A"])))


def check_shape(module: str, weight: Tensor, change: tuple[int, ...], folder: Path) -> None:
    if weight.shape != change or not weight.is_floating_point():
        shapes = f"{by(change)}, and the weight is {by(tuple(weight.shape))}"
        raise DataError(f'the adapter\'s "{module:.80}" is {shapes}', source=str(folder))
