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
        handle = os.open(folder / lock, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{folder}: cannot be made: {trouble}") from error
    try:
        take(handle, folder)
        try:
            yield
        finally:
            (folder / lock).unlink(missing_ok=True)
            with suppress(OSError):  # there is a state in it, or it is gone already
                folder.rmdir()
    finally:
        os.close(handle)


def take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CannotCreateError(f"{folder}: another process is training into it") from error
