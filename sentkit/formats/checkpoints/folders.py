"""Finds the folder of a model, and reads its files, its configuration and its declared readout.

A model is the bundled model, a path, an installed package or a hub name. Tensors are not opened, because that
needs torch.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from sentkit.errors import DataError, NoInputError, UnavailableError, UsageError
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules, read_sentkit_json
from sentkit.formats.files import exists, is_folder, is_there, read_object, read_object_if_there

NANO, STATIC = INCLUDED = ("nano", "static")  # the models of this package; nano is the default
# A hub name, with an optional revision after "@": a branch, a tag or a commit.
HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([A-Za-z0-9][\w./-]*))?")
OLDER = "pytorch_model*.bin"
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*/*.json"]


def find_model(name: str, *, download: bool = True) -> Path:
    """The folder of a model. Only a name in the form of a hub name can cause network access."""
    if name in INCLUDED:  # also if the current folder contains "nano": its name is ./nano
        return Path(__file__).parent.parent.parent / name
    if is_folder(Path(name)):
        return Path(name)
    if name.startswith("pkg:"):
        return _in_package(name.removeprefix("pkg:"))
    if exists(Path(name)):
        raise NoInputError(f"{name}: is a file, expected a checkpoint folder")
    match = HUB_NAME.fullmatch(name)
    if match is not None:
        return _from_hub(match[1], match[2], download=download)
    raise NoInputError(f"{name}: no such checkpoint folder")


NO_CONFIG = "is not a checkpoint: it has no config.json"


def incomplete(folder: Path, name: str, problem: str) -> NoInputError:
    """The error for a folder without a file; an adapter needs the files of its base."""
    if not is_adapter(folder):
        return NoInputError(f"{name}: {problem}")
    base = read_object(folder / ADAPTER).get("base_model_name_or_path")
    target = f"{base:.200}" if isinstance(base, str) and base else "its base"
    problem = f"{name}: contains only an adapter; config.json and the weights of its base are missing"
    return NoInputError(problem, advice=f"copy the files of the adapter into the folder of {target}")


def _in_package(package: str) -> Path:
    """Find the model folder in an installed package without importing the package."""
    try:
        spec = find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    for place in (spec.submodule_search_locations if spec else None) or ():
        for config in sorted(Path(place).rglob("config.json"), key=lambda path: len(path.parts)):
            if list(config.parent.glob("*.safetensors")) or list(config.parent.glob("pytorch_model*.bin")):
                return config.parent
    raise NoInputError(f"pkg:{package}: no installed package of this name contains a model")


def _from_hub(repository: str, revision: str | None, *, download: bool) -> Path:
    """The folder of a hub model in the local cache, after a download if that is permitted."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import constants, errors

    name = f"{repository}@{revision}" if revision else repository
    try:
        return _fetch(repository, revision, offline=not download or constants.HF_HUB_OFFLINE)
    except errors.GatedRepoError as error:
        advice = "accept the license on the web page of the model, then set HF_TOKEN"
        raise NoInputError(f"{name}: access requires an accepted license", advice=advice) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = f'no such model or revision "{revision}"' if revision else "no such model"
        raise NoInputError(f"{name}: no such folder, and {what} on the hub") from error
    except errors.LocalEntryNotFoundError as error:
        which = f"{quote(repository)} --revision {quote(revision)}" if revision else quote(repository)
        advice = f"on a machine with network access, run: hf download {which}"
        if not download:
            raise NoInputError(f"{name}: no such folder, and not in the cache of the hub") from error
        problem = f"{name}: no such folder, and the hub "
        if constants.HF_HUB_OFFLINE:
            raise NoInputError(f"{problem}is disabled (HF_HUB_OFFLINE)", advice=advice) from error
        raise UnavailableError(f"{problem}cannot be reached", advice=advice) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise UnavailableError(f"{name}: the hub does not answer: {type(error).__name__}") from error


def _fetch(repository: str, revision: str | None, *, offline: bool) -> Path:
    """Download a model. Pickled weights are downloaded only if a folder has no safetensors."""
    from huggingface_hub import snapshot_download

    small = [*SMALL_FILES, "*.safetensors"]
    # HF_HUB_OFFLINE is read when huggingface_hub is imported, so a later change would have no effect.
    folder = Path(
        snapshot_download(repository, revision=revision, allow_patterns=small, local_files_only=offline)
    )
    places = [config.parent.relative_to(folder) for config in folder.rglob("config.json")]
    older = [str(place / OLDER) for place in places if not list((folder / place).glob("model*.safetensors"))]
    if older and not offline:
        patterns = [*older, *(f"{pattern}.index.json" for pattern in older)]
        snapshot_download(repository, revision=revision, allow_patterns=patterns)
    return folder


WORD_SETS = "words:binary"  # a model without files
# Their files do not declare that the readout excludes the prompt.
INSTRUCTORS = ("hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl")


READING_FIELDS = {
    *("readout", "template", "full_stop", "steps", "dim", "prompt", "prompts"),
    *("max_length", "lowercase", "prompt_is_read"),
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str  # as given on the command line
    folder: Path
    transformer: Path  # contains config.json, weights and tokenizer; usually the same as `folder`
    config: dict[str, Any]
    declared: StoredDeclaration
    lineage: dict[str, Any]  # the rest of sentkit.json: method, settings, parents, scores

    @property
    def config_file(self) -> str:
        return str(self.transformer / "config.json")

    @property
    def parents(self) -> list[str]:
        """The known checkpoints that this one was trained from, the nearest first."""
        parents = self.lineage.get("parents")
        return [str(parent) for parent in parents] if isinstance(parents, list) else []

    @property
    def origin(self) -> dict[str, Any]:
        """The fields of sentkit.json that describe how the checkpoint was made."""
        return {name: value for name, value in self.lineage.items() if name not in READING_FIELDS}

    def weights(self) -> list[Path]:
        return weight_files(self.transformer, self.name)


def weight_files(folder: Path, name: str) -> list[Path]:
    """The weight files of a transformer. Safetensors take priority over pickles; an index lists shards."""
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return shards(folder / index)
    raise incomplete(folder, name, "has no model.safetensors and no pytorch_model.bin")


def shards(index: Path) -> list[Path]:
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(n, str) for n in names.values()):
        raise DataError("expected a weight_map of file names", source=str(index))
    files = [index.parent / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != index.parent or not is_there(file):
            raise DataError(f'file "{file.name}" is missing', source=str(index))
    return files


def read_checkpoint(name: str, *, static: bool = False) -> Checkpoint:
    """Read a checkpoint. Without `static`, a static model is a UsageError."""
    found = None if name == WORD_SETS else checkpoint_in(find_model(name), name)
    if found is not None and (static or not found.declared.static):
        return found
    others = "" if found is None else ", and train -m"
    raise UsageError(
        f"{name}: is a static model, which only encode, search, report and inspect support{others}"
    )


def checkpoint_in(folder: Path, name: str) -> Checkpoint:
    place, declared = read_modules(folder)
    if name.partition("@")[0] in INSTRUCTORS:
        declared = replace(declared, prompt_is_read=False)
    own = read_object_if_there(folder / "sentkit.json")
    if "readout" in own and not declared.static:
        declared = read_sentkit_json(own, folder / "sentkit.json", declared)
    if not declared.static and not is_there(place / "config.json"):
        raise incomplete(place, name, NO_CONFIG)
    return Checkpoint(name, folder, place, read_object_if_there(place / "config.json"), declared, own)


ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
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
    transposed: bool  # the weights are stored so, in a Conv1D of transformers

    def scale(self, rank: int) -> float:
        return self.alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def is_adapter(folder: Path) -> bool:
    return is_there(folder / ADAPTER)


def read_lora_config(folder: Path) -> LoraConfig:
    path = folder / ADAPTER
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
    file = next((folder / name for name in ADAPTER_WEIGHTS if is_there(folder / name)), None)
    if file is None:
        raise NoInputError(f"{folder}: {ADAPTER_WEIGHTS[0]} is missing")
    return LoraConfig(file, float(alpha), stabilised, config.get("fan_in_fan_out") is True)


# The tokenizer classes for which transformers 4 uses add_eos_token.
CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
ENDS = ("BertProcessing", "RobertaProcessing")  # post-processors that always add an end token


def with_end_token(rules: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the rules of tokenizer.json, changed only if an end token is required and missing."""
    path = folder / "tokenizer_config.json"
    config = read_object_if_there(path)
    kind = config.get("tokenizer_class")
    if config.get("add_eos_token") is not True or str(kind).removesuffix("Fast") not in CLASSES:
        return rules
    token = (read_object_if_there(folder / "special_tokens_map.json") | config).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    ids = [added["id"] for added in rules.get("added_tokens") or () if added.get("content") == token]
    if not isinstance(token, str) or not ids:
        raise DataError('"add_eos_token" is true, but the tokenizer has no such token', source=str(path))
    processor = rules.get("post_processor")
    changed = _ending(processor, token, ids[0])
    return rules if changed == processor else {**rules, "post_processor": changed}


def _ending(processor: Any, token: str, number: int) -> Any:
    """Return the post-processor with the end token after each text."""
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind in ENDS:
        return processor
    if kind == "Sequence" and processor["processors"]:
        *before, last = processor["processors"]
        changed = _ending(last, token, number)
        parts = changed["processors"] if changed["type"] == "Sequence" else [changed]
        return {**processor, "processors": [*before, *parts]}
    if kind != "TemplateProcessing":
        texts = [{"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB")]
        template = {"type": "TemplateProcessing", "single": texts[:1], "pair": texts, "special_tokens": {}}
        template = _ending(template, token, number)
        return template if kind is None else {"type": "Sequence", "processors": [processor, template]}
    if any(piece.get("SpecialToken", {}).get("id") == token for piece in processor["single"]):
        return processor
    templates = {}
    for form in ("single", "pair"):
        pieces = []
        for piece in processor[form]:
            pieces.append(piece)
            if "Sequence" in piece:
                end = {"id": token, "type_id": piece["Sequence"]["type_id"]}
                pieces.append({"SpecialToken": end})
        templates[form] = pieces
    known = {**processor["special_tokens"], token: {"id": token, "ids": [number], "tokens": [token]}}
    return {**processor, **templates, "special_tokens": known}


LARGEST = 1 << 24  # limit for sizes; larger values would fill memory before the comparison with the weights
DEEPEST = 1 << 10


def read_size(
    config: Mapping[str, object],
    source: str,
    key: str,
    *,
    default: int | None = None,
    least: int = 1,
    most: int = LARGEST,
) -> int:
    """Return an integer of the config. A null value counts as missing; a missing value needs a default."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise DataError(f'"{key}" is missing', source=source)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid_value(key, value, source)
    return value


def read_fraction(config: Mapping[str, object], source: str, key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise invalid_value(key, value, source)
    return float(value)


def invalid_value(key: str, value: object, source: str) -> DataError:
    return DataError(f'"{key}" cannot be {value!r:.40}', source=source)


CONFIG_ACTIVATIONS = {  # value in config.json -> name in sentkit
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def read_activation(config: Mapping[str, object], key: str, usual: str) -> str | None:
    name = config.get(key, usual)
    return CONFIG_ACTIVATIONS.get(name) if isinstance(name, str) else None
