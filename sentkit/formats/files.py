"""Open input files, decompress them by suffix, and compress outputs. The path "-" is standard
input.

Small JSON files of a checkpoint are read and written whole.

Lists of files and patterns that the shell did not expand become paths.
"""

import glob
import gzip
import hashlib
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any, BinaryIO

import orjson

from sentkit.digits import rounded
from sentkit.errors import DataError, NoInputError, UnavailableError, UsageError
from sentkit.escaping import without_secrets
from sentkit.formats.urls import is_url, local_copy, with_commit

DECOMPRESS = {".gz": "gunzip -k", ".zst": "zstd -d"}  # commands that keep the compressed file
COMPRESSED = tuple(DECOMPRESS)
# Formats with random access, by suffix.
MAPPED = {".safetensors": "a vector file", ".npy": "an array of numpy"}
MARKS = frozenset("*?[")  # of a pattern
# Names of inputs that are files of this package.
INCLUDED_INPUTS = {"sentkit:hazards": "hazards.jsonl"}
WITH_COMMIT = re.compile("hf://[^@]+@([0-9a-f]{40})/")
# compressed bytes per call: limits the memory that a malicious file can use to a few megabytes
PACKED = 1024


def shown_path(path: str) -> str:
    """The path as valid Unicode for JSON. A file name can hold bytes that are not UTF-8.

    A URL has its commit of the hub, and no secrets.
    """
    if path.startswith("hf://") and is_url(path) and is_input_file(path):
        path = with_commit(path)
    return without_secrets(as_unicode(path))


def as_unicode(word: str) -> str:
    """A word of the command line as valid Unicode."""
    return os.fsencode(word).decode(errors="replace")


def commit_in(path: str | None) -> str | None:
    """The commit in a recorded URL of the hub."""
    match = WITH_COMMIT.match(path or "")
    return None if match is None else match[1]


def name_of(path: str) -> Path:
    """The name of a file; the query of a URL is not a part of it."""
    if is_url(path):
        path, _, _ = path.partition("?")
    return Path(Path(path).name)


def suffix_of(path: str) -> str:
    return name_of(path).suffix.lower()


def bare_suffix(path: str) -> str:
    """The suffix without compression: `.jsonl` for `rows.jsonl.gz`."""
    name = name_of(path)
    if name.suffix.lower() in COMPRESSED:
        name = Path(name.stem)
    return name.suffix.lower()


def text_of_paths(paths: Sequence[str]) -> str:
    """Short text for several paths, for an error about all of them."""
    if len(paths) == 1:
        return paths[0]
    return f"{paths[0]} and {len(paths) - 1} more"


@contextmanager
def open_input(
    path: str,
    watch: Callable[[BinaryIO], AbstractContextManager[None]] = lambda file: nullcontext(),
) -> Iterator[BinaryIO]:
    """Yield the decompressed bytes of a file; "-" is standard input, refused if it is a
    terminal.
    """
    if path == "-":
        check_input(path)
        with watch(sys.stdin.buffer):
            yield sys.stdin.buffer
        return
    with open_file(path) as file, watch(file), _decompressed(path, file) as plain:
        yield plain


def check_input(path: str) -> None:
    """Raise an error if the path cannot be opened.

    A named pipe is not tested, because it can open only once. A vector folder is opened by its
    reader.
    """
    if path != "-":
        if not is_pipe(path) and run_of(path) is None:
            open_file(path).close()
    elif sys.stdin is None:
        raise NoInputError("standard input is closed")
    elif sys.stdin.isatty():
        raise UsageError(
            "standard input is a terminal", advice="name a FILE, or pipe rows into the command"
        )


def is_pipe(path: str) -> bool:
    return exists(path) and Path(path).is_fifo()


def open_file(path: str) -> BinaryIO:
    """Open a file for reading, or raise a NoInputError with the reason."""
    try:
        return Path(local_path(path)).open("rb")
    except FileNotFoundError as error:
        raise NoInputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise NoInputError(f"{path}: is a folder, expected a file") from error
    except (OSError, ValueError) as error:  # ValueError: NUL byte in the name
        reason = getattr(error, "strerror", None) or error
        raise NoInputError(f"{path}: cannot be read: {reason}") from error


def local_path(path: str) -> str:
    """The path of the file on this machine: that of the copy of a URL, that of an included
    input, and any other path as it is.
    """
    if path in INCLUDED_INPUTS:
        return str(Path(__file__).parent.parent / INCLUDED_INPUTS[path])
    return local_copy(path) if is_url(path) else path


def real_path(path: str) -> str:
    """The path without symbolic links; a URL and an included input as they are.

    A link whose target has another suffix stays, because the suffix is the format of the file.
    """
    if is_url(path) or path in INCLUDED_INPUTS:
        return path
    real = os.path.realpath(path)
    if Path(real).suffix == Path(path).suffix:
        return real
    return str(Path(path).parent.resolve() / Path(path).name)


def digest_of(file: BinaryIO, more: bytes = b"") -> str:
    """The SHA-256 of the rest of a file, followed by `more`."""
    hashed = hashlib.sha256()
    while chunk := file.read(1 << 20):
        hashed.update(chunk)
    hashed.update(more)
    return hashed.hexdigest()


def refuse_compressed(path: str, form: str) -> None:
    """Refuse a compressed file of a form that needs random access."""
    suffix = suffix_of(path)
    if suffix in COMPRESSED:
        problem = f"{path}: {form} cannot be read from a compressed file"
        raise UsageError(problem, advice=f"decompress it: {DECOMPRESS[suffix]} {quote(path)}")


def refuse_compressed_vectors(path: str) -> None:
    """Refuse the compressed file of a format with random access."""
    form = MAPPED.get(bare_suffix(path))
    if form is not None:
        refuse_compressed(path, form)


@contextmanager
def _decompressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Decompress by suffix. Errors of the decompressor become a DataError."""
    refuse_compressed_vectors(path)
    suffix = suffix_of(path)
    if suffix == ".gz":
        try:
            with gzip.GzipFile(fileobj=file) as plain:
                yield io.BufferedReader(plain)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"incomplete or damaged gzip file: {error}", source=path) from error
    elif suffix == ".zst":
        library = _zstandard()
        try:
            yield io.BufferedReader(ZstdFrames(file, library))
        except (EOFError, library.ZstdError) as error:
            if "requires too much memory" in str(error):  # its window is larger than 128 MiB
                advice = f"zstd -dc --long=31 {quote(path)} | sentkit ..."
                raise DataError(
                    "the window of this zst file is too large", source=path, advice=advice
                ) from error
            raise DataError(f"incomplete or damaged zst file: {error}", source=path) from error
    else:
        yield file


class ZstdFrames(io.RawIOBase):
    """Decompresses a sequence of frames. Unlike the reader of the library, it refuses a truncated
    frame.
    """

    def __init__(self, file: BinaryIO, library: ModuleType) -> None:
        self.file = file
        self.library = library
        self.frame: Any = None
        self.packed = b""  # compressed bytes that are not yet processed
        self.plain = memoryview(b"")  # decompressed bytes that are not yet returned

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        """Fill the buffer `room` with decompressed bytes and return their number; 0 at the end."""
        while not self.plain:
            self.packed = self.packed or self.file.read(PACKED)
            if not self.packed:
                if self.frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            if self.frame is None:
                self.frame = self.library.ZstdDecompressor().decompressobj()
            self.plain = memoryview(self.frame.decompress(self.packed))
            self.packed = b""
            if self.frame.eof:
                self.packed = self.frame.unused_data
                self.frame = None
        count = min(len(self.plain), len(room))
        room[:count] = self.plain[:count]
        self.plain = self.plain[count:]
        return count


def _package(name: str, use: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        advice = f"pip install 'sentkit[{extra}]'"
        raise UnavailableError(f"{use} the package {name}", advice=advice) from error


def _zstandard() -> ModuleType:
    return _package("zstandard", "reading .zst needs", "zst")


def is_parquet(path: str) -> bool:
    return suffix_of(path) == ".parquet"


def is_safetensors(path: str) -> bool:
    """Whether the name is that of a vector file."""
    return suffix_of(path) == ".safetensors"


def import_pyarrow() -> ModuleType:
    """The package pyarrow, or an UnavailableError."""
    return _package("pyarrow", "Parquet files need", "parquet")


@contextmanager
def compressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Compress by suffix. The header holds no time and no name, so equal rows give equal bytes."""
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield packed  # type: ignore[misc]
    elif suffix == ".zst":
        with _zstandard().ZstdCompressor().stream_writer(file, closefd=False) as packed:
            plain = io.BufferedWriter(packed)  # the writer of the library has no writelines
            yield plain
            plain.flush()
    else:
        yield file


TEXTS = (".txt", ".text", ".md", ".markdown", ".rst")  # suffixes of the text files of a folder


def expanded(paths: Sequence[str], *, text_folders: bool = False) -> Iterator[str]:
    """The paths; for a pattern that is not the name of a file, the matching files in sorted order.

    A pattern matches no folders except vector folders. With `text_folders`, the path of any other
    folder means the text files in it.
    """
    for path in paths:
        if path == "-":  # standard input, also if a folder has this name
            yield path
            continue
        if text_folders and is_folder(path) and not is_there(Path(path, "run.json")):
            yield from text_files(path)
            continue
        if MARKS.isdisjoint(path) or os.path.lexists(path) or is_url(path):
            yield path
            continue
        names = glob.glob(path, recursive=True)  # noqa: PTH207  # Path.glob refuses absolute patterns
        matches: list[str] = []
        for name in sorted(names):
            if not is_folder(name) or is_there(Path(name, "run.json")):
                matches.append(name)
        if not matches:
            raise NoInputError(f"{path}: no file matches this pattern")
        yield from matches


def text_files(folder: str) -> list[str]:
    """The text files in a folder and in the folders below it, in sorted order, without
    hidden ones.
    """

    def refuse(error: OSError) -> None:
        raise NoInputError(f"{error.filename}: cannot be read: {error.strerror}") from error

    paths: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        # os.walk enters only these
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and bare_suffix(name) in TEXTS:
                paths.append(os.path.join(parent, name))  # noqa: PTH118  # Path drops a leading "./"
    if not paths:
        problem = f"{folder}: is a folder without text files ({', '.join(TEXTS)})"
        raise NoInputError(problem, advice=f"name the files, such as {folder.rstrip('/')}/*.jsonl")
    return sorted(paths)


def run_of(folder: str) -> str | None:
    """The run.json of a vector folder; None if there is none at this path."""
    run = str(Path(folder, "run.json"))
    if is_there(run):
        return run
    return None


def read_run(folder: str) -> dict[str, Any] | None:
    """The run.json of a folder; None if there is none at this path."""
    run = run_of(folder)
    if run is None:
        return None
    return read_object(run)


def read_json(path: Path | str) -> Any:
    with open_file(str(path)) as file:
        try:
            return orjson.loads(file.read())
        except orjson.JSONDecodeError as error:
            raise DataError(
                f"not JSON: {error.msg}", source=str(path), line=error.lineno
            ) from error


def read_object(path: Path | str) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError("expected a JSON object", source=str(path))
    return value


def read_object_if_there(path: Path) -> dict[str, Any]:
    if not is_there(path):
        return {}
    return read_object(path)


def is_input_file(path: str) -> bool:
    """Whether this is a file that can be read again and from any place; false for a pipe."""
    try:
        return is_there(local_path(path))
    except NoInputError:
        return False


# Unlike the methods of Path, these are false for a name that is too long or has a NUL byte.
is_there = os.path.isfile
is_folder = os.path.isdir
exists = os.path.exists


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with a final newline. The order of the keys is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def json_line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(rounded(record), option=orjson.OPT_APPEND_NEWLINE)
