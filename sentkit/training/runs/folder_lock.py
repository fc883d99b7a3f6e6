"""The lock of a folder that one command uses."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process has removed the file between `open` and the lock.
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise BlockingIOError
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
        with suppress(OSError):  # it contains a state, or does not exist
            folder.rmdir()
            if is_new_parent:
                folder.parent.rmdir()
        file.close()
