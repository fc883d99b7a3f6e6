"""Read the declaration in sentkit.json. It overrides modules.json, which cannot express all readouts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentkit.errors import DataError, declared_in
from sentkit.formats.checkpoints.modules import Pooler, StoredDeclaration, check_count, check_prompts, inside
from sentkit.formats.checkpoints.readout import NAMED, parse_readout
from sentkit.formats.vectors.fingerprint import is_space

SENTKIT_JSON_TYPES = {  # types of the values in sentkit.json
    **{"readout": str, "steps": list, "max_length": int, "dim": int, "lowercase": bool, "prompt": str},
    **{"prompts": dict, "prompt_is_read": bool, "template": str, "full_stop": str},
}


def read_sentkit_json(
    values: Mapping[str, Any], path: Path, declared: StoredDeclaration
) -> StoredDeclaration:
    for name, kind in SENTKIT_JSON_TYPES.items():
        if name in values and type(values[name]) is not kind:
            raise DataError(f'"{name}" is {values[name]!r:.40}, expected {kind.__name__}', source=str(path))
    for name in ("max_length", "dim"):
        if values.get(name, 1) < 1:
            raise DataError(f'"{name}" is {values[name]}, expected 1 or more', source=str(path))
    steps = values.get("steps", [])
    check_count(steps, "steps", path)
    for step in steps:
        if not isinstance(step, str):
            raise DataError(f'a step is {step!r:.40}, expected a folder or "normalise"', source=str(path))
        inside(path.parent, step, path)
    check_prompts(values.get("prompts", {}), path)
    with declared_in(str(path)):
        readout = parse_readout(values["readout"])
    return replace(
        declared,
        source="sentkit.json",
        readout=readout,
        steps=tuple(steps),
        max_length=values.get("max_length", declared.max_length),
        lowercase=values.get("lowercase", declared.lowercase),
        prompt=values.get("prompt", declared.prompt),
        prompts=values.get("prompts", declared.prompts),
        prompt_is_read=values.get("prompt_is_read", declared.prompt_is_read),
        dim=values.get("dim"),
        template=values.get("template"),
        full_stop=values.get("full_stop"),
        pooler=_pooler(values.get("pooler", {}), path),
    )


def _pooler(values: object, path: Path) -> Pooler:
    names = Pooler.__dataclass_fields__
    if not isinstance(values, dict) or not all(isinstance(values.get(name, ""), str) for name in names):
        raise DataError(f'"pooler" is {values!r:.40}, expected an object of strings', source=str(path))
    pooler = Pooler(**{name: values[name] for name in names if name in values})
    if pooler.readout and (pooler.readout not in NAMED or not NAMED[pooler.readout].pooled):
        raise DataError(f'a pooler with the readout "{pooler.readout:.40}"', source=str(path))
    if pooler.lands_in and not (pooler.readout and is_space(pooler.lands_in)):
        raise DataError(f'a pooler with the target space "{pooler.lands_in:.40}"', source=str(path))
    return pooler
