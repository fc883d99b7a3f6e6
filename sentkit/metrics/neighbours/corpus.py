"""A corpus: rows with vectors that can be read in any order, their space, and the fields that hits show."""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from sentkit.arrays import Indices
from sentkit.digits import significant
from sentkit.errors import NoRowsError, OtherSpaceError, UsageError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row, RowBlock, block_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.arrays import (
    SelectedVectors,
    StoredVectors,
    Vectors,
    first_vectors,
    places_of_texts,
)
from sentkit.formats.vectors.fingerprint import (
    UNNAMED,
    edition_advice,
    short_label,
    space_of,
    space_of_signs,
    target_space,
)
from sentkit.formats.vectors.store import VectorFolder, fields_of
from sentkit.formats.vectors.tensors import FLOATS, finite_halves
from sentkit.formats.vectors.vector_file import VectorSource
from sentkit.formats.vectors.vectors import (
    NOT_FINITE,
    VectorBlock,
    VectorReader,
    one_vector,
    refuse_renamed_vectors,
)

IDS = ("id", "_id")  # the field that identifies a row: the first of these that it has
NAMING = ("text", "entry")  # the name of a row in results: the first of these fields that it has
CHECKED = 4096  # vectors of a file that are checked at a time
CACHED_ROWS = 1 << 16  # rows whose fields are kept for later hits

Check = Callable[[VectorBlock], VectorBlock]  # marks bad rows
Lines = Callable[[VectorBlock], list[bytes]]


class Source(Protocol):
    """Rows with vectors, read from files or encoded from texts."""

    names: tuple[str, ...]  # known, as `emb`, after the first block is read
    emb: str | None

    def blocks(self, check: Check) -> Iterator[VectorBlock]: ...


@dataclass(frozen=True, slots=True)
class VectorTable:
    """Rows with vectors. Those of a vector file stay in the file."""

    path: str
    vectors: Vectors  # (n, k, d), memory-mapped if they are in a vector file
    names: tuple[str, ...]  # standard names of the k vector fields
    fields: Mapping[str, str]  # standard name -> name in these rows
    emb: str | None
    row: Callable[[int], Row]  # the row at a place, counted from 0, without its vectors
    numbers: Sequence[int]  # of the rows in the file, from 1
    files: Sequence[str] = ()  # of the rows, if they are encoded from several files
    digest: str = ""  # of the whole folder, if these are the vectors of a part
    blocks: Callable[[], Iterable[RowBlock]] | None = None  # the rows of a vector file

    def __len__(self) -> int:
        return len(self.vectors)

    def every_row(self) -> Iterator[Row]:
        """All rows in order; in a vector file, this is faster than one by one."""
        return map(self.row, range(len(self))) if self.blocks is None else chain.from_iterable(self.blocks())

    def refuse_others(self, block: VectorBlock, emb: str | None, what: str, *, fits: bool = False) -> None:
        """Mark rows of another space, unless it matches this one, or the caller accepts it (`fits`)."""
        if emb is None or self.emb is None:
            fits = fits or emb == self.emb
        else:
            fits = fits or space_of(self.emb) in (space_of(emb), target_space(emb))
        widths = block.vectors.shape[-1], self.vectors.shape[-1]
        if not fits or widths[0] != widths[1]:
            sizes = [f", {width} numbers" if widths[0] != widths[1] else "" for width in widths]
            ours, theirs = short_label(emb) + sizes[0], short_label(self.emb) + sizes[1]
            problem = f"the vectors of the {what} are {ours}, the vectors of {self.path} are {theirs}"
            for i, (source, number) in enumerate(zip(block.rows.sources, block.rows.numbers, strict=True)):
                error = OtherSpaceError(
                    problem,
                    source=source,
                    line=number,
                    advice=edition_advice(emb, self.emb),
                    wanted=self.emb,
                    wanted_path=self.path,
                )
                block.rows.bad.setdefault(i, error)


def read_table(
    inputs: Inputs,
    check: Check = lambda block: block,
    part: tuple[int, int] | None = None,
    lines: Lines | None = None,
) -> VectorTable:
    """Read the files. `check` gets the rows that must be parsed: all, but of one vector file only the first.

    If bad rows are rejected, all rows of a vector file are parsed, too. `part` is the number of a part of a
    vector folder, and the number of parts. `lines` returns what is kept of rows that stay in no file.
    """
    path = inputs.paths[0]
    several = len(inputs.paths) > 1
    store: VectorSource | None = None
    if not several:
        store = inputs.vector_file(path)
    if part is not None:
        if not isinstance(store, VectorFolder):
            problem = f"a part of {path}: it is not a vector folder"
            raise UsageError(problem, advice="use encode -o DIR/, which makes one")
        store = store.shard(*part)
    if store is None or (part is None and inputs.rejects.skip):
        return in_memory(inputs, VectorReader(inputs), check, lines, named=several)
    refuse_renamed_vectors(inputs, path)
    vectors, numbers = store.array(), range(store.before + 1, store.before + store.count + 1)
    if not len(vectors):
        raise NoRowsError([path])
    first = check(VectorBlock(block_of([store.row(0)]), vectors[:1], store.names))
    if first.rows.bad:
        raise first.rows.bad[0]
    check_numbers(store, vectors)
    fields = fields_of(inputs, path)
    table = VectorTable(path, vectors, store.names, fields, store.emb, store.row, numbers)
    return replace(table, digest=store.digest, blocks=store.row_blocks)


def check_numbers(store: VectorSource, vectors: Vectors) -> None:
    """Refuse NaN and infinity."""
    for start in range(0, len(vectors) if store.kind in FLOATS else 0, CHECKED):
        span = slice(start, start + CHECKED)
        halves = vectors.codes(span) if isinstance(vectors, StoredVectors) else np.empty(0)
        if halves.dtype == np.float16 and finite_halves(halves):
            continue
        block = vectors[span]
        if not np.isfinite(block).all():
            place = int(np.flatnonzero(~np.isfinite(block).all(axis=(1, 2)))[0])
            raise store.row(start + place).error(NOT_FINITE)


def in_memory(
    inputs: Inputs,
    source: Source,
    check: Check = lambda block: block,
    lines_of: Lines | None = None,
    *,
    named: bool,
) -> VectorTable:
    """Read the vectors and the bytes of the rows. `named`: the rows have the names of their files."""
    vectors, lines, sizes, numbers = bytearray(), bytearray(), array("q"), array("q")
    files: list[str] = []
    path, width = inputs.paths[0], 1
    for block in source.blocks(check):
        vectors += block.vectors.astype("<f4", copy=False).tobytes()
        own = lines_of(block) if lines_of else block.rows.without({*block.names, "_emb"}).lines
        lines += b"".join(own)
        sizes.extend(map(len, own))
        numbers.extend(block.rows.numbers)
        files += block.rows.sources if named else ()
        width = block.vectors.shape[2]
    if not sizes:
        raise NoRowsError(inputs.paths)
    starts = array("q", accumulate(sizes, initial=0))

    def row_at(place: int) -> Row:
        line = bytes(lines[starts[place] : starts[place + 1]])
        return Row(line, orjson.loads(line), files[place] if named else path, numbers[place])

    flat = np.frombuffer(vectors, "<f4").reshape(len(sizes), len(source.names) or 1, width)
    return VectorTable(path, flat, source.names, fields_of(inputs, path), source.emb, row_at, numbers, files)


class SearchCorpus:
    """The first vectors of the rows of a table that are not zero, and the fields that hits show."""

    def __init__(self, table: VectorTable, show: Sequence[str] = (), *, with_id: bool = False) -> None:
        self.table, self.path, self.emb, self.show, self.with_id = table, table.path, table.emb, show, with_id
        self.stored = first_vectors(table.vectors)
        self.hidden = (*(table.fields.get(name, name) for name in table.names), "_emb")
        self.keep(places_of_texts(self.stored))
        self.shown = lru_cache(CACHED_ROWS)(partial(self._fields, every=False))
        self.every_field = lru_cache(CACHED_ROWS)(partial(self._fields, every=True))

    def keep(self, places: Indices | None) -> None:
        """Search only the rows at these places of the table; None: all."""
        self.places = places
        self.vectors: Vectors | SelectedVectors = self.stored
        if places is not None:
            self.vectors = SelectedVectors(self.stored, places)
        self.left_out = left_out(self.path, len(self.table) - len(self.vectors), len(self.table))

    def in_table(self, rows: Indices) -> Indices:
        """The places in the table of these rows of `vectors`."""
        return rows if self.places is None else self.places[rows]

    def _fields(self, place: int, *, every: bool) -> dict[str, bytes]:
        """The fields of a hit, or all fields except the vector, with our names, as bytes."""
        row, fields = self.table.row(place), self.table.fields
        if every:
            return bytes_of(row, our_names(row, fields, self.hidden))
        own = bytes_of(row, first_field(row, IDS, fields)) if self.with_id else {}
        return {**shown_fields(row, self.hidden, self.show, fields), **own}

    def hit(self, place: int, similarity: float) -> bytes:
        """The row at a place of the table as a hit."""
        file = {"file": orjson.dumps(readable(self.table.files[place]))} if self.table.files else {}
        own = {"row": b"%d" % self.table.numbers[place], "similarity": b"%a" % significant(similarity)}
        return json_of({**file, **own, **self.shown(place)})

    @property
    def signs(self) -> StoredVectors | SelectedVectors | None:
        """The vectors, if they are stored as sign bits."""
        is_binary = getattr(self.stored, "kind", None) == "binary"
        return self.vectors if is_binary and not isinstance(self.vectors, np.ndarray) else None

    def is_signs_of(self, emb: str | None) -> bool:
        """Whether the vectors are the signs of vectors of this space, or of the space that it matches."""
        emb = emb or UNNAMED.emb
        before = filter(None, (space_of(emb), target_space(emb)))
        return self.emb is not None and space_of(self.emb) in map(space_of_signs, before)


def left_out(path: str, count: int, rows: int) -> list[str]:
    """The message about rows of a file whose vectors are zero."""
    problem = "rows have a zero vector, as empty texts do, and are left out"
    return [f"{readable(path)}: {count:,} of {rows:,} {problem}"] if count else []


def read_search_corpus(inputs: Inputs, part: tuple[int, int] | None = None) -> SearchCorpus:
    """Read the vectors, memory-mapped from a vector file. Rows are read when they are needed."""
    return SearchCorpus(read_table(inputs, one_vector, part), with_id=True)


def first_field(row: Row, names: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
    """The first of these fields that a row has: its standard name and its name in the row, or empty."""
    known = ((name, fields.get(name, name)) for name in names)
    return dict([pair for pair in known if pair[1] in row.values][:1])


def naming_field(row: Row, fields: Mapping[str, str]) -> dict[str, str]:
    """The field that names a row: its standard name and its name in the row; empty if there is none."""
    filled = [name for name in NAMING if row.values.get(fields.get(name, name)) is not None]
    return first_field(row, filled, fields)


def columns_of_pair(pair: Mapping[str, Any], show: Sequence[str] = NAMING) -> dict[str, str]:
    """Both rows of a pair for a table: number (and file, if there are several) and the fields in `show`."""
    columns = {}
    for side in "ab":
        file = f"{Path(pair[f'file_{side}']).name}:" if f"file_{side}" in pair else ""
        columns[f"row {side}"] = f"{file}{pair[f'row_{side}']}"
        columns[side] = " | ".join(str(pair[f"{name}_{side}"]) for name in show if f"{name}_{side}" in pair)
    return columns


def our_names(row: Row, fields: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """Name in an output -> name in the row, of all fields that are not hidden."""
    mapped = {ours: theirs for ours, theirs in fields.items() if theirs in row.values}
    left = {name: name for name in row.values if name not in {*mapped.values(), *hidden}}
    return {**left, **{ours: theirs for ours, theirs in mapped.items() if theirs not in hidden}}


def shown_fields(
    row: Row, hidden: Collection[str], show: Sequence[str], fields: Mapping[str, str]
) -> dict[str, bytes]:
    """The given fields of a row, or else the field that names it, as bytes."""
    if show:
        return bytes_of(row, {name: name for name in show if name in row.values and name not in hidden})
    return bytes_of(row, naming_field(row, fields))


def bytes_of(row: Row, theirs: Mapping[str, str]) -> dict[str, bytes]:
    """The values of the fields as bytes, by the names of the output."""
    if not theirs:
        return {}
    spans = row.spans()
    return {ours: row.line[spans[name].value : spans[name].end] for ours, name in theirs.items()}


def json_of(fields: Mapping[str, bytes]) -> bytes:
    """An object of values that are JSON."""
    return b"{%b}" % b",".join(b"%b:%b" % (orjson.dumps(name), value) for name, value in fields.items())
