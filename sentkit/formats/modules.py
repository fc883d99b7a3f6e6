"""What a checkpoint declares: the modules of sentence-transformers, old schema and new, as readout and steps.

A module that would change the vectors and is not known here is refused by name: half a pipeline gives vectors
that look right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.jsonfiles import read_json, read_object, read_object_if_there
from sentkit.formats.readout import NAMED, Readout, parse_readout
from sentkit.formats.tensors import read_array

# The key of the old schema: the word of the new one.
POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Declared:
    source: str = ""  # the file that says so; empty where a checkpoint says nothing
    readout: Readout | None = None
    steps: tuple[str, ...] = ()  # after the readout, in order: "normalise", or the folder of a dense layer
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""  # set before every text
    prompt_is_read: bool = True  # False: the readout leaves the prefix's tokens out
    template: str | None = None  # of the readout `prompt`
    full_stop: str = "none"


def read_modules(folder: Path) -> tuple[Path, Declared]:
    """The folder of the transformer, and what modules.json and its companions declare."""
    listing = folder / "modules.json"
    if not listing.is_file():
        return folder, _transformer(folder, Declared())
    modules = read_json(listing)
    if not isinstance(modules, list) or not all(_is_module(module) for module in modules):
        raise DataError('expected a list of modules, each with "type" and "path"', source=str(listing))
    found = Declared(source="modules.json")
    transformer, averaged = folder, None
    for module in modules:
        kind, place = module["type"].rpartition(".")[2], _inside(folder, module["path"], listing)
        if kind == "Transformer":
            transformer = place
            found = _transformer(place, found)
        elif kind == "WeightedLayerPooling":
            averaged = _averaged_layers(place)
        else:
            found = _apply(found, kind, module["path"], place, averaged)
    return transformer, _prompted(found, read_object_if_there(folder / "config_sentence_transformers.json"))


def _is_module(module: object) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(key), str) for key in ("type", "path"))


def _inside(folder: Path, path: str, listing: Path) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise DataError(f'a module at "{path}", outside the folder', source=str(listing))
    return folder / path


def _apply(found: Declared, kind: str, path: str, place: Path, averaged: Sequence[int] | None) -> Declared:
    match kind:
        case "Pooling":
            config = read_object(place / "config.json")
            readout = _with_layers(_pooling(config, place), averaged, place)
            return replace(
                found, readout=readout, prompt_is_read=config.get("include_prompt", True) is not False
            )
        case "Dense":
            return replace(found, steps=(*found.steps, path))
        case "Normalize":
            return replace(found, steps=(*found.steps, "normalise"))
        case "Dropout":  # idle outside training
            return found
    raise DataError(f"a module {kind}, which sentkit cannot run", source=str(place))


def _pooling(config: Mapping[str, Any], place: Path) -> Readout:
    modes = config.get("pooling_mode", [word for key, word in POOLING.items() if config.get(key)] or "mean")
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) == 1 and modes[0] in ("cls", "mean", "max"):
        return NAMED[modes[0]]
    raise DataError(f"pooling {' + '.join(map(str, modes))}, which sentkit cannot run", source=str(place))


def _averaged_layers(place: Path) -> list[int]:
    """The layers of a WeightedLayerPooling, all of one weight."""
    config = read_object(place / "config.json")
    weights = read_array(place / "model.safetensors", "layer_weights").tolist()
    start = config.get("layer_start")
    used = [weight for weight in weights if weight]
    if type(start) is not int or not used or any(weight != used[0] for weight in used):
        raise DataError("layers of unequal weight, which sentkit cannot run", source=str(place))
    return [start + k for k, weight in enumerate(weights) if weight]


def _with_layers(pooling: Readout, layers: Sequence[int] | None, place: Path) -> Readout:
    """The readout that averages these layers, by its name where it has one."""
    if layers is None:
        return pooling
    if pooling.reduction == "max" and len(layers) > 1:
        raise DataError("the maximum over averaged layers, which sentkit cannot run", source=str(place))
    name = "+".join(f"L{k}" for k in layers) + f":{pooling.reduction}"
    return Readout(name, tuple(layers), pooling.reduction)


def _transformer(folder: Path, found: Declared) -> Declared:
    """Length and lower-casing: sentence-transformers' own file before the tokenizer's."""
    own = read_object_if_there(folder / "sentence_bert_config.json")
    tokenizer = read_object_if_there(folder / "tokenizer_config.json")
    lengths = [own.get("max_seq_length"), tokenizer.get("model_max_length")]
    length = next((n for n in lengths if isinstance(n, int | float) and 0 < n < 1e9), None)
    lowercase = own.get("do_lower_case") is True
    return replace(found, max_length=None if length is None else int(length), lowercase=lowercase)


def _prompted(found: Declared, config: Mapping[str, Any]) -> Declared:
    prompts, name = config.get("prompts"), config.get("default_prompt_name")
    prompt = prompts.get(name, "") if isinstance(prompts, dict) and isinstance(name, str) else ""
    return replace(found, prompt=prompt) if isinstance(prompt, str) else found


def read_own(values: Mapping[str, Any], path: Path, found: Declared) -> Declared:
    """What sentkit.json declares: it rules over modules.json, which cannot say everything."""
    expected = {"readout": str, "steps": list, "max_length": int, "lowercase": bool, "prompt": str}
    for name, kind in {**expected, "template": str, "full_stop": str}.items():
        if name in values and not isinstance(values[name], kind):
            raise DataError(f'"{name}" is {values[name]!r:.40}, expected {kind.__name__}', source=str(path))
    return replace(
        found,
        source="sentkit.json",
        readout=parse_readout(values["readout"]),
        steps=tuple(str(step) for step in values.get("steps", ())),
        max_length=values.get("max_length", found.max_length),
        lowercase=values.get("lowercase", found.lowercase),
        prompt=values.get("prompt", found.prompt),
        template=values.get("template"),
        full_stop=values.get("full_stop", "none"),
    )
