"""Open outputs that appear only when they are complete. All outputs of a command appear together.

Each output is written to a temporary file (`temporary.py`). For a symbolic link, the target of the link is
created or replaced, and the link remains. Devices, named pipes and open descriptors (/dev/stdout) are written
directly.
"""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from sentkit.errors import AnswerIsNo, CannotCreateError, NoRowsError
from sentkit.escaping import escape_json
from sentkit.formats.files import compressed, is_parquet
from sentkit.formats.outputs.temporary import Draft, NamedFile
from sentkit.formats.rows import splice

STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")

_waiting: ContextVar[list[Draft] | None] = ContextVar("_waiting", default=None)


@contextmanager
def published_together() -> Iterator[None]:
    """Publish the outputs that are opened in this block at its end: all of them or none.

    All outputs are on the disk before the first rename. The order of the renames is the order of opening, and
    commands open their main output last. So a kill between two renames leaves only side files. If a rename
    fails, files with a new name are removed again, but a file that -f replaced stays replaced.

    Outputs are also published after AnswerIsNo and BrokenPipeError, because the work is then complete, and
    after NoRowsError, because a complete file of --rejects then has all rows.
    """
    drafts: list[Draft] = []
    token = _waiting.set(drafts)
    try:
        yield
    except (AnswerIsNo, BrokenPipeError, NoRowsError):
        _publish(drafts)
        raise
    else:
        _publish(drafts)
    finally:
        _waiting.reset(token)
        for draft in drafts:
            draft.discard()


def _publish(drafts: list[Draft]) -> None:
    new = [draft for draft in drafts if not draft.target.exists()]
    try:
        for draft in drafts:
            draft.publish()
    except BaseException:
        for draft in new:
            draft.withdraw()
        raise


@contextmanager
def open_output(path: str, *, force: bool) -> Iterator[BinaryIO]:
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
        screen = cast(BinaryIO, Screen(out)) if sys.stdout.isatty() else out
        yield screen
        screen.flush()
        return
    refuse_existing(path, force=force)
    waiting = _waiting.get()
    if waiting is None:
        with published_together(), open_output(path, force=force) as plain:
            yield plain
        return
    draft = Draft(target_of(path), force=force, name=path)
    waiting.append(draft)  # before writing, because outputs are published in the order of opening
    try:
        if is_parquet(path):
            # Here, because this module is imported before --threads is set, and numpy reads the threads once.
            from sentkit.formats.outputs.parquet_output import parquet_output

            with parquet_output(path, draft.file) as rows:
                yield cast(BinaryIO, rows)
        else:
            with compressed(path, draft.file) as plain:
                yield plain
        draft.finish()
    except BaseException:
        waiting.remove(draft)
        draft.discard()
        raise


@contextmanager
def open_appended(path: str) -> Iterator[BinaryIO]:
    """Yield a file that several processes can append to; each `write` is one piece of it."""
    special = open_special(path)
    try:
        out = special or cast(BinaryIO, Path(path).open("ab", buffering=0))  # noqa: SIM115
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error
    with out:
        yield out


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
        trouble = (getattr(error, "strerror", None) or str(error)).lower()
        raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error
    if target.is_dir():
        raise CannotCreateError(f"{path}: is a folder, expected a file")
    return target


def refuse_existing(path: str, *, force: bool) -> None:
    """Raise an error if an output exists and `force` is false."""
    if path != "-" and not is_special(path) and target_of(path).exists() and not force:
        raise CannotCreateError(f"{path}: already exists", advice="use -f to overwrite it")


def check_creatable(path: str, *, force: bool) -> None:
    """Raise an error if an output cannot be created. Commands call this before their work starts."""
    refuse_existing(path, force=force)
    if path == "-":
        _standard_output()
    elif not is_special(path):
        Draft(target_of(path), force=force, name=path).discard()


def descriptor_of(path: str) -> int | None:
    """The number of the open descriptor for a path such as /dev/stdout, or None."""
    match = DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else STREAMS.get(path)


def is_special(path: str) -> bool:
    """Whether a path is a device, a named pipe or an open descriptor, which is written directly."""
    if descriptor_of(path) is not None:
        return True
    try:
        return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()
    except (OSError, ValueError):  # an invalid name: `target_of` raises the error
        return False


def open_special(path: str) -> BinaryIO | None:
    """Open a device, a named pipe or an open descriptor for writing; None for all other paths."""
    if not is_special(path):
        return None
    number = descriptor_of(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if number is None else os.dup(number)
        return io.BufferedWriter(NamedFile(handle, "wb", path))
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error


def _standard_output() -> BinaryIO:
    if sys.stdout is None:
        raise CannotCreateError("standard output is closed")
    return sys.stdout.buffer


LONGEST, SHOWN = 8, 3  # longest list that is not shortened; numbers shown of longer lists
BASE64 = 64  # characters of base64 that are not shortened; texts are never shortened


class Screen:
    """Standard output on a terminal. Lines that are not JSON objects are written unchanged."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.rest = b""  # start of an incomplete line

    def write(self, data: bytes) -> int:
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.out.writelines(shortened(line) + b"\n" for line in lines)
        return len(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.out.write(self.rest)
        self.rest = b""
        self.out.flush()


def shortened(line: bytes) -> bytes:
    """`{"text":"a cat","embedding":[0.12, 0.34, 0.56, ... 256 numbers]}`"""
    try:
        values = orjson.loads(line)
        spans = splice.spans_of(line) if isinstance(values, dict) else {}
    except (ValueError, splice.DuplicateName):
        return line
    for name, span in sorted(spans.items(), key=lambda item: -item[1].start):
        short = _short(name, values[name])
        if short is not None:
            line = line[: span.value] + short.encode() + line[span.end :]
    return escape_json(line.decode()).encode() if spans else line


def _short(name: str, value: object) -> str | None:
    """A long list of numbers, or a base64 vector, as its start and its length; None for other values."""
    if isinstance(value, list) and len(value) > LONGEST and all(type(each) in (int, float) for each in value):
        first = ", ".join(f"{each:.4g}" for each in value[:SHOWN])
        return f"[{first}, ... {len(value)} numbers]"
    if name.startswith("embedding") and isinstance(value, str) and len(value) > BASE64:
        numbers = (len(value) * 3 // 4 - value.count("=")) // 4
        return f'"{value[:8]}... {numbers} numbers"'
    return None
