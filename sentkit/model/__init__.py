"""Text -> vectors. `open_encoder` is the door: torch is imported behind it, and nobody outside need know."""

from typing import TYPE_CHECKING

from sentkit.formats.checkpoints import Checkpoint
from sentkit.model.reading import Reading

if TYPE_CHECKING:
    from sentkit.model.encoder import Encoder


def open_encoder(checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> "Encoder":
    """The checkpoint with its weights loaded, ready to turn tokens into vectors."""
    from sentkit.model.encoder import Encoder

    return Encoder(checkpoint, reading, device=device, precision=precision)
