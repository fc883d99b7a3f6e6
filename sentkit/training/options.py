"""The options of `sentkit train`, the folders of its runs with their results, and one run."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.export import Command
from sentkit.formats.files import read_object, readable
from sentkit.training.base import Base
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.dev import Dev, LabelledRows
from sentkit.training.method import Method

RESULTS = ("method", "readout", "step", "dev_before", "dev")


@dataclass(frozen=True, slots=True)
class RunFolders:
    """OUT for one seed, OUT/seed-1 and so on for several; in a sweep, OUT/NAME=VALUE,NAME=VALUE/seed-1."""

    output: Path
    seeds: Sequence[int]
    sweep: Path | None = None  # OUT of a sweep, where `output` is the folder of one combination of settings
    chosen: Mapping[str, str] = field(default_factory=dict)  # this combination

    @property
    def several(self) -> bool:
        return len(self.seeds) > 1 or self.sweep is not None

    @property
    def rows(self) -> Path:
        """The folder of the token files during the runs."""
        return (self.sweep or self.output) / "rows.part" if self.several else part_of(self.output)

    def of_seed(self, seed: int) -> Path:
        return self.output / f"seed-{seed}" if self.several else self.output

    @property
    def all_folders(self) -> list[str]:
        """All folders that the runs create, replace or remove."""
        outputs = list(map(self.of_seed, self.seeds))
        return list(map(str, dict.fromkeys([*outputs, *map(part_of, [*outputs, self.output]), self.rows])))

    def refuse_existing(self, *, resume: bool, force: bool) -> None:
        """Raise an error if an existing checkpoint or an unfinished run would be overwritten."""
        for folder in (self.sweep or self.output, self.output) if self.several else ():
            if folder.is_file() or (folder / "config.json").exists():
                raise CannotCreateError(f"{folder}: is a file or a checkpoint, not a folder of runs")
        for output in map(self.of_seed, self.seeds):
            if output.is_symlink():
                raise CannotCreateError(f"{output}: is a symbolic link; give the path of the folder")
            if output.exists() and not (output / "sentkit.json").is_file():
                raise CannotCreateError(f"{output}: already exists and is not a checkpoint of sentkit")
            if output.exists() and not self.several and not resume and not force:
                raise CannotCreateError(f"{output}: already exists", advice="use -f to replace it")
            if output.exists() and force and Path.cwd().is_relative_to(output.resolve()):
                raise CannotCreateError(f"{output}: is the current folder, which cannot be replaced")
            if any(part_of(output).glob("state-*.pt")) and not resume and not force:
                advice = "use --resume to continue this run, or -f to start a new run"
                raise CannotCreateError(f"{part_of(output)}: contains an unfinished run", advice=advice)

    def results(self) -> list[dict[str, Any]]:
        """Return the result of each seed and, for several, the mean and sample standard deviation."""
        results: list[dict[str, Any]] = []
        for seed in self.seeds:
            declaration = read_object(self.of_seed(seed) / "sentkit.json")
            of_run = {name: declaration.get(name) for name in RESULTS}
            test = {"test": declaration["test"]} if "test" in declaration else {}
            results.append({"checkpoint": readable(str(self.of_seed(seed))), "seed": seed, **of_run, **test})
        spread = {name: value for name, value in spread_of(results).items() if value is not None}
        if spread and len(results) > 1:
            results.append({"checkpoint": readable(str(self.output)), "seeds": list(self.seeds), **spread})
        return results


def folders_of(
    output: Path, seeds: Sequence[int], combinations: Sequence[Mapping[str, str]]
) -> list[RunFolders]:
    """Return the folders of each combination of settings, or those of the only one, which is empty."""
    if not combinations[0]:
        return [RunFolders(output, seeds)]
    names = [",".join(map("=".join, chosen.items())) for chosen in combinations]
    places = zip(names, combinations, strict=True)
    return [RunFolders(output / name, seeds, output, chosen) for name, chosen in places]


def part_of(output: Path) -> Path:
    """Return the folder for the state of an unfinished run."""
    path = output if output.name not in ("", "..") else output.resolve()
    return path.with_name(path.name + ".part")


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
    init: tuple[Path, Path] | None = None  # replaces the model: config.json, and tokenizer.json or its folder
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


# Results.


def spread_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of each score; None if one score is undefined."""
    scores = {"dev": [run["dev"] for run in runs]}
    tests = [run["test"] for run in runs if "test" in run]
    for name in dict.fromkeys(name for test in tests for name in test if name != "rows"):
        scores[f"test_{name}"] = [test[name] for test in tests]
    spread = dict[str, float | None]()
    for name, values in scores.items():
        known = values if None not in values else []
        spread[f"{name}_mean"] = statistics.fmean(known) if known else None
        spread[f"{name}_sd"] = statistics.stdev(known) if len(known) > 1 else None
    return spread


def compared(sweep: Sequence[RunFolders], values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the result of each combination of settings, which has these values; one is the best on --dev."""
    results: list[dict[str, Any]] = []
    for folders, chosen in zip(sweep, values, strict=True):
        runs = [record for record in folders.results() if "seed" in record]
        record = {"checkpoint": readable(str(folders.output)), **chosen, "method": runs[0]["method"]}
        before = [run["dev_before"] for run in runs]
        record |= {"seeds": list(folders.seeds), "step": [run["step"] for run in runs]}
        record["dev_before"] = None if None in before else statistics.fmean(before)
        record |= {name.removesuffix("_mean"): score for name, score in spread_of(runs).items()}
        results.append({**record, "dev_by_seed": [run["dev"] for run in runs]})
    scores = [record["dev"] for record in results if record["dev"] is not None]
    best = next((record for record in results if scores and record["dev"] == max(scores)), None)
    return [{**record, "best": record is best} for record in results]


def result_line(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The table row of one seed, or of the mean over seeds with the standard deviation."""
    line = {"checkpoint": record["checkpoint"]}
    if "seeds" in record:
        means = [name.removesuffix("_mean") for name in record if name.endswith("_mean")]
        scores = {name: f"{record[f'{name}_mean']:.2f} ± {record[f'{name}_sd']:.2f}" for name in means}
        line |= {"seed": f"{len(record['seeds'])} seeds", "step": "", "dev before": ""}
        line["dev"] = scores.pop("dev", "")
        return [line | {name.replace("_", " "): score for name, score in scores.items()}]
    line |= {"seed": str(record["seed"]), "step": str(record["step"])}
    line |= {name.replace("_", " "): two_decimals(record[name]) for name in ("dev_before", "dev")}
    test = {name: score for name, score in record.get("test", {}).items() if name != "rows"}
    return [line | {f"test {name}": two_decimals(score) for name, score in test.items()}]


def sweep_line(record: Mapping[str, Any], chosen: Mapping[str, str]) -> list[dict[str, str]]:
    """The table row of a combination of settings: their texts, and each mean with the standard deviation."""
    line = {**chosen, "seeds": str(len(record["seeds"])), "step": ",".join(map(str, record["step"]))}
    for name in (name.removesuffix("_sd") for name in record if name.endswith("_sd")):
        line[name.replace("_", " ")] = mean_with_sd(record, name)
    return [line]


def best_of(results: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for record in (record for record in results if record["best"]):
        before = two_decimals(record["dev_before"])
        yield f"best on dev: {record['checkpoint']}, {mean_with_sd(record, 'dev')}, before {before}"


def mean_with_sd(record: Mapping[str, Any], name: str) -> str:
    sd = record[f"{name}_sd"]
    return two_decimals(record[name]) + ("" if sd is None else f" ({sd:.2f})")


def two_decimals(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
