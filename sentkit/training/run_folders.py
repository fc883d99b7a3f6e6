"""The folders of the runs of one command: one for each seed. Also reads their results. No torch."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError
from sentkit.formats.files import readable
from sentkit.formats.json_files import read_object

LOG = "steps.jsonl"  # in OUT.part, and then in OUT
RESULTS = ("method", "readout", "step", "dev_before", "dev")


@dataclass(frozen=True, slots=True)
class RunFolders:
    """OUT for one seed, OUT/seed-1 and so on for several."""

    output: Path
    seeds: Sequence[int]

    @property
    def several(self) -> bool:
        return len(self.seeds) > 1

    @property
    def rows(self) -> Path:
        """The folder of the token files during the runs."""
        return self.output / "rows.part" if self.several else part_of(self.output)

    def of_seed(self, seed: int) -> Path:
        return self.output / f"seed-{seed}" if self.several else self.output

    @property
    def all_folders(self) -> list[str]:
        """All folders that the runs create, replace or remove."""
        outputs = list(map(self.of_seed, self.seeds))
        return list(map(str, dict.fromkeys([*outputs, *map(part_of, [*outputs, self.output]), self.rows])))

    def refuse_existing(self, *, resume: bool, force: bool) -> None:
        """Raise an error if an existing checkpoint or an unfinished run would be overwritten."""
        if self.several and (self.output.is_file() or (self.output / "config.json").exists()):
            raise CannotCreateError(f"{self.output}: is a file or a checkpoint, not a folder of runs")
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
        spread = spread_of("dev", [record["dev"] for record in results])
        tests = [record["test"] for record in results if "test" in record]
        for name in dict.fromkeys(name for test in tests for name in test if name != "rows"):
            spread |= spread_of(f"test_{name}", [test[name] for test in tests])
        if spread:
            results.append({"checkpoint": readable(str(self.output)), "seeds": list(self.seeds), **spread})
        return results


def spread_of(name: str, scores: Sequence[float | None]) -> dict[str, float]:
    """Return the mean and the sample standard deviation; nothing for one score or if one is undefined."""
    known = [score for score in scores if score is not None]
    if not 1 < len(known) == len(scores):
        return {}
    return {f"{name}_mean": statistics.fmean(known), f"{name}_sd": statistics.stdev(known)}


def part_of(output: Path) -> Path:
    """Return the folder for the state of an unfinished run."""
    path = output if output.name not in ("", "..") else output.resolve()
    return path.with_name(path.name + ".part")


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


def two_decimals(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
