"""Writes the checkpoint of a finished run in the folder of the state and renames it when complete."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sentkit.formats.checkpoints.export import DeclarationToWrite, write_folder, write_static_folder
from sentkit.formats.checkpoints.model_card import card
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.outputs.temporary import publish_folder
from sentkit.model.checkpoint.declaration import build_declaration
from sentkit.model.checkpoint.save_weights import merged, write_weights
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import WITH_POOLER
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.method import Finished, Method, readout_of, template_of
from sentkit.training.run_folders import LOG
from sentkit.training.token_table import TokenTable

NEW_FOLDER = "checkpoint"  # name of the new checkpoint in the folder of the state


def save_checkpoint(
    method: Method,
    base: Base,
    part: Path,
    output: Path,
    lineage: Mapping[str, Any],
    readout: str | None = None,  # None: the readout of the method
    *,
    force: bool = False,  # replace an existing folder
) -> None:
    folder = part / NEW_FOLDER
    try:
        write_checkpoint(folder, method, base, lineage, readout or readout_of(method))
        if (part / LOG).is_file():
            shutil.copyfile(part / LOG, folder / LOG)
        publish_folder(folder, output, force=force, name=str(output))
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
    write = write_static if isinstance(method.body, TokenTable) else write_transformer
    width, stock = write(folder, method, base, lineage, readout)
    text = card(lineage, readout, width=width, max_length=base.final_tokenizer.max_length, stock=stock)
    (folder / "README.md").write_text(text, encoding="utf-8")


def write_transformer(
    folder: Path, method: Method, base: Base, lineage: Mapping[str, Any], readout: str
) -> tuple[int, bool]:
    """Write the files. Return the width of vectors, and whether sentence-transformers reads the folder."""
    finished = method.finished()
    declaration = declare_trained(method, finished, base, parse_readout(readout))
    write_folder(
        folder,
        replace(base.checkpoint, config=base.checkpoint.config | finished.config),
        declaration,
        lineage,
        write_weights=partial(write_weights, tensors=tensors_of(method, finished, base)),
        write_heads=partial(write_weights, tensors=finished.heads) if finished.heads else None,
    )
    return declaration.width, declaration.inexpressible is None


def write_static(
    folder: Path, method: Method, base: Base, lineage: Mapping[str, Any], readout: str
) -> tuple[int, bool]:
    """Do the same for a static model. A linear map after the mean is equal to a map of each token vector."""
    assert isinstance(method.body, TokenTable), "the body of a static base"
    table, finished = method.body.table(), method.finished()
    for step in finished.steps:
        table = replace(table, rows=step(table.rows))
    write_static_folder(folder, base.checkpoint, table, {"readout": readout, **lineage})
    if finished.heads:
        write_weights(folder / "heads.safetensors", finished.heads)
    return table.rows.shape[1], (folder / "modules.json").is_file()


def tensors_of(method: Method, finished: Finished, base: Base) -> dict[str, Tensor]:
    """Return the trained encoder, the tensors of the method and the other tensors of the base."""
    if finished.whole:
        return finished.tensors
    body, pooler = method.body, finished.pooler
    assert isinstance(body, Bert | TransformersModel), "write_static writes tables"
    if isinstance(body, TransformersModel) or base.architecture is None:
        return body.tensors()
    trained = body.tensors() | finished.tensors
    if pooler is not None and base.architecture.family in WITH_POOLER:
        trained |= {"pooler.dense.weight": pooler.weight, "pooler.dense.bias": pooler.bias}
    return merged(base.stored, trained, base.architecture)


def declare_trained(method: Method, finished: Finished, base: Base, readout: Readout) -> DeclarationToWrite:
    if readout.pooled:
        base.check_pooler()
    body, trained, description = method.body, finished.pooler, Pooler()
    assert isinstance(body, Bert | TransformersModel), "write_static writes tables"
    assert isinstance(base.final_tokenizer, Tokenizer), "the same"
    in_template = readout.reduction == "token"
    of_body = body.pooler if isinstance(body, Bert) else None
    if base.architecture is not None and base.architecture.family in WITH_POOLER:
        # Without a new pooler, the description of the base stays, but training changed the space.
        of_base = replace(base.checkpoint.declared.pooler, lands_in="")
        description = of_base if trained is None else finished.pooler_note
    return build_declaration(
        body,
        readout,
        base.final_tokenizer_with(template_of(method.settings)) if in_template else base.final_tokenizer,
        pooler=trained or of_body,
        pooler_note=description,
        prompts=base.checkpoint.declared.prompts,
        steps=finished.steps,
    )
