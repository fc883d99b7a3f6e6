"""A corpus: rows with vectors that can be read in any order, their space, and the fields that hits
show.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from sentkit.arrays import Indices
from sentkit.digits import significant
from sentkit.errors import NoRowsError, OtherSpaceError, UsageError
from sentkit.formats.files import shown_path
from sentkit.formats.rows.block import Row, RowBlock, block_of_rows
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.arrays import (
    SelectedVectors,
    StoredVectors,
    Vectors,
    array_of,
    first_vectors,
    places_of_texts,
)
from sentkit.formats.vectors.fingerprint import (
    UNNAMED,
    advice_on_spaces,
    is_comparable,
    short_label,
    space_mapped_to,
    space_of,
    space_of_signs,
    target_space,
)
from sentkit.formats.vectors.store import VectorFolder, field_names_of
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
SIZE_OF_FIELDS = 500  # bytes of a dictionary of few fields, without their values
CACHED_BYTES = 1 << 27  # of fields of rows that are kept for later hits

Check = Callable[[VectorBlock], VectorBlock]  # marks bad rows
Lines = Callable[[VectorBlock], list[bytes]]


class RowsWithVectors(Protocol):
    """Rows with vectors, read from files or encoded from texts."""

    # Both are known after the first block is read.
    names: tuple[str, ...]  # standard names of the vectors of a row
    space_name: str | None  # the name of their space; None: unknown

    def blocks(self, check: Check) -> Iterator[VectorBlock]: ...


@dataclass(frozen=True, slots=True)
class VectorTable:
    """Rows with vectors. Those of a vector file stay in the file."""

    path: str
    vectors: Vectors  # (n, k, d), memory-mapped if they are in a vector file
    names: tuple[str, ...]  # standard names of the k vector fields
    fields: Mapping[str, str]  # standard name -> name in these rows
    space_name: str | None  # the name of the space of the vectors; None: unknown
    row: Callable[[int], Row]  # the row at an index, without its vectors
    numbers: Sequence[int]  # of the rows in the file, from 1
    files: Sequence[str] = ()  # of the rows, if they are encoded from several files
    digest: str = ""  # of the whole folder, if these are the vectors of a shard
    blocks: Callable[[], Iterable[RowBlock]] | None = None  # the rows of a vector file

    def __len__(self) -> int:
        return len(self.vectors)

    def every_row(self) -> Iterator[Row]:
        """All rows in order; in a vector file, this is faster than one by one."""
        if self.blocks is None:
            return map(self.row, range(len(self)))
        return chain.from_iterable(self.blocks())

    def fits(self, emb: str | None, *, mapped: bool = False) -> bool:
        """Whether vectors of this space can be compared with the table; `mapped`: see
        `is_comparable`.
        """
        if is_comparable(emb, self.space_name, mapped=mapped):
            return True
        if emb is None or self.space_name is None:
            return False
        return space_of(self.space_name) == target_space(emb)

    def refuse_other_space(
        self,
        block: VectorBlock,
        emb: str | None,
        role: str,
        *,
        accepted: bool = False,
        permits_mapped: bool = False,
    ) -> None:
        """Mark rows of another space, unless it matches this one, or the caller accepts it.

        `emb` is the name of the block's space. `role` names its rows in the message.
        `permits_mapped`: the command has the flag --mapped.
        """
        fits = accepted or self.fits(emb)
        block_width = block.vectors.shape[-1]
        table_width = self.vectors.shape[-1]
        if fits and block_width == table_width:
            return
        block_space = short_label(emb)
        table_space = short_label(self.space_name)
        if block_width != table_width:
            block_space += f", {block_width} numbers"
            table_space += f", {table_width} numbers"
        problem = (
            f"the vectors of the {role} are {block_space}, the vectors of {self.path} are "
            f"{table_space}"
        )
        permits_mapped = permits_mapped and block_width == table_width
        advice = advice_on_spaces(emb, self.space_name, permits_mapped=permits_mapped)
        for i, (source, number) in enumerate(
            zip(block.rows.sources, block.rows.numbers, strict=True)
        ):
            error = OtherSpaceError(
                problem,
                source=source,
                line=number,
                advice=advice,
                wanted=self.space_name,
                wanted_path=self.path,
            )
            block.rows.error_of_row.setdefault(i, error)


def read_table(
    inputs: Inputs,
    check: Check = lambda block: block,
    shard: tuple[int, int] | None = None,
    lines_of: Lines | None = None,
) -> VectorTable:
    """Read the files. `check` gets the rows that must be parsed: all, but of one vector file only
    the first.

    If bad rows are rejected, all rows of a vector file are parsed, too. `shard` is the number of a
    shard of a vector folder, and the number of shards. `lines_of` returns what is kept of rows that
    stay in no file.
    """
    path = inputs.paths[0]
    has_many_files = len(inputs.paths) > 1
    store: VectorSource | None = None
    if not has_many_files:
        store = inputs.open_vector_file(path)
    whole = store
    if shard is not None:
        if not isinstance(store, VectorFolder):
            problem = f"--shard needs a vector folder, which {path} is not"
            raise UsageError(problem, advice="use encode -o DIR/, which makes one")
        if store.kind == "binary":
            advice = "search it as a whole, or store float16 or int8"
            raise UsageError("--shard does not work with a binary corpus", advice=advice)
        store = store.shard(*shard)
    if store is None or (shard is None and inputs.rejects.skip):
        return read_into_memory(
            inputs, VectorReader(inputs), check, lines_of, with_files=has_many_files
        )

    # One vector file or folder: the vectors and rows stay there.
    refuse_renamed_vectors(inputs, path)
    vectors = array_of(store)
    if len(vectors):
        first_row = block_of_rows([store.row(0)])
        first_block = check(VectorBlock(first_row, vectors[:1], store.names))
        if first_block.rows.error_of_row:
            raise first_block.rows.error_of_row[0]
        refuse_not_finite(store, vectors)
    elif whole is not None and whole.count:  # blocks without rows, which can have no width
        vectors = np.empty((0, len(whole.names), whole.width), np.float32)
    else:
        raise NoRowsError([path])
    return VectorTable(
        path=path,
        vectors=vectors,
        names=store.names,
        fields=field_names_of(inputs, path),
        space_name=store.space_name,
        row=store.row,
        numbers=range(store.rows_before + 1, store.rows_before + store.count + 1),
        digest=store.digest,
        blocks=store.row_blocks,
    )


def refuse_not_finite(store: VectorSource, vectors: Vectors) -> None:
    """Raise the error of the first row with NaN or infinity."""
    if store.kind not in FLOATS:
        return
    for start in range(0, len(vectors), CHECKED):
        span = slice(start, start + CHECKED)
        # float16 is checked without a conversion to float32.
        if isinstance(vectors, StoredVectors):
            codes = vectors.codes(span)
            if codes.dtype == np.float16 and finite_halves(codes):
                continue
        is_finite = np.isfinite(vectors[span])
        if not is_finite.all():
            bad_rows = np.flatnonzero(~is_finite.all(axis=(1, 2)))
            raise store.row(start + int(bad_rows[0])).error(NOT_FINITE)


def read_into_memory(
    inputs: Inputs,
    source: RowsWithVectors,
    check: Check = lambda block: block,
    lines_of: Lines | None = None,
    *,
    with_files: bool,
) -> VectorTable:
    """Read the vectors and the bytes of the rows. `with_files`: hits name the file of a row."""
    path = inputs.paths[0]
    vectors = bytearray()
    lines = bytearray()  # of all rows, one after another
    line_lengths = array("q")
    numbers = array("q")
    files: list[str] = []
    width = 1
    for block in source.blocks(check):
        vectors += block.vectors.astype("<f4", copy=False).tobytes()
        if lines_of is None:
            block_lines = block.rows.without({*block.names, "_emb"}).lines
        else:
            block_lines = lines_of(block)
        lines += b"".join(block_lines)
        line_lengths.extend(map(len, block_lines))
        numbers.extend(block.rows.numbers)
        if with_files:
            files += block.rows.sources
        width = block.vectors.shape[2]
    if not line_lengths:
        raise NoRowsError(inputs.paths)
    offsets = array("q", accumulate(line_lengths, initial=0))

    def row_at(index: int) -> Row:
        line = bytes(lines[offsets[index] : offsets[index + 1]])
        file = files[index] if with_files else path
        return Row(line, orjson.loads(line), file, numbers[index])

    vectors_per_row = len(source.names) or 1
    return VectorTable(
        path=path,
        vectors=np.frombuffer(vectors, "<f4").reshape(len(line_lengths), vectors_per_row, width),
        names=source.names,
        fields=field_names_of(inputs, path),
        space_name=source.space_name,
        row=row_at,
        numbers=numbers,
        files=files,
    )


class FieldCache:
    """Reads the fields of rows, and keeps those of the last rows up to CACHED_BYTES."""

    def __init__(self, read: Callable[[int], dict[str, bytes]]) -> None:
        self.read = read
        self.kept: dict[int, dict[str, bytes]] = {}  # the last used at the end
        self.size = 0  # bytes

    def __call__(self, index: int) -> dict[str, bytes]:
        fields = self.kept.pop(index, None)
        if fields is None:
            fields = self.read(index)
            self.size += size_of(fields)
        self.kept[index] = fields
        while self.size > CACHED_BYTES:
            oldest = next(iter(self.kept))
            self.size -= size_of(self.kept.pop(oldest))
        return fields


def size_of(fields: Mapping[str, bytes]) -> int:
    return SIZE_OF_FIELDS + sum(map(len, fields.values()))


class SearchCorpus:
    """The first vectors of the rows of a table that are not zero, and the fields that hits show."""

    def __init__(
        self, table: VectorTable, show: Sequence[str] = (), *, show_id: bool = False
    ) -> None:
        """`show` are the names of fields; without them, hits have the field that names a row."""
        self.table = table
        self.path = table.path
        self.space_name = table.space_name
        self.show = show
        self.show_id = show_id
        vector_fields = [table.fields.get(name, name) for name in table.names]
        self.hidden = (*vector_fields, "_emb")  # fields that hits never show
        self.shown = FieldCache(self._shown)
        self.every_field = FieldCache(self._every_field)
        self.all_vectors = first_vectors(table.vectors)  # (n, d), also of rows with a zero vector
        self.search_only(places_of_texts(self.all_vectors))

    def search_only(self, row_indices: Indices | None) -> None:
        """Search only these rows of the table; None: all."""
        self.row_indices = row_indices  # (m,)
        self.vectors: Vectors | SelectedVectors = self.all_vectors  # (m, d)
        if row_indices is not None:
            self.vectors = SelectedVectors(self.all_vectors, row_indices)
        self.left_out = left_out(self.path, len(self.table) - len(self.vectors), len(self.table))

    def in_table(self, rows: Indices) -> Indices:
        """Indices in `vectors` -> indices in the table."""
        if self.row_indices is None:
            return rows
        return self.row_indices[rows]

    def _shown(self, index: int) -> dict[str, bytes]:
        """The fields that hits show of a row of the table, as bytes."""
        row = self.table.row(index)
        fields = shown_fields(row, self.hidden, self.show, self.table.fields)
        if self.show_id:
            fields |= bytes_of(row, first_field(row, IDS, self.table.fields))
        return fields

    def _every_field(self, index: int) -> dict[str, bytes]:
        """All fields of a row of the table except the vectors, with standard names, as bytes."""
        row = self.table.row(index)
        return bytes_of(row, output_names(row, self.table.fields, self.hidden))

    def hit(self, index: int, similarity: float) -> bytes:
        """A row of the table as a hit."""
        fields: dict[str, bytes] = {}
        if self.table.files:
            fields["file"] = orjson.dumps(shown_path(self.table.files[index]))
        fields["row"] = b"%d" % self.table.numbers[index]
        fields["similarity"] = b"%a" % significant(similarity)
        return json_of({**fields, **self.shown(index)})

    @property
    def binary_vectors(self) -> StoredVectors | SelectedVectors | None:
        """`vectors`, if they are stored as sign bits; None if they are numbers."""
        is_binary = getattr(self.all_vectors, "kind", None) == "binary"
        if not is_binary or isinstance(self.vectors, np.ndarray):
            return None
        return self.vectors

    def fits(self, emb: str | None, *, mapped: bool = False) -> bool:
        """Whether vectors of this space can be compared with the corpus, or with the numbers
        whose signs it has; `mapped`: see `is_comparable`.
        """
        return self.table.fits(emb, mapped=mapped) or self.has_signs_of(emb, mapped=mapped)

    def has_signs_of(self, emb: str | None, *, mapped: bool = False) -> bool:
        """Whether the vectors are the signs of vectors of this space, or of the space that it
        matches. `mapped` is that of `is_comparable`.
        """
        if self.space_name is None:
            return False
        emb = emb or UNNAMED.name
        number_spaces = filter(None, (space_of(emb), target_space(emb)))
        if space_of(self.space_name) in map(space_of_signs, number_spaces):
            return True
        if not mapped:
            return False
        signs = space_of_signs(space_of(space_mapped_to(emb)))
        return signs == space_of(space_mapped_to(self.space_name))


LEFT_OUT = "are left out"


def left_out(path: str, count: int, rows: int, *, effect: str = LEFT_OUT) -> list[str]:
    """The message about rows of a file whose vectors are zero, and the effect of that."""
    if not count:
        return []
    problem = f"rows have a zero vector, as empty texts do, and {effect}"
    return [f"{shown_path(path)}: {count:,} of {rows:,} {problem}"]


def read_search_corpus(inputs: Inputs, shard: tuple[int, int] | None = None) -> SearchCorpus:
    """Read the vectors, memory-mapped from a vector file. Rows are read when they are needed."""
    return SearchCorpus(read_table(inputs, one_vector, shard), show_id=True)


def first_field(row: Row, names: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
    """The first of these fields that a row has: its standard name and its name in the row, or
    empty.
    """
    for name in names:
        name_in_row = fields.get(name, name)
        if name_in_row in row.values:
            return {name: name_in_row}
    return {}


def naming_field(row: Row, fields: Mapping[str, str]) -> dict[str, str]:
    """The field that names a row: its standard name and its name in the row; empty if there is
    none.
    """
    filled = [name for name in NAMING if row.values.get(fields.get(name, name)) is not None]
    return first_field(row, filled, fields)


def columns_of_pair(pair: Mapping[str, Any], show: Sequence[str] = NAMING) -> dict[str, str]:
    """Both rows of a pair for a table: number (and file, if there are several) and the fields in
    `show`.
    """
    columns = {}
    for side in "ab":
        file = ""
        if f"file_{side}" in pair:
            file = f"{Path(pair[f'file_{side}']).name}:"
        columns[f"row {side}"] = f"{file}{pair[f'row_{side}']}"
        values = [str(pair[f"{name}_{side}"]) for name in show if f"{name}_{side}" in pair]
        columns[side] = " | ".join(values)
    return columns


def output_names(row: Row, fields: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """Name in an output -> name in the row, of all fields that are not hidden."""
    standard_names = {standard: name for standard, name in fields.items() if name in row.values}
    renamed = set(standard_names.values())
    names = {name: name for name in row.values if name not in renamed and name not in hidden}
    names |= {standard: name for standard, name in standard_names.items() if name not in hidden}
    return names


def shown_fields(
    row: Row, hidden: Collection[str], show: Sequence[str], fields: Mapping[str, str]
) -> dict[str, bytes]:
    """The fields in `show`, or without them the field that names the row, as bytes."""
    if show:
        return bytes_of(
            row, {name: name for name in show if name in row.values and name not in hidden}
        )
    return bytes_of(row, naming_field(row, fields))


def bytes_of(row: Row, names: Mapping[str, str]) -> dict[str, bytes]:
    """The values of fields as bytes, by the names of the output. `names`: output name -> name in
    the row.
    """
    if not names:
        return {}
    spans = row.field_spans()
    values = {}
    for output_name, name in names.items():
        values[output_name] = row.line[spans[name].value : spans[name].end]
    return values


def json_of(fields: Mapping[str, bytes]) -> bytes:
    """An object of values that are JSON."""
    return b"{%b}" % b",".join(
        b"%b:%b" % (orjson.dumps(name), value) for name, value in fields.items()
    )
