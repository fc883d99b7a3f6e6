"""A folder to write in that is ours alone: two runs that write one state would mix."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sentkit.errors import CannotCreateError
from sentkit.formats.outputs.temporary import MARK

OURS = re.compile(
    r"(state|best)-\d+\.pt|(run|rows|init)\.lock|tokens\.i32|ends\.i64|targets\.f64|columns|checkpoint|init"
    rf"|\..+{re.escape(MARK)}[0-9a-f]+"
)


@contextmanager
def claimed(folder: Path, lock: str, *, first: bool) -> Iterator[None]:
    """Make the folder and hold its lock, on the first of several processes; empty, it goes again."""
    if not first:
        yield
        return
    refuse_foreign(folder)
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


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with files of the user: a run removes files and folders here."""
    advice = "rename it: sentkit train keeps the state of a run under this name"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise CannotCreateError(f"{folder}: is not a folder that sentkit train has made", advice=advice)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if not OURS.fullmatch(name)]
    if foreign:
        raise CannotCreateError(
            f"{folder}: contains {foreign[0]}, which sentkit did not write", advice=advice
        )


def take(folder: Path, lock: str) -> int:
    """The open lock file, locked; again where it was removed in between: others see another."""
    while True:
        handle = os.open(folder / lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC)
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
