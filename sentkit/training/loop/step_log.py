"""The receivers of messages and step records: the log file of a run, and a reporter for the terminal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from sentkit.training.run_folders import LOG


def ignore(message: object) -> None:
    pass


@dataclass(slots=True)
class Reporter:
    """Receives the messages of a command and the records of its steps."""

    say: Callable[[str], None] = ignore  # automatic choices and their reasons
    note: Callable[[str], None] = ignore  # details, for verbose output
    warn: Callable[[str], None] = ignore
    step: Callable[[Mapping[str, Any]], None] = ignore


class StepLog:
    """The log of a run: one JSON object per line, without times, because all runs write the same bytes."""

    def __init__(self, folder: Path | None, length: int = 0) -> None:
        """Append to the log in `folder`, after its first `length` bytes: the lines of the saved state."""
        self.file: BinaryIO | None = None
        if folder is not None:
            self.file = (folder / LOG).open("ab")  # __exit__ closes it
            self.file.truncate(min(length, self.length))

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
        return self.file.tell() if self.file is not None else 0
