"""The options of `sentkit train`, and one run: these options with a seed, a base and rows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentkit.formats.checkpoints.export import Command
from sentkit.training.base import Base
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.dev import Dev
from sentkit.training.data.labelled import LabelledRows
from sentkit.training.method import Method
from sentkit.training.run_folders import RunFolders


@dataclass(frozen=True, slots=True)
class RandomInit:
    """The source files of a base with random weights."""

    config: Path  # a file config.json
    tokenizer: Path  # a file tokenizer.json, or its folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The values of all flags, except those of the rows."""

    method: str
    kind: type[Method]
    method_digest: str | None = None  # of the file of a user's method
    method_code: bytes | None = None  # this file, unless it is part of a package
    settings: Any
    folders: RunFolders
    model: str = "nano"
    init: RandomInit | None = None  # replaces the model
    dev: str | None = None
    test: str | None = None
    entries: str | None = None
    device: str = "auto"
    threads: int | None = None  # None: the number in the resumed state, else all
    deterministic: bool = False
    save_every: int = 0  # steps; 0: save the state by time only. Signals also save it.
    save_seconds: float = 300.0
    resume: bool = False
    force: bool = False
    command: Command = field(default_factory=Command)  # for the record of the checkpoint


@dataclass(frozen=True)
class Run:
    options: TrainOptions
    seed: int
    base: Base
    corpus: Corpus
    dev: Dev | LabelledRows | None = None
    test: LabelledRows | None = None
    command: Mapping[str, Any] = field(default_factory=dict)  # the record of the command

    @property
    def settings(self) -> Any:
        return self.options.settings

    @property
    def output(self) -> Path:
        return self.options.folders.of_seed(self.seed)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The fields that must be equal to resume a run."""
        return {
            "method": self.options.method,
            "seed": self.seed,
            "base": self.base.hash,
            "data": self.corpus.digest,
            "dev": None if self.dev is None else self.dev.digest,
            **({} if self.options.method_digest is None else {"method_file": self.options.method_digest}),
            **({} if self.test is None else {"test": self.test.digest}),
            **({} if self.base.entries is None else {"entries": self.base.entries.hash}),
            **self.options.kind.identity(self.base, self.settings),
            **asdict(self.settings),
        }
