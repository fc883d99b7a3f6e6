"""Read checkpoint folders: their files, their configuration and their declared readout.

This module does not open tensors, because that needs torch.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.checkpoints.hub import find_model
from sentkit.formats.checkpoints.lora import adapter_alone, is_adapter
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules
from sentkit.formats.checkpoints.sentkit_json import read_sentkit_json
from sentkit.formats.json_files import is_there, read_object, read_object_if_there
from sentkit.formats.lexicons.model2vec import is_model2vec

WORD_SETS = "words:binary"  # a model without files
# Their files do not declare that the readout excludes the prompt.
INSTRUCTORS = ("hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str  # as given on the command line
    folder: Path
    transformer: Path  # contains config.json, weights and tokenizer; usually the same as `folder`
    config: dict[str, Any]
    declared: StoredDeclaration
    lineage: dict[str, Any]  # the rest of sentkit.json: method, settings, parents, scores

    @property
    def config_file(self) -> str:
        return str(self.transformer / "config.json")

    @property
    def parents(self) -> list[str]:
        """The known checkpoints that this one was trained from, the nearest first."""
        parents = self.lineage.get("parents")
        return [str(parent) for parent in parents] if isinstance(parents, list) else []

    def weights(self) -> list[Path]:
        return weight_files(self.transformer, self.name)


def weight_files(folder: Path, name: str) -> list[Path]:
    """The weight files of a transformer. Safetensors take priority over pickles; an index lists shards."""
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return shards(folder / index)
    if is_adapter(folder):
        raise adapter_alone(folder, name)
    raise NoInputError(f"{name}: has no model.safetensors and no pytorch_model.bin")


def shards(index: Path) -> list[Path]:
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(n, str) for n in names.values()):
        raise DataError("expected a weight_map of file names", source=str(index))
    files = [index.parent / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != index.parent or not is_there(file):
            raise DataError(f'file "{file.name}" is missing', source=str(index))
    return files


def read_checkpoint(name: str) -> Checkpoint:
    """Read a transformer checkpoint; a static model is a UsageError."""
    folder = None if name == WORD_SETS else find_model(name)
    if folder is None or is_static(folder):
        others = "" if folder is None else ", and train -m"
        raise UsageError(
            f"{name}: is a static model, which only encode, search, report and inspect support{others}"
        )
    return checkpoint_in(folder, name)


def is_static(folder: Path) -> bool:
    return is_model2vec(folder) or read_modules(folder)[1].static


def checkpoint_in(folder: Path, name: str) -> Checkpoint:
    transformer, declared = read_modules(folder)
    if name.partition("@")[0] in INSTRUCTORS:
        declared = replace(declared, prompt_is_read=False)
    own = read_object_if_there(folder / "sentkit.json")
    if "readout" in own:
        declared = read_sentkit_json(own, folder / "sentkit.json", declared)
    if not is_there(transformer / "config.json"):
        if is_adapter(transformer):
            raise adapter_alone(transformer, name)
        raise NoInputError(f"{name}: is not a checkpoint: it has no config.json")
    return Checkpoint(name, folder, transformer, read_object(transformer / "config.json"), declared, own)
