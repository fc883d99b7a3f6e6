"""Types of numpy arrays. Shapes are in the comments and docstrings of the functions."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]  # vectors, as stored
Float64 = NDArray[np.float64]  # sums, similarities and exact distances
Floats = NDArray[np.floating]  # of either precision
Indices = NDArray[np.intp]
Bools = NDArray[np.bool_]


class Rows(Protocol):
    """Vectors (n, d) that need not be in one array."""

    @property
    def shape(self) -> tuple[Any, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any, /) -> Float32:
        """The rows with the indices of a slice or an array."""
