"""Writes the checkpoint of a trained method."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sentkit.formats.checkpoints.card import card
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.checkpoints.writing import write_static_folder
from sentkit.model.checkpoint.export import (
    Declaration,
    config_of_encoder,
    has_task_head,
    merged,
    without_task_head,
    write_card,
    write_folder,
    write_weights,
)
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.families import WITH_POOLER
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.method import Finished, Method, checked_finished, first_readout, template_of
from sentkit.training.static_body import TokenTable


def write_checkpoint(
    folder: Path, method: Method, base: Base, lineage: Mapping[str, Any], readout: str | None = None
) -> None:
    """Write the complete checkpoint to a new folder; by default with the readout of the method."""
    if readout is None:
        readout = first_readout(type(method), base, method.settings)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    finished = checked_finished(method, method.finished())
    if finished.heads:
        write_weights(folder / "heads.safetensors", finished.heads)
    if isinstance(method.body, TokenTable):
        write_static(folder, method.body, finished, base, lineage, readout)
        return
    template = template_of(method.settings)
    declaration = declare_trained(method.body, template, finished, base, parse_readout(readout))
    config = base.checkpoint.config
    if has_task_head(config):  # the head of the base does not fit the trained encoder
        config = config_of_encoder(config, method.body)
    write_folder(
        folder,
        replace(base.checkpoint, config=config | finished.config),
        declaration,
        lineage,
        tensors_of(method.body, finished, base),
    )
    write_card(folder, lineage, declaration)


def write_static(
    folder: Path,
    body: TokenTable,
    finished: Finished,
    base: Base,
    lineage: Mapping[str, Any],
    readout: str,
) -> None:
    """Write the table of a static model, with its card."""
    table = body.table()
    # A linear map after the mean is equal to a map of each token vector
    for step in finished.steps:
        table = replace(table, rows=step(table.rows))
    write_static_folder(folder, base.checkpoint, table, {"readout": readout, **lineage})
    text = card(
        lineage,
        readout,
        width=table.rows.shape[1],
        max_length=base.final_tokenizer.max_length,
        stock=(folder / "modules.json").is_file(),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def tensors_of(body: Bert | TransformersModel, finished: Finished, base: Base) -> dict[str, Tensor]:
    """Return the trained encoder, the tensors of the method and the other tensors of the base, but
    not those of a classification head.
    """
    if finished.whole:
        return finished.tensors
    if isinstance(body, TransformersModel) or base.architecture is None:
        return body.tensors()
    trained = body.tensors() | finished.tensors
    if finished.pooler is not None and base.architecture.family in WITH_POOLER:
        trained["pooler.dense.weight"] = finished.pooler.weight
        trained["pooler.dense.bias"] = finished.pooler.bias
    stored = base.stored
    if has_task_head(base.checkpoint.config):
        stored = without_task_head(stored, base.architecture)
    return merged(stored, trained, base.architecture)


def declare_trained(
    body: Bert | TransformersModel,
    template: str | None,
    finished: Finished,
    base: Base,
    readout: Readout,
) -> Declaration:
    """Return the readout and the input settings of the checkpoint."""
    if readout.pooled:
        base.check_pooler()

    tokenizer = base.final_tokenizer
    if readout.reduction == "token":
        tokenizer = base.final_tokenizer_with(template)
    assert isinstance(tokenizer, Tokenizer), "of a base that is not static"
    if base.prompt_of_side:
        tokenizer = tokenizer.with_prompt(base.checkpoint.declaration.prompt)

    # The pooler: a new one of the method, or that of the base.
    pooler = finished.pooler
    if pooler is None and isinstance(body, Bert):
        pooler = body.pooler
    pooler_note = Pooler()
    if base.architecture is not None and base.architecture.family in WITH_POOLER:
        if finished.pooler is None:  # the description of the base, but training changed the space
            pooler_note = replace(base.checkpoint.declaration.pooler, lands_in="")
        else:
            pooler_note = finished.pooler_note
    return Declaration(
        body,
        readout,
        tokenizer,
        pooler=pooler,
        pooler_note=pooler_note,
        prompts=base.prompts,
        steps=finished.steps,
    )
