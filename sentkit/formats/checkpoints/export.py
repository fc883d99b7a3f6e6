"""Write checkpoint folders in the format of Hugging Face, with the old schema of sentence-transformers.

All versions of sentence-transformers read the old schema with its six pooling booleans. A readout that stock
modules cannot express gets no modules.json, because an incomplete one would give wrong vectors.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.end_token import with_end_token
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.lora import CONFIG as ADAPTER_CONFIG
from sentkit.formats.checkpoints.lora import WEIGHTS as ADAPTER_WEIGHTS
from sentkit.formats.checkpoints.modules import PROMPTS, Pooler
from sentkit.formats.checkpoints.stock_modules import (
    DeclarationToWrite,
    write_modules,
    write_prompts,
    write_steps,
)
from sentkit.formats.json_files import read_object, write_json
from sentkit.formats.lexicons.model2vec import Table, write_table
from sentkit.formats.outputs.temporary import private_folder, publish_folder

BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "LICENSE*")
CARRIED = (*BESIDE_WEIGHTS, "*.md", "model*.safetensors", "pytorch_model*.bin", *ADAPTER_WEIGHTS)
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", PROMPTS}
INDEXES = {"model.safetensors.index.json", "pytorch_model.bin.index.json"}


def export_checkpoint(
    checkpoint: Checkpoint,
    folder: Path,
    declaration: DeclarationToWrite,
    lineage: Mapping[str, Any],
    *,
    force: bool,
) -> None:
    """Copy the files of a checkpoint to a new folder with a new declaration. See `new_folder`."""
    with new_folder(folder, force=force) as part:
        # Keep the tensors of the heads, because later training can need them.
        carry(checkpoint, part, CARRIED)
        declare(part, checkpoint.config, declaration, lineage)


def write_folder(
    folder: Path,
    checkpoint: Checkpoint,
    declaration: DeclarationToWrite,
    lineage: Mapping[str, Any],
    *,
    write_weights: Callable[[Path], None],
    write_heads: Callable[[Path], None] | None = None,
) -> None:
    """Fill an empty folder with a trained checkpoint: new float32 weights, and the other files of its base.

    The README of the base is not copied, because it describes another model.
    """
    carry(
        checkpoint, folder, BESIDE_WEIGHTS, but=REWRITTEN | INDEXES | {ADAPTER_CONFIG}
    )  # the trained weights include the adapter
    write_weights(folder / "model.safetensors")
    if write_heads is not None:
        write_heads(folder / "heads.safetensors")
    # transformers uses this dtype and ignores the dtype in the weights file.
    config = {name: value for name, value in checkpoint.config.items() if name != "torch_dtype"}
    config["dtype"] = "float32"
    write_json(folder / "config.json", config)
    declare(folder, config, declaration, lineage)


def write_static_folder(
    folder: Path, checkpoint: Checkpoint, table: Table, lineage: Mapping[str, Any]
) -> None:
    """Fill an empty folder with a trained static model: a new float32 table, and the other files of its base.

    Programs that read the base can therefore read it.
    """
    for pattern in BESIDE_WEIGHTS:
        for file in checkpoint.folder.rglob(pattern):
            if file.is_file() and file.name not in ("sentkit.json", *INDEXES):
                copy = folder / file.relative_to(checkpoint.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    place = folder / checkpoint.transformer.relative_to(checkpoint.folder)
    write_table(place, checkpoint.transformer, table)
    if (place / "config.json").is_file():
        of_table = {"hidden_dim": table.rows.shape[1], "embedding_dtype": "float32"}
        own = {name: value for name, value in of_table.items() if name in checkpoint.config}
        write_json(place / "config.json", checkpoint.config | own)
    write_json(folder / "sentkit.json", lineage)


@contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `folder` at the end. `force` replaces a folder of sentkit."""
    name, folder = folder, folder.resolve()
    if folder.exists() and not (force and (folder / "sentkit.json").is_file()):
        if (folder / "sentkit.json").is_file():
            raise CannotCreateError(f"{name}: already exists", advice="use -f to overwrite it")
        problem = f"{name}: already exists and is not a checkpoint of sentkit"
        raise CannotCreateError(problem, advice="choose another -o")
    if Path.cwd().is_relative_to(folder):
        raise CannotCreateError(f"{name}: is the current folder, which cannot be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(folder, str(name)) as part:
        yield part
        publish_folder(part, folder, force=force, name=str(name))


def carry(checkpoint: Checkpoint, folder: Path, patterns: Sequence[str], but: Set[str] = REWRITTEN) -> None:
    """Copy the files of the transformer that match the patterns."""
    for pattern in patterns:
        for file in checkpoint.transformer.glob(pattern):
            if file.is_file() and file.name not in but:
                shutil.copyfile(file, folder / file.name)
    if (folder / "tokenizer.json").is_file():
        rules = read_object(folder / "tokenizer.json")
        changed = with_end_token(rules, checkpoint.transformer)
        if changed is not rules:
            write_json(folder / "tokenizer.json", changed)


def declare(
    folder: Path, config: Mapping[str, Any], declaration: DeclarationToWrite, lineage: Mapping[str, Any]
) -> None:
    """Write the declaration files of a checkpoint: sentkit.json, and modules.json if possible."""
    pooler = [] if declaration.pooler is None else [declaration.pooler]
    behind_states = write_steps(folder, [*pooler, *declaration.steps])
    write_json(
        folder / "sentkit.json",
        {
            "readout": declaration.readout.name,
            **({"template": declaration.template} if declaration.template else {}),
            **({"pooler": asdict(note)} if (note := declaration.pooler_note) != Pooler() else {}),
            "full_stop": declaration.full_stop,
            "steps": behind_states[len(pooler) :],  # the readout `pooler` includes this layer
            **({"dim": declaration.dim} if declaration.dim else {}),
            "prompt": declaration.prompt,
            **({"prompts": declaration.prompts} if declaration.prompts else {}),
            **({} if declaration.prompt_is_read else {"prompt_is_read": False}),
            "max_length": declaration.max_length,
            "lowercase": declaration.lowercase,
            **lineage,
        },
    )
    lengths = {"max_seq_length": declaration.max_length, "do_lower_case": declaration.lowercase}
    # Without this, transformers initialises a random pooler and warns. All versions of sentence-transformers
    # accept this old name of the argument.
    without = {"model_args": {"add_pooling_layer": False}} if declaration.lacks_pooler else {}
    write_json(folder / "sentence_bert_config.json", lengths | without)
    if declaration.inexpressible is None:
        layers = declaration.readout.resolved(declaration.depth)
        averaged = layers != (declaration.depth,)
        # sentence-transformers passes the layers on only if output_hidden_states is set.
        write_json(folder / "config.json", {**config, **({"output_hidden_states": True} if averaged else {})})
        write_modules(folder, declaration, behind_states, layers if averaged else ())
        write_prompts(folder, declaration)
