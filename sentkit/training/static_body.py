"""A static model in training: a table of token vectors with the interface of an encoder; its
tokenizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.lexicons.model2vec import Table
from sentkit.model.static.tokenizers import WordPieces
from sentkit.model.text.tokens import TextTokenizer, TokenBlock
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import Convolution, Disturb, mean
from sentkit.model.transformer.weights import as_float32

NO_TOKENS = "the text has no known tokens"


class TokenTable(nn.Module):
    """Returns the vector of each token, with the interface of `Bert`. It has no layers after X(0).

    With `normalize`, the vectors of a text are divided by the length of their mean. The readout
    `mean` is then the vector of unit length that `encode` writes.
    """

    depth = 0
    has_pooler = False
    convolution: Convolution | None = None

    def __init__(self, table: Table, *, normalize: bool) -> None:
        super().__init__()
        rows = table.rows
        if normalize:
            rows = scaled(table)
        self.width = rows.shape[1]
        self.normalize = normalize
        self.rows = nn.Parameter(torch.tensor(rows))
        self.weights: nn.Parameter | None = None  # one for each token
        if table.weights is not None:
            self.weights = nn.Parameter(torch.tensor(table.weights))
        row_of_token = None  # None: token i has row i
        if table.row_of_token is not None:
            row_of_token = torch.tensor(table.row_of_token)
        self.register_buffer("row_of_token", row_of_token, persistent=False)

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
        rows = packed.ids
        if self.row_of_token is not None:
            rows = self.get_buffer("row_of_token")[packed.ids]
        vectors = nn.functional.embedding(rows, self.rows)
        if self.weights is not None:
            vectors = vectors * self.weights[packed.ids, None]
        if self.normalize:
            lengths = torch.linalg.vector_norm(mean(vectors, packed), dim=1)  # (b,)
            lengths = torch.where(lengths == 0, 1.0, lengths)
            vectors = vectors / lengths.repeat_interleave(packed.token_counts)[:, None]
        yield vectors

    def pooled(self, vectors: Tensor) -> Tensor:
        raise AssertionError("a static model has no pooler")

    def table(self) -> Table:
        row_of_token = None
        if self.row_of_token is not None:
            row_of_token = self.get_buffer("row_of_token").cpu().numpy()
        weights = None
        if self.weights is not None:
            weights = as_float32(self.weights)
        return Table(as_float32(self.rows), row_of_token, weights)


def scaled(table: Table) -> np.ndarray:
    """Return the rows divided by a power of two, so that the vectors of tokens have a length of
    about 1.

    This changes no vector of unit length, not even its last bit. Tables of different models have
    lengths from 0.1 to 1000, and a learning rate is then right for all of them.
    """
    vectors = table.rows
    if table.row_of_token is not None:
        vectors = table.rows[table.row_of_token]
    if table.weights is not None:
        vectors = vectors * table.weights[:, None]
    squared_lengths = np.square(vectors, dtype=np.float64).sum(1)
    length = np.sqrt(np.mean(squared_lengths))
    if length == 0:
        return table.rows
    return np.ldexp(table.rows, -round(np.log2(length)))


@dataclass(frozen=True, slots=True)
class KnownTexts(TextTokenizer):
    """The tokenizer of a static model. A text without known tokens is a problem: its vector is
    always 0.
    """

    pieces: WordPieces

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
        empty_texts = np.flatnonzero(tokens.lengths == 0).tolist()
        return replace(tokens, problems=dict.fromkeys(empty_texts, NO_TOKENS))
