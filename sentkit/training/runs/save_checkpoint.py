"""Writes the checkpoint of a finished run in the folder of the state and renames it when complete."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sentkit.formats.checkpoints.export import write_folder
from sentkit.formats.checkpoints.model_card import card
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.checkpoints.stock_modules import DeclarationToWrite
from sentkit.formats.outputs.temporary import publish_folder
from sentkit.model.checkpoint.declaration import build_declaration
from sentkit.model.checkpoint.save_weights import merged, write_weights
from sentkit.model.transformer.adapter import Adapter
from sentkit.model.transformer.architecture import WITH_POOLER
from sentkit.training.base import Base
from sentkit.training.method import Method

MADE = "checkpoint"  # name of the new checkpoint in the folder of the state


def save_checkpoint(
    method: Method,
    base: Base,
    part: Path,
    output: Path,
    lineage: Mapping[str, Any],
    readout: str | None = None,  # None: the readout of the method
) -> None:
    folder = part / MADE
    try:
        write_checkpoint(folder, method, base, lineage, readout or method.readout(method.settings))
        publish_folder(folder, output)  # only -f replaces a folder; this is checked at the start
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(output)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_checkpoint(
    folder: Path, method: Method, base: Base, lineage: Mapping[str, Any], readout: str
) -> None:
    """Write the complete checkpoint to a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    heads, declaration = method.heads(), declare_trained(method, base, parse_readout(readout))
    write_folder(
        folder,
        replace(base.checkpoint, config=base.checkpoint.config | method.own_config()),
        declaration,
        lineage,
        write_weights=partial(write_weights, tensors=tensors_of(method, base)),
        write_heads=partial(write_weights, tensors=heads) if heads else None,
    )
    text = card(
        lineage,
        readout,
        width=declaration.width,
        max_length=declaration.max_length,
        stock=declaration.inexpressible is None,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def tensors_of(method: Method, base: Base) -> dict[str, Tensor]:
    """Return the trained encoder, the tensors of the method and the other tensors of the base."""
    body, whole = method.body, method.whole_model()
    if whole:
        return whole
    if isinstance(body, Adapter) or base.architecture is None:
        return body.tensors()
    trained = body.tensors() | method.own_tensors()
    pooler = method.pooler()
    if pooler is not None and base.architecture.family in WITH_POOLER:
        trained |= {"pooler.dense.weight": pooler.weight, "pooler.dense.bias": pooler.bias}
    return merged(base.stored, trained, base.architecture)


def declare_trained(method: Method, base: Base, readout: Readout) -> DeclarationToWrite:
    if readout.pooled:
        base.check_pooler()
    in_template = readout.reduction == "token"
    layer, description = method.pooler(), Pooler()
    if base.architecture is not None and base.architecture.family in WITH_POOLER:
        # Without a new pooler, the description of the base stays, but training changed the space.
        of_base = replace(base.checkpoint.declared.pooler, lands_in="")
        description = of_base if layer is None else method.pooler_note()
    return build_declaration(
        method.body,
        readout,
        base.through(method.template(method.settings)) if in_template else base.reading,
        pooler=layer,
        pooler_note=description,
        prompts=base.checkpoint.declared.prompts,
        steps=method.steps(),
    )
