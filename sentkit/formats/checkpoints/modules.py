"""Reads the declaration of a checkpoint: the modules of sentence-transformers, and sentkit.json
over them.

An unknown module is an error that names it, because an incomplete pipeline silently gives wrong
vectors. modules.json cannot express all readouts, so sentkit.json overrides it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentkit.errors import DataError, declared_in
from sentkit.formats.checkpoints.readout import (
    CONCAT,
    CONV,
    NAMED,
    WK_REDUCTIONS,
    Readout,
    name_of_layers,
    parse_readout,
)
from sentkit.formats.checkpoints.reductions import PLAIN
from sentkit.formats.files import is_there, read_json, read_object, read_object_if_there
from sentkit.formats.vectors.fingerprint import HASH
from sentkit.formats.vectors.tensors import read_array

# Readout -> its word in the new schema of a Pooling module, and its key in the old one.
POOLING = {name: plain.pooling for name, plain in PLAIN.items() if plain.pooling is not None}
# Activations of a dense layer: name in sentkit -> class name in the checkpoint.
DENSE_ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
    "silu": "torch.nn.modules.activation.SiLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
# Early versions of sentence-transformers include the architecture in the name of their
# configuration file.
NAMED_AFTER = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SETTINGS_OF_TRANSFORMERS = [f"sentence_{name}_config.json" for name in NAMED_AFTER]
PROMPTS = "config_sentence_transformers.json"
EMPTY_PROMPTS = {"query": "", "document": ""}  # that a model has unless it declares others
LIBRARY = "sentence_transformers."
USUAL_TYPE = "SentenceTransformer"
# Arguments of a Transformer in its settings, by the old and the new name; and those that change no
# vector.
CONFIG_ARGUMENTS = ("config_args", "config_kwargs")
TOKENIZER_ARGUMENTS = ("tokenizer_args", "processor_kwargs")
IDLE_ARGUMENTS = {
    *("attn_implementation", "_attn_implementation", "unpad_inputs", "reference_compile"),
    *("dtype", "torch_dtype", "use_cache", "use_memory_efficient_attention"),
    *("output_attentions", "output_hidden_states", "return_dict", "add_pooling_layer"),
    *("padding_side", "use_fast", "clean_up_tokenization_spaces"),
    # of the download
    *("cache_dir", "code_revision", "force_download", "local_files_only", "revision", "subfolder"),
    *("token", "trust_remote_code", "use_auth_token"),
}
CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")
CHAT_TEMPLATE = (
    "its chat template is not used; sentence-transformers 6 uses it, because the model has no "
    "modules.json"
)
TABLE_LENGTH = 512  # maximum tokens of a text in model2vec, if the config has no value
NO_LIMIT = 1e9  # tokens; transformers writes 1e30
MOST_STEPS = 64  # modules of a checkpoint, or steps after its readout


@dataclass(frozen=True, slots=True)
class Pooler:
    """Properties of the pooler that config.json cannot express."""

    activation: str = "tanh"
    readout: str = ""  # the readout that it was trained with, if known
    lands_in: str = ""  # the hash of the space that it was trained to match


@dataclass(frozen=True, slots=True)
class StoredDeclaration:
    """The declaration that the files of a checkpoint folder contain."""

    source: str = ""  # the file with the declaration; empty if there is none
    readout: Readout | None = None
    # after the readout, in order: "normalise", or the folder of a dense layer
    step_names: tuple[str, ...] = ()
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""  # added before every text
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name, such as query or document
    prompt_is_read: bool = True  # False: the readout excludes the tokens of the prompt
    dim: int | None = None  # of the vector, the first numbers to keep after all steps
    template: str | None = None  # for the readout `prompt`
    full_stop: str | None = None  # None: the setting of the template
    pooler: Pooler = Pooler()
    # folder of the layer that the readout `conv` applies to the tokens
    convolution: Path | None = None
    similarity: object = None  # the metric for sentence-transformers, as the file has it
    # values that sentkit.json and the files of the modules declare differently -> a message
    conflicts: Mapping[str, str] = field(default_factory=dict)
    is_static: bool = False  # a table of vectors without a transformer


def read_modules(folder: Path) -> tuple[Path, StoredDeclaration]:
    """Returns the folder of the transformer or table and the declaration: modules.json and related
    files.
    """
    # Folders without modules: those of model2vec and of transformers.
    listing = folder / "modules.json"
    if is_model2vec(folder):
        declared = _model2vec(folder / "config.json")
        if listing.is_file():
            _check_static_modules(listing)
        return folder, _with_prompts(declared, _read_config(folder), str(folder / PROMPTS))
    config = _read_config(folder)
    if not listing.is_file():  # as in the library, settings of a module have no effect
        declared = _transformer(folder, StoredDeclaration(), folder / "config.json", {})
        if has_chat_template(folder):
            declared = replace(declared, conflicts={"chat_template": CHAT_TEMPLATE})
        return folder, declared

    transformer, declared = _declared_by_modules(folder, listing)
    return transformer, _with_prompts(declared, config, str(folder / PROMPTS))


def _declared_by_modules(folder: Path, listing: Path) -> tuple[Path, StoredDeclaration]:
    """The folder of the transformer or table, and what the listed modules declare, one after the
    other.

    A guard after `case` says what has to come before a module.
    """
    modules = _read_listing(listing)
    declared = StoredDeclaration(source="modules.json")
    transformer = folder
    layers: list[int] | None = None  # that a WeightedLayerPooling averages
    for module in modules:
        kind = kind_of(module)
        path = module["path"]
        module_folder = inside(folder, path, listing)
        match kind:
            case "Transformer":
                transformer = module_folder
                settings_path, settings = _settings_of(transformer)
                declared = _transformer(transformer, declared, settings_path, settings)
            case "StaticEmbedding" if module is modules[0]:
                transformer = module_folder
                declared = replace(declared, is_static=True, readout=NAMED["mean"])
            case "WeightedLayerPooling":
                layers = _averaged_layers(module_folder, transformer)
            case "CNN" if (
                declared.readout is None and layers is None and declared.convolution is None
            ):
                declared = replace(declared, convolution=module_folder)
            case "Pooling" if declared.readout is None:
                pooling = read_object(module_folder / "config.json")
                has_convolution = declared.convolution is not None
                readout = _readout(pooling, layers, module_folder, has_convolution=has_convolution)
                declared = replace(
                    declared,
                    readout=readout,
                    prompt_is_read=_includes_prompt(pooling, module_folder),
                )
            case "Dense" | "Normalize" | "LayerNorm" if declared.readout and _maps_sentences(
                module_folder
            ):
                step = "normalise" if kind == "Normalize" else path
                declared = replace(declared, step_names=(*declared.step_names, step))
            case "CNN" | "Pooling" | "Dense" | "Normalize" | "LayerNorm":
                problem = f"module {kind} with these settings is not supported"
                raise DataError(problem, source=str(module_folder))
            case _:
                raise DataError(f"module {kind[:80]} is not supported", source=str(module_folder))
    return transformer, declared


def has_chat_template(folder: Path) -> bool:
    """Whether sentence-transformers 6 writes each text into a chat, if there is no modules.json."""
    if any(is_there(folder / name) for name in CHAT_TEMPLATES):
        return True
    return bool(read_object_if_there(folder / "tokenizer_config.json").get("chat_template"))


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_object_if_there(folder / PROMPTS)
    if config.get("model_type", USUAL_TYPE) != USUAL_TYPE:
        raise refusal(f"a {config['model_type']}", str(folder))
    return config


def is_model2vec(folder: Path) -> bool:
    return read_object_if_there(folder / "config.json").get("model_type") == "model2vec"


def _model2vec(path: Path) -> StoredDeclaration:
    config = read_object(path)
    length = config.get("max_length", TABLE_LENGTH)
    if length is not None and (type(length) is not int or length < 1):
        raise DataError(
            f'"max_length" is {length!r:.40}, expected a positive integer', source=str(path)
        )
    steps = ("normalise",) if config.get("normalize") is True else ()
    return StoredDeclaration(
        readout=NAMED["mean"], step_names=steps, max_length=length, is_static=True
    )


def _check_static_modules(listing: Path) -> None:
    """Refuse modules that a folder of model2vec has only for sentence-transformers."""
    kinds = [kind_of(module) for module in _read_listing(listing)]
    for kind in kinds:
        if kind not in ("StaticEmbedding", "Normalize"):
            raise refusal(f"a model of model2vec with the module {kind[:80]}", str(listing.parent))


def _read_listing(listing: Path) -> list[dict[str, str]]:
    modules = read_json(listing)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict)
        and isinstance(module.get("type"), str)
        and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise DataError(
            'expected a list of modules, each with "type" and "path"', source=str(listing)
        )
    check_count(modules, "modules", listing)
    # used only in training
    return [module for module in modules if kind_of(module) != "Dropout"]


def kind_of(module: Mapping[str, str]) -> str:
    """The class of a module. One outside of the library keeps its package: it can have a known
    name, and other code.
    """
    if module["type"].startswith(LIBRARY):
        return module["type"].rpartition(".")[2]
    return module["type"]


def refusal(kind: str, source: str) -> DataError:
    """The error for a sentence-transformers checkpoint that does not give one vector per text."""
    advice = None
    if "CrossEncoder" in kind:
        advice = "a CrossEncoder scores pairs of texts and has no vectors"
    return DataError(f"{kind[:80]} is not supported", source=source, advice=advice)


def inside(folder: Path, path: str, listing: Path) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise DataError(
            f'the path of a module, "{path}", is outside the folder', source=str(listing)
        )
    return folder / path


def _maps_sentences(module_folder: Path) -> bool:
    """Whether a module only maps the sentence vector to a new sentence vector."""
    config = read_object_if_there(module_folder / "config.json")
    usual = "sentence_embedding"
    input_name = config.get("module_input_name") or usual
    output_name = config.get("module_output_name") or usual
    return input_name == output_name == usual and not config.get("use_residual")


def _includes_prompt(pooling: Mapping[str, Any], module_folder: Path) -> bool:
    value = pooling.get("include_prompt", True)
    if not isinstance(value, bool):
        problem = f'"include_prompt" is {value!r:.40}, expected true or false'
        raise DataError(problem, source=str(module_folder / "config.json"))
    return value


def _readout(
    config: Mapping[str, Any],
    layers: Sequence[int] | None,
    module_folder: Path,
    *,
    has_convolution: bool,
) -> Readout:
    """The readout of a Pooling module that receives the average of `layers`; None is the last
    layer.
    """
    source = str(module_folder)

    # The modes in the words of the new schema.
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        if not isinstance(modes, list):
            modes = [modes]
    else:
        modes = [word for word, key in POOLING.values() if config.get(key)] or [POOLING["mean"][0]]

    name_of_word = {word: name for name, (word, _) in POOLING.items()}
    listed = " + ".join(str(mode) for mode in modes)
    if not all(isinstance(mode, str) and mode in name_of_word for mode in modes):
        raise DataError(f"pooling {listed} is not supported", source=source)
    if layers is not None and len(modes) != 1:
        raise DataError(f"pooling {listed} of averaged layers is not supported", source=source)
    if not 1 <= len(modes) <= len(POOLING):
        raise DataError(f"pooling {listed} is not supported", source=source)

    names = [name_of_word[mode] for mode in modes]
    if len(names) > 1:
        names.insert(0, CONCAT)
    readout = parse_readout(":".join(names))
    if has_convolution and readout != NAMED["mean"]:
        problem = f"pooling {readout.reduction} of a convolution is not supported: only mean"
        raise DataError(problem, source=source)
    if layers is None:
        if has_convolution:
            return NAMED[CONV]
        return readout
    if not PLAIN[readout.reduction].linear and len(layers) > 1:
        raise DataError(
            f"pooling {readout.reduction} of averaged layers is not supported", source=source
        )
    return Readout(name_of_layers(layers, readout.reduction), tuple(layers), readout.reduction)


def _averaged_layers(module_folder: Path, transformer: Path) -> list[int]:
    """The layers of a WeightedLayerPooling. Different weights are an error."""
    if not read_object_if_there(transformer / "config.json").get("output_hidden_states"):
        # In this case, sentence-transformers silently uses only the last layer.
        raise DataError(
            'this module averages layers, but "output_hidden_states" is not true in config.json',
            source=str(module_folder),
            advice='to average the layers, set "output_hidden_states" to true',
        )
    first_layer = read_object(module_folder / "config.json").get("layer_start")
    weights = read_array(module_folder / "model.safetensors", "layer_weights").ravel().tolist()
    distinct_weights = {weight for weight in weights if weight}  # a layer of weight 0 is not read
    are_equal = len(distinct_weights) == 1 and all(
        math.isfinite(weight) for weight in distinct_weights
    )
    if type(first_layer) is not int or first_layer < 0 or not are_equal:
        raise DataError("layers of unequal weight are not supported", source=str(module_folder))
    return [layer for layer, weight in enumerate(weights, start=first_layer) if weight]


def _settings_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file of the settings of a Transformer, and the settings."""
    for name in SETTINGS_OF_TRANSFORMERS:
        settings = read_object_if_there(folder / name)
        if settings:
            return folder / name, settings
    return folder / SETTINGS_OF_TRANSFORMERS[0], {}


def _transformer(
    folder: Path,
    declared: StoredDeclaration,
    settings_path: Path,
    settings: Mapping[str, Any],
) -> StoredDeclaration:
    """Read maximum length and lowercasing; refuse a transformer that reads other than the texts, or
    gives other than a state per token.

    The settings of sentence-transformers have priority.
    """
    # What it gives for a text.
    config = read_object_if_there(folder / "config.json")
    task = settings.get("transformer_task")
    if task == "sequence-classification" or _is_cross_encoder(config):
        raise refusal("a CrossEncoder", str(folder))
    if task not in (None, "feature-extraction"):
        raise refusal(f'a transformer for "{task}"', str(folder))
    output = settings.get("module_output_name")
    if output not in (None, "token_embeddings"):
        raise refusal(f'a transformer that gives "{output}"', str(folder))

    # What it reads of a text.
    modalities = settings.get("modality_config")
    if modalities is not None:
        if not isinstance(modalities, dict):
            raise DataError('"modality_config" is not an object', source=str(settings_path))
        if "message" in modalities:
            raise refusal("a transformer with a chat template", str(folder))
        if not _gives_last_states(modalities.get("text")):
            raise refusal("a modality_config with another output of texts", str(folder))
    processing = settings.get("processing_kwargs")
    if isinstance(processing, dict) and (processing.get("text") or processing.get("common")):
        raise refusal("a transformer with processing_kwargs", str(folder))

    # Its maximum length. The first place that states one decides, also with a number for no limit.
    arguments = _tokenizer_arguments(settings, settings_path)
    if "model_max_length" in arguments:  # null is no limit
        length = _stated_length(arguments, "model_max_length", settings_path)
    elif settings.get("max_seq_length") is not None:
        length = _stated_length(settings, "max_seq_length", settings_path)
    else:
        path = folder / "tokenizer_config.json"
        length = _stated_length(read_object_if_there(path), "model_max_length", path)
        positions = config.get("max_position_embeddings")
        if length is not None and type(positions) is int and positions > 0:
            length = min(length, positions)
    return replace(declared, max_length=length, lowercase=bool(settings.get("do_lower_case")))


def _gives_last_states(modality: object) -> bool:
    """Whether the settings of the texts name the last states of the model."""
    if not isinstance(modality, dict) or modality.get("method") != "forward":
        return False
    return modality.get("method_output_name") in ("last_hidden_state", ["last_hidden_state"])


def _tokenizer_arguments(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the tokenizer in those of a Transformer. Arguments that change other values
    of config.json and tokenizer_config.json than the maximum length are refused.
    """
    tokenizer_arguments: dict[str, Any] = {}
    for name in (*CONFIG_ARGUMENTS, *TOKENIZER_ARGUMENTS):
        arguments = settings.get(name)
        if arguments is None:
            continue
        if not isinstance(arguments, dict):
            raise DataError(f'"{name}" is not an object', source=str(path))
        unknown = arguments.keys() - IDLE_ARGUMENTS
        if name in TOKENIZER_ARGUMENTS:
            tokenizer_arguments = {**arguments, **tokenizer_arguments}  # the old name has priority
            unknown -= {"model_max_length"}
        if unknown:
            raise refusal(f'a transformer with {name} "{min(unknown)}"', str(path.parent))
    return tokenizer_arguments


def _is_cross_encoder(config: Mapping[str, Any]) -> bool:
    """Whether config.json has the mark of sentence-transformers 4 and 5, or of an older version."""
    nested = config.get("sentence_transformers")
    if isinstance(nested, dict) and "activation_fn" in nested:
        return True
    return "sbert_ce_default_activation_function" in config


def _stated_length(values: Mapping[str, Any], key: str, path: Path) -> int | None:
    """Return a maximum length in tokens. None: no value, or a number for no limit, such as 1e30."""
    value = values.get(key)
    if value is None:
        return None
    is_whole = (
        isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    )
    if not is_whole or value < 1:
        raise DataError(f'"{key}" is {value!r:.40}, expected a positive integer', source=str(path))
    if value >= NO_LIMIT:
        return None
    return int(value)


def _with_prompts(
    declared: StoredDeclaration, config: Mapping[str, Any], source: str
) -> StoredDeclaration:
    """Add the prompts by name, the default prompt and the length of the vectors."""
    prompts = config.get("prompts") or {}
    if isinstance(prompts, dict):
        prompts = {name: "" if text is None else text for name, text in prompts.items()}
    check_prompts(prompts, source)

    prompt = ""
    default_name = config.get("default_prompt_name")
    if default_name is not None:
        all_prompts = EMPTY_PROMPTS | prompts
        if not isinstance(default_name, str) or default_name not in all_prompts:
            problem = f'"default_prompt_name" is {default_name!r:.40}, which is not in "prompts"'
            raise DataError(problem, source=source)
        prompt = all_prompts[default_name]

    dim = config.get("truncate_dim")
    if dim is not None and (type(dim) is not int or dim < 1):
        raise DataError(f'"truncate_dim" is {dim!r:.40}, expected 1 or more', source=source)
    similarity = config.get("similarity_fn_name")
    return replace(declared, prompt=prompt, prompts=prompts, dim=dim, similarity=similarity)


def check_prompts(prompts: object, source: str) -> None:
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise DataError('"prompts" is not an object of strings', source=source)


def check_count(values: Sequence[object], kind: str, path: Path) -> None:
    if len(values) > MOST_STEPS:
        raise DataError(f"{len(values):,} {kind}, expected at most {MOST_STEPS}", source=str(path))


SENTKIT_JSON_TYPES = {  # types of the values in sentkit.json
    "readout": str,
    "steps": list,
    "max_length": int,
    "dim": int,
    "lowercase": bool,
    "prompt": str,
    "prompts": dict,
    "prompt_is_read": bool,
    "template": str,
    "full_stop": str,
    "similarity": str,
}


def read_sentkit_json(
    values: Mapping[str, Any], path: Path, declared: StoredDeclaration
) -> StoredDeclaration:
    """The declaration in sentkit.json, which has priority over what the modules declare."""
    # Types and ranges.
    for name, expected in SENTKIT_JSON_TYPES.items():
        if name in values and type(values[name]) is not expected:
            problem = f'"{name}" is {values[name]!r:.40}, expected {expected.__name__}'
            raise DataError(problem, source=str(path))
    for name in ("max_length", "dim"):
        if values.get(name, 1) < 1:
            raise DataError(f'"{name}" is {values[name]}, expected 1 or more', source=str(path))
    steps = values.get("steps", [])
    check_count(steps, "steps", path)
    for step in steps:
        if not isinstance(step, str):
            raise DataError(
                f'a step is {step!r:.40}, expected a folder or "normalise"', source=str(path)
            )
        inside(path.parent, step, path)
    check_prompts(values.get("prompts", {}), str(path))

    # The fields that it has. The others stay as the modules declare them.
    with declared_in(str(path)):
        readout = parse_readout(values["readout"])
    fields = {name: values[name] for name in SENTKIT_JSON_TYPES if name in values}
    fields["readout"] = readout
    fields.pop("steps", None)
    fields["step_names"] = tuple(steps)
    fields["pooler"] = _pooler(values.get("pooler", {}), path)
    fields.setdefault("dim", None)  # without it, all numbers are kept
    declared_here = replace(declared, source="sentkit.json", **fields)
    if not declared.source:  # there are no modules
        return replace(declared_here, conflicts={})
    return replace(declared_here, conflicts=conflicts_of(declared_here, declared))


# Values that both declare in the same form. The readout and the steps can have several: a pooler
# of sentkit.json is a Dense layer of sentence-transformers.
DECLARED_TWICE = ("prompt", "dim", "max_length", "lowercase", "prompt_is_read")


def conflicts_of(declared: StoredDeclaration, of_modules: StoredDeclaration) -> dict[str, str]:
    """The values that somebody changed in one of the two, with a message for each.

    sentence-transformers reads those of the modules, so its vectors differ from those of sentkit.
    """
    conflicts = dict[str, str]()
    for name in DECLARED_TWICE:
        used = getattr(declared, name)
        other = getattr(of_modules, name)
        if used == other or (name == "max_length" and other is None):
            continue
        here = f"{json.dumps(used, ensure_ascii=False):.60}"
        there = f"{json.dumps(other, ensure_ascii=False):.60}"
        conflicts[name] = (
            f'"{name}" is {here} by sentkit.json, which is used, and {there} by the files of '
            f"sentence-transformers"
        )
    return conflicts


def _pooler(values: object, path: Path) -> Pooler:
    names = Pooler.__dataclass_fields__
    if isinstance(values, dict) and all(isinstance(values.get(name, ""), str) for name in names):
        pooler = Pooler(**{name: values[name] for name in names if name in values})
        if _is_valid(pooler):
            return pooler
    raise DataError(
        f'"pooler" is {values!r:.80}, expected activation, readout and space', source=str(path)
    )


def _is_valid(pooler: Pooler) -> bool:
    """Whether the readout goes through a pooler, and the space has a hash and a readout."""
    if pooler.readout and not (pooler.readout in NAMED and NAMED[pooler.readout].pooled):
        return False
    if pooler.lands_in:
        return bool(pooler.readout and re.fullmatch(HASH, pooler.lands_in))
    return True


def inexpressible(readout: Readout) -> str | None:
    """The reason why stock modules cannot express this readout; None if they can."""
    if readout.reduction in WK_REDUCTIONS:
        return "the readout weights the layers of each token"
    for joined_readout in readout.joined_readouts:
        name = joined_readout.reduction
        if name in PLAIN and name not in POOLING:
            return f"a Pooling module has no {name}"
    if readout.reduction == "token":
        return "the readout uses the mask token of a template"
    return None
