"""Vector folders: one vector file for each block of the inputs, and `run.json` with the settings.

A block is a byte range of an input, or a number of rows if the input has no byte positions. Its name has the
number of the input and the start of the block, so the names that exist are the state of the work.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import open_file
from sentkit.formats.json_files import is_there, read_object
from sentkit.formats.outputs.temporary import MARK, is_abandoned
from sentkit.formats.rows.parts import ByteRange, Part, RecordRange
from sentkit.formats.vectors.safetensors_header import read_header
from sentkit.formats.vectors.storage import STORES

RUN, FORMAT, VERSION = "run.json", "sentkit vector folder", 1
SUFFIX = ".safetensors"
NAME = re.compile(r"(\d{5,})-(\d{12,15})\.safetensors")
BLOCK_BYTES = 1 << 19
ROW_BYTES = 64  # an input without byte positions has blocks of `block_bytes` / 64 rows
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    input: int
    start: int
    stop: int
    index: int  # shard I of N has the blocks whose index is I modulo N

    @property
    def name(self) -> str:
        return f"{self.input:05d}-{self.start:012d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Status:
    done: list[str]  # names of blocks, in input order
    missing: list[Block]
    unknown: list[Block]  # for each input of unknown length without its last block: the next block
    leftovers: list[Path]  # temporary files of killed processes

    @property
    def complete(self) -> bool:
        return not self.missing and not self.unknown


def is_vector_folder(path: str) -> bool:
    run = Path(path, RUN)
    try:
        return is_there(run) and read_object(run).get("format") == FORMAT
    except (DataError, NoInputError):
        return False


class VectorFolder:
    """A folder with a `run.json`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source = str(Path(path, RUN))
        if not is_there(Path(self.source)):
            raise NoInputError(f"{path}: is not a vector folder: it has no {RUN}")
        self.settings = read_object(Path(self.source))
        if self.settings.get("format") != FORMAT:
            raise DataError("not the run.json of a vector folder", source=self.source)
        if self.settings.get("version") != VERSION:
            problem = f'"version" is {shown(self.settings.get("version"))}, this sentkit reads {VERSION}'
            raise DataError(problem, source=self.source)
        self.inputs: Sequence[Mapping[str, Any]] = self.settings.get("inputs", [])
        self.block_bytes = self._size("block_bytes")
        self.block_rows = max(1, self.block_bytes // ROW_BYTES)
        self.store = self.settings.setdefault("store", "float32")  # absent in folders of older versions
        if self.store not in STORES:
            raise DataError(
                f'"store" is {shown(self.store)}, expected {", ".join(STORES)}', source=self.source
            )
        if not isinstance(self.inputs, list) or not all(map(is_input, self.inputs)):
            raise DataError('"inputs" is damaged', source=self.source)

    def _size(self, name: str) -> int:
        value = self.settings.get(name)
        if type(value) is not int or value < 1:
            raise DataError(f'"{name}" is {shown(value)}, expected a positive number', source=self.source)
        return value

    def file(self, name: str) -> str:
        return str(Path(self.path, name))

    def length(self, number: int) -> int | None:
        """The length of an input in bytes or in rows, as its grid counts; None if it is unknown."""
        record = self.inputs[number]
        length: int | None = record["size"] if record["grid"] == "bytes" else record.get("rows")
        return length

    def step(self, number: int) -> int:
        """The length of the blocks of an input; the last one can be shorter."""
        return self.block_bytes if self.inputs[number]["grid"] == "bytes" else self.block_rows

    @cached_property
    def offsets(self) -> list[int]:
        """The index of the first block of each input."""
        places, place = [], 0
        for number in range(len(self.inputs)):
            places.append(place)
            length = self.length(number)
            place += 1 if length is None else blocks_of(length, self.step(number))
        return places

    def blocks(self, number: int) -> Iterator[Block]:
        """The blocks of an input of known length."""
        length, step, offset = self.length(number) or 0, self.step(number), self.offsets[number]
        for each in range(blocks_of(length, step)):
            yield Block(number, each * step, min((each + 1) * step, length), offset + each)

    def block_at(self, number: int, start: int, length: int) -> Block:
        return Block(number, start, start + length, self.offsets[number] + start // self.step(number))

    def block_named(self, name: str) -> Block:
        number, start = place_of(name)
        return self.block_at(number, start, self.step(number))

    def part(self, block: Block, path: str) -> Part:
        """The rows of a block of an input of known length, which is at `path`."""
        record, last = self.inputs[block.input], block.stop == self.length(block.input)
        if record["grid"] == "bytes":
            return ByteRange(path, record["format"], block.start, block.stop, last)
        return RecordRange(path, block.start, block.stop, last)

    def existing(self) -> tuple[set[str], list[Path]]:
        """The names of the blocks, and the temporary files of killed processes."""
        names, leftovers = set(), []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name):
                    names.add(entry.name)
                elif entry.name.startswith(".") and MARK in entry.name:
                    leftovers.append(Path(entry.path))
        return names, [path for path in sorted(leftovers) if is_abandoned(path)]

    def status(self) -> Status:
        names, leftovers = self.existing()
        done: list[str] = []
        missing: list[Block] = []
        unknown: list[Block] = []
        starts: dict[int, list[int]] = {}  # of the existing blocks of each input
        for number, start in map(place_of, names):
            starts.setdefault(number, []).append(start)
        for number in range(len(self.inputs)):
            if self.length(number) is None:
                blocks, following = self._row_blocks(number, max(starts.get(number, ()), default=None))
                unknown += following
            else:
                blocks = list(self.blocks(number))
            done += [block.name for block in blocks if block.name in names]
            missing += [block for block in blocks if block.name not in names]
        if others := names - set(done):
            raise DataError("this block is not in the grid of run.json", source=self.file(min(others)))
        return Status(done, missing, unknown, leftovers)

    def _row_blocks(self, number: int, last: int | None) -> tuple[list[Block], list[Block]]:
        """The known blocks of an input of unknown length, and the next one if its end is unknown.

        `last` is the start of its last existing block.
        """
        starts = range(0, (-1 if last is None else last) + 1, self.block_rows)
        blocks = [self.block_at(number, start, self.block_rows) for start in starts]
        if last is not None and self.record(self.block_at(number, last, self.block_rows).name)["last"]:
            return blocks, []
        return blocks, [self.block_at(number, len(blocks) * self.block_rows, self.block_rows)]

    def record(self, name: str) -> dict[str, Any]:
        """The record of a block in its header."""
        try:
            record = orjson.loads(read_header(self.file(name)).metadata["block"])
            return {key: record[key] for key in EMPTY_RECORD}
        except (KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise DataError("this file is not a block of a vector folder", source=self.file(name)) from error


# Header of a block, with the widest values.
EMPTY_RECORD = {
    **dict.fromkeys(("input", "start", "stop", "rows", "truncated", "skipped"), 10**18),
    "last": False,
    "source": "0" * 64,  # digest of the bytes that were read
}


def place_of(name: str) -> tuple[int, int]:
    """The number of the input and the start of a block, from its name."""
    number, _, start = name.removesuffix(SUFFIX).partition("-")
    return int(number), int(start)


def digest_of(file: BinaryIO) -> str:
    """The digest of the rest of a file."""
    hashed = hashlib.sha256()
    while part := file.read(1 << 20):
        hashed.update(part)
    return hashed.hexdigest()


def is_input(record: object) -> bool:
    """Whether this is a record of `describe_input`."""
    if (
        not isinstance(record, dict)
        or not {"name", "path", "format", "size", "head", "tail"} <= record.keys()
    ):
        return False
    if record.get("grid") == "bytes":
        return type(record["size"]) is int
    return record.get("grid") == "rows" and type(record.get("rows", 0)) in (int, type(None))


def blocks_of(size: int, block: int) -> int:
    """The number of blocks; an empty input has one empty block."""
    return max(1, -(-size // block))


def damage(path: str) -> str | None:
    """The reason why a block is damaged: its bytes are not those that were written."""
    try:
        header = read_header(path)
    except DataError as error:
        return error.problem
    with open_file(path) as file:
        file.seek(min((entry.start for entry in header.entries.values()), default=0))
        actual = digest_of(file)
    return None if header.metadata.get("content") == actual else "its digest is wrong"


def shown(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
