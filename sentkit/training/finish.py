"""The end of a run: its checkpoint, made beside the state and renamed when it is whole."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sentkit.errors import UsageError
from sentkit.formats.export import Declaration, write_folder
from sentkit.formats.readout import parse_readout
from sentkit.model.adapter import Adapter
from sentkit.model.architecture import WITH_POOLER
from sentkit.model.declaring import tanh_layer
from sentkit.model.writing import merged, write_weights
from sentkit.training.method import Method
from sentkit.training.origin import Base
from sentkit.training.state import sync_folder


def finish(method: Method, base: Base, part: Path, output: Path, lineage: Mapping[str, Any]) -> None:
    made = part / "checkpoint"
    try:
        make(made, method, base, lineage)
        if output.exists():  # -f, or it would have been refused before any work
            shutil.rmtree(output)
        made.rename(output)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(output)) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    sync_folder(output.resolve().parent)


def make(folder: Path, method: Method, base: Base, lineage: Mapping[str, Any]) -> None:
    """The whole checkpoint, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    heads = method.heads()
    write_folder(
        folder,
        replace(base.checkpoint, config=base.checkpoint.config | method.own_config()),
        declaration_of(method, base),
        lineage,
        write_weights=partial(write_weights, tensors=tensors_of(method, base)),
        write_heads=partial(write_weights, tensors=heads) if heads else None,
    )


def tensors_of(method: Method, base: Base) -> dict[str, Tensor]:
    """The checkpoint's tensors: the trained encoder, what the method adds, and what the base held beside."""
    body = method.body
    if isinstance(body, Adapter) or base.architecture is None:
        return body.tensors()
    trained = body.tensors() | method.own_tensors()
    pooler = method.pooler()
    if pooler is not None and base.architecture.family in WITH_POOLER:
        trained |= {"pooler.dense.weight": pooler.weight, "pooler.dense.bias": pooler.bias}
    return merged(base.stored, trained, base.architecture)


def declaration_of(method: Method, base: Base) -> Declaration:
    readout, pooler = parse_readout(method.readout(method.settings)), method.pooler()
    if readout.reduction == "pooler":
        check_pooler(base)
    return Declaration(
        readout=readout,
        width=method.body.width,
        depth=method.body.depth,
        max_length=base.reading.max_length,
        prompt=base.reading.prompt,
        lowercase=base.reading.lowercase,
        pooler=tanh_layer(pooler) if readout.reduction == "pooler" and pooler is not None else None,
    )


def check_pooler(base: Base) -> None:
    """A UsageError where the base is of a family without a pooler to keep the head in."""
    if base.architecture is None or base.architecture.family not in WITH_POOLER:
        kind = base.why_not_packed or f'"{base.architecture and base.architecture.family}"'
        raise UsageError(f"its head is kept as the pooler, and {kind} has none")
