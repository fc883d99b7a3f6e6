"""Vector folders: one vector file for each block of the inputs, and `run.json` with the settings.

`grid.py` describes the blocks. The names of the files that exist are the state of the work.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

import orjson

from sentkit.errors import CannotCreateError, DataError, NoInputError
from sentkit.formats.files import commit_in, exists, is_there, read_run
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.outputs.temporary import is_abandoned, not_writable
from sentkit.formats.rows.rows import LINES, SUFFIXES
from sentkit.formats.vectors.fingerprint import emb_problem, spec_of_signs, without_machine
from sentkit.formats.vectors.grid import Block, Grid, input_and_start
from sentkit.formats.vectors.tensors import STORES, Header, read_header
from sentkit.formats.vectors.vector_file import VectorFile, again

RUN_NAME = "run.json"
FORMAT = "sentkit vector folder"
VERSION = 3
NAME = re.compile(r"(\d{5,})-(\d{12,15})\.safetensors")

Settings = Mapping[str, Any]


@dataclass(slots=True)
class Status:
    """The blocks of a folder that exist and that are missing."""

    complete_blocks: dict[str, Block]  # by name, in input order
    missing_blocks: list[Block]
    length_is_unknown: bool  # whether the last block of an input of unknown length is missing
    leftovers: list[Path]  # temporary files of killed processes
    names_outside: list[str]  # of files that are named like blocks, but are not in the grid

    @property
    def is_complete(self) -> bool:
        return not self.missing_blocks and not self.length_is_unknown


def as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an older run.json as this version writes them: there, -v added `MARKS` to
    rows, and --rejects was a setting, "on_error".
    """
    new = {**settings, "version": VERSION}
    new.pop("on_error", None)
    if new.pop("verbose", False):
        if new["on_truncate"] == "warn":
            new["on_truncate"] = "mark"
        else:
            new["on_truncate"] += " with -v"
    return new


class FolderRun(Grid):
    """The run.json of a vector folder, with the blocks that exist. The folder can be incomplete."""

    def __init__(self, path: str, settings: dict[str, Any]) -> None:
        """`settings` are the content of run.json, of this version or the one before."""
        self.path = path
        run = str(Path(path, RUN_NAME))
        self.source = run
        if settings.get("format") != FORMAT:
            raise DataError("not the run.json of a vector folder", source=run)
        version = settings.get("version")
        if version not in (2, VERSION):
            problem = f'"version" is {shown(version)}, this sentkit reads 2 and {VERSION}'
            advice = "encode the inputs into another folder"
            raise DataError(problem, source=run, advice=advice)
        fields = RUN if version == VERSION else {**RUN, "verbose": FLAG}
        check_fields(settings, fields, run, "run.json")
        self.settings = as_now(settings)

        # Values that no type describes.
        emb = settings["encoder"].get("_emb")
        if not emb or emb_problem(emb) or not settings["inputs"] or not settings["block_bytes"]:
            raise DataError(
                'no inputs, no "block_bytes", or "encoder" has no valid "_emb"', source=run
            )
        for number, record in enumerate(settings["inputs"]):
            check_fields(record, INPUT, run, f"input {number}")
        self.store: Any = self.settings["store"]
        super().__init__(self.settings["inputs"], self.settings["block_bytes"])
        self.by_line = version == 2

    def block_path(self, name: str) -> str:
        return str(Path(self.path, name))

    def existing(self) -> tuple[set[str], list[Path]]:
        """The names of the blocks, and the temporary files of killed processes."""
        with os.scandir(self.path) as entries:
            files = {entry.name for entry in entries}
        names = {*filter(NAME.fullmatch, files)}
        other_files = (Path(self.path, name) for name in sorted(files - names))
        return names, [path for path in other_files if is_abandoned(path)]

    def status(self, *, accepts_damage: bool = False) -> Status:
        """The blocks that exist and that are missing. With `accepts_damage`, neither blocks outside
        the grid are an error, nor a damaged last block of an input of unknown length, whose length
        is then unknown.
        """
        names, leftovers = self.existing()
        status = Status({}, [], length_is_unknown=False, leftovers=leftovers, names_outside=[])
        # of the last existing block of each input
        last_starts = dict(sorted(map(input_and_start, names)))
        for number in range(len(self.inputs)):
            blocks = self.blocks(number)
            if self.length(number) is None:  # the blocks up to the last one that exists
                last_start = last_starts.get(number, -1)
                starts = range(0, last_start + 1, self.block_rows)
                blocks = (self.block(number, start) for start in starts)
                if not self.has_end(number, last_start, accepts_damage=accepts_damage):
                    status.length_is_unknown = True
            for block in blocks:
                if block.name in names:
                    status.complete_blocks[block.name] = block
                else:
                    status.missing_blocks.append(block)
        status.names_outside = sorted(names - status.complete_blocks.keys())
        if status.names_outside and not accepts_damage:
            path = self.block_path(status.names_outside[0])
            problem = "this block is not in the grid of run.json"
            raise DataError(problem, source=path, advice=again(self.path))
        return status

    def has_end(self, number: int, start: int, *, accepts_damage: bool) -> bool:
        """Whether the block of an input that starts here is its last one; -1: there is no block."""
        if start < 0:
            return False
        try:
            return bool(self.record(self.block(number, start).name)["last"])
        except DataError:
            if accepts_damage:
                return False
            raise

    def record(self, name: str, header: Header | None = None) -> Mapping[str, Any]:
        """What the header of a block says about its rows: the fields of BLOCK.

        It is an error if the position or the number of rows does not fit the name of the file, or
        if the vectors are not those of run.json.
        """
        with self.advice_on_blocks():
            return self.checked_record(name, header or read_header(self.block_path(name)))

    def checked_record(self, name: str, header: Header) -> Mapping[str, Any]:
        # What the name says, and what the header says.
        path = self.block_path(name)
        input_number, start = input_and_start(name)
        block = self.block(input_number, start)
        try:
            block_record = orjson.loads(header.metadata["block"])
            rows = header.entries["embeddings"].shape[0]
            # The writer omits "store" if it is float32.
            metadata = {"store": "float32", **orjson.loads(header.metadata["sentkit"])}
        except (KeyError, IndexError, TypeError, orjson.JSONDecodeError) as error:
            raise DataError("this file is not a block of a vector folder", source=path) from error
        check_fields(block_record, BLOCK, path, "block")

        # Both must agree. The last block of a stream can be shorter than its name allows.
        if self.length(block.input_number) is None and block_record["last"]:
            end_fits = block.start <= block_record["stop"] <= block.stop
        else:
            recorded_end = (block_record["stop"], block_record["last"])
            end_fits = recorded_end == (block.stop, block.is_last)
        recorded_start = (block_record["input"], block_record["start"])
        start_fits = recorded_start == (block.input_number, block.start)
        if not start_fits or not end_fits or block_record["rows"] != rows:
            problem = (
                f"this file is not the block {name}: it was copied, renamed or made with "
                f"other inputs"
            )
            raise DataError(problem, source=path)

        # Its vectors must be those of run.json.
        for key, value in self.metadata_of_blocks.items():
            if metadata.get(key) != value:
                problem = f'its "{key}" is {shown(metadata.get(key))}, run.json has {shown(value)}'
                raise DataError(problem, source=path)
        return block_record

    @contextmanager
    def advice_on_blocks(self) -> Iterator[None]:
        """Add to an error of a block how to write the block again."""
        try:
            yield
        except DataError as error:
            error.advice = error.advice or again(self.path)
            raise

    @cached_property
    def metadata_of_blocks(self) -> dict[str, Any]:
        """What run.json says about the vectors of each block."""
        metadata = without_machine(self.settings["encoder"])
        if self.store == "binary":
            metadata = spec_of_signs(metadata)
        return {**metadata, "store": self.store}

    def open_block(self, name: str, before: int = 0) -> VectorFile:
        """A block for reading, with the number of rows `before` it in the folder."""
        with self.advice_on_blocks():
            return VectorFile(
                self.block_path(name),
                folder=self.path,
                record_of=lambda header: self.record(name, header),
                before=before,
            )

    def open_verified_block(self, name: str, first: VectorFile | None = None) -> VectorFile:
        """Read a block; raise a DataError if it is damaged, or does not fit to the block
        `first`.
        """
        file = self.open_block(name)
        file.verify()
        with self.advice_on_blocks():
            file.refuse_difference(first or file)
        if first is not None and first.count:
            return first
        return file


def open_folder(path: str) -> FolderRun:
    settings = read_run(path)
    if settings is None and not exists(Path(path)):
        raise NoInputError(f"{path}: no such file or folder")
    if settings is None:
        raise NoInputError(f"{path}: is not a vector folder: it has no {RUN_NAME}")
    return FolderRun(path, settings)


def folder_of(path: str, settings: dict[str, Any] | None) -> FolderRun | None:
    """The vector folder with these settings; None if its run.json is of another program, or
    missing.
    """
    if settings is None or settings.get("format") != FORMAT:
        return None
    return FolderRun(path, settings)


def find_folder(path: str) -> FolderRun | None:
    """The vector folder at a path; None if this is something else. A run.json that is not JSON is a
    DataError.
    """
    try:
        settings = read_run(path)
    except NoInputError:
        return None
    return folder_of(path, settings)


AGAIN = "repeat the first command with --resume, or name another folder"
OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def create_folder(
    path: str, settings: Settings, defaults: Settings, existing: FolderRun | None, *, resume: bool
) -> tuple[FolderRun, bool]:
    """Create run.json, or compare these settings with it. Also returns whether this process created
    it.

    A setting with the value None has the value that run.json has; `defaults` are for a new
    run.json. `existing` is the folder if it was there when the command began. If the folder has
    blocks without run.json, it needs `resume` and settings that fit the blocks.
    """
    new = {name: defaults.get(name) if value is None else value for name, value in settings.items()}
    record = {"format": FORMAT, "version": VERSION, **new}
    content = orjson.dumps(record, option=OPTIONS)
    run = str(Path(path, RUN_NAME))
    if is_there(str(Path(path, "config.json"))) and not is_there(run):
        problem = f"{path}/: is a folder with a config.json, as of a checkpoint"
        raise CannotCreateError(problem, advice="name another folder")
    try:
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from error
    new_folder = FolderRun(path, orjson.loads(content))
    if existing is None:
        refuse_other_blocks(new_folder, resume=resume)
    try:
        with published_together(), open_output(run, force=False) as out:
            out.write(content)
        return new_folder, True
    except CannotCreateError:  # there is one, also from another process
        if not is_there(run):
            raise
    folder = existing or open_folder(path)
    compare(folder, settings)
    return folder, False


def refuse_other_blocks(folder: FolderRun, *, resume: bool) -> None:
    """Refuse blocks without run.json, which was lost. With `resume`, they are accepted if they have
    the settings of this folder, whose run.json is not written yet.

    Blocks with a damaged header are accepted: `sentkit check` removes them, but needs run.json.
    """
    # Blocks are listed first, because other processes create run.json before blocks.
    names, _ = folder.existing()
    if not names or is_there(folder.source):
        return
    if not resume:
        raise CannotCreateError(f"{folder.path}/: has blocks, but no {RUN_NAME}", advice=AGAIN)
    status = folder.status(accepts_damage=True)
    other_names = status.names_outside[:1]
    for name in status.complete_blocks:
        try:
            header = read_header(folder.block_path(name))
        except DataError:
            continue
        try:
            folder.checked_record(name, header)
        except DataError:
            other_names.append(name)
            break
    if other_names:
        path = folder.block_path(other_names[0])
        problem = "run.json is missing, and this block has other inputs or settings than this"
        raise DataError(f"{problem} command", source=path, advice=AGAIN)


def compare(folder: FolderRun, settings: Settings) -> None:
    """Refuse a setting that differs from run.json."""
    names = {name for name, value in settings.items() if value is not None} - {"inputs", "encoder"}
    old = without_machine(folder.settings["encoder"]) | {
        name: folder.settings.get(name) for name in names
    }
    new = without_machine(settings["encoder"]) | {name: settings[name] for name in names}
    for name in {**settings, **new, **old}:
        if old.get(name) != new.get(name):
            problem = f'"{name}" is {shown(old.get(name))}, this command has {shown(new.get(name))}'
            raise DataError(problem, source=folder.source, advice=AGAIN)
    change = input_change(folder, settings["inputs"])
    if change is not None:
        raise change


def input_change(folder: FolderRun, inputs: Sequence[Mapping[str, Any]]) -> DataError | None:
    """The error for inputs that differ from those of run.json; None if they are the same."""
    # Inputs that were added, and nothing else.
    old_names = {old["name"] for old in folder.inputs}
    new_names = [new["name"] for new in inputs]
    added_names = [name for name in new_names if name not in old_names]
    if added_names and old_names.issubset(new_names):
        problem = f"{shown(added_names[0])} was not an input of {folder.path}"
        other_folder = f"encode all inputs into another folder with --reuse {quote(folder.path)}"
        advice = f"leave it out, or {other_folder}"
        return DataError(problem, source=folder.source, advice=advice)

    # Inputs that are missing, have another order, or have changed.
    advice = f"restore the input, or encode into another folder with --reuse {quote(folder.path)}"
    missing: Mapping[str, Any] = {}
    count = len(folder.inputs)
    for position, (old, new) in enumerate(zip_longest(folder.inputs, inputs, fillvalue=missing), 1):
        changed = [
            name for name in {**old, **new} if old.get(name) != new.get(name) and name != "path"
        ]
        if "name" in changed:
            old_name = shown(old["name"]) if old else "missing"
            new_name = shown(new["name"]) if new else "missing"
            problem = f"other inputs: input {position} of {count} is {old_name}, "
            problem += f"in this command of {len(inputs)} inputs {new_name}"
            return DataError(problem, source=folder.source, advice=advice)
        old_commit = commit_in(old["path"])
        new_commit = commit_in(new["path"])
        if old_commit is not None and new_commit is not None and old_commit != new_commit:
            changed.append("commit")
        if changed:
            problem = f"{new['name']} has changed since the first block (its {changed[0]})"
            return DataError(problem, source=folder.source, advice=advice)
    return None


# The values of the fields that readers use: a type, one value, or a tuple of these. Numbers are not
# negative.
FLAG = (False, True)
TEXT = (str, None)
COUNT = (int, None)
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
# A record that is as long as any other, so that the header has room for all.
WIDEST_RECORD = dict.fromkeys(BLOCK, 10**18) | {
    "last": False,
    "source": "0" * 64,
}


def fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(fits(value, option) for option in kind)
    if kind is int:
        # the name of a block has at most fifteen digits
        return type(value) is int and 0 <= value < 10**15
    if isinstance(kind, type):
        return type(value) is kind
    return type(value) is type(kind) and value == kind


def shown(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_fields(values: Any, kinds: Mapping[str, Any], source: str, title: str) -> None:
    """Raise a DataError unless `values` is an object with these fields."""
    if not isinstance(values, dict):
        raise DataError(f"{title} is {shown(values)}, expected an object", source=source)
    for name, kind in kinds.items():
        if name not in values:
            raise DataError(f'{title}: "{name}" is missing', source=source)
        value = values[name]
        if not fits(value, kind):
            raise DataError(
                f'{title}: "{name}" is {shown(value)}, which is not valid', source=source
            )
