"""Makes checkpoint folders, and fills them with the files of their base or with a static model.

`model/checkpoint/export.py` writes the declaration and the weights of transformers.
"""

import errno
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, with_end_token
from sentkit.formats.checkpoints.modules import PROMPTS
from sentkit.formats.files import read_object, write_json
from sentkit.formats.lexicons.model2vec import Table, write_table
from sentkit.formats.outputs.temporary import private_folder, publish_folder

BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "LICENSE*")
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", PROMPTS}
INDEXES = {"model.safetensors.index.json", "pytorch_model.bin.index.json"}
# Most errors of a write have no name of a file.
ERRORS_OF_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@contextmanager
def new_folder(path: str, *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` at the end. `force` replaces a folder of
    sentkit.
    """
    if path == "-":  # unlike ./-
        raise UsageError("-o -: a folder cannot be written to standard output")
    name = str(Path(path))
    target = Path(path).resolve()
    is_checkpoint = (target / "sentkit.json").is_file()
    if target.exists() and not is_checkpoint:
        problem = f"{name}: already exists and is not a checkpoint of sentkit"
        raise CannotCreateError(problem, advice="choose another -o")
    if target.exists() and not force:
        raise CannotCreateError(f"{name}: already exists", advice="use -f to overwrite it")
    if Path.cwd().is_relative_to(target):
        raise CannotCreateError(f"{name}: is the current folder, which cannot be replaced")
    target.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(target, name) as temporary:
        try:
            yield temporary
        except OSError as error:
            if error.errno is None or not is_error_of_output(error, temporary):
                raise
            raise OSError(error.errno, error.strerror, name) from error
        publish_folder(temporary, target, force=force, name=name)


def is_error_of_output(error: OSError, temporary: Path) -> bool:
    """Return true if writing to the temporary folder failed, and not reading another file."""
    path = error.filename2 or error.filename  # of a copy, the second file is written
    if path is None:
        return error.errno in ERRORS_OF_WRITES
    return temporary in Path(str(path)).parents


def copy_files(source: Path, folder: Path, patterns: Iterable[str], but: Set[str]) -> None:
    """Copy the files that match the patterns to the same places in another folder."""
    # All names first: the other folder can be in this one.
    files = [file for pattern in patterns for file in source.glob(pattern)]
    for file in files:
        if file.is_file() and file.name not in but:
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def carry(
    checkpoint: Checkpoint, folder: Path, patterns: Sequence[str], but: Set[str] = REWRITTEN
) -> None:
    """Copy the files of the transformer that match the patterns."""
    copy_files(checkpoint.transformer_folder, folder, patterns, but)
    if (folder / "tokenizer.json").is_file():
        rules = read_object(folder / "tokenizer.json")
        changed_rules = with_end_token(rules, checkpoint.transformer_folder)
        if changed_rules is not rules:
            write_json(folder / "tokenizer.json", changed_rules)


def write_static_folder(
    folder: Path, checkpoint: Checkpoint, table: Table, lineage: Mapping[str, Any]
) -> None:
    """Fill an empty folder with a static model: a new table in its type, and the other files of its
    base.
    """
    patterns = [f"**/{pattern}" for pattern in BESIDE_WEIGHTS]
    copy_files(checkpoint.folder, folder, patterns, but={"sentkit.json", *INDEXES})
    table_folder = folder / checkpoint.transformer_folder.relative_to(checkpoint.folder)
    write_table(table_folder, checkpoint.transformer_folder, table)
    config_path = table_folder / "config.json"
    if config_path.is_file():
        config = dict(checkpoint.config)
        if "hidden_dim" in config:
            config["hidden_dim"] = table.rows.shape[1]
        if "embedding_dtype" in config:
            config["embedding_dtype"] = table.rows.dtype.name
        write_json(config_path, config)
    write_json(folder / "sentkit.json", lineage)
