"""A folder to write in that is ours alone: two runs that write one state would mix."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sentkit.errors import CannotCreateError


@contextmanager
def claimed(folder: Path, lock: str, *, first: bool) -> Iterator[None]:
    """Make the folder and hold its lock, on the first of several processes; empty, it goes again."""
    if not first:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = take(folder, lock)
    except BlockingIOError as error:
        raise CannotCreateError(f"{folder}: another process is training into it") from error
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{folder}: cannot be made: {trouble}") from error
    try:
        yield
    finally:
        (folder / lock).unlink(missing_ok=True)
        with suppress(OSError):  # there is a state in it, or it is gone already
            folder.rmdir()
        os.close(handle)


def take(folder: Path, lock: str) -> int:
    """The open lock file, locked; again where it was removed in between: others see another."""
    while True:
        handle = os.open(folder / lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_same(handle, folder / lock):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def is_same(handle: int, path: Path) -> bool:
    return path.exists() and os.fstat(handle).st_ino == path.stat().st_ino
