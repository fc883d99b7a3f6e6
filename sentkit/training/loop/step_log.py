"""The receivers of messages and step records: the log file of a run, and a reporter for the terminal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from sentkit.errors import CannotCreateError, UsageError


def ignore(message: object) -> None:
    pass


@dataclass(slots=True)
class Reporter:
    """Receives the messages of a command and the records of its steps."""

    say: Callable[[str], None] = ignore  # automatic choices and their reasons
    note: Callable[[str], None] = ignore  # details, for verbose output
    warn: Callable[[str], None] = ignore
    step: Callable[[Mapping[str, Any]], None] = ignore


def check_log(path: str | None, *, resume: bool, force: bool) -> None:
    """Raise an error if the log is not writable, or exists and this run may not overwrite or extend it."""
    if path is None:
        return
    if path == "-":
        raise UsageError(
            "--log -: cannot be standard output, which has the results", advice="give a file name"
        )
    file = Path(path)
    if file.is_file() and file.stat().st_size and not force and not (resume and run_of(file) is not None):
        raise CannotCreateError(f"{path}: already exists", advice="use -f to overwrite it")
    if file.is_dir() or not file.parent.is_dir():
        raise CannotCreateError(f"{path}: cannot be written: no such file or folder")


def run_of(path: Path) -> str | None:
    """Return the run in the first line of a log, or None if the file is not a log."""
    with path.open("rb") as file:
        try:
            first = orjson.loads(file.readline())
        except orjson.JSONDecodeError:
            return None
    return first.get("run") if isinstance(first, dict) else None


class StepLog:
    """The log of a run: one JSON object per line. A resumed run truncates it to the last saved state."""

    def __init__(self, path: str | None, run: str = "", *, length: int = 0, replace: bool = True) -> None:
        """Truncate the log to `length` bytes and append. Later lines are from steps after the saved state."""
        self.file: BinaryIO | None = None
        if path is None:
            return
        keeps = length or not replace
        if keeps and Path(path).is_file() and Path(path).stat().st_size and run_of(Path(path)) != run:
            raise CannotCreateError(f"{path}: is the log of a different run", advice="choose another --log")
        try:
            self.file = Path(path).open("ab")  # noqa: SIM115  # __exit__ closes it
        except OSError as error:
            trouble = (error.strerror or str(error)).lower()
            raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error
        kept = min(length, self.length)  # 0 if the log is new, also in a resumed run
        if Path(path).is_file():
            self.file.truncate(kept)
        if not kept:
            self.write({"run": run})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def write(self, record: Mapping[str, Any]) -> None:
        if self.file is not None:
            self.file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            self.file.flush()

    @property
    def length(self) -> int:
        return self.file.tell() if self.file is not None and self.file.seekable() else 0
