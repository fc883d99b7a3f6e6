"""Read vectors from rows (lists or base64), vector files and .npy. A stream has one space and one shape."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from tokenize import TokenError
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from sentkit.errors import DataError, NoVectorError, OtherSpaceError, UsageError
from sentkit.formats.files import local_path, open_file
from sentkit.formats.rows.block import Row, RowBlock, append_fields, block_of, empty_block
from sentkit.formats.rows.kinds import (
    FIELDS,
    VECTOR_NAMES,
    VECTORS,
    field_of_text,
    missing_field,
    wrong_field,
)
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.fingerprint import edition_advice, emb_problem, short_label, space_of
from sentkit.formats.vectors.store import Store

Vector = NDArray[np.float32]

ARRAY_ROWS = 1024  # of a .npy file that are read at a time
VECTOR_FIELDS = (*VECTORS, *FIELDS)
NOT_FINITE = "a vector contains NaN or infinity"
UNEXPECTED = "this row has a vector, the first row has none"


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Rows with their vectors. A bad row has any vectors."""

    rows: RowBlock
    vectors: Vector  # (n, k, d)
    names: tuple[str, ...]
    emb: str | None = None
    apart: bool = False  # a file has the vectors separately from the rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> "VectorBlock":
        return self.take(rows)

    def take(self, places: Sequence[int] | slice) -> "VectorBlock":
        return replace(self, rows=self.rows.take(places), vectors=self.vectors[places])

    def good_places(self, rejects: Rejects) -> Iterator[Sequence[int] | slice]:
        """Yield the places of the good rows. The others go to the rejects with their vectors and `_emb`."""
        for place in self.rows.bad if self.apart else ():
            values, vectors = self.rows.values[place], self.vectors[place]
            encode = as_list if np.isfinite(vectors).all() else as_base64
            new = [(b"_emb", orjson.dumps(self.emb))] if self.emb and "_emb" not in values else []
            new += [(name.encode(), encode(each)) for name, each in zip(self.names, vectors, strict=True)]
            self.rows.raws[place] = append_fields(self.rows.raws[place], new, empty=not values)
        yield from rejects.good_places(self.rows)


Read = tuple[RowBlock, Vector | None, tuple[str, ...], str | None]  # rows; vectors, names, _emb if apart


class VectorReader:
    """Reads rows with vectors from JSONL and vector files.

    The first row that is accepted determines the vector fields, their length and their space. A later row
    that differs is a DataError, also in another file, because different spaces are not comparable.
    """

    finite = True  # refuse NaN and infinity

    def __init__(self, inputs: Inputs, *, optional: bool = False) -> None:
        """`optional`: all rows have vectors, or none has."""
        self.inputs, self.optional = inputs, optional
        self.begun = False  # whether a row was accepted
        self.names: tuple[str, ...] = ()  # standard names: embedding, or embedding_a and embedding_b, ...
        self.theirs: tuple[str, ...] = ()  # names in these rows
        self.width = 0
        self.emb: str | None = None
        self.verifies = False  # whether the digests of vector files are checked

    def blocks(
        self,
        check: Callable[[VectorBlock], VectorBlock] = lambda block: block,
        most: int | None = None,
        paths: Sequence[str] | None = None,
    ) -> Iterator[VectorBlock]:
        """Yield the rows of all files in blocks, the first `most` of them. `check` can mark rows as bad."""
        files = () if most == 0 else paths or self.inputs.paths
        for rows, vectors, names, emb in chain.from_iterable(map(self.read, files)):
            start = 0
            while start < len(rows) and most != 0:
                # Before a row is accepted, one after the other, because a bad one determines nothing.
                stop = len(rows) if self.begun and most is None else start + 1
                before, own = vars(self).copy(), rows.between(start, stop)
                if vectors is None:
                    block = check(self.parsed(own))
                else:
                    embs = [emb] * len(own)
                    stored = self.admitted(own, vectors[start:stop], names, embs)
                    block = check(replace(stored, apart=True))
                if not self.begun and block.rows.bad:  # of one row
                    vars(self).update(before)
                self.begun = self.begun or not block.rows.bad
                self.inputs.meter.bad += len(block.rows.bad)
                for places in block.good_places(self.inputs.rejects):
                    good = block.take(places)
                    self.inputs.meter.took(len(good))
                    most = None if most is None else most - len(good)
                    yield good
                start = stop
            if most == 0:
                return

    def read(self, path: str) -> Iterator[Read]:
        """The rows of a file, and their vectors if a file has them apart."""
        if is_array(path):
            count, names, emb = len(read_array_file(path)), VECTOR_NAMES[-1], None
            blocks = array_blocks(path, count)
        elif (file := self.inputs.vector_file(path)) is not None:
            refuse_renamed_vectors(self.inputs, path)
            count, names, emb = file.count, file.names, file.emb
            blocks = file.row_blocks_with_vectors(verify=self.verifies)
        else:
            with self.inputs.raw_blocks(path) as raw:
                yield from ((rows, None, (), None) for rows in raw)
            return
        for rows, vectors in self.inputs.meter.counted(path, blocks, count):
            yield rows, vectors, names, emb

    def parsed(self, rows: RowBlock) -> VectorBlock:
        """The rows with the vectors in their fields."""
        named = {*self._names_there(VECTORS)}
        if self.optional and not self.names and (self.begun or named.isdisjoint(rows.values[0])):
            for place, values in enumerate(rows.values):
                if not named.isdisjoint(values):
                    rows.refuse(place, UNEXPECTED)
            return VectorBlock(rows, np.zeros((len(rows), 0, 0), np.float32), ())
        rows.refuse_duplicates()
        names = self.names or self._names_in(rows)
        raw = raw_vectors(rows, self._names_there(names)) if names else [b""] * len(rows)
        embs = [values.get("_emb") for values in rows.values]
        for place, emb in enumerate(embs):
            if emb != self.emb and (problem := emb_problem(emb)):
                rows.refuse(place, problem)
                embs[place] = self.emb
        count = max(1, len(names))
        width = self.width or max(1, max(map(len, raw)) // (4 * count))
        size = 4 * count * width
        flat = bytearray().join(own if len(own) == size else bytes(size) for own in raw)
        vectors = np.frombuffer(flat, "<f4").reshape(len(rows), count, width)
        block = self.admitted(rows, vectors, names, embs)
        for place, own in enumerate(raw):
            if len(own) != size:
                self._refuse_width(rows, [place], len(own) // 4 // count)
        return block

    def _names_there(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.inputs.fields.get(name, name) for name in names)

    def _names_in(self, rows: RowBlock) -> tuple[str, ...]:
        """The names of the vectors of the first row; without them, it is bad."""
        values, source = rows.values[0], rows.sources[0]
        for names in VECTOR_NAMES:
            if all(name in values for name in self._names_there(names)):
                return names
        fields = self.inputs.fields
        for ours, theirs in fields.items():
            if ours in VECTOR_FIELDS and theirs not in values:
                rows.bad.setdefault(0, missing_field(rows.row(0), theirs, ours))
                return ()
        problem = "this row has no vector"
        if "cluster" in values:
            advice = "add --keep-vectors to sentkit cluster, which leaves out the vectors of its rows"
            rows.refuse(0, problem, advice=advice)
            return ()
        field = field_of_text(rows.row(0), fields)
        error = NoVectorError(problem, source=source, line=rows.numbers[0], field=field)
        rows.bad.setdefault(0, error)
        return ()

    def admitted(
        self, rows: RowBlock, vectors: Vector, names: tuple[str, ...], embs: Sequence[str | None]
    ) -> VectorBlock:
        """Compare finite vectors in names, space and length with the first row, which sets these."""
        if self.begun and not self.names:
            rows.refuse_all(UNEXPECTED)
        if self.finite:
            refuse_not_finite(rows, vectors)
        if not self.names and not rows.bad:
            self.names, self.width, self.emb = names, vectors.shape[2], embs[0]
            self.theirs = self._names_there(names)
        if names != self.names:
            rows.refuse_all(f"this row has {', '.join(names)}, the first row has {', '.join(self.names)}")
        for emb in {*embs} - {self.emb}:
            if emb is None or self.emb is None or space_of(emb) != space_of(self.emb):
                ours, first = short_label(emb), short_label(self.emb)
                problem = f"the vectors of this row are {ours}, the vectors of the first row are {first}"
                advice = edition_advice(emb, self.emb)
                for place in (place for place, each in enumerate(embs) if each == emb):
                    error = OtherSpaceError(
                        problem,
                        source=rows.sources[place],
                        line=rows.numbers[place],
                        advice=advice,
                        wanted=self.emb,
                    )
                    rows.bad.setdefault(place, error)
        if vectors.shape[2] != self.width:
            self._refuse_width(rows, range(len(rows)), vectors.shape[2])
        return VectorBlock(rows, vectors, self._names_there(names), embs[0])

    def _refuse_width(self, rows: RowBlock, places: Sequence[int], width: int) -> None:
        problem = f"this vector has {width} numbers, the vector of the first row has {self.width}"
        for place in places:
            rows.refuse(place, problem)

    def arrays(self, path: str, size: int) -> Iterator[Vector]:
        """Yield the vectors (n, k, d) of `size` rows at a time; the last block can be smaller."""
        file: Store | None = self.inputs.vector_file(path)
        if file is None or self.inputs.rejects.skip:
            yield from resized((block.vectors for block in self.blocks(paths=[path])), np.concatenate, size)
            return
        refuse_renamed_vectors(self.inputs, path)
        count = 0
        for vectors in resized(file.blocks(), np.concatenate, size):
            if not count:
                first = block_of([file.row(0)])
                self.admitted(first, vectors[:1], file.names, [file.emb])
                if first.bad:
                    raise first.bad[0]
            for place in np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2))).tolist():
                raise file.row(count + place).error(NOT_FINITE)
            yield vectors
            count += len(vectors)


def one_vector(block: VectorBlock) -> VectorBlock:
    """Refuse pairs and triplets."""
    if block.vectors.shape[1] != 1:
        block.rows.refuse_all(f"expected 1 vector, this row has {block.vectors.shape[1]}")
    return block


def is_array(path: str) -> bool:
    """Whether a path is an array of numpy, whose rows have a vector and no fields."""
    return path.endswith(".npy")


def read_array_file(path: str) -> NDArray[Any]:
    """The numbers of a .npy file (n, d), memory-mapped."""
    open_file(path).close()
    try:
        array = np.lib.format.open_memmap(local_path(path), mode="r")  # refuses pickled objects and archives
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, OSError, TokenError) as error:
        raise DataError("not an array of numbers in the format of numpy", source=path) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        problem = f"an array of {array.dtype} and shape {array.shape}, expected numbers (rows, width)"
        raise DataError(problem, source=path)
    return array


def array_blocks(path: str, count: int) -> Iterator[tuple[RowBlock, Vector]]:
    """Empty rows with their vectors (n, 1, d) as float32."""
    for start in range(0, count, ARRAY_ROWS):
        with np.errstate(over="ignore"):  # one map of the whole file would keep all its pages in memory
            block = read_array_file(path)[start : start + ARRAY_ROWS, None].astype(np.float32, "C")
        yield block_of(Row(b"{}", {}, path, start + place) for place in range(1, len(block) + 1)), block


def resized(
    parts: Iterable[Any], join: Callable[[list[Any]], Any], most: int, first: int = 0
) -> Iterator[Any]:
    """The same rows in parts of `first`, 4 * `first` ... and up to `most` rows, by default of `most` rows.

    So a result does not depend on the rows that each read of a pipe returned.
    """
    held, count, size = list[Any](), 0, first or most
    for part in parts:
        held.append(part)
        count += len(part)
        while count >= size:
            whole = join(held) if len(held) > 1 else held[0]
            yield whole[:size]
            held, count, size = [whole[size:]], count - size, min(4 * size, most)
    if count:
        yield join(held)


def joined(blocks: list[VectorBlock]) -> VectorBlock:
    rows = empty_block()
    for block in blocks:
        rows.extend(block.rows)
    first = blocks[0]
    return VectorBlock(
        rows, np.concatenate([block.vectors for block in blocks]), first.names, first.emb, first.apart
    )


def refuse_renamed_vectors(inputs: Inputs, path: str) -> None:
    """Refuse --field for the vectors of a vector file, which have their standard names."""
    named = sorted(inputs.fields.keys() & set(VECTORS))
    if named:
        raise UsageError(f"{path}: --field {named[0]} cannot rename the vectors of a vector file")


def refuse_not_finite(rows: RowBlock, vectors: Vector) -> None:
    if not np.isfinite(vectors).all():
        for place in np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2))).tolist():
            rows.refuse(place, NOT_FINITE)


def raw_vectors(rows: RowBlock, names: Sequence[str]) -> list[bytes]:
    """The vectors of each row as float32, one after the other. A field is base64 or a list of numbers."""
    whole = []
    for place, values in enumerate(rows.values):
        parts = []
        for name in names:
            value, own = values.get(name), b""
            if isinstance(value, str):
                try:
                    own = pybase64.b64decode(value, validate=True)
                except ValueError:
                    own = b""
            elif isinstance(value, list) and {*map(type, value)} <= {float, int}:
                with np.errstate(over="ignore"):
                    own = np.array(value, dtype="<f4").tobytes()
            if not own or len(own) % 4:
                error = wrong_field(rows.row(place), name, "a vector: a list of numbers, or base64")
                rows.bad.setdefault(place, error)
                own = b""
            parts.append(own)
        if len(parts) > 1 and len({*map(len, parts)}) > 1:
            rows.refuse(place, "the vectors of this row have different lengths")
        whole.append(b"".join(parts))
    return whole


def as_list(vector: Vector) -> bytes:
    """JSON list with the shortest digits that restore each float32 exactly."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


def as_base64(vector: Vector) -> bytes:
    return b'"%b"' % pybase64.b64encode(vector.astype("<f4", copy=False).tobytes())


ENCODINGS: Mapping[str, Any] = {"list": as_list, "base64": as_base64}
