"""Opening inputs: what "-" means, and what a suffix means; the compression of outputs too."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from sentkit.errors import DataError, NoInputError, UnavailableError, UsageError

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
def open_input(
    path: str, watch: Callable[[BinaryIO], AbstractContextManager[None]] = lambda file: nullcontext()
) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file; "-" is standard input, refused when it is a terminal.

    `watch` gets the file as it is, compressed or not.
    """
    if path == "-":
        check_input(path)
        with watch(sys.stdin.buffer):
            yield sys.stdin.buffer
        return
    with open_file(path) as file, watch(file), _decompressed(path, file) as plain:
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


@contextmanager
def compressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Compress by suffix, without a time or a name, so that the same rows give the same bytes."""
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
