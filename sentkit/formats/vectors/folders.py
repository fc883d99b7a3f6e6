"""Vector folders: one vector file for each block of the inputs, and `run.json` with the settings.

A block is a byte range of an input, or a number of rows if the input has no byte positions. Its name has the
number of the input and the start of the block, so the names that exist are the state of the work.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

import orjson

from sentkit.errors import CannotCreateError, DataError, NoInputError
from sentkit.formats.files import (
    COMPRESSED,
    commit_in,
    is_input_file,
    is_there,
    name_of,
    open_file,
    open_input,
    read_run,
    readable,
    real_path,
    suffix_of,
)
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.outputs.temporary import is_abandoned, not_writable
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.lines import EXCERPT, READ, lines_of, looks_like_json, numbered
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import LINES, SUFFIXES, Inputs, TextsOfRow
from sentkit.formats.vectors.fingerprint import emb_problem, spec_of_signs, without_machine
from sentkit.formats.vectors.tensors import STORES, Header, read_header
from sentkit.formats.vectors.vector_file import VectorFile, again

RUN_NAME, FORMAT, VERSION = "run.json", "sentkit vector folder", 3
SUFFIX = ".safetensors"
NAME = re.compile(r"(\d{5,})-(\d{12,15})\.safetensors")
BLOCK_BYTES = 1 << 19
ROW_BYTES = 64  # an input without byte positions has blocks of `block_bytes` / 64 rows

Settings = Mapping[str, Any]


@dataclass(slots=True)
class Block:
    """Consecutive rows of an input: the lines that start in a byte range, records of Parquet, or rows.

    A block reads the same rows and the same bytes in every process, so its digest detects a changed input.
    Errors count lines from the start of a byte range.
    """

    input: int
    start: int
    stop: int
    last: bool  # whether this is known to be the last block of its input
    index: int  # shard I of N has the blocks whose index is I modulo N
    format: str  # of an input with positions: parquet, or a key of LINES for a byte range
    path: str = ""
    rows: RowBlock | None = None  # of a stream, which has no positions
    source: str = ""  # digest of what was read, after the last row

    @property
    def name(self) -> str:
        return f"{self.input:05d}-{self.start:012d}{SUFFIX}"

    def raw_blocks(self, inputs: Inputs) -> Iterator[RowBlock]:
        """The rows before parsing."""
        if self.rows is not None:
            yield self.rows.between(0, len(self.rows))  # a reader marks its bad rows
            return
        hashed = sha256()
        if self.format in LINES:
            with open_file(self.path) as file:
                place, rest = file.seek(max(0, self.start - 1)), b"\n" if not self.start else b""
                while not rest.endswith(b"\n") and place < self.stop and (rest := file.readline(EXCERPT)):
                    place += len(rest)
                source = f"{self.path} (from byte {place + 1})" if self.start else self.path
                chunks = bytes_in_range(file, place, self.stop, hashed)
                own = lines_of(chunks, is_start=not self.start)
                yield from LINES[self.format](source, own)
        else:
            with open_parquet(self.path) as table:
                for rows in table.blocks(self.start, self.stop):
                    hashed.update(b"".join([raw + b"\n" for raw in rows.raws]))
                    yield rows
        self.source = hashed.hexdigest()

    def parsed(self, inputs: Inputs, parse: TextsOfRow) -> Iterator[RowBlock]:
        """The rows with their texts. Bad rows go to the rejects of `inputs`."""
        return chain.from_iterable(inputs.parsed(rows, parse) for rows in self.raw_blocks(inputs))

    def digest(self, inputs: Inputs) -> str:
        """The digest of the bytes or rows. Bad rows are not reported."""
        for _ in () if self.source else self.raw_blocks(inputs):
            pass
        return self.source


def bytes_in_range(file: BinaryIO, start: int, stop: int, hashed: Any) -> Iterator[bytes]:
    """The lines that start in a range, from a position of the file that is the start of a line."""
    part = b"\n"
    while start < stop and (part := file.read(min(READ, stop - start))):
        start += len(part)
        hashed.update(part)
        yield part
    while not part.endswith(b"\n") and (part := file.readline(EXCERPT)):
        hashed.update(part)
        yield part


class Grid:
    """The blocks of inputs, as run.json describes these: their lengths determine them."""

    by_line = False  # whether digests of rows are those of their lines, without a header

    def __init__(self, inputs: Sequence[Mapping[str, Any]], block_bytes: int) -> None:
        self.inputs, self.block_bytes = inputs, block_bytes
        self.block_rows = max(1, block_bytes // ROW_BYTES)

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
        """The index of the first block of each input, and the number of all blocks, as far as it is known."""
        inputs = range(len(self.inputs))
        return [0, *accumulate(blocks_of(self.length(each) or 0, self.step(each)) for each in inputs)]

    def block(self, number: int, start: int, path: str = "") -> Block:
        """The block that starts here. If the length of its input is unknown, it can be shorter."""
        length, step = self.length(number), self.step(number)
        stop = start + step if length is None else min(start + step, length)
        index, format = self.offsets[number] + start // step, self.inputs[number]["format"]
        return Block(number, start, stop, stop == length, index, format, path)

    def blocks(self, number: int, path: str = "") -> Iterator[Block]:
        """The blocks of an input of known length."""
        step = self.step(number)
        count = blocks_of(self.length(number) or 0, step)
        return (self.block(number, each * step, path) for each in range(count))

    def place_of(self, block: Block) -> tuple[Any, ...]:
        """The name and kind of an input, and the part of it."""
        record = self.inputs[block.input]
        return record["name"], record["grid"], record["format"], block.start, block.stop, block.last

    def read(self, inputs: Inputs, number: int, path: str) -> Iterator[Block]:
        """The blocks of an input at `path`. Those of a stream have their rows, and exist only meanwhile.

        The digest of the rows of a stream is that of their JSON: a header or the first line changes it.
        """
        if self.length(number) is not None:
            yield from self.blocks(number, path)
            return
        with inputs.raw_blocks(path) as parts:
            start, held, size = 0, empty_block(), self.block_rows
            for part in chain(parts, [None]):
                held.extend(part or empty_block())
                while part is None or len(held) > size:  # more than one block, so this is not the last
                    own, held = held.between(0, size), held.between(size, len(held))
                    lines = [*own.raws] if self.by_line else [*own.lines]
                    for place in own.bad:
                        lines[place] = own.raws[place]
                    block = self.block(number, start, path)
                    block.stop, block.last, block.rows = start + len(own), part is None, own
                    block.source = sha256(b"".join([line + b"\n" for line in lines])).hexdigest()
                    yield block
                    start += size
                    if part is None:
                        return


@dataclass(slots=True)
class Status:
    done: dict[str, Block]  # by name, in input order
    missing: list[Block]
    unknown: bool  # whether the last block of an input of unknown length is missing
    leftovers: list[Path]  # temporary files of killed processes

    @property
    def complete(self) -> bool:
        return not self.missing and not self.unknown


def as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an older run.json as this version writes them: there, -v added `MARKS` to rows."""
    now = {**settings, "version": VERSION}
    if now.pop("verbose", False):
        now["on_truncate"] = "mark" if now["on_truncate"] == "warn" else f"{now['on_truncate']} with -v"
    return now


class VectorFolder(Grid):
    """A folder with a `run.json`."""

    def __init__(self, path: str, settings: dict[str, Any]) -> None:
        """`settings` are the content of run.json."""
        self.path = path
        self.source = run = str(Path(path, RUN_NAME))
        if settings.get("format") != FORMAT:
            raise DataError("not the run.json of a vector folder", source=run)
        version = settings.get("version")
        if version not in (2, VERSION):
            problem = f'"version" is {shown(version)}, this sentkit reads 2 and {VERSION}'
            advice = "encode the inputs into another folder"
            raise DataError(problem, source=run, advice=advice)
        check_fields(settings, {**RUN, "verbose": FLAG} if version == 2 else RUN, run, "run.json")
        self.settings = as_now(settings)
        emb = settings["encoder"].get("_emb")
        if not emb or emb_problem(emb) or not settings["inputs"] or not settings["block_bytes"]:
            raise DataError('no inputs, no "block_bytes", or "encoder" has no valid "_emb"', source=run)
        for number, record in enumerate(settings["inputs"]):
            check_fields(record, INPUT, run, f"input {number}")
        self.store: Any = self.settings["store"]
        super().__init__(self.settings["inputs"], self.settings["block_bytes"])
        self.by_line = version == 2

    def file(self, name: str) -> str:
        return str(Path(self.path, name))

    def existing(self) -> tuple[set[str], list[Path]]:
        """The names of the blocks, and the temporary files of killed processes."""
        with os.scandir(self.path) as entries:
            files = {entry.name for entry in entries}
        names = {*filter(NAME.fullmatch, files)}
        others = (Path(self.path, name) for name in sorted(files - names))
        return names, [path for path in others if is_abandoned(path)]

    def status(self) -> Status:
        names, leftovers = self.existing()
        status = Status({}, [], unknown=False, leftovers=leftovers)
        ends = dict(sorted(map(place_of, names)))  # where the last existing block of each input starts
        for number in range(len(self.inputs)):
            blocks = self.blocks(number)
            if self.length(number) is None:  # the blocks up to the last one that exists
                end = ends.get(number, -1)
                blocks = (self.block(number, start) for start in range(0, end + 1, self.block_rows))
                status.unknown |= end < 0 or not self.record(self.block(number, end).name)["last"]
            for block in blocks:
                if block.name in names:
                    status.done[block.name] = block
                else:
                    status.missing.append(block)
        if others := names - status.done.keys():
            path = self.file(min(others))
            raise DataError("this block is not in the grid of run.json", source=path)
        return status

    def record(self, name: str, header: Header | None = None) -> Mapping[str, Any]:
        """The record of a block in its header, which must have the place and the size of this block."""
        path, block = self.file(name), self.block(*place_of(name))
        header = header or read_header(path)
        try:
            record, rows = orjson.loads(header.metadata["block"]), header.entries["embeddings"].shape[0]
            spec = {"store": "float32", **orjson.loads(header.metadata["sentkit"])}
        except (KeyError, IndexError, TypeError, orjson.JSONDecodeError) as error:
            raise DataError("this file is not a block of a vector folder", source=path) from error
        check_fields(record, BLOCK, path, "block")
        found = (record["input"], record["start"], record["rows"])
        if self.length(block.input) is None and record["last"]:
            fits = block.start <= record["stop"] <= block.stop
        else:
            fits = (record["stop"], record["last"]) == (block.stop, block.last)
        if not fits or found != (block.input, block.start, rows):
            problem = f"this file is not the block {name}: it was copied, renamed or made with other inputs"
            raise DataError(problem, source=path, advice=again(self.path))
        if name := next((key for key, value in self.spec.items() if spec.get(key) != value), ""):
            problem = f'its "{name}" is {shown(spec.get(name))}, run.json has {shown(self.spec[name])}'
            raise DataError(problem, source=path, advice=again(self.path))
        return record

    @cached_property
    def spec(self) -> dict[str, Any]:
        """What run.json says about the vectors of each block."""
        encoder = without_machine(self.settings["encoder"])
        return {**(spec_of_signs(encoder) if self.store == "binary" else encoder), "store": self.store}

    def opened(self, name: str) -> VectorFile:
        """A block for reading."""
        file = VectorFile(self.file(name))
        file.source, file.record = self.path, self.record(name, file.header)
        return file

    def verified(self, name: str, first: VectorFile | None = None) -> VectorFile:
        """Read a block; raise a DataError if it is damaged, or does not fit to the block `first`."""
        file = self.opened(name)
        file.verify()
        file.refuse_difference(first or file)
        return first if first is not None and first.count else file


def open_folder(path: str) -> VectorFolder:
    settings = read_run(path)
    if settings is None:
        raise NoInputError(f"{path}: is not a vector folder: it has no {RUN_NAME}")
    return VectorFolder(path, settings)


def folder_of(path: str, settings: dict[str, Any] | None) -> VectorFolder | None:
    """The vector folder with these settings; None if its run.json is of another program, or missing."""
    if settings is None or settings.get("format") != FORMAT:
        return None
    return VectorFolder(path, settings)


def find_folder(path: str) -> VectorFolder | None:
    """The vector folder at a path; None if this is something else."""
    try:
        settings = read_run(path)
    except (DataError, NoInputError):
        return None
    return folder_of(path, settings)


def place_of(name: str) -> tuple[int, int]:
    """The number of the input and the start of a block, from its name."""
    number, _, start = name.removesuffix(SUFFIX).partition("-")
    return int(number), int(start)


def blocks_of(size: int, block: int) -> int:
    """The number of blocks; an empty input has one empty block."""
    return max(1, -(-size // block))


AGAIN = "repeat the first command with --resume, or name another folder"
EDGE = 1 << 16  # bytes at both ends of an input that run.json identifies


def describe_input(inputs: Inputs, path: str) -> dict[str, Any]:
    """What run.json records about an input. A grid of rows is for inputs that cannot be split at a byte.

    `rows` is the number of rows of a Parquet file, and null for other inputs.
    """
    name = readable(name_of(path).name)
    full = real_path(path)
    record: dict[str, Any] = {"name": name, "path": None, "grid": "rows", "rows": None}
    unknown = {"size": None, "head": None, "tail": None}
    if path == "-":
        return {**record, "format": inputs.format_of(path), **unknown}
    store = inputs.vector_file(path)
    if store is not None and store.folder is not None:
        return {**record, "path": readable(full), "format": "", **unknown}
    if not is_input_file(path):
        return {**record, "format": inputs.format_of(path), **unknown}
    record |= {"path": readable(full), "format": inputs.format_of(path)}
    packed = suffix_of(path) in COMPRESSED or store is not None
    if record["format"] == "parquet":
        with open_parquet(path) as table:
            record["rows"] = table.count
    elif not packed and record["format"] in LINES:
        record["grid"] = "bytes"
        if not record["format"]:  # as the reader detects it
            with open_input(path) as file:
                lines = (line for _, line in numbered(file) if line.strip())
                record["format"] = "jsonl" if looks_like_json(next(lines, b"")) else "detected text"
    with open_file(path) as file:
        record["size"] = file.seek(0, os.SEEK_END)
        for name, place in (("head", 0), ("tail", max(0, record["size"] - EDGE))):
            file.seek(place)
            record[name] = sha256(file.read(EDGE)).hexdigest()
    return record


def create_folder(
    path: str, settings: Settings, defaults: Settings, existing: VectorFolder | None
) -> tuple[VectorFolder, bool]:
    """Create run.json, or compare these settings with it. Also returns whether this process created it.

    A setting with the value None has the value that run.json has; `defaults` are for a new run.json.
    `existing` is the folder if it was there when the command began.
    """
    new = {name: defaults.get(name) if value is None else value for name, value in settings.items()}
    record = {"format": FORMAT, "version": VERSION, **new}
    content = orjson.dumps(record, option=OPTIONS)
    try:
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from error
    run = str(Path(path, RUN_NAME))
    try:
        with published_together(), open_output(run, force=False) as out:
            out.write(content)
        return VectorFolder(path, orjson.loads(content)), True
    except CannotCreateError:  # there is one, also from another process
        if not is_there(run):
            raise
    folder = existing or open_folder(path)
    compare(folder, settings)
    return folder, False


OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def compare(folder: VectorFolder, settings: Settings) -> None:
    """Refuse a setting that differs from run.json."""
    given = {name for name, value in settings.items() if value is not None} - {"inputs", "encoder"}
    before, now = without_machine(folder.settings["encoder"]), without_machine(settings["encoder"])
    before |= {name: folder.settings.get(name) for name in given}
    now |= {name: settings[name] for name in given}
    for name in {**settings, **now, **before}:
        if before.get(name) != now.get(name):
            problem = f'"{name}" is {shown(before.get(name))}, this command has {shown(now.get(name))}'
            raise DataError(problem, source=folder.source, advice=AGAIN)
    if (change := input_change(folder, settings["inputs"])) is not None:
        raise change


def input_change(folder: VectorFolder, inputs: Sequence[Mapping[str, Any]]) -> DataError | None:
    """The error for inputs that differ from those of run.json; None if they are the same."""
    advice = f"restore the input, or encode into another folder with --reuse {quote(folder.path)}"
    nothing: Mapping[str, Any] = {}
    for place, (before, now) in enumerate(zip_longest(folder.inputs, inputs, fillvalue=nothing), 1):
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and name != "path"]
        if "name" in changed:
            old, new = (shown(each["name"]) if each else "missing" for each in (before, now))
            problem = f"other inputs: input {place} of {len(folder.inputs)} is {old}, "
            problem += f"in this command of {len(inputs)} inputs {new}"
            return DataError(problem, source=folder.source, advice=advice)
        commits = commit_in(before["path"]), commit_in(now["path"])
        if changed or (None not in commits and commits[0] != commits[1]):
            part = changed[0] if changed else "commit"
            problem = f"{now['name']} has changed since the first block (its {part})"
            return DataError(problem, source=folder.source, advice=advice)
    return None


# The values of the fields that readers use: a type, one value, or a tuple of these. Numbers are not negative.
FLAG, TEXT, COUNT = (False, True), (str, None), (int, None)
RUN: Mapping[str, Any] = {
    "block_bytes": int,
    "batch_tokens": int,
    "inputs": list,
    "store": STORES,
    "encoder": dict,
    "on_truncate": str,
    "max_line": int,
    "quoting": ("by format", "none", "csv"),
}
INPUT: Mapping[str, Any] = {
    "name": str,
    "path": TEXT,
    "grid": ("bytes", "rows"),
    "rows": COUNT,
    "size": COUNT,
    "head": TEXT,
    "tail": TEXT,
    "format": (*LINES, *SUFFIXES.values()),
}
BLOCK: Mapping[str, Any] = {
    **dict.fromkeys(("input", "start", "stop", "rows", "truncated", "skipped"), int),
    "last": FLAG,
    "source": str,  # digest of the bytes or rows that were read
}
EMPTY_RECORD = dict.fromkeys(BLOCK, 10**18) | {"last": False, "source": "0" * 64}  # the widest values


def fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(fits(value, each) for each in kind)
    if kind is int:
        return type(value) is int and 0 <= value < 10**15  # the name of a block has at most fifteen digits
    return type(value) is kind if isinstance(kind, type) else type(value) is type(kind) and value == kind


def shown(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_fields(values: Any, kinds: Mapping[str, Any], source: str, what: str) -> None:
    """Raise a DataError unless `values` is an object with these fields."""
    if not isinstance(values, dict):
        raise DataError(f"{what} is {shown(values)}, expected an object", source=source)
    for name, kind in kinds.items():
        if not fits(values.get(name), kind):
            raise DataError(
                f'{what}: "{name}" is {shown(values.get(name))}, which is not valid', source=source
            )
