"""A run of a command: its method, settings, inputs and folders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentkit.formats.checkpoints.command_record import Input
from sentkit.process import Stop
from sentkit.training.base import Base
from sentkit.training.catalogue import LoadedMethod
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.dev import EvaluationRows, LabelledRows
from sentkit.training.loop.processes import Processes
from sentkit.training.method import Method


@dataclass(slots=True)
class Reporter:
    """Receives the messages of a command and the records of its steps."""

    say: Callable[[str], None] = lambda message: None  # automatic choices and their reasons
    note: Callable[[str], None] = lambda message: None  # details, for verbose output
    warn: Callable[[str], None] = lambda message: None
    error: Callable[[str], None] = lambda message: None  # of one of several runs
    # A run begins: the work of the runs after it, divided by its own, and the number of all these
    # runs.
    begin: Callable[[float, int], None] = lambda later_work, runs: None
    step: Callable[[Mapping[str, Any]], None] = lambda record: None
    # A function that measures a faster way, for runs that turn out to be long.
    advise: Callable[[Callable[[], str | None]], None] = lambda advice: None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a command: a method with its settings and a seed, and what the command gives and
    reads.

    Its folder is OUT, or OUT/seed-1 with several seeds; in a sweep
    OUT/NAME=VALUE,NAME=VALUE/seed-1.
    """

    method: LoadedMethod
    settings: Any
    seed: int = 0
    root: Path  # OUT
    several: bool = False  # runs in OUT
    # in a sweep, the settings with several values
    chosen: Mapping[str, str] = field(default_factory=dict)
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
    dev: EvaluationRows | None = None
    test: LabelledRows | None = None
    # `command_record`, for the checkpoint
    recorded: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method_class(self) -> type[Method]:
        return self.method.method_class

    def given(self, flag: str) -> str | None:
        """Return the path that this flag of the command gives."""
        for source in self.inputs:
            if source.flag == flag:
                return source.path
        return None

    @property
    def output(self) -> Path:
        """The folder of the new checkpoint."""
        values = [f"{name}={value}" for name, value in self.chosen.items()]
        folder = self.root / ",".join(values)
        if self.several:
            return folder / f"seed-{self.seed}"
        return folder

    @property
    def state_folder(self) -> Path:
        """The folder for the state of an unfinished run."""
        path = self.output
        if path.name in ("", ".."):
            path = path.resolve()
        return path.with_name(path.name + ".part")

    @property
    def rows_folder(self) -> Path:
        """The folder of the token files during the runs."""
        if self.several:
            return self.root / "rows.part"
        return self.state_folder

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The fields that must be equal to resume a run."""
        dev = None
        if self.dev is not None:
            dev = self.dev.digest
        fields: dict[str, Any] = {
            "method": self.method.name,
            "seed": self.seed,
            "base": self.base.hash,
            "data": self.corpus.digest,
            "dev": dev,
        }
        if self.method.digest is not None:
            fields["method_file"] = self.method.digest
        if self.test is not None:
            fields["test"] = self.test.digest
        if self.base.entries is not None:
            fields["entries"] = self.base.entries.hash
        fields |= self.method_class.identity(self.base, self.settings)
        return fields | asdict(self.settings)
