"""Rename files and folders without data loss, and write them to the disk."""

import errno
import os
from pathlib import Path

NOREPLACE, EXCHANGE = 1, 2  # flags of renameat2 on Linux
AT_FDCWD = -100
UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
CANNOT_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES}


def rename_file(old: Path, new: Path) -> None:
    """Rename a file atomically; raise FileExistsError if the new name exists.

    Without hard links and renameat2, an empty file first reserves the name, so a kill can leave it behind. A
    check before a rename is not enough: another process could create its output between the two.
    """
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not renameat2(old, new, NOREPLACE):
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            old.replace(new)
    else:
        old.unlink()


def rename_folder(old: Path, new: Path) -> None:
    """Rename a folder; raise an OSError if the new name exists. An empty folder can be replaced."""
    if not renameat2(old, new, NOREPLACE):
        old.rename(new)


def exchange(new: Path, current: Path, aside: Path) -> Path:
    """Replace the folder `current` by `new`, and return the new path of the old folder.

    With renameat2 the exchange is atomic. Without it, the old folder is first renamed to `aside`. A kill
    between the two renames leaves the complete old folder there.
    """
    if renameat2(new, current, EXCHANGE):
        return new
    try:
        current.rename(aside)
        new.rename(current)
    except BaseException:
        if aside.exists() and not current.exists():
            aside.rename(current)
        raise
    return aside


def renameat2(old: Path, new: Path, flag: int) -> bool:
    """Call renameat2 of Linux; false if the C library, the kernel or the file system does not support it."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(new))


def sync_tree(folder: Path) -> None:
    """Write all files of a folder to the disk with fsync."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk with fsync if the file system supports it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
