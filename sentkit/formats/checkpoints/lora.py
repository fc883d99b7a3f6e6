"""Read the configuration of a LoRA adapter that peft saved in a checkpoint folder.

Only adapters that can be added to the weights exactly are accepted. The error names any other option.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import is_there, read_object

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Options that change the result, with their values that do not change it.
IDLE: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "init_lora_weights": (True, False, "gaussian", None),  # other values also change the base weights
}
# Options with any value: they affect training only, name the base, or select layers that the tensors show.
HARMLESS = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "lora_dropout", "inference_mode", "task_type"),
    *("base_model_name_or_path", "revision", "auto_mapping", "peft_version", "fan_in_fan_out"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "runtime_config", "megatron_config", "megatron_core"),
    *("qalora_group_size", "lora_ga_config", "arrow_config"),
}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    file: Path  # contains the tensors
    alpha: float
    rank_stabilised: bool

    def scale(self, rank: int) -> float:
        return self.alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def is_adapter(folder: Path) -> bool:
    return is_there(folder / CONFIG)


def adapter_alone(folder: Path, name: str) -> NoInputError:
    """The error for an adapter without the weights of its base."""
    base = read_object(folder / CONFIG).get("base_model_name_or_path")
    target = f"{base:.200}" if isinstance(base, str) and base else "its base"
    problem = f"{name}: contains only an adapter; config.json and the weights of its base are missing"
    return NoInputError(problem, advice=f"copy the files of the adapter into the folder of {target}")


def read_lora_config(folder: Path) -> LoraConfig:
    path = folder / CONFIG
    config: dict[str, Any] = read_object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise DataError(f"an adapter of type {kind!s:.40} is not supported", source=str(path))
    for option, value in config.items():
        harmless = option in HARMLESS or (option in IDLE and value in IDLE[option])
        if not harmless and value not in (None, False, {}, []):
            raise DataError(f"an adapter with {option:.40} is not supported", source=str(path))
    alpha: Any = config.get("lora_alpha")
    stabilised = config.get("use_rslora", False)
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or not math.isfinite(alpha) or not isinstance(stabilised, bool):
        raise DataError(f'"lora_alpha" is {alpha!r:.40}, expected a number', source=str(path))
    file = next((folder / name for name in WEIGHTS if is_there(folder / name)), None)
    if file is None:
        raise NoInputError(f"{folder}: {WEIGHTS[0]} is missing")
    return LoraConfig(file, float(alpha), stabilised)
