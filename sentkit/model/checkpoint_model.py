"""A transformer checkpoint and its reading options. Only `encoder` imports torch and loads the weights."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.rows.rows import Rejects
from sentkit.model.checkpoint.summary import portrait
from sentkit.model.reading import Reading, Wishes, plan_reading
from sentkit.model.text.batching import default_budget
from sentkit.model.text.stream import TextRow, Window, prepare

if TYPE_CHECKING:
    from sentkit.model.transformer.encoder import Encoder


class Transformer:
    def __init__(self, checkpoint: Checkpoint, wishes: Wishes, *, device: str, precision: str) -> None:
        self.checkpoint, self.device, self.precision = checkpoint, device, precision
        self.name, self.reading = checkpoint.name, plan_reading(checkpoint, wishes)
        self.notes = self.reading.notes(self.name)
        self.readouts = [readout.name for readout in self.reading.readouts]
        self.budget = default_budget(device)

    def windows(self, rows: Iterable[TextRow], rejects: Rejects, *, refuse_cut: bool) -> Iterator[Window]:
        return prepare(rows, self.reading.tokenizer, rejects, refuse_cut=refuse_cut)

    def encoder(self) -> "Encoder":
        return open_encoder(self.checkpoint, self.reading, device=self.device, precision=self.precision)

    def portrait(self) -> dict[str, Any]:
        return portrait(self.checkpoint, self.reading)


def open_encoder(checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> "Encoder":
    """Load the weights of a checkpoint and return its encoder."""
    from sentkit.model.transformer.encoder import Encoder

    return Encoder(checkpoint, reading, device=device, precision=precision)
