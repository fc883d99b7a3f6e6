"""Takes texts and a model name and returns vectors. `find_encoder`, the entry point, imports no torch."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import NoInputError
from sentkit.formats.checkpoints.folders import WORD_SETS, checkpoint_in, is_static
from sentkit.formats.checkpoints.hub import BUNDLED, find_model
from sentkit.formats.json_files import exists, is_folder
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.fingerprint import Spec
from sentkit.model.reading import Wishes
from sentkit.model.text.stream import Tally, TextRow, Window
from sentkit.model.text.tokenizer import Tokens

WORD_FILES = (".txt", ".vec", ".bin", ".gz", ".zst")  # no folder and no model of the hub is called so


class Encoder(Protocol):
    """Tokens -> vectors."""

    specs: list[Spec]  # of each readout: where its vectors come from
    width: int
    notes: list[str]  # what a person should be told before

    @property
    def device(self) -> object: ...

    @property
    def precision(self) -> str: ...

    @property
    def budget(self) -> int:
        """Tokens in a batch."""
        ...

    def __call__(self, batch: Sequence[Tokens]) -> list[NDArray[np.float32]]: ...  # (b, width) a readout

    def remarks(self, tally: Tally) -> list[str]:
        """What a person should be told when all is done."""
        ...


class Model(Protocol):
    """A model that was found, and how it will be read; its weights may not be loaded yet."""

    @property
    def name(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def readouts(self) -> Sequence[str]: ...

    @property
    def budget(self) -> int: ...

    def windows(self, rows: Iterable[TextRow], rejects: Rejects, *, refuse_cut: bool) -> Iterator[Window]:
        """The rows with their tokens."""
        ...

    def encoder(self) -> Encoder: ...

    def portrait(self) -> dict[str, Any]:
        """What it is, for `inspect`."""
        ...


def find_encoder(name: str, wishes: Wishes, *, device: str = "auto", precision: str = "auto") -> Model:
    """The model of that name, be it static or one that runs through layers."""
    from sentkit.model.checkpoint_model import Transformer
    from sentkit.model.static import loaders

    file = name != BUNDLED and exists(Path(name)) and not is_folder(Path(name))
    if not file and Path(name).suffix in WORD_FILES:
        raise NoInputError(f"{name}: no such file")
    folder = None if file or name == WORD_SETS else find_model(name)
    if folder is not None and not is_static(folder):
        return Transformer(checkpoint_in(folder, name), wishes, device=device, precision=precision)
    loaders.check_machine(device, precision)
    if folder is not None:
        return loaders.read_folder(folder, name, wishes)
    return loaders.read_vectors(name, wishes) if file else loaders.read_sets(wishes)
