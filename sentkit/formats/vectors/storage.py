"""How a vector file stores numbers: as float32, float16, int8 with one scale per dimension, or sign bits.

`DTYPES` has the safetensors type of `embeddings` for each kind. Readers get float32 for every kind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.vectors.safetensors_header import NUMPY

if TYPE_CHECKING:
    from sentkit.formats.vectors.vector_file import VectorFile

DTYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}
STORES = tuple(DTYPES)
FLOATS = ("float32", "float16")  # these can contain NaN and infinity
FLOAT16_MAX = 65504.0
OPEN_MAPS = 32  # files of a vector folder that are memory-mapped at a time
STEPS = 127  # int8 codes are -127 to 127
# A scale has so many significant bits that its product with each code is exact in float32. So a file that is
# read and stored again as int8 keeps its codes and scales.
SCALE_BITS = 17
SMALLEST_SCALE = 2.0**-126
# The bits of float16 in float32: the sign, and the others behind three zeros. The exponents differ by 112.
HALF_BITS, HALF_FACTOR, ONE = np.int32(-0x70002000), np.array(2.0**112, "<f4"), np.array(1, "<f4")
# The eight numbers of each byte of sign bits.
SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * np.float32(2) - np.float32(1)
LARGEST_SCALE = np.ldexp(np.floor(np.ldexp(np.finfo(np.float32).max / STEPS, -105)), 105)


@dataclass(frozen=True, slots=True)
class Storage:
    """The kind of one file, with the values that its codes need."""

    kind: str
    width: int  # numbers of a vector
    scales: NDArray[np.float32] | None = None  # (d,), for int8

    @property
    def columns(self) -> int:
        """Codes of a vector: eight sign bits are one byte."""
        return -(-self.width // 8) if self.kind == "binary" else self.width

    @property
    def dtype(self) -> str:
        return NUMPY[DTYPES[self.kind]]

    def encode(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Codes of vectors, (..., d) -> (..., columns)."""
        if self.kind == "binary":
            return sign_bits(vectors)
        if self.scales is not None:
            return np.clip(np.rint(vectors / self.scales), -STEPS, STEPS).astype(self.dtype)
        return vectors.astype(self.dtype, copy=False)

    def unscaled(self, codes: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Numbers (..., d) and factors, (d,) or (), with the vectors as products; float16 must be finite."""
        if self.kind == "binary":
            vectors = np.take(SIGNS, codes, axis=0)  # five times as fast as unpackbits
            return vectors.reshape(*codes.shape[:-1], 8 * codes.shape[-1])[..., : self.width], ONE
        if self.kind == "float16":  # the bits at their places in float32, four times as fast as astype
            bits = codes.view("<i2").astype("<i4")
            bits <<= 13
            bits &= HALF_BITS
            return bits.view("<f4"), HALF_FACTOR
        return codes.astype("<f4", copy=False), ONE if self.scales is None else self.scales

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Vectors of codes, (..., columns) -> (..., d). Bits become +1 and -1."""
        if self.kind == "float16" and not finite_halves(codes):
            return codes.astype("<f4")
        numbers, factors = self.unscaled(codes)
        return numbers if factors is ONE else np.multiply(numbers, factors, out=numbers)


def finite_halves(codes: NDArray[Any]) -> bool:
    """Whether all float16 are finite; 16 times as fast as isfinite."""
    return bool(codes.view("<i2").max(initial=0) < 0x7C00 and codes.view("<u2").max(initial=0) < 0xFC00)


def sign_bits(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """One bit per number, 1 above zero; the first number is the highest bit of the first byte."""
    return np.packbits(vectors > 0, axis=-1)


def scales_of(largest: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scale of each dimension from its largest magnitude, (d,) -> (d,); rounded up to SCALE_BITS."""
    mantissa, exponent = np.frexp(largest.astype(np.float64) / STEPS)
    scales = np.ldexp(np.ceil(np.ldexp(mantissa, SCALE_BITS)), exponent - SCALE_BITS)
    return np.clip(scales, SMALLEST_SCALE, LARGEST_SCALE).astype("<f4")


class StoredVectors:
    """The vectors of one or more files, (n, ..., d), decoded to float32 when rows are selected.

    A memory map keeps its file open, so only the last OPEN_MAPS files that were read are mapped.
    """

    def __init__(
        self,
        parts: "Sequence[VectorFile]",
        select: Callable[[NDArray[Any]], NDArray[Any]] = lambda codes: codes,
        per_row: int = 1,
    ) -> None:
        """`select` changes the codes (count, k, columns) of a file to (count * per_row, ..., columns)."""
        self.parts = parts
        self.starts = np.cumsum([0, *(part.count * per_row for part in parts)])
        self.codes_of = lru_cache(OPEN_MAPS)(lambda number: select(parts[number].codes()))
        self.kind = parts[0].storage.kind
        self.shape = int(self.starts[-1]), *self.codes_of(0).shape[1:-1], parts[0].storage.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            return self._joined(rows, lambda number, codes: self.parts[number].storage.decode(codes))
        vectors = np.empty((len(rows), *self.shape[1:]), np.float32)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owner).tolist():
            own = owner == number
            codes, storage = self.codes_of(number), self.parts[number].storage
            vectors[own] = storage.decode(codes[rows[own] - self.starts[number]])
        return vectors

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, (n', ..., columns)."""
        return self._joined(rows, lambda number, codes: codes)

    def unscaled(self, rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Numbers and factors as in `Storage.unscaled`; several files of int8 have several factors."""
        if self.kind == "int8" and len(self.parts) > 1:
            return self[rows], ONE
        return self.parts[0].storage.unscaled(self.codes(rows))

    def pieces(self, rows: slice) -> Iterator[tuple[NDArray[Any], NDArray[np.float32] | None]]:
        """The codes of a span of rows, and the scales of int8, from one file after the other."""
        return ((codes, self.parts[number].storage.scales) for number, codes in self._codes(rows))

    def _codes(self, rows: slice) -> Iterator[tuple[int, NDArray[Any]]]:
        """The numbers of the parts of a span, and their codes."""
        start, stop, _ = rows.indices(len(self))
        first = min(int(np.searchsorted(self.starts, start, side="right")), len(self.parts)) - 1
        last = max(int(np.searchsorted(self.starts, stop, side="left")), first + 1)
        for number in range(first, last):
            begin = int(self.starts[number])
            yield number, self.codes_of(number)[max(0, start - begin) : max(0, stop - begin)]

    def _joined(self, rows: slice, read: Callable[[int, NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """The joined results of `read`, which gets the number of a part and its codes of the span."""
        parts = self._codes(rows)
        first = read(*next(parts))
        # Each part is copied before the next one is mapped.
        others = [read(*part).copy() for part in parts]
        return np.concatenate([first, *others]) if others else first


Vectors = NDArray[np.float32] | StoredVectors
ZERO_ROWS = 4096  # rows that are compared with zero at a time
FEWEST_SIGNS = 64  # numbers of a vector that surely has one above zero


class SelectedVectors:
    """The vectors (n, d) at some places, in order, without a copy of all of them."""

    def __init__(self, vectors: Vectors, places: NDArray[np.intp]) -> None:
        self.vectors, self.places = vectors, places
        self.shape = len(places), vectors.shape[1]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice | NDArray[np.intp], /) -> NDArray[np.float32]:
        return self.vectors[self.places[rows]]

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, as of `StoredVectors`."""
        assert isinstance(self.vectors, StoredVectors), "only stored vectors have codes"
        places = self.places[rows]
        start = places[0] if len(places) else 0
        return self.vectors.codes(slice(start, places[-1] + 1 if len(places) else 0))[places - start]


def places_of_texts(vectors: Vectors) -> NDArray[np.intp] | None:
    """The places of the vectors (n, d) that are not zero, as those of texts without tokens; None for all.

    Sign bits have no zero: there, all numbers of such a vector are negative.
    """
    codes = vectors.codes if isinstance(vectors, StoredVectors) else vectors.__getitem__
    if getattr(vectors, "kind", None) == "binary" and vectors.shape[1] < FEWEST_SIGNS:
        return None
    zero = np.zeros(len(vectors), bool)
    for start in range(0, len(vectors), ZERO_ROWS):
        span = slice(start, start + ZERO_ROWS)
        block = codes(span)
        maybe = np.flatnonzero(block[:, 0] == 0)  # of most rows, one number is enough
        zero[start + maybe] = ~block[maybe].any(axis=1)
    return np.flatnonzero(~zero) if zero.any() else None


def first_vectors(vectors: Vectors) -> Vectors:
    """The first vector of each row, (n, k, d) -> (n, d)."""
    if isinstance(vectors, StoredVectors):
        return StoredVectors(vectors.parts, lambda codes: codes[:, 0])
    return vectors[:, 0]


def every_vector(vectors: Vectors) -> Vectors:
    """All vectors of all rows, (n, k, d) -> (n * k, d)."""
    if isinstance(vectors, StoredVectors):
        k = vectors.shape[1]
        return StoredVectors(vectors.parts, lambda codes: codes.reshape(-1, codes.shape[-1]), k)
    return vectors.reshape(-1, vectors.shape[-1])
