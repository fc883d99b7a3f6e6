"""The files of an unfinished run: its last two states and best weights, with digests, and
its log.
"""

import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import orjson
import torch
from torch import Tensor

from sentkit.errors import DataError
from sentkit.formats.outputs.temporary import MARK, NamedFile, replacing
from sentkit.training.settings import differences

LOG = "steps.jsonl"  # in OUT.part, and then in OUT
# increase the number if the fields of a state change: no reader checks them
MAGIC = b"sentkit state 3 "
DIGEST = 32  # bytes
HEADER = len(MAGIC) + 2 * DIGEST + 1


def write_sealed(file: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write to an empty file. The digest is at the start, so it is written last."""
    file.write(bytes(HEADER))
    try:
        torch.save(dict(content), cast(IO[bytes], file))
    except RuntimeError as error:  # torch raises this in place of the error of `write`
        raise error.__context__ or error from None
    header = header_of(file)
    file.seek(0)
    file.write(header)


def header_of(file: BinaryIO) -> bytes:
    """Return the header for the content of a file after its header."""
    file.seek(HEADER)
    hash = hashlib.file_digest(cast(Any, file), lambda: hashlib.blake2b(digest_size=DIGEST))
    return MAGIC + hash.hexdigest().encode() + b"\n"


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file of `write_sealed`. Raise a DataError if it is damaged."""
    source = str(path)
    try:
        with path.open("rb") as file:
            header = file.read(HEADER)
            if not header.startswith(MAGIC):
                problem = "no digest: it is damaged, or another version of sentkit wrote it"
                raise DataError(problem, source=source)
            if header != header_of(file):
                problem = "its digest does not match: it is damaged or truncated"
                raise DataError(problem, source=source)
            file.seek(HEADER)
            content: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except OSError as error:  # for example a bad sector
        problem = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise DataError(problem, source=source) from error
    return content


STATE = re.compile(r"state-(\d+)\.pt")
BEST = re.compile(r"best-(\d+)\.pt")
KEPT_STATES = 2
ANOTHER_RUN = "use the same settings and rows, or start over with -f and without --resume"


@dataclass(slots=True)
class Position:
    """The progress of a run, without its tensors."""

    step: int = 0
    evaluated: int = -1  # step of the last evaluation
    first_score: float | None = None  # the score before training
    last_score: float | None = None
    best_score: float | None = None
    best_step: int = -1
    # compared with `patience`: evaluations since the best score, or with early_stop=cumulative all
    # scores below the previous one
    waited: int = 0
    log_bytes: int = 0
    # of chunks in tokens, each with its first step
    limits: list[list[int]] = field(default_factory=list)

    def add_score(self, score: float, *, cumulative: bool) -> bool:
        """Record a score and return true if it is the best. NaN is never the best, nor is the
        score before training.

        `cumulative` is the setting early_stop=cumulative.
        """
        if self.step == 0:
            self.first_score = score
            return False
        is_best = not math.isnan(score) and (self.best_score is None or score > self.best_score)
        if cumulative:
            if self.last_score is not None and score < self.last_score:
                self.waited += 1
        elif is_best:
            self.waited = 0
        else:
            self.waited += 1
        self.last_score = score
        if is_best:
            self.best_score = score
            self.best_step = self.step
        return is_best


def check_identity(
    run: Mapping[str, Any], saved: Mapping[str, Any], source: str, advice: str
) -> None:
    """Raise a DataError if this run is not the saved one. In earlier versions, `eval_every` was 0
    where it is None now.
    """
    if run["eval_every"] is None and saved.get("eval_every") == 0:
        run = {**run, "eval_every": 0}
    changes = differences(run, saved)
    if changes:
        raise DataError(
            f"belongs to a different run: {', '.join(changes)}", source=source, advice=advice
        )


@dataclass(slots=True)
class Checkpointer:
    """Writes and reads the files of an unfinished run."""

    folder: Path
    # by the step of each valid state
    best_step_of_state: dict[int, int] = field(default_factory=dict)
    # one JSON object per line, without times: all runs write the same bytes
    log: BinaryIO | None = None

    @contextmanager
    def logging(
        self, length: int = 0, warn: Callable[[str], None] = lambda message: None
    ) -> Iterator[None]:
        """Append to the log after its first `length` bytes: the lines of the saved state. A log
        without all of them is reported.

        At the end, the log is removed if no state continues it.
        """
        try:
            path = self.folder / LOG
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            handle = os.open(path, flags, 0o666)
            with io.BufferedWriter(NamedFile(handle, "ab", str(path))) as file:
                if file.tell() < length:
                    warn(
                        f"{path} is shorter than in the saved state: lines of its steps are missing"
                    )
                file.truncate(min(length, file.tell()))
                file.seek(0, os.SEEK_END)  # truncate does not change the position
                self.log = file
                yield
        finally:
            if not any(self.folder.glob("state-*.pt")):
                (self.folder / LOG).unlink(missing_ok=True)

    def log_length(self) -> int:
        """Write the log to the disk, and return the number of its bytes, which a state records."""
        if self.log is None:
            return 0
        self.log.flush()
        os.fsync(self.log.fileno())
        return self.log.tell()

    def write(self, record: Mapping[str, Any]) -> None:
        if self.log is not None:
            self.log.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            self.log.flush()

    def save(
        self,
        position: Position,
        tensors: Mapping[str, Any],
        identity: Mapping[str, Any],
        recorded: Mapping[str, Any],
    ) -> None:
        content = {
            "position": asdict(position),
            "identity": dict(identity),
            "recorded": dict(recorded),
            **tensors,
        }
        with replacing(self.folder / f"state-{position.step}.pt") as file:
            write_sealed(file, content)
        self.best_step_of_state[position.step] = position.best_step
        for step in sorted(self.best_step_of_state)[:-KEPT_STATES]:
            (self.folder / f"state-{step}.pt").unlink(missing_ok=True)
            del self.best_step_of_state[step]
        self._remove_old_best(position.best_step)

    def _remove_old_best(self, best_step: int) -> None:
        """Delete best weights that no state refers to."""
        needed = {best_step, *self.best_step_of_state.values()}
        for step in self._steps(BEST):
            if step not in needed:
                (self.folder / f"best-{step}.pt").unlink()

    def forget(self) -> None:
        for name in ("state-*.pt", "best-*.pt", LOG, f".*{MARK}*"):
            # The folder is locked, so no other process writes these files.
            for path in self.folder.glob(name):
                path.unlink()

    def load(
        self,
        identity: Mapping[str, Any],
        warn: Callable[[str], None] = lambda message: None,
        *,
        keeps_best: bool = False,
    ) -> dict[str, Any] | None:
        """Load the newest valid state of the run with this identity. Return None if there is no
        state.

        With `keeps_best`, a state is valid only with its separate file of the best weights.
        Newer invalid states are reported. A state of a different run is an error.
        """
        newest: dict[str, Any] | None = None
        problems: dict[int, str] = {}  # of invalid states
        for step in sorted(self._steps(STATE)):
            try:
                content = read_sealed(self.folder / f"state-{step}.pt")
            except DataError as error:
                problems[step] = error.problem
                continue
            check_identity(identity, content["identity"]["run"], str(self.folder), ANOTHER_RUN)
            best_step = content["position"]["best_step"]
            if keeps_best and best_step >= 0:
                try:
                    read_sealed(self.folder / f"best-{best_step}.pt")
                except DataError as error:
                    problems[step] = f"its best weights, best-{best_step}.pt: {error.problem}"
                    continue
            newest = content
            self.best_step_of_state[step] = best_step

        if newest is None and problems:
            newest_first = sorted(problems, reverse=True)
            reasons = "; ".join(f"state-{step}.pt: {problems[step]}" for step in newest_first)
            advice = "start over with -f and without --resume"
            raise DataError(
                f"all states are invalid: {reasons}", source=str(self.folder), advice=advice
            )
        if newest is None:
            return None
        newest_step = max(self.best_step_of_state)
        for step, problem in problems.items():
            if step > newest_step:
                next_state = f"state-{newest_step}.pt"
                warn(
                    f"{self.folder}/state-{step}.pt: {problem}; the run continues from {next_state}"
                )
        return {**newest, "position": Position(**newest["position"])}

    def save_best(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        with replacing(self.folder / f"best-{step}.pt") as file:
            write_sealed(file, tensors)
        self._remove_old_best(step)

    def load_best(self, step: int) -> dict[str, Tensor]:
        path = self.folder / f"best-{step}.pt"
        try:
            return read_sealed(path)
        except DataError as error:
            error.advice = "--resume tries an older state; -f without --resume starts over"
            raise

    def _steps(self, name: re.Pattern[str]) -> list[int]:
        matches = [name.fullmatch(path.name) for path in self.folder.iterdir()]
        return [int(match[1]) for match in matches if match]
