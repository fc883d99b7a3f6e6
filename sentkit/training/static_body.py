"""A static model in training: a table of token vectors with the interface of an encoder."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.lexicons.model2vec import Table
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import REDUCTIONS, Convolution, Disturb
from sentkit.model.transformer.weights import as_float32


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
        rows_of_last: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0), (n, d)."""
        assert disturb is None, "no method for static models changes X(0)"
        assert rows_of_last is None, "no readout of X(0) reads single rows"
        rows = packed.ids
        if self.row_of_token is not None:
            rows = self.get_buffer("row_of_token")[packed.ids]
        vectors = nn.functional.embedding(rows, self.rows)
        if self.weights is not None:
            vectors = vectors * self.weights[packed.ids, None]
        if self.normalize:
            means = REDUCTIONS["mean"](vectors, packed)
            lengths = torch.linalg.vector_norm(means, dim=1)  # (b,)
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
