"""Locks a folder, because two runs must not write to the same state."""

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sentkit.errors import CannotCreateError
from sentkit.formats.outputs.temporary import MARK, NO_LOCKS
from sentkit.training.data.corpus import FILES
from sentkit.training.run_folders import LOG

OURS = re.compile(
    rf"(state|best)-\d+\.pt|(run|rows|init)\.lock|checkpoint|init|{re.escape(LOG)}"
    rf"|{'|'.join(map(re.escape, FILES))}"
    rf"|\..+{re.escape(MARK)}[0-9a-f]+"
)


@contextmanager
def lock_folder(folder: Path, lock: str, *, first: bool, temporary: Sequence[str] = ()) -> Iterator[None]:
    """Create and lock the folder on the first process.

    At the end, remove the temporary files, the folder, and its parent if it was created here, if they are
    empty.
    """
    if not first:
        yield
        return
    refuse_foreign(folder)
    new_parent = not folder.parent.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open_lock(folder, lock)
    except BlockingIOError as error:
        raise CannotCreateError(
            f"{folder}: another sentkit train uses this folder", advice="wait, or choose another -o"
        ) from error
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        if error.errno in NO_LOCKS:
            advice = "choose -o on a file system with locks, because only one run may use a folder"
            raise CannotCreateError(f"{folder}: cannot be locked: {trouble}", advice=advice) from error
        raise CannotCreateError(f"{folder}: cannot be created: {trouble}") from error
    try:
        yield
    finally:
        for name in (*temporary, lock):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it contains a state, or does not exist
            folder.rmdir()
            if new_parent:
                folder.parent.rmdir()
        os.close(handle)


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that contains other files, because a run removes files and folders here."""
    advice = "rename it, because sentkit train needs this name for the state of a run"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise CannotCreateError(f"{folder}: was not created by sentkit train", advice=advice)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if not OURS.fullmatch(name)]
    if foreign:
        raise CannotCreateError(
            f"{folder}: contains {foreign[0]}, which is not a file of sentkit train", advice=advice
        )


def open_lock(folder: Path, lock: str) -> int:
    """Return the locked lock file. Retry if another process removed or replaced it."""
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
