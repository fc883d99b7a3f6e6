"""Renames that lose nothing: to a free name only, or two names exchanged; and what makes them durable."""

import errno
import os
from pathlib import Path

NOREPLACE, EXCHANGE = 1, 2  # flags of Linux's renameat2
AT_FDCWD = -100
UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
CANNOT_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES}


def rename_file(old: Path, new: Path) -> None:
    """Rename a file to a free name; FileExistsError if the name is taken, even since a moment ago.

    Without hard links and renameat2, the name is claimed by an empty file first: a kill at that moment leaves
    the empty file, while a check followed by a rename could overwrite the output of another process.
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
    """Rename a folder to a free name; an OSError if the name is taken (an empty folder may be replaced)."""
    if not renameat2(old, new, NOREPLACE):
        old.rename(new)


def exchange(new: Path, current: Path, aside: Path) -> Path:
    """Put the folder `new` in the place of `current`; returns where the old folder is now.

    With renameat2 there is a whole folder under the name at every moment. Without it the old folder is first
    renamed to `aside`: a kill between the two renames leaves it there, whole.
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
    """Linux's renameat2; false where the C library, the kernel or the file system does not support it."""
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
    """Wait until all files of a folder are on the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, where the file system can do so."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
