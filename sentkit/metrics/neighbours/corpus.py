"""The corpus of a search: its vectors, its space, and the fields that hits show."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import orjson

from sentkit.arrays import Indices, Rows
from sentkit.digits import significant
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import UNNAMED, short_label, space_of, space_of_signs, target_space
from sentkit.formats.vectors.storage import SelectedVectors, StoredVectors, first_vectors, places_of_texts
from sentkit.formats.vectors.table import VectorTable, read_table
from sentkit.formats.vectors.vectors import VectorRow, expect_one

IDS = ("id", "_id")  # the field that identifies a row: the first of these that it has
NAMING = ("text", "entry")  # the name of a row in results: the first of these fields that it has
CACHED_ROWS = 1 << 16  # rows whose fields are kept for later hits


class SearchCorpus:
    """The vectors of a corpus, and the fields that hits show. A row is parsed when it becomes a hit."""

    def __init__(self, table: VectorTable, show: Sequence[str] = (), *, with_id: bool = False) -> None:
        self.table, self.path, self.emb = table, table.path, table.emb
        self.stored = first_vectors(table.vectors)
        self.keep(places_of_texts(self.stored))
        self.hidden = (*(table.fields.get(name, name) for name in table.names), "_emb")
        self.with_id = with_id
        self.shown = lru_cache(CACHED_ROWS)(partial(self._shown, show))
        self.every_field = lru_cache(CACHED_ROWS)(self._every_field)

    def keep(self, places: Indices | None) -> None:
        """Search only the rows at these places of the table; None: all."""
        table, self.places = self.table, places
        self.vectors: Rows = self.stored
        self.row, self.numbers, self.files = table.row, table.numbers, table.files
        if places is not None:
            self.vectors, own = SelectedVectors(self.stored, places), places.tolist()
            self.row = lambda place: table.row(own[place])
            self.numbers = [table.numbers[place] for place in own]
            self.files = [table.files[place] for place in own] if table.files else ()

    @property
    def left_out(self) -> list[str]:
        """A message about rows that are never hits, if there are any."""
        return left_out(self.path, len(self.table) - len(self.vectors), len(self.table))

    def _shown(self, show: Sequence[str], place: int) -> dict[str, bytes]:
        row, fields = self.row(place), self.table.fields
        own = bytes_of(row, id_field(row, fields)) if self.with_id else {}
        return {**shown_fields(row, self.hidden, show, fields), **own}

    def _every_field(self, place: int) -> dict[str, bytes]:
        """All fields except the vector, with our names, as bytes."""
        row, fields = self.row(place), self.table.fields
        return bytes_of(row, our_names(row, fields, self.hidden))

    def refuse_unknown(self, show: Sequence[str]) -> None:
        """Refuse a field that no row has. Most corpora have all fields in the first row."""
        unseen = set(show)
        for place in range(len(self.vectors)):
            if not unseen:
                return
            unseen -= self.shown(place).keys()
        if unseen:
            raise DataError(f'no row has "{min(unseen)}"', source=self.path)

    def hit(self, place: int, similarity: float) -> bytes:
        """The row at a place, counted from 0, as a hit."""
        file = b'"file":%b,' % orjson.dumps(readable(self.files[place])) if self.files else b""
        own = b'{%b"row":%d,"similarity":%a' % (file, self.numbers[place], significant(similarity))
        shown = b"".join(b",%b:%b" % (orjson.dumps(name), value) for name, value in self.shown(place).items())
        return b"%b%b}" % (own, shown)

    def check(self, query: VectorRow, emb: str | None) -> None:
        """Refuse queries of another space, unless they were trained to match the corpus.

        A corpus of signs also accepts queries of the space before the signs.
        """
        self.table.check_space(query, emb, "query", fits=self.is_signs_of(emb))

    @property
    def signs(self) -> StoredVectors | SelectedVectors | None:
        """The vectors, if they are stored as sign bits."""
        if isinstance(self.stored, StoredVectors) and self.stored.kind == "binary":
            return self.stored if self.places is None else SelectedVectors(self.stored, self.places)
        return None

    def is_signs_of(self, emb: str | None) -> bool:
        """Whether the vectors are the signs of vectors of this space, or of the space that it matches."""
        emb = emb or UNNAMED.emb
        before = filter(None, (space_of(emb), target_space(emb)))
        return self.emb is not None and space_of(self.emb) in map(space_of_signs, before)

    def check_rescore(self, rescore: "SearchCorpus") -> None:
        """Refuse exact vectors of another space, width or number of rows. Select the rows of this corpus."""
        if not self.is_signs_of(rescore.emb) or rescore.stored.shape != self.stored.shape:
            ours, theirs = (
                f"{len(each.stored)} rows, {each.stored.shape[1]} numbers, {short_label(each.emb)}"
                for each in (rescore, self)
            )
            raise DataError(f"it has {ours}; {self.path} has {theirs}", source=rescore.path)
        rescore.keep(self.places)

    def check_same_row(self, rescore: "SearchCorpus", place: int) -> None:
        if self.shown(place) != rescore.shown(place):
            raise rescore.row(place).error(f"this row differs from row {self.numbers[place]} of {self.path}")


def left_out(path: str, count: int, rows: int) -> list[str]:
    """The message about rows of a file whose vectors are zero."""
    problem = "rows have a zero vector, as empty texts do, and are left out"
    return [f"{readable(path)}: {count:,} of {rows:,} {problem}"] if count else []


def read_search_corpus(inputs: Inputs, part: tuple[int, int] | None = None) -> SearchCorpus:
    """Read the vectors, memory-mapped from a vector file. Rows are read when they are needed."""
    return SearchCorpus(read_table(inputs, expect_one, part), with_id=True)


def naming_field(row: Row, fields: Mapping[str, str]) -> dict[str, str]:
    """The field that names a row: its standard name and its name in the row; empty if there is none."""
    naming = ((name, fields.get(name, name)) for name in NAMING)
    return dict([pair for pair in naming if row.values.get(pair[1]) is not None][:1])


def columns_of_pair(pair: Mapping[str, Any], show: Sequence[str] = NAMING) -> dict[str, str]:
    """Both rows of a pair for a table: number (and file, if there are several) and the fields in `show`."""
    columns = {}
    for side in "ab":
        file = f"{Path(pair[f'file_{side}']).name}:" if f"file_{side}" in pair else ""
        columns[f"row {side}"] = f"{file}{pair[f'row_{side}']}"
        columns[side] = " | ".join(str(pair[f"{name}_{side}"]) for name in show if f"{name}_{side}" in pair)
    return columns


def id_field(row: Row, fields: Mapping[str, str]) -> dict[str, str]:
    """The field that identifies a row: its standard name or "_id", and its name in the row."""
    names = ((name, fields.get(name, name)) for name in IDS)
    return dict([pair for pair in names if pair[1] in row.values][:1])


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
