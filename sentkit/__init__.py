"""sentkit: sentence embeddings as small Unix commands over rows of text and vectors.

The public Python interface is one class:

    # The weights load at the first use.
    encoder = sentkit.Encoder("nano", readout="mean", device="cpu")
    encoder.encode(["a cat", "a dog"])  # (2, 256) float32, the vectors of `sentkit encode`
    encoder.space  # the field `_emb` of these vectors, such as "nano/mean:9d4f15b0f4f7"
    dataset.map_batches(encoder, batch_size=4096)  # Ray Data: adds the columns "embedding" and
    "_emb"
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentkit.encoder import Encoder as Encoder

__version__ = "0.1.0"
__all__ = ["Encoder", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the class when it is used, because commands start faster without numpy."""
    if name != "Encoder":
        raise AttributeError(f"module 'sentkit' has no attribute '{name}'")
    from sentkit.encoder import Encoder

    return Encoder


def __dir__() -> list[str]:
    """The names of the module, with that of the class before its import."""
    return sorted({*globals(), *__all__})
