"""Finds the folder of a model, and reads its files, its configuration and its declared readout.

A model is the bundled model, a path, an installed package or a hub name. Tensors are not opened,
because that needs torch.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from sentkit.errors import (
    DataError,
    NoInputError,
    SentkitError,
    UnavailableError,
    UsageError,
)
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules, read_sentkit_json
from sentkit.formats.files import exists, is_folder, is_there, read_object, read_object_if_there

NANO = "nano"  # the models of this package; nano is the default
STATIC = "static"
INCLUDED = (NANO, STATIC)
MIN_SIMILARITY = 0.75  # minimum similarity to a name of these: `nanno` has 0.89 of `nano`
# A hub name, with an optional revision after "@": a branch, a tag or a commit.
HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([A-Za-z0-9][\w./-]*))?")
PICKLES = "pytorch_model*.bin"
ENDPOINT = re.compile("https?://", re.IGNORECASE)  # of a model behind an API
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja", "*/*.json"]


def is_endpoint(name: str | None) -> bool:
    """Whether -m names a model behind an API: http://HOST/v1#NAME."""
    return name is not None and ENDPOINT.match(name) is not None


def find_model(name: str, *, download: bool = True) -> Path:
    """The folder of a model. Only a name in the form of a hub name can cause network access."""
    if is_endpoint(name):
        problem = "a model behind an API has no files here, which this command needs"
        raise UsageError(problem, advice="encode, search, report, diff and inspect can use it")
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
        try:
            return _from_hub(match[1], match[2], download=download)
        except (NoInputError, UnavailableError) as error:
            error.advice = advice_for_name(name) or error.advice
            raise
    raise NoInputError(f"{name}: no such checkpoint folder", advice=advice_for_name(name))


def advice_for_name(name: str) -> str | None:
    """A similar name: of an included model, or of a checkpoint in the same folder."""
    paths = [str(config.parent) for config in Path(name).parent.glob("*/config.json")]
    if "/" not in name:
        paths += INCLUDED
    path_of_name = {Path(path).name.lower(): path for path in paths}
    similar = get_close_matches(Path(name).name.lower(), path_of_name, n=1, cutoff=MIN_SIMILARITY)
    if not similar:
        return None
    return f'did you mean "{path_of_name[similar[0]]}"?'


NO_CONFIG = "is not a checkpoint: it has no config.json"


def incomplete(folder: Path, name: str, problem: str) -> NoInputError:
    """The error for a folder without a file; an adapter needs the files of its base."""
    if not is_adapter(folder):
        configs = sorted(folder.glob("*/config.json"))
        runs = [path.parent.name for path in configs if is_of_encoder(path)]
        advice = None
        if runs:  # those of several seeds
            names = ", ".join(runs[:3])
            advice = f"it has checkpoints: {names}; name one, such as {name}/{runs[0]}"
        return NoInputError(f"{name}: {problem}", advice=advice)
    target = "its base"
    base = read_object(folder / ADAPTER).get("base_model_name_or_path")
    if isinstance(base, str) and base:
        target = base[:200]
    problem = (
        f"{name}: contains only an adapter; config.json and the weights of its base are missing"
    )
    return NoInputError(
        problem, advice=f"copy the files of the adapter into the folder of {target}"
    )


def is_of_encoder(config_path: Path) -> bool:
    """Whether this is the config.json of an encoder; a module such as 1_Pooling also has one."""
    try:
        config = read_object(config_path)
    except (SentkitError, OSError):  # not JSON, or it cannot be read
        return False
    return "model_type" in config or "architectures" in config


def _in_package(package: str) -> Path:
    """Find the model folder in an installed package without importing the package."""
    try:
        module_spec = find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        module_spec = None
    # None: a module of one file
    locations = None if module_spec is None else module_spec.submodule_search_locations
    for location in locations or ():
        configs = sorted(Path(location).rglob("config.json"), key=lambda path: len(path.parts))
        for config in configs:
            folder = config.parent
            if list(folder.glob("*.safetensors")) or list(folder.glob(PICKLES)):
                return folder
    raise NoInputError(f"pkg:{package}: no installed package of this name contains a model")


def _from_hub(repository: str, revision: str | None, *, download: bool) -> Path:
    """The folder of a hub model in the local cache, after a download if that is permitted."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import constants, errors

    name = repository
    if revision:
        name += f"@{revision}"

    # Each error of the hub says what the user can do. The order matters: errors of a gated
    # repository, and of one that is not found, are also HTTP errors.
    try:
        return _fetch(repository, revision, offline=not download or constants.HF_HUB_OFFLINE)
    except errors.GatedRepoError as error:
        advice = "accept the license on the web page of the model, then set HF_TOKEN"
        raise NoInputError(f"{name}: access requires an accepted license", advice=advice) from error
    except (
        errors.HFValidationError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    ) as error:
        missing = "no such model"
        if revision:
            missing += f' or revision "{revision}"'
        raise NoInputError(f"{name}: no such folder, and {missing} on the hub") from error
    except errors.LocalEntryNotFoundError as error:
        command = f"hf download {quote(repository)}"
        if revision:
            command += f" --revision {quote(revision)}"
        advice = f"on a machine with network access, run: {command}"
        if not download:
            raise NoInputError(
                f"{name}: no such folder, and not in the cache of the hub"
            ) from error
        problem = f"{name}: no such folder, and the hub "
        if constants.HF_HUB_OFFLINE:
            raise NoInputError(f"{problem}is disabled (HF_HUB_OFFLINE)", advice=advice) from error
        raise UnavailableError(f"{problem}cannot be reached", advice=advice) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise UnavailableError(
            f"{name}: the hub does not answer: {type(error).__name__}"
        ) from error


def _fetch(repository: str, revision: str | None, *, offline: bool) -> Path:
    """Download a model. Pickled weights are downloaded only if a folder has no safetensors."""
    from huggingface_hub import snapshot_download

    # HF_HUB_OFFLINE is read when huggingface_hub is imported, so a later change would have no
    # effect.
    snapshot = snapshot_download(
        repository,
        revision=revision,
        allow_patterns=[*SMALL_FILES, "*.safetensors"],
        local_files_only=offline,
    )
    folder = Path(snapshot)
    pickles = []
    for config in folder.rglob("config.json"):
        if not list(config.parent.glob("model*.safetensors")):
            pickles.append(str(config.parent.relative_to(folder) / PICKLES))
    if pickles and not offline:
        indexes = [f"{pattern}.index.json" for pattern in pickles]
        snapshot_download(repository, revision=revision, allow_patterns=[*pickles, *indexes])
    return folder


WORD_SETS = "words:binary"  # a model without files
# Their files do not declare that the readout excludes the prompt.
INSTRUCTORS = ("hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl")


READING_FIELDS = {
    "readout",
    "template",
    "full_stop",
    "steps",
    "dim",
    "prompt",
    "prompts",
    "max_length",
    "lowercase",
    "prompt_is_read",
    "similarity",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str  # as given on the command line
    folder: Path
    # contains config.json, weights and tokenizer; usually the same as `folder`
    transformer_folder: Path
    config: dict[str, Any]
    declaration: StoredDeclaration
    sentkit_json: dict[str, Any]  # its content; empty without this file

    @property
    def config_file(self) -> str:
        return str(self.transformer_folder / "config.json")

    @property
    def parents(self) -> list[str]:
        """The known checkpoints that this one was trained from, the nearest first."""
        parents = self.sentkit_json.get("parents")
        if not isinstance(parents, list):
            return []
        return [str(parent) for parent in parents]

    @property
    def lineage(self) -> dict[str, Any]:
        """The fields of sentkit.json that describe how the checkpoint was made: method, settings,
        parents, scores.
        """
        return {
            name: value for name, value in self.sentkit_json.items() if name not in READING_FIELDS
        }

    def weight_paths(self) -> list[Path]:
        return weight_files(self.transformer_folder, self.name)


def weight_files(folder: Path, name: str) -> list[Path]:
    """The weight files of a transformer. Safetensors take priority over pickles; an index lists
    shards.
    """
    for file_name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / file_name).is_file():
            return [folder / file_name]
        index = folder / f"{file_name}.index.json"
        if index.is_file():
            return shards(index)
    raise incomplete(folder, name, "has no model.safetensors and no pytorch_model.bin")


def shards(index: Path) -> list[Path]:
    file_of_tensor = read_object(index).get("weight_map")
    if (
        not isinstance(file_of_tensor, dict)
        or not file_of_tensor
        or not all(isinstance(name, str) for name in file_of_tensor.values())
    ):
        raise DataError("expected a weight_map of file names", source=str(index))
    files = [index.parent / name for name in sorted(set(file_of_tensor.values()))]
    for file in files:
        if file.parent != index.parent or not is_there(file):
            raise DataError(f'file "{file.name}" is missing', source=str(index))
    return files


def read_checkpoint(name: str, *, static: bool = False) -> Checkpoint:
    """Read a checkpoint. Without `static`, a static model is a UsageError."""
    problem = f"{name}: is a static model"
    if name == WORD_SETS:
        raise UsageError(problem, advice="it works with encode, search, report and inspect")
    checkpoint = checkpoint_in(find_model(name), name)
    if checkpoint.declaration.is_static and not static:
        advice = "static models work with encode, search, report, inspect, diff and train -m"
        raise UsageError(problem, advice=advice)
    return checkpoint


def checkpoint_in(folder: Path, name: str) -> Checkpoint:
    transformer, declared = read_modules(folder)
    if name.partition("@")[0] in INSTRUCTORS:
        declared = replace(declared, prompt_is_read=False)
    path = folder / "sentkit.json"
    sentkit_json = read_object_if_there(path)
    if "readout" in sentkit_json and not declared.is_static:
        declared = read_sentkit_json(sentkit_json, path, declared)
    config_path = transformer / "config.json"
    if not declared.is_static and not is_there(config_path):
        raise incomplete(transformer, name, NO_CONFIG)
    config = read_object_if_there(config_path)
    return Checkpoint(name, folder, transformer, config, declared, sentkit_json)


ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Options that change the result, with their values that do not change it.
IDLE: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    # other values also change the base weights
    "init_lora_weights": (
        True,
        False,
        "gaussian",
        None,
    ),
}
# Options with any value: they affect training only, name the base, select layers that the tensors
# show, or are corrected by peft ("fan_in_fan_out", which depends on the model).
HARMLESS = {
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "lora_dropout",
    "inference_mode",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "peft_version",
    "fan_in_fan_out",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "ensure_weight_tying",
    "loftq_config",
    "eva_config",
    "corda_config",
    "runtime_config",
    "megatron_config",
    "megatron_core",
    "qalora_group_size",
    "lora_ga_config",
    "arrow_config",
}
# Model types whose blocks are Conv1D of transformers, which stores a weight transposed.
CONV1D = ("gpt2", "imagegpt", "openai-gpt")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    file: Path  # contains the tensors
    alpha: float
    rank_stabilised: bool
    transposed: bool  # the weights are those of a Conv1D

    def scale(self, rank: int) -> float:
        """The factor of the product of the two matrices."""
        divisor = math.sqrt(rank) if self.rank_stabilised else rank
        return self.alpha / divisor


def is_adapter(folder: Path) -> bool:
    return is_there(folder / ADAPTER)


def read_lora_config(folder: Path) -> LoraConfig:
    path = folder / ADAPTER
    config: dict[str, Any] = read_object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise DataError(f"an adapter of type {kind!s:.40} is not supported", source=str(path))
    for option, value in config.items():
        if option in HARMLESS or value in (None, False, {}, []):
            continue
        if option not in IDLE or value not in IDLE[option]:
            raise DataError(f"an adapter with {option:.40} is not supported", source=str(path))
    alpha: Any = config.get("lora_alpha")
    stabilised = config.get("use_rslora", False)
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or not math.isfinite(alpha) or not isinstance(stabilised, bool):
        raise DataError(f'"lora_alpha" is {alpha!r:.40}, expected a number', source=str(path))
    for name in ADAPTER_WEIGHTS:
        if is_there(folder / name):
            model_type = read_object_if_there(folder / "config.json").get("model_type")
            transposed = model_type in CONV1D
            return LoraConfig(folder / name, float(alpha), stabilised, transposed)
    raise NoInputError(f"{folder}: {ADAPTER_WEIGHTS[0]} is missing")


# The tokenizer classes for which transformers 4 uses add_eos_token.
CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
ENDS = ("BertProcessing", "RobertaProcessing")  # post-processors that always add an end token


def with_end_token(rules: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the rules of tokenizer.json, changed only if an end token is required and missing."""
    path = folder / "tokenizer_config.json"
    config = read_object_if_there(path)
    class_name = str(config.get("tokenizer_class")).removesuffix("Fast")
    if config.get("add_eos_token") is not True or class_name not in CLASSES:
        return rules

    # The end token and its id.
    special_tokens = read_object_if_there(folder / "special_tokens_map.json") | config
    token = special_tokens.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    ids = [
        added["id"] for added in rules.get("added_tokens") or () if added.get("content") == token
    ]
    if not isinstance(token, str) or not ids:
        raise DataError(
            '"add_eos_token" is true, but the tokenizer has no such token', source=str(path)
        )

    processor = rules.get("post_processor")
    changed_processor = _processor_with_end(processor, token, ids[0])
    if changed_processor == processor:
        return rules
    return {**rules, "post_processor": changed_processor}


def _processor_with_end(processor: Any, token: str, token_id: int) -> Any:
    """The post-processor of tokenizer.json, with the end token after each text."""
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind in ENDS:
        return processor
    if kind == "TemplateProcessing":
        return _template_with_end(processor, token, token_id)
    if kind == "Sequence" and processor["processors"]:
        *first_processors, last = processor["processors"]
        changed_last = _processor_with_end(last, token, token_id)
        last_processors = [changed_last]
        if changed_last["type"] == "Sequence":  # a sequence has no sequences
            last_processors = changed_last["processors"]
        return {**processor, "processors": [*first_processors, *last_processors]}

    # A processor of another type adds no tokens: after it, a template adds the end token.
    first_text = {"Sequence": {"id": "A", "type_id": 0}}
    second_text = {"Sequence": {"id": "B", "type_id": 1}}
    template = {
        "type": "TemplateProcessing",
        "single": [first_text],
        "pair": [first_text, second_text],
        "special_tokens": {},
    }
    template = _template_with_end(template, token, token_id)
    if kind is None:
        return template
    return {"type": "Sequence", "processors": [processor, template]}


def _template_with_end(template: dict[str, Any], token: str, token_id: int) -> dict[str, Any]:
    """A template with the end token after each text, if it has none."""
    for entry in template["single"]:
        if entry.get("SpecialToken", {}).get("id") == token:
            return template
    changed = dict(template)
    for form in ("single", "pair"):
        changed[form] = []
        for entry in template[form]:
            changed[form].append(entry)
            if "Sequence" in entry:
                end = {"id": token, "type_id": entry["Sequence"]["type_id"]}
                changed[form].append({"SpecialToken": end})
    added_token = {"id": token, "ids": [token_id], "tokens": [token]}
    changed["special_tokens"] = {**template["special_tokens"], token: added_token}
    return changed


# limit for sizes; larger values would fill memory before the comparison with the weights
LARGEST = 1 << 24
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
    """Return an integer of the config. A null value counts as missing; a missing value needs a
    default.
    """
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
    """The name of an activation in sentkit; None for one that it does not have."""
    name = config.get(key, usual)
    if not isinstance(name, str):
        return None
    return CONFIG_ACTIVATIONS.get(name)
