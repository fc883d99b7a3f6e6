"""The base of a run that trains a static model, such as a folder of model2vec."""

from dataclasses import dataclass, replace
from pathlib import Path

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import WORD_SETS, Checkpoint, find_model, is_static, read_checkpoint
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules
from sentkit.formats.checkpoints.readout import NAMED
from sentkit.formats.json_files import read_object_if_there
from sentkit.formats.lexicons.model2vec import Table, is_model2vec
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.reading import ReadingOptions
from sentkit.model.static.models import WordTable, read_folder
from sentkit.model.static.tokenizers import WordPieces
from sentkit.training.base import Base, open_base
from sentkit.training.recipe import Recipe
from sentkit.training.token_table import KnownTexts, TokenTable
from sentkit.transforms.steps import Normalize, Truncate

# The only values of settings about the layers of an encoder.
ONLY = {"readout": "mean", "dropout": None, "lora": None, "mlm_weight": 0.0, "precision": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBase(Base):
    table: Table
    normalize: bool  # the vector of a text has unit length

    def check_settings(self, settings: Recipe) -> None:
        for name, value in ONLY.items():
            if getattr(settings, name, value) != value:
                word = "none" if value is None else value
                problem = f"{name}={getattr(settings, name)}: {self.checkpoint.name} is a static model"
                raise UsageError(f"{problem}, which has only {name}={word}")

    def body(self, settings: Recipe | None) -> TokenTable:
        return TokenTable(self.table, normalize=self.normalize)


def open_named(name: str, max_length: int) -> Base:
    """Return the base of this name: a transformer or a static model."""
    if name == WORD_SETS or not is_static(folder := find_model(name)):
        return open_base(read_checkpoint(name), max_length)
    return open_static(folder, name, max_length)


def open_static(folder: Path, name: str, max_length: int) -> StaticBase:
    """Read a static model. `max_length` is the length of the texts in training."""
    training, finished = (
        read_folder(folder, name, ReadingOptions(max_length=length)) for length in (max_length, None)
    )
    vectors = finished.open_vectors()
    assert isinstance(vectors, WordTable), "a folder has a table"
    assert isinstance(training.tokenizer, WordPieces), "a folder has word pieces"
    assert isinstance(finished.tokenizer, WordPieces), "a folder has word pieces"
    if any(isinstance(step, Truncate) for step in finished.steps):
        raise UsageError(f"{name}: training does not support a static model that declares truncate_dim")
    normalize = any(isinstance(step, Normalize) for step in finished.steps)
    place, declared = (folder, StoredDeclaration()) if is_model2vec(folder) else read_modules(folder)
    own = read_object_if_there(folder / "sentkit.json")
    config = read_object_if_there(place / "config.json")
    declared = replace(declared, static=True, readout=NAMED["mean"])
    checkpoint = Checkpoint(name, folder, place, config, declared, own)
    return StaticBase(
        checkpoint=checkpoint,
        stored={},
        architecture=None,
        why_not_packed="a static model",
        hash=digest([vectors.hash, training.tokenizer.hash, normalize]),
        training_tokenizer=KnownTexts(training.tokenizer),
        final_tokenizer=KnownTexts(finished.tokenizer),
        dropped_steps="",
        parents=(name, *checkpoint.parents),
        table=vectors.table,
        normalize=normalize,
    )
