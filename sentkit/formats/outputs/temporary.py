"""Temporary files and folders that are private to their writer.

`.NAME.sentkit-RANDOM` is in the folder of NAME, so that one rename publishes it. It is always created, never
opened: nothing of that name, and no link, is ever followed or overwritten. Its writer holds a lock on it to
the end, so one that can be locked belongs to no living process. It is reported, and never used or deleted.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from sentkit.errors import CannotCreateError
from sentkit.formats.outputs.renames import exchange, rename_file, rename_folder, sync, sync_tree

T = TypeVar("T")

MARK, OLD, RANDOM = ".sentkit-", "old-", 8  # bytes of RANDOM, written in hexadecimal
LONGEST = 255  # bytes of a file name
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def prefix_of(target: Path) -> str:
    room = LONGEST - len(f".{MARK}{OLD}") - 2 * RANDOM
    return f".{os.fsdecode(os.fsencode(target.name)[:room])}{MARK}"


def private_name(target: Path, kind: str = "") -> Path:
    return target.with_name(f"{prefix_of(target)}{kind}{os.urandom(RANDOM).hex()}")


def leftovers(target: Path) -> list[Path]:
    """The temporary files and folders of dead processes for this target."""
    ours = re.compile(rf"{re.escape(prefix_of(target))}(?:{OLD})?[0-9a-f]{{{2 * RANDOM}}}")
    try:
        with os.scandir(target.parent) as entries:  # no Path for each of what may be a million files
            names = sorted(entry.name for entry in entries if ours.fullmatch(entry.name))
    except OSError:  # the folder cannot be listed, or does not exist yet
        return []
    return list(filter(is_abandoned, map(target.with_name, names)))


def is_former(path: Path) -> bool:
    """Whether this is an old folder that `exchange` renamed."""
    return f"{MARK}{OLD}" in path.name


def is_abandoned(path: Path) -> bool:
    """Whether no process holds the lock; false where that cannot be found out."""
    try:
        handle = os.open(path, LOOK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class Draft:
    """A temporary file that takes its target's name when it is published."""

    def __init__(self, target: Path, *, force: bool, name: str = "") -> None:
        self.target, self.force = target, force
        self.name = name or str(target)  # for messages
        self.path, handle = attempt(target, self.name, lambda path: os.open(path, CREATE, 0o666))
        self.file: BinaryIO = os.fdopen(handle, "w+b")
        try:
            lock(handle)
            if force and target.is_file():
                os.fchmod(handle, target.stat().st_mode & 0o777)
        except BaseException:
            self.discard()
            raise

    def finish(self) -> None:
        """All is written: wait until it is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def publish(self) -> None:
        """Rename; without `force` only to a free name, even if another process takes it at this moment."""
        try:
            if self.force:
                self.path.replace(self.target)
            else:
                rename_file(self.path, self.target)
        except FileExistsError as error:
            advice = "another process has made it; use -f to overwrite it"
            raise CannotCreateError(f"{self.name}: exists already", advice=advice) from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from error
        sync(self.target.parent)

    def withdraw(self) -> None:
        """Remove the published file again, unless another process has replaced it."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self.file.fileno()), self.target.stat()):
                self.target.unlink()

    def discard(self) -> None:
        with suppress(OSError):  # the buffered rest may not fit on the disk
            self.file.close()
        with suppress(OSError):
            self.path.unlink()


def create(path: Path) -> BinaryIO:
    """A new file in a folder that is private already, to write and read back."""
    try:
        return path.open("x+b")
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces the one of this name when the block ends well."""
    draft = Draft(path, force=True)
    try:
        yield draft.file
        draft.finish()
        draft.publish()
    finally:
        draft.discard()


@contextmanager
def private_folder(target: Path, name: str) -> Iterator[Path]:
    """A new folder beside the target. At the end it is removed, unless it was renamed."""
    path, _ = attempt(target, name, Path.mkdir)
    try:
        handle = os.open(path, LOOK)
        try:
            lock(handle)
            yield path
        finally:
            os.close(handle)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish_folder(new: Path, target: Path) -> None:
    """Give a finished folder its name. A folder of that name is replaced and then removed.

    Before the rename all files are on the disk. A whole folder is under the name at every moment (see
    `exchange`), and the old one is removed only after the new one is in place.
    """
    sync_tree(new)
    if target.exists():
        old = exchange(new, target, private_name(target, OLD))
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    else:
        rename_folder(new, target)
    sync(target.parent)


def attempt(target: Path, name: str, create: Callable[[Path], T]) -> tuple[Path, T]:
    """Create a file or folder under a private name; returns the name and the result of `create`."""
    while True:
        path = private_name(target)
        try:
            return path, create(path)
        except FileExistsError:
            continue
        except OSError as error:
            trouble = (error.strerror or str(error)).lower()
            raise CannotCreateError(f"{name}: cannot be written: {trouble}") from error


def lock(handle: int) -> None:
    """Waits for a process that is just asking whether this file is abandoned."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # a file system without locks: leftovers are not recognised there
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
