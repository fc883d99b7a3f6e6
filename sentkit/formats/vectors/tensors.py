"""Headers of safetensors files, and how a vector file stores numbers: float32, float16, int8 or
sign bits.

Reading checks the position and size of each tensor. int8 has one scale for each dimension. `DTYPES`
has the type of `embeddings` for each kind. Readers get float32 for every kind.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import is_pipe, open_file, refuse_compressed
from sentkit.formats.outputs.temporary import create

ITEM_SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
# Types that do not become float32.
UNCHANGED = {"float64": "F64", "int64": "I64", "float16": "F16", "int8": "I8"}
LARGEST_HEADER = 100_000_000  # same limit as in the safetensors library
LARGEST_TENSOR = 1 << 56  # numbers; numpy refuses more, even if one axis is empty
MOST_AXES = 16
OF_WEIGHTS = {"format": "pt"}  # metadata, as transformers writes it


Placed = tuple[str, tuple[int, ...], int, int]  # type, shape, and bytes from the start of the data


@dataclass(frozen=True, slots=True)
class Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    end: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    end: int  # where the data begins


def read_header(path: str | Path) -> Header:
    """Read a header; raise a DataError if sizes, offsets and file length do not agree."""
    source = str(path)
    if is_pipe(source):
        raise NoInputError(f"{source}: is a pipe, expected a file")
    refuse_compressed(source, "a safetensors file")
    with open_file(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            problem = "incomplete or damaged safetensors file: the header is longer than the file"
            raise DataError(problem, source=source)
        raw = file.read(length)
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise DataError("not a safetensors file: the header is not JSON", source=source) from error
    if not isinstance(values, dict):
        raise DataError("not a safetensors file: the header is not an object", source=source)
    metadata = values.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise DataError("not a safetensors file: a metadata value is not a string", source=source)
    header_end = 8 + length
    entries = {name: _entry(name, value, header_end, source) for name, value in values.items()}

    # The tensors fill the rest of the file.
    end = header_end
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            raise DataError(f'tensor "{name[:80]}" overlaps another or leaves a gap', source=source)
        end = entry.end
    if end > size:
        raise DataError("incomplete or damaged safetensors file: truncated", source=source)
    if end < size:
        problem = "incomplete or damaged safetensors file: longer than its header declares"
        raise DataError(problem, source=source)
    return Header(entries, metadata, header_end)


def _entry(name: str, value: Any, data_start: int, source: str) -> Entry:
    """The tensor that a header describes in the JSON `value`. The data start after `data_start`
    bytes of the file.
    """
    try:
        dtype = value["dtype"]
        shape = value["shape"]
        start, end = value["data_offsets"]
        numbers = [start, end, *shape]
        is_valid = (
            dtype in ITEM_SIZES
            and len(shape) <= MOST_AXES
            and all(type(number) is int and number >= 0 for number in numbers)
            and math.prod(filter(None, shape)) < LARGEST_TENSOR  # without empty axes
            and math.prod(shape) * ITEM_SIZES[dtype] == end - start
        )
    except (TypeError, KeyError, ValueError):
        is_valid = False
    if not is_valid:
        raise DataError(
            f'tensor "{name[:80]}": its type, shape and offsets do not agree', source=source
        )
    return Entry(dtype, tuple(shape), data_start + start, data_start + end)


NUMPY = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "i1",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
}


def read_array(path: str | Path, name: str) -> NDArray[Any]:
    """Read one tensor into memory. Its type must exist in numpy."""
    entry = read_header(path).entries.get(name)
    if entry is None or entry.dtype not in NUMPY:
        raise DataError(f'no tensor "{name}" of a supported type', source=str(path))
    with open_file(str(path)) as file:
        file.seek(entry.start)
        return np.frombuffer(file.read(entry.end - entry.start), NUMPY[entry.dtype]).reshape(
            entry.shape
        )


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] = OF_WEIGHTS
) -> None:
    """Write tensors to a new safetensors file. Equal values give equal bytes."""
    with create(path) as file:
        put_arrays(file, arrays, metadata)


def laid_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, Placed]:
    """The positions of tensors (name, type, shape) one after the other."""
    entries: dict[str, Placed] = {}
    start = 0
    for name, dtype, shape in tensors:
        end = start + ITEM_SIZES[dtype] * math.prod(shape)
        entries[name] = dtype, shape, start, end
        start = end
    return entries


def put_arrays(
    file: BinaryIO, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write tensors in safetensors format: the types of UNCHANGED as they are, all others as
    float32.
    """
    types = {name: UNCHANGED.get(array.dtype.name, "F32") for name, array in arrays.items()}
    entries = laid_out((name, types[name], array.shape) for name, array in arrays.items())
    file.write(header_bytes(entries, metadata))
    for name, array in arrays.items():
        file.write(np.ascontiguousarray(array, dtype=NUMPY[entries[name][0]]).tobytes())


def read_note(path: str | Path) -> dict[str, Any]:
    return note_in(read_header(path), str(path))


def note_in(header: Header, source: str) -> dict[str, Any]:
    """The JSON object in the metadata key `sentkit`; empty for files of other programs."""
    try:
        note = orjson.loads(header.metadata.get("sentkit", "{}"))
    except orjson.JSONDecodeError as error:
        raise DataError('"sentkit" in the metadata is not JSON', source=source) from error
    if not isinstance(note, dict):
        return {}
    return note


def header_bytes(
    entries: Mapping[str, Placed], metadata: Mapping[str, str], size: int = 0
) -> bytes:
    """A safetensors header of at least `size` bytes, whose number is a multiple of eight."""
    values: dict[str, Any] = {}
    if metadata:
        values["__metadata__"] = dict(metadata)
    for name, (dtype, shape, start, end) in entries.items():
        values[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    raw = orjson.dumps(values)
    rounded_up = -(-(8 + len(raw)) // 8) * 8
    length = max(rounded_up, size) - 8
    return length.to_bytes(8, "little") + raw.ljust(length)


DTYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}
STORES = tuple(DTYPES)
FLOATS = ("float32", "float16")  # these can contain NaN and infinity
FLOAT16_MAX = 65504.0
STEPS = 127  # int8 codes are -127 to 127
# A scale has so many significant bits that its product with each code is exact in float32. So a
# file that is read and stored again as int8 keeps its codes and scales.
SCALE_BITS = 17
SMALLEST_SCALE = 2.0**-126
# The bits of float16 in float32: sign, exponent and mantissa. The code, a signed number, is shifted
# to them, which copies its sign to the three bits between sign and exponent. These are cleared.
HALF_BITS = np.uint32(0x8000_0000 | 0x0F80_0000 | 0x007F_E000).view(np.int32)
HALF_FACTOR = np.array(2.0 ** (127 - 15), "<f4")  # the difference of the biases of the exponents
ONE = np.array(1, "<f4")
FEWEST_SIGNS = 64  # numbers of a vector that surely has one above zero
# The eight numbers of each byte of sign bits.
SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * np.float32(2) - np.float32(
    1
)
# The largest scale whose products are finite. It is above 2 ** 121, so the last of its 17 bits is 2
# ** 105.
LARGEST_SCALE = np.floor(np.finfo(np.float32).max / STEPS / 2.0**105) * 2.0**105


@dataclass(frozen=True, slots=True)
class Storage:
    """The kind of one file, with the values that its codes need."""

    kind: str
    width: int  # numbers of a vector
    scales: NDArray[np.float32] | None = None  # (d,), for int8

    @property
    def columns(self) -> int:
        """Codes of a vector: eight sign bits are one byte."""
        if self.kind == "binary":
            return -(-self.width // 8)
        return self.width

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
        """Numbers (..., d) and factors, (d,) or (), with the vectors as products; float16 must be
        finite.
        """
        if self.kind == "binary":
            signs = np.take(SIGNS, codes, axis=0)  # five times as fast as unpackbits
            vectors = signs.reshape(*codes.shape[:-1], 8 * codes.shape[-1])[..., : self.width]
            if self.width >= FEWEST_SIGNS:
                vectors[~codes.any(axis=-1)] = 0  # of a text without tokens
            return vectors, ONE
        # the bits at their places in float32, four times as fast as astype
        if self.kind == "float16":
            bits = codes.view("<i2").astype("<i4")
            bits <<= 13
            bits &= HALF_BITS
            return bits.view("<f4"), HALF_FACTOR
        factors = ONE if self.scales is None else self.scales
        return codes.astype("<f4", copy=False), factors

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Vectors of codes, (..., columns) -> (..., d). Bits become +1 and -1, or all 0."""
        if self.kind == "float16" and not finite_halves(codes):
            return codes.astype("<f4")
        numbers, factors = self.unscaled(codes)
        if factors is ONE:
            return numbers
        return np.multiply(numbers, factors, out=numbers)


def finite_halves(codes: NDArray[Any]) -> bool:
    """Whether all float16 are finite; 16 times as fast as isfinite."""
    return bool(
        codes.view("<i2").max(initial=0) < 0x7C00 and codes.view("<u2").max(initial=0) < 0xFC00
    )


def sign_bits(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """One bit per number, 1 above zero; the first number is the highest bit of the first byte."""
    return np.packbits(vectors > 0, axis=-1)


def scales_of(largest: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scale of each dimension from its largest magnitude, (d,) -> (d,); rounded up to
    SCALE_BITS.
    """
    mantissa, exponent = np.frexp(largest.astype(np.float64) / STEPS)
    scales = np.ldexp(np.ceil(np.ldexp(mantissa, SCALE_BITS)), exponent - SCALE_BITS)
    return np.clip(scales, SMALLEST_SCALE, LARGEST_SCALE).astype("<f4")
