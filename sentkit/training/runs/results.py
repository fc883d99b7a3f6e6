"""The folders of the runs of a command, and their results as records and as rows of a table."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError
from sentkit.formats.files import read_object, readable
from sentkit.training.loop.state import Run

RESULTS = ("method", "readout", "step", "dev_before", "dev")


def refuse_existing(run: Run) -> None:
    """Raise an error if an existing checkpoint or an unfinished run would be overwritten."""
    output, replaces = run.output, run.resume or run.force
    for folder in (run.root, output.parent) if run.several else ():
        if folder.is_file() or (folder / "config.json").exists():
            raise CannotCreateError(f"{folder}: is a file or a checkpoint, not a folder of runs")
    if output.is_symlink():
        raise CannotCreateError(f"{output}: is a symbolic link; give the path of the folder")
    if output.exists() and not (output / "sentkit.json").is_file():
        raise CannotCreateError(f"{output}: already exists and is not a checkpoint of sentkit")
    if output.exists() and not run.several and not replaces:
        raise CannotCreateError(f"{output}: already exists", advice="use -f to replace it")
    if output.exists() and run.force and Path.cwd().is_relative_to(output.resolve()):
        raise CannotCreateError(f"{output}: is the current folder, which cannot be replaced")
    if any(run.part.glob("state-*.pt")) and not replaces:
        advice = "use --resume to continue this run, or -f to start a new run"
        raise CannotCreateError(f"{run.part}: contains an unfinished run", advice=advice)


def results_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the result of each run and, for several seeds, the mean and sample standard deviation."""
    results: list[dict[str, Any]] = []
    for run in runs:
        declaration = read_object(run.output / "sentkit.json")
        of_run = {name: declaration.get(name) for name in RESULTS}
        test = {"test": declaration["test"]} if "test" in declaration else {}
        results.append({"checkpoint": readable(str(run.output)), "seed": run.seed, **of_run, **test})
    spread = {name: value for name, value in spread_of(results).items() if value is not None}
    if spread and len(results) > 1:
        seeds = [run.seed for run in runs]
        results.append({"checkpoint": readable(str(runs[0].output.parent)), "seeds": seeds, **spread})
    return results


def spread_of(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of each score; None if one score is undefined."""
    scores = {"dev": [each["dev"] for each in results]}
    tests = [each["test"] for each in results if "test" in each]
    for name in dict.fromkeys(name for test in tests for name in test if name != "rows"):
        scores[f"test_{name}"] = [test[name] for test in tests]
    spread = dict[str, float | None]()
    for name, values in scores.items():
        known = values if None not in values else []
        spread[f"{name}_mean"] = statistics.fmean(known) if known else None
        spread[f"{name}_sd"] = statistics.stdev(known) if len(known) > 1 else None
    return spread


def compared(runs: Sequence[Run], chosen: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the result of each combination of settings, which has these values; one is the best on --dev."""
    results: list[dict[str, Any]] = []
    groups = [[*group] for _, group in groupby(runs, lambda run: run.chosen)]
    for group, values in zip(groups, chosen, strict=True):
        of_runs = [record for record in results_of(group) if "seed" in record]
        record = {"checkpoint": readable(str(group[0].output.parent)), **values}
        record |= {"method": of_runs[0]["method"], "seeds": [each["seed"] for each in of_runs]}
        before = [each["dev_before"] for each in of_runs]
        record["step"] = [each["step"] for each in of_runs]
        record["dev_before"] = None if None in before else statistics.fmean(before)
        record |= {name.removesuffix("_mean"): score for name, score in spread_of(of_runs).items()}
        results.append({**record, "dev_by_seed": [each["dev"] for each in of_runs]})
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
