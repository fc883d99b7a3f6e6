"""A static model in training: its table of token vectors, and the texts that it can encode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.lexicons.model2vec import Table
from sentkit.model.static.tokenizers import WordPieces
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import Convolution, Disturb, mean
from sentkit.model.transformer.weights import as_float32

EMPTY = "the text has no known tokens"


class TokenTable(nn.Module):
    """Returns the vector of each token, with the interface of `Bert`. It has no layers after X(0).

    With `normalize`, the vectors of a text are divided by the length of their mean. The readout `mean` is
    then the vector of unit length that `encode` writes.
    """

    depth = 0
    has_pooler = False
    convolution: Convolution | None = None

    def __init__(self, table: Table, *, normalize: bool) -> None:
        super().__init__()
        rows = scaled(table) if normalize else table.rows
        weights, places = table.weights, table.places
        self.width, self.normalize = rows.shape[1], normalize
        self.rows = nn.Parameter(torch.tensor(rows))
        self.weights = None if weights is None else nn.Parameter(torch.tensor(weights))
        self.register_buffer("places", None if places is None else torch.tensor(places), persistent=False)

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Disturb | None = None,
        only: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0), (n, d)."""
        assert disturb is None, "no method for static models changes X(0)"
        assert only is None, "no readout of X(0) reads single rows"
        places = self.get_buffer("places") if self.places is not None else None
        vectors = nn.functional.embedding(packed.ids if places is None else places[packed.ids], self.rows)
        if self.weights is not None:
            vectors = vectors * self.weights[packed.ids, None]
        if self.normalize:
            lengths = torch.linalg.vector_norm(mean(vectors, packed), dim=1)  # (b,)
            lengths = torch.where(lengths == 0, 1.0, lengths)
            vectors = vectors / lengths.repeat_interleave(packed.counts)[:, None]
        yield vectors

    def pooled(self, vectors: Tensor) -> Tensor:
        raise AssertionError("a static model has no pooler")

    def table(self) -> Table:
        """Return the trained table, in float32."""
        weights = None if self.weights is None else as_float32(self.weights)
        places = None if self.places is None else self.get_buffer("places").cpu().numpy()
        return Table(as_float32(self.rows), places, weights)


@dataclass(frozen=True, slots=True)
class KnownTexts:
    """The tokenizer of a static model. A text without known tokens is a problem: its vector is always 0."""

    pieces: WordPieces
    unit = "tokens"
    whole = False

    @property
    def hash(self) -> str:
        return self.pieces.hash

    @property
    def max_length(self) -> int | None:
        return self.pieces.max_length

    def with_prompt(self, prompt: str) -> "KnownTexts":
        return KnownTexts(self.pieces.with_prompt(prompt))

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        tokens = self.pieces(texts)
        return replace(tokens, problems=dict.fromkeys(np.flatnonzero(tokens.lengths == 0).tolist(), EMPTY))


def scaled(table: Table) -> np.ndarray:
    """Return the rows divided by a power of two, so that the vectors of tokens have a length of about 1.

    This changes no vector of unit length, not even its last bit. Tables of different models have lengths from
    0.1 to 1000, and a learning rate is then right for all of them.
    """
    vectors = table.rows if table.places is None else table.rows[table.places]
    if table.weights is not None:
        vectors = vectors * table.weights[:, None]
    length = np.sqrt(np.mean(np.square(vectors, dtype=np.float64).sum(1)))
    return np.ldexp(table.rows, -round(np.log2(length))) if length else table.rows
