"""A run and its files: its lock, its last two states and best weights, with digests, and its log."""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import orjson
import torch
from torch import Tensor

from sentkit.errors import CannotCreateError, DataError
from sentkit.formats.checkpoints.export import Input
from sentkit.formats.outputs.temporary import MARK, replacing
from sentkit.process import Stop
from sentkit.training.base import Base
from sentkit.training.catalogue import LoadedMethod
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.dev import Dev, LabelledRows
from sentkit.training.loop.processes import Processes
from sentkit.training.method import Method
from sentkit.training.settings import differences

LOG = "steps.jsonl"  # in OUT.part, and then in OUT
MAGIC = b"sentkit state 3 "  # increase the number if the fields of a state change: no reader checks them
DIGEST = 32  # bytes
HEADER = len(MAGIC) + 2 * DIGEST + 1


@dataclass(slots=True)
class Reporter:
    """Receives the messages of a command and the records of its steps."""

    say: Callable[[str], None] = lambda message: None  # automatic choices and their reasons
    note: Callable[[str], None] = lambda message: None  # details, for verbose output
    warn: Callable[[str], None] = lambda message: None
    # A run begins: the work of the runs after it, in units of its own, and the number of all these runs.
    begin: Callable[[float, int], None] = lambda later_work, runs: None
    step: Callable[[Mapping[str, Any]], None] = lambda record: None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a command: a method with its settings and a seed, and what the command gives and reads.

    Its folder is OUT, or OUT/seed-1 with several seeds; in a sweep OUT/NAME=VALUE,NAME=VALUE/seed-1.
    """

    method: LoadedMethod
    settings: Any
    seed: int = 0
    root: Path  # OUT
    several: bool = False  # runs in OUT
    chosen: Mapping[str, str] = field(default_factory=dict)  # in a sweep, the settings with several values
    words: Sequence[str] = ()  # of the command line
    inputs: Sequence[Input] = ()
    device: str = "auto"
    threads: int | None = None  # None: the number in the resumed state, else all
    deterministic: bool = False
    save_every: int = 0  # steps; 0: save the state by time only. Signals also save it.
    save_seconds: float = 300.0
    resume: bool = False
    force: bool = False
    stop: Stop = field(default_factory=Stop)
    reporter: Reporter = field(default_factory=Reporter)
    # Set when the command has connected the processes and read the inputs.
    processes: Processes = field(default_factory=Processes)
    base: Base = field(default=None)  # type: ignore[assignment]
    corpus: Corpus = field(default=None)  # type: ignore[assignment]
    dev: Dev | None = None
    test: LabelledRows | None = None
    recorded: Mapping[str, Any] = field(default_factory=dict)  # `command_record`, for the checkpoint

    @property
    def kind(self) -> type[Method]:
        return self.method.kind

    def given(self, flag: str) -> str | None:
        """Return the path that this flag of the command gives."""
        return next((each.path for each in self.inputs if each.flag == flag), None)

    @property
    def output(self) -> Path:
        folder = self.root / ",".join(map("=".join, self.chosen.items()))
        return folder / f"seed-{self.seed}" if self.several else folder

    @property
    def part(self) -> Path:
        """The folder for the state of an unfinished run."""
        path = self.output if self.output.name not in ("", "..") else self.output.resolve()
        return path.with_name(path.name + ".part")

    @property
    def rows(self) -> Path:
        """The folder of the token files during the runs."""
        return self.root / "rows.part" if self.several else self.part

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The fields that must be equal to resume a run."""
        return {
            "method": self.method.name,
            "seed": self.seed,
            "base": self.base.hash,
            "data": self.corpus.digest,
            "dev": None if self.dev is None else self.dev.digest,
            **({} if self.method.digest is None else {"method_file": self.method.digest}),
            **({} if self.test is None else {"test": self.test.digest}),
            **({} if self.base.entries is None else {"entries": self.base.entries.hash}),
            **self.kind.identity(self.base, self.settings),
            **asdict(self.settings),
        }


class BadFile(Exception):
    """The reason why a file of a run is invalid."""


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
    """Read a file of `write_sealed`. Raise a BadFile if it is damaged."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER)
            if not header.startswith(MAGIC):
                raise BadFile("no digest: it is damaged, or another version of sentkit wrote it")
            if header != header_of(file):
                raise BadFile("its digest does not match: it is damaged or truncated")
            file.seek(HEADER)
            content: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except OSError as error:  # for example a bad sector
        raise BadFile(f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    return content


STATE, BEST = re.compile(r"state-(\d+)\.pt"), re.compile(r"best-(\d+)\.pt")
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
    waited: int = 0  # evaluations since the best; if cumulative: number of decreases
    log_bytes: int = 0
    limits: list[list[int]] = field(default_factory=list)  # of chunks in tokens, each with its first step

    def add_score(self, score: float, *, cumulative: bool) -> bool:
        """Record a score and return true if it is the best. NaN is never the best."""
        if self.step == 0:
            self.first_score = score
            return False
        better = score == score and (self.best_score is None or score > self.best_score)
        if cumulative:
            self.waited += self.last_score is not None and score < self.last_score
        else:
            self.waited = 0 if better else self.waited + 1
        self.last_score = score
        if better:
            self.best_score, self.best_step = score, self.step
        return better


def check_identity(ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str, advice: str) -> None:
    """Raise a DataError if two runs differ. If our `eval_every` is not given, it is theirs."""
    if ours["eval_every"] is None:
        ours = {**ours, "eval_every": theirs.get("eval_every")}
    changes = differences(ours, theirs)
    if changes:
        raise DataError(f"belongs to a different run: {', '.join(changes)}", source=source, advice=advice)


@dataclass(slots=True)
class Keeper:
    folder: Path
    kept: dict[int, int] = field(default_factory=dict)  # step of each kept state -> its best step
    log: BinaryIO | None = None  # one JSON object per line, without times: all runs write the same bytes

    @contextmanager
    def logging(self, length: int = 0) -> Iterator[None]:
        """Append to the log after its first `length` bytes: the lines of the saved state.

        At the end, the log is removed if no state continues it.
        """
        try:
            with (self.folder / LOG).open("ab") as self.log:
                self.log.truncate(min(length, self.log.tell()))
                self.log.seek(0, os.SEEK_END)  # truncate does not change the position
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
        content = {"position": asdict(position), "identity": dict(identity), "recorded": dict(recorded)}
        content |= tensors
        with replacing(self.folder / f"state-{position.step}.pt") as file:
            write_sealed(file, content)
        self.kept[position.step] = position.best_step
        for step in sorted(self.kept)[:-KEPT_STATES]:
            (self.folder / f"state-{step}.pt").unlink(missing_ok=True)
            del self.kept[step]
        self._prune(position.best_step)

    def _prune(self, best: int) -> None:
        """Delete best weights that no kept state refers to."""
        for step in set(self._steps(BEST)) - {best, *self.kept.values()}:
            (self.folder / f"best-{step}.pt").unlink()

    def forget(self) -> None:
        for name in ("state-*.pt", "best-*.pt", LOG, f".*{MARK}*"):
            for path in self.folder.glob(name):  # the folder is locked, so no other process writes them
                path.unlink()

    def load(
        self,
        identity: Mapping[str, Any],
        warn: Callable[[str], None] = lambda message: None,
        *,
        keeps_best: bool = False,
    ) -> dict[str, Any] | None:
        """Load the newest valid state of the run with this identity. Return None if there is no state.

        With `keeps_best`, a state is valid only with its separate file of the best weights.
        Newer invalid states are reported. A state of a different run is an error.
        """
        state, bad = None, dict[int, str]()
        for step in sorted(self._steps(STATE)):
            part = ""
            try:
                content = read_sealed(self.folder / f"state-{step}.pt")
                check_identity(identity, content["identity"]["run"], str(self.folder), ANOTHER_RUN)
                best = content["position"]["best_step"]
                if keeps_best and best >= 0:
                    part = f"its best weights, best-{best}.pt: "
                    read_sealed(self.folder / f"best-{best}.pt")
            except BadFile as error:
                bad[step] = f"{part}{error}"
            else:
                state, self.kept[step] = content, best
        if bad and state is None:
            reasons = "; ".join(f"state-{step}.pt: {bad[step]}" for step in sorted(bad, reverse=True))
            advice = "start over with -f and without --resume"
            raise DataError(f"all states are invalid: {reasons}", source=str(self.folder), advice=advice)
        if state is None:
            return None
        for step in (step for step in bad if step > max(self.kept)):
            next_state = f"state-{max(self.kept)}.pt"
            warn(f"{self.folder}/state-{step}.pt: {bad[step]}; the run continues from {next_state}")
        return {**state, "position": Position(**state["position"])}

    def save_best(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        with replacing(self.folder / f"best-{step}.pt") as file:
            write_sealed(file, tensors)
        self._prune(step)

    def load_best(self, step: int) -> dict[str, Tensor]:
        path = self.folder / f"best-{step}.pt"
        try:
            return read_sealed(path)
        except BadFile as error:
            advice = "--resume tries an older state; -f without --resume starts over"
            raise DataError(str(error), source=str(path), advice=advice) from error

    def _steps(self, name: re.Pattern[str]) -> list[int]:
        matches = (name.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(match[1]) for match in matches if match]


@contextmanager
def lock_folder(folder: Path, lock: str, *, first: bool, temporary: Sequence[str] = ()) -> Iterator[None]:
    """Create and lock the folder on the first process.

    At the end, remove the temporary files, the folder, and its parent if it was created here, if they are
    empty.
    """
    if not first:
        yield
        return
    new_parent, path = not folder.parent.exists(), folder / lock
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):  # another process has removed it
            raise BlockingIOError
    except BlockingIOError as error:
        problem = f"{folder}: another sentkit train uses this folder"
        raise CannotCreateError(problem, advice="wait, or choose another -o") from error
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{folder}: cannot be created and locked: {trouble}") from error
    try:
        yield
    finally:
        for name in (*temporary, lock):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it contains a state, or does not exist
            folder.rmdir()
            if new_parent:
                folder.parent.rmdir()
        file.close()
