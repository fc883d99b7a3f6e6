"""The lock of a folder that one command uses."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sentkit.errors import CannotCreateError


@contextmanager
def lock_folder(
    folder: Path, lock: str, *, is_first_process: bool, temporary: Sequence[str] = ()
) -> Iterator[None]:
    """Create and lock the folder on the first process. The others do nothing.

    At the end, remove the temporary files, the folder, and its parent if it was created here, if
    they are empty.
    """
    if not is_first_process:
        yield
        return
    is_new_parent = not folder.parent.exists()
    path = folder / lock
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_locked(path)
    except BlockingIOError as error:
        problem = f"{folder}: another sentkit train uses this folder"
        raise CannotCreateError(problem, advice="wait, or choose another -o") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{folder}: cannot be created and locked: {reason}") from error
    try:
        yield
    finally:
        for name in (*temporary, lock):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it contains the state of an unfinished run, or does not exist
            folder.rmdir()
            if is_new_parent:
                folder.parent.rmdir()
        file.close()


def open_locked(path: Path) -> BinaryIO:
    """Open and lock the file. Raises BlockingIOError if another process has it, or has removed it
    or its folder between two lines of this function or before it, as that process does at its end.
    """
    try:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_at_path = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError as error:
        raise BlockingIOError from error
    if not is_at_path:
        raise BlockingIOError
    return file
