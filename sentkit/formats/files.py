"""Opening files: what "-" means, what a suffix means, and that no output is ever half written."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from sentkit.errors import CannotCreateError, DataError, NoInputError, UnavailableError, UsageError

COMPRESSED = (".gz", ".zst")
PACKED = 1024  # bytes unpacked at once: not even a hostile kilobyte becomes more than some megabytes


def readable(path: str) -> str:
    """A file's name as JSON can hold it: names are bytes, and these need not be text."""
    return os.fsencode(path).decode(errors="replace")


def bare_suffix(path: str) -> str:
    """The suffix that says the format: `.jsonl` for `rows.jsonl.gz`."""
    name = Path(path)
    return Path(name.stem).suffix.lower() if name.suffix.lower() in COMPRESSED else name.suffix.lower()


def together(paths: Sequence[str]) -> str:
    """Several files in the place of one, in an error about all of them."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file; "-" is standard input, refused when it is a terminal."""
    if path == "-":
        check_input(path)
        yield sys.stdin.buffer
        return
    with open_file(path) as file, _decompressed(path, file) as plain:
        yield plain


def check_input(path: str) -> None:
    """Refuse what cannot be opened, before any work is done. A named pipe is left alone: it opens once."""
    if path != "-":
        if not is_pipe(path):
            open_file(path).close()
    elif sys.stdin is None:
        raise NoInputError("standard input is closed")
    elif sys.stdin.isatty():
        raise UsageError("standard input is a terminal", advice="name a FILE, or pipe rows into the command")


def is_pipe(path: str) -> bool:
    try:
        return Path(path).is_fifo()
    except OSError:  # a name that is too long
        return False


def open_file(path: str) -> BinaryIO:
    """The file's raw bytes, or a NoInputError that says why not."""
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        raise NoInputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise NoInputError(f"{path}: is a folder, expected a file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise NoInputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def _decompressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """By suffix; what the decompressor refuses while the file is being read becomes a DataError."""
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        try:
            with gzip.GzipFile(fileobj=file) as plain:
                yield io.BufferedReader(plain)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"not a whole gzip file: {error}", source=path) from error
    elif suffix == ".zst":
        library = _zstandard()
        try:
            yield io.BufferedReader(ZstdFrames(file, library))
        except (EOFError, library.ZstdError) as error:
            raise DataError(f"not a whole zst file: {error}", source=path) from error
    else:
        yield file


class ZstdFrames(io.RawIOBase):
    """Frames, decompressed one after another; the library's own reader takes a cut frame for a whole one."""

    def __init__(self, file: BinaryIO, library: ModuleType) -> None:
        self.file, self.library = file, library
        self.frame: Any = None
        self.packed = b""  # read and not yet unpacked
        self.plain = memoryview(b"")  # unpacked and not yet taken

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        while not self.plain:
            self.packed = self.packed or self.file.read(PACKED)
            if not self.packed:
                if self.frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self.frame = self.frame or self.library.ZstdDecompressor().decompressobj()
            self.plain, self.packed = memoryview(self.frame.decompress(self.packed)), b""
            if self.frame.eof:
                self.packed, self.frame = self.frame.unused_data, None
        taken, self.plain = self.plain[: len(room)], self.plain[len(room) :]
        room[: len(taken)] = taken
        return len(taken)


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise UnavailableError(
            "reading .zst needs the package zstandard", advice="pip install 'sentkit[zst]'"
        ) from error
    return zstandard


def refuse_existing(path: str, *, force: bool) -> None:
    """Outputs are never overwritten without --force; said before any work is done."""
    if path != "-" and not force and Path(path).exists() and not _is_special(path):
        raise CannotCreateError(f"{path}: exists already", advice="use -f to overwrite it")


def refuse_input(path: str, inputs: Iterable[str]) -> None:
    """An output that is one of the inputs would be what is left of it: not even --force says so much."""
    for source in inputs:
        both = Path(path).is_file() and Path(source).is_file()
        if both and Path(path).samefile(source):
            raise UsageError(f"{path}: is the output and an input too", advice="name another output")


def same_place(one: str, other: str) -> bool:
    """Whether two outputs are one, however they are spelled."""
    return one == other or ("-" not in (one, other) and Path(one).resolve() == Path(other).resolve())


def check_creatable(path: str, *, force: bool) -> None:
    """Refuse an output that cannot be made, before the hours of work that it is for."""
    refuse_existing(path, force=force)
    if path == "-":
        _standard_output()
    elif not _is_special(path):
        _refuse_folder(path)
        part = Path(f"{path}.part")
        create(part).close()
        part.unlink()


def _standard_output() -> BinaryIO:
    if sys.stdout is None:
        raise CannotCreateError("standard output is closed")
    return sys.stdout.buffer


def _refuse_folder(path: str) -> None:
    if Path(path).is_dir():
        raise CannotCreateError(f"{path}: is a folder, expected a file")


def _is_special(path: str) -> bool:
    """A device or a named pipe: written in place, for there is nothing to keep and no neighbour to rename."""
    return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()


@contextmanager
def open_output(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Write to a neighbour, `.part`, and rename it when whole; "-" is standard output."""
    if path == "-":
        out = _standard_output()
        yield out
        out.flush()
        return
    refuse_existing(path, force=force)
    if _is_special(path):
        with Path(path).open("wb") as special:
            yield special
        return
    _refuse_folder(path)
    part = Path(f"{path}.part")
    file = create(part)
    try:
        with file:
            with _compressed(path, file) as plain:
                yield plain
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _compressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """By suffix, as it is read; without a time or a name inside, so that the same rows are the same bytes."""
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield packed  # type: ignore[misc]
    elif suffix == ".zst":
        with _zstandard().ZstdCompressor().stream_writer(file, closefd=False) as packed:
            plain = io.BufferedWriter(packed)  # the library's own writer has no writelines
            yield plain
            plain.flush()
    else:
        yield file


def create(path: Path) -> BinaryIO:
    """A new file to write and read back, or a CannotCreateError that says why not."""
    try:
        return path.open("w+b")
    except OSError as error:
        name, trouble = str(path).removesuffix(".part"), (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{name}: cannot be written: {trouble}") from error
