"""Temporary files and folders for outputs.

The name is `.NAME.sentkit-HOST-PROCESS-RANDOM`, in the folder of NAME, so that one rename publishes
the output. It is always newly created, so an existing file or link is never followed or
overwritten. After a kill the next command with this output removes it, if HOST is this machine and
PROCESS does not exist any more.

A signal can raise an exception between any two steps, also in a context manager, which then never
ends. So each name is recorded before its file exists, and `remove_all` removes what is left when
the process ends.
"""

import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

from sentkit.errors import CannotCreateError

T = TypeVar("T")

MARK = ".sentkit-"
OLD = "old-"  # in the name of a folder that is replaced
LONGEST = 255  # bytes of a file name
ENDING = len(f".{MARK}{OLD}01234567-1234567-01234567")
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def host() -> str:
    """Eight digits of this machine since its boot, and of its container; random ones
    without /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        container = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return os.urandom(4).hex()
    machine = f"{boot} {container} {os.uname().nodename}"
    return blake2b(machine.encode(), digest_size=4).hexdigest()


HOST = host()
OURS = re.compile(rf"\..*{re.escape(MARK)}(?:{OLD})?{HOST}-(\d{{1,7}})-[0-9a-f]{{8}}", re.DOTALL)
# the temporary files and folders that can exist, and the process of each
_names: dict[Path, int] = {}


def remove_all() -> None:
    """Remove the temporary files and folders of this process. The next signal must be harmless."""
    for path, process in [*_names.items()]:
        if process == os.getpid():
            remove(path)


def remove(path: Path) -> None:
    """Remove a temporary file or folder that can be absent."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
    _names.pop(path, None)


def prefix_of(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[: LONGEST - ENDING])}{MARK}"


def private_name(target: Path, kind: str = "") -> Path:
    return target.with_name(f"{prefix_of(target)}{kind}{HOST}-{os.getpid()}-{os.urandom(4).hex()}")


def is_abandoned(path: Path) -> bool:
    """Whether this is a temporary file of a process of this machine that does not exist any
    more.
    """
    match = OURS.fullmatch(path.name)
    if match is None or path in _names:
        return False
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process of another user
        return False
    return int(match[1]) == os.getpid()  # of an earlier process with this number


def remove_leftovers(target: Path) -> list[Path]:
    """Remove the files of killed processes for this target; return folders that `publish_folder`
    renamed.
    """
    prefix = prefix_of(target)
    try:
        with os.scandir(target.parent) as entries:  # faster than Path.iterdir in large folders
            names = sorted(entry.name for entry in entries if entry.name.startswith(prefix))
    except OSError:  # the folder is not readable, or does not exist yet
        return []
    abandoned = list(filter(is_abandoned, map(target.with_name, names)))
    former_folders = [path for path in abandoned if path.name.startswith(prefix + OLD)]
    for path in set(abandoned) - set(former_folders):
        remove(path)
    return former_folders


class NamedFile(io.FileIO):
    """A file whose write errors have its name, such as `out.jsonl: no space left on device`."""

    def __init__(self, handle: int, mode: str, path: str) -> None:
        super().__init__(handle, mode)
        self.path = path

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error


class UnpublishedFile:
    """A temporary file that `publish` renames to its target."""

    def __init__(
        self, target: Path, *, force: bool, name: str = "", has_rejects: bool = False
    ) -> None:
        """`name` is the target in messages. `has_rejects`: the file has the bad rows of the
        inputs.
        """
        self.target = target
        self.has_rejects = has_rejects
        self.force = force
        self.name = name or str(target)
        self.path, handle = attempt(target, self.name, lambda path: os.open(path, CREATE, 0o666))
        self.file: BinaryIO = io.BufferedRandom(NamedFile(handle, "w+b", self.name))
        if force and target.is_file():
            os.fchmod(handle, target.stat().st_mode & 0o777)

    def finish(self) -> None:
        """Write the buffered data to the disk with fsync."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def publish(self) -> None:
        """Rename to the target. Without `force`, the check for an existing target is atomic."""
        try:
            if self.force:
                self.path.replace(self.target)
            else:
                try:
                    os.link(self.path, self.target)
                except OSError as error:
                    if os.path.lexists(self.target):
                        raise appeared(self.name) from error
                    self.path.replace(self.target)  # the file system has no hard links
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from error
        sync(self.target.parent)

    def discard(self) -> None:
        with suppress(OSError):  # closing writes buffered data, and the disk can be full
            self.file.close()
        remove(self.path)


def appeared(name: str) -> CannotCreateError:
    advice = "another process created it; use -f to overwrite it"
    return CannotCreateError(f"{name}: already exists", advice=advice)


def not_writable(name: str, error: Exception) -> CannotCreateError:
    trouble = getattr(error, "strerror", None) or str(error)
    return CannotCreateError(f"{name}: cannot be written: {trouble.lower()}")


def create(path: Path) -> BinaryIO:
    """Create a file for writing and reading. Its folder must be private."""
    try:
        handle = os.open(path, CREATE, 0o666)
    except OSError as error:
        raise not_writable(str(path), error) from error
    return io.BufferedRandom(NamedFile(handle, "w+b", str(path)))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write. It replaces the file at `path` if the block succeeds."""
    output = UnpublishedFile(path, force=True)
    try:
        yield output.file
        output.finish()
        output.publish()
    finally:
        output.discard()


@contextmanager
def open_side_file(folder: Path, path: str) -> Iterator[BinaryIO]:
    """Yield a temporary file without a name. Its write errors name the output."""
    with (
        TemporaryFile(dir=folder) as file,
        io.BufferedRandom(NamedFile(os.dup(file.fileno()), "w+b", path)) as named,
    ):
        yield named


@contextmanager
def private_folder(target: Path, name: str) -> Iterator[Path]:
    """Yield a new folder next to the target. It is removed at the end unless it was renamed."""
    path, _ = attempt(target, name, Path.mkdir)
    try:
        yield path
    finally:
        remove(path)


def publish_folder(new: Path, target: Path, *, force: bool, name: str) -> None:
    """Rename a complete folder to its target. With `force`, an existing target is replaced and then
    removed.

    All files are on the disk before the rename. A kill between the two renames of a replacement
    leaves the complete old folder under a temporary name. `name` is for messages.
    """
    for folder, _, names in os.walk(new):
        for file_name in names:
            sync(Path(folder, file_name))
        sync(Path(folder))
    old = private_name(target, OLD)
    try:
        if force and target.exists():
            target.rename(old)
        new.rename(target)  # fails if there is a folder with files
    except BaseException as error:
        if old.exists() and not target.exists():
            old.rename(target)
        if force or not isinstance(error, OSError) or error.errno not in EXISTS:
            raise
        raise appeared(name) from error
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def attempt(target: Path, name: str, create: Callable[[Path], T]) -> tuple[Path, T]:
    """Create a file or folder under a private name. Returns the path and the result of `create`."""
    path = private_name(target)
    _names[path] = os.getpid()
    try:
        return path, create(path)
    except OSError as error:
        del _names[path]
        # `exists` itself raises other errors, such as that of a name that is too long.
        if isinstance(error, FileNotFoundError) and not target.parent.exists():
            raise missing_folder(name, target) from error
        raise not_writable(name, error) from error


def missing_folder(name: str, target: Path) -> CannotCreateError:
    """The error for an output in a folder that does not exist. `target` is the path behind all
    links of `name`.
    """
    folder = Path(name).parent
    if folder.exists():
        folder = target.parent
    return CannotCreateError(
        f"{name}: the folder {folder} does not exist", advice=f"mkdir -p {quote(str(folder))}"
    )


CANNOT_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES}
EXISTS = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk with fsync if the file system supports
    it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
