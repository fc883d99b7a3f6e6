"""Open outputs that appear only when they are complete, one after the other at the end of a
command.

Each output is written to a temporary file (`temporary.py`). For a symbolic link, the target of the
link is created or replaced, and the link remains. Devices, named pipes and open descriptors
(/dev/stdout) are written directly. `check_places` compares the outputs of a command with its inputs
before the work starts.
"""

import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations, product
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from sentkit.errors import AnswerIsNo, CannotCreateError, DivergedRunsError, NoRowsError, UsageError
from sentkit.escaping import escape_json
from sentkit.formats.files import compressed, exists, is_folder, is_parquet, is_there
from sentkit.formats.outputs.temporary import (
    NamedFile,
    UnpublishedFile,
    not_writable,
    remove_leftovers,
)
from sentkit.formats.urls import is_url

STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")

_waiting: ContextVar[list[UnpublishedFile] | None] = ContextVar("_waiting", default=None)


@contextmanager
def published_together() -> Iterator[None]:
    """Publish the outputs that are opened in this block at its end, or none of them if the work
    fails.

    All outputs are on the disk before the first rename. The order of the renames is the order of
    opening, and commands open their main output last. So a kill or an error between two renames
    leaves only side files.

    Outputs are also published after AnswerIsNo and BrokenPipeError, because the work is then
    complete. After NoRowsError and DivergedRunsError, only the file of --rejects is: it then
    has all rows, and the finished runs have none of them.
    """
    outputs: list[UnpublishedFile] = []
    token = _waiting.set(outputs)
    try:
        yield
    except (AnswerIsNo, BrokenPipeError):
        for output in outputs:
            output.publish()
        raise
    except (NoRowsError, DivergedRunsError):
        for output in outputs:
            if output.has_rejects:
                output.publish()
        raise
    else:
        for output in outputs:
            output.publish()
    finally:
        _waiting.reset(token)
        for output in outputs:
            output.discard()


@contextmanager
def open_output(path: str, *, force: bool, has_rejects: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; "-" is stdout. With the suffix .parquet, the file converts JSON lines.

    The file is published if the block succeeds, or at the end of an enclosing `published_together`.
    """
    special = open_special(path)
    if special is not None:
        with special:
            yield special
        return
    if path == "-":
        out = _standard_output()
        if sys.stdout.isatty():
            out = cast(BinaryIO, Screen(out))
        yield out
        out.flush()
        return
    waiting = _waiting.get()
    if waiting is None:
        with published_together(), open_output(path, force=force, has_rejects=has_rejects) as out:
            yield out
        return
    output = new_output(path, force=force, has_rejects=has_rejects)
    waiting.append(output)  # before writing, because outputs are published in the order of opening
    try:
        if is_parquet(path):
            # Here, because this module is imported before --threads is set, and numpy reads the
            # threads once.
            from sentkit.formats.outputs.parquet_output import ParquetOutput

            with ParquetOutput(path, output.file) as rows:
                yield cast(BinaryIO, rows)
        else:
            with compressed(path, output.file) as plain:
                yield plain
        output.finish()
    except BaseException:
        waiting.remove(output)
        output.discard()
        raise


@contextmanager
def open_appended(path: str) -> Iterator[BinaryIO]:
    """Yield a file that several processes can append to. It can be read, too, unless it is a device
    or a pipe, or its permissions forbid it. What is written before each `flush` is not mixed with
    writes of other processes.
    """
    try:
        out = open_special(path) or open_file_to_append(path)
    except OSError as error:
        raise not_writable(path, error) from error
    with out:
        yield out


def open_file_to_append(path: str) -> BinaryIO:
    try:
        return cast(BinaryIO, Path(path).open("ab+"))
    except PermissionError:
        return cast(BinaryIO, Path(path).open("ab"))


def target_of(path: str) -> Path:
    """Resolve all symbolic links of a path. The file does not have to exist."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise CannotCreateError(f"{path}: is a loop of symbolic links")
        target.lstat()
    except FileNotFoundError:
        return target
    except (OSError, ValueError) as error:  # ValueError: NUL byte in the name
        raise not_writable(path, error) from error
    if target.is_dir():
        raise CannotCreateError(f"{path}: is a folder, expected a file")
    return target


def refuse_existing(path: str, *, force: bool) -> None:
    """Raise an error if an output exists and `force` is false."""
    if path == "-" or is_special(path):
        return
    if target_of(path).exists() and not force:
        raise CannotCreateError(f"{path}: already exists", advice="use -f to overwrite it")


def check_creatable(path: str, *, force: bool) -> None:
    """Raise an error if an output cannot be created. Commands call this before their work
    starts.
    """
    if path == "-":
        _standard_output()
    elif not is_special(path):
        new_output(path, force=force).discard()


def new_output(path: str, *, force: bool, has_rejects: bool = False) -> UnpublishedFile:
    refuse_existing(path, force=force)
    return UnpublishedFile(target_of(path), force=force, name=path, has_rejects=has_rejects)


def descriptor_of(path: str) -> int | None:
    """The number of the open descriptor for a path such as /dev/stdout, or None."""
    match = DESCRIPTOR.fullmatch(path)
    if match:
        return int(match[1])
    return STREAMS.get(path)


def is_special(path: str) -> bool:
    """Whether a path is a device, a named pipe or an open descriptor, which is written directly."""
    if descriptor_of(path) is not None:
        return True
    return exists(path) and not is_there(path) and not is_folder(path)


def open_special(path: str) -> BinaryIO | None:
    """Open a device, a named pipe or an open descriptor for writing; None for all other paths."""
    if not is_special(path):
        return None
    number = descriptor_of(path)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if number is None else os.dup(number)
        return io.BufferedWriter(NamedFile(number, "wb", path))
    except OSError as error:
        raise not_writable(path, error) from error


def _standard_output() -> BinaryIO:
    if sys.stdout is None:
        raise CannotCreateError("standard output is closed")
    return sys.stdout.buffer


class Screen:
    """Standard output on a terminal. Lines that are not JSON objects are written unchanged."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.incomplete = b""  # start of a line

    def write(self, data: bytes) -> int:
        *lines, self.incomplete = (self.incomplete + data).split(b"\n")
        self.out.writelines(escaped(line) + b"\n" for line in lines)
        return len(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.out.write(self.incomplete)
        self.incomplete = b""
        self.out.flush()


def escaped(line: bytes) -> bytes:
    """A JSON object without characters that change a terminal."""
    if not line.startswith(b"{"):
        return line
    return escape_json(line.decode()).encode()


# flag -> paths; the key of the input rows is "FILE"
Paths = Mapping[str, str | Sequence[str] | None]


class ResolvedPath(NamedTuple):
    """The file of a path, after symbolic links and standard streams are resolved."""

    flag: str
    path: str
    real: str | None  # the resolved path; None for an open descriptor
    stored: bool  # whether this is an existing file or folder; not so for devices and pipes
    key: object  # equal for all names of a file; None for devices, which several outputs can share

    def holds(self, other: "ResolvedPath") -> bool:
        """Whether this is the other file, or a folder that contains it, at any depth."""
        if self.key is not None and self.key == other.key:
            return True
        if self.real is None or other.real is None or not is_folder(self.real):
            return False
        return Path(other.real).is_relative_to(self.real)


def check_places(writes: Paths, reads: Paths) -> None:
    """Raise a UsageError for conflicts between outputs and inputs, and between two outputs.

    No output can be at a URL. Only one flag can read standard input. An output must not be an
    input, contain an input, or replace a file in an input folder. Missing inputs are ignored here,
    because reading them fails later.
    """
    outputs = resolved(writes, 1)
    inputs = resolved(reads, 0)
    for output in outputs:
        refuse_url(output.path)

    # Standard input.
    flags = [
        source.flag for source in inputs if source.path == "-" or descriptor_of(source.path) == 0
    ]
    if len(flags) > 1 and {*flags} != {"FILE"}:
        raise UsageError(
            "standard input can be read only once", advice="name a file for the other input"
        )

    # Outputs that are inputs.
    for output, source in product(outputs, inputs):
        if source.stored and (output.holds(source) or (source.holds(output) and output.stored)):
            output_name = (
                "standard output" if output.path == "-" else f"{output.flag} {output.path}"
            )
            input_name = "standard input" if source.path == "-" else source.path
            problem = f"{output_name}: would overwrite the input {input_name}"
            raise UsageError(problem, advice="choose another output")

    # Outputs that are other outputs.
    for first, second in combinations(outputs, 2):
        contains = second.holds(first)
        is_inside = first.holds(second)
        if contains or is_inside:
            relation = "contains, or is inside, the path of"
            if contains and is_inside:
                relation = "is also the path of"
            problem = f"{second.flag} {second.path}: {relation} {first.flag}"
            raise UsageError(problem, advice="choose another path for one of them")


def refuse_url(output: str) -> None:
    if is_url(output):
        advice = "write a local folder, then: hf upload-large-folder, aws s3 sync or rclone copy"
        raise UsageError(f"{output}: an output cannot be at a URL", advice=advice)


def resolved(paths: Paths, stream: int) -> list[ResolvedPath]:
    """Resolve the paths; `stream` is the descriptor number of "-"."""
    results: list[ResolvedPath] = []
    for flag, values in paths.items():
        if values is None:
            continue
        if isinstance(values, str):
            values = [values]
        for path in values:
            results.append(resolve(flag, path, stream))
    return results


def resolve(flag: str, path: str, stream: int) -> ResolvedPath:
    """Resolve one path of a flag; `stream` is the descriptor number of "-"."""
    # What the name alone says: a descriptor, or a path, perhaps of a file that does not exist yet.
    # A path with a zero byte is not valid; the error is raised where it is opened.
    number = stream if path == "-" else descriptor_of(path)
    real: str | None = None
    if number is None and "\0" not in path:
        real = os.path.realpath(path)
    key: object = real if number is None else number
    stored = False

    # The file itself, if it exists: then its number is the key, which all its names have.
    try:
        if path == "-":
            standard_stream = sys.stdout if stream == 1 else sys.stdin
            status = os.fstat(standard_stream.fileno())
        elif number is None:
            status = Path(path).stat()
        else:
            status = os.fstat(number)
    except (OSError, ValueError, AttributeError):  # no such file, or a stream closed or in memory
        return ResolvedPath(flag, path, real, stored, key)
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        stored = True
        key = status.st_dev, status.st_ino
    elif number is None and stat.S_ISCHR(status.st_mode):
        key = None
    return ResolvedPath(flag, path, real, stored, key)


def clean(writes: Paths) -> list[Path]:
    """Remove temporary files of killed processes for these outputs; return the folders that they
    renamed.
    """
    outputs = resolved(writes, 1)
    targets = dict.fromkeys(
        output.real for output in outputs if output.real and output.key is not None
    )
    former_folders: list[Path] = []
    for target in targets:
        former_folders += remove_leftovers(Path(target))
    return former_folders
