"""The log of a run: one JSON object a line, cut back on resuming to where the state was saved."""

from pathlib import Path
from typing import Any

import orjson

from sentkit.errors import CannotCreateError


class Journal:
    def __init__(self, path: str | None) -> None:
        self.file = None
        if path is not None:
            try:
                self.file = Path(path).open("ab")  # noqa: SIM115  # `close` closes it, after the last step
            except OSError as error:
                trouble = (error.strerror or str(error)).lower()
                raise CannotCreateError(f"{path}: cannot be written: {trouble}") from error

    def begin(self, length: int) -> None:
        """Forget what was written after the state that is gone on from; 0: all."""
        if self.file is not None and self.file.seekable():
            self.file.truncate(min(length, self.file.tell()))

    def write(self, record: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            self.file.flush()

    @property
    def length(self) -> int:
        return self.file.tell() if self.file is not None and self.file.seekable() else 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
