"""The results of runs, from their checkpoints, as records and as lines of a table."""

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sentkit.formats.files import read_object, shown_path
from sentkit.training.run import Run

RESULTS = ("method", "readout", "step", "dev_before", "dev")


def results_of(runs: Sequence[Run], diverged: Collection[Path] = ()) -> list[dict[str, Any]]:
    """Return the result of each run and, for several seeds, the mean and sample standard
    deviation.

    A diverged run has no checkpoint and no result. The mean is then left out, too: that of the
    other seeds would leave the worst one out.
    """
    results: list[dict[str, Any]] = []
    for run in runs:
        if run.output in diverged:
            continue
        declaration = read_object(run.output / "sentkit.json")
        result: dict[str, Any] = {"checkpoint": shown_path(str(run.output)), "seed": run.seed}
        for name in RESULTS:
            result[name] = declaration.get(name)
        if "test" in declaration:
            result["test"] = declaration["test"]
        results.append(result)
    if len(results) > 1 and not diverged:
        spread = {name: value for name, value in spread_of(results).items() if value is not None}
        if spread:
            seeds = [run.seed for run in runs]
            folder = shown_path(str(runs[0].output.parent))
            results.append({"checkpoint": folder, "seeds": seeds, **spread})
    return results


def spread_of(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of each score; None if one score is
    undefined.
    """
    scores = {"dev": [result["dev"] for result in results]}
    tests = [result["test"] for result in results if "test" in result]
    names = dict.fromkeys(name for test in tests for name in test if name != "rows")
    for name in names:
        scores[f"test_{name}"] = [test[name] for test in tests]
    spread: dict[str, float | None] = {}
    for name, values in scores.items():
        is_defined = len(values) > 0 and None not in values
        spread[f"{name}_mean"] = statistics.fmean(values) if is_defined else None
        spread[f"{name}_sd"] = statistics.stdev(values) if is_defined and len(values) > 1 else None
    return spread


def results_of_combinations(
    runs: Sequence[Run], chosen: Iterable[Mapping[str, Any]], diverged: Collection[Path] = ()
) -> list[dict[str, Any]]:
    """Return the result of each combination of settings, which has these values; one is the best on
    --dev.

    A combination with a diverged run has no mean scores, as in `results_of`.
    """
    results: list[dict[str, Any]] = []
    groups = [list(group) for _, group in groupby(runs, lambda run: run.chosen)]
    for group, values in zip(groups, chosen, strict=True):
        diverged_seeds = [run.seed for run in group if run.output in diverged]
        records_of_runs = [record for record in results_of(group, diverged) if "seed" in record]
        scores_before = [record["dev_before"] for record in records_of_runs]
        mean_before = None
        if scores_before and None not in scores_before:
            mean_before = statistics.fmean(scores_before)
        means = {
            name.removesuffix("_mean"): score for name, score in spread_of(records_of_runs).items()
        }
        result = {
            "checkpoint": shown_path(str(group[0].output.parent)),
            **values,
            "method": group[0].method.name,
            "seeds": [record["seed"] for record in records_of_runs],
            "step": [record["step"] for record in records_of_runs],
            "dev_before": mean_before,
            **means,
            "dev_by_seed": [record["dev"] for record in records_of_runs],
        }
        if diverged_seeds:
            result |= dict.fromkeys(means)
            result["diverged"] = diverged_seeds
        results.append(result)

    # The first one with the highest score is the best.
    best: dict[str, Any] | None = None
    for record in results:
        if record["dev"] is not None and (best is None or record["dev"] > best["dev"]):
            best = record
    return [{**record, "best": record is best} for record in results]


def result_line(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the table row of one seed, or of the mean over seeds with the standard deviation."""
    line = {"checkpoint": record["checkpoint"]}
    if "seeds" in record:
        line |= {"seed": f"{len(record['seeds'])} seeds", "step": "", "dev before": "", "dev": ""}
        for field in record:
            if field.endswith("_mean"):
                name = field.removesuffix("_mean")
                scores = f"{record[field]:.2f} ± {record[f'{name}_sd']:.2f}"
                line[name.replace("_", " ")] = scores
        return [line]
    line["seed"] = str(record["seed"])
    line["step"] = str(record["step"])
    line["dev before"] = two_decimals(record["dev_before"])
    line["dev"] = two_decimals(record["dev"])
    for name, score in record.get("test", {}).items():
        if name != "rows":
            line[f"test {name}"] = two_decimals(score)
    return [line]


def sweep_line(record: Mapping[str, Any], chosen: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the table row of a combination of settings, with the mean and standard deviation of
    scores.
    """
    steps = ",".join(map(str, record["step"]))
    line = {**chosen, "seeds": str(len(record["seeds"])), "step": steps}
    for field in record:
        if field.endswith("_sd"):
            name = field.removesuffix("_sd")
            line[name.replace("_", " ")] = mean_with_sd(record, name)
    if "diverged" in record:
        line["dev"] = "diverged"
    return [line]


def best_of(results: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line about the best combination of settings."""
    for record in results:
        if record["best"]:
            before = two_decimals(record["dev_before"])
            after = mean_with_sd(record, "dev")
            yield f"best on dev: {record['checkpoint']}, {after}, before {before}"


def mean_with_sd(record: Mapping[str, Any], name: str) -> str:
    mean = two_decimals(record[name])
    sd = record[f"{name}_sd"]
    if sd is None:
        return mean
    return f"{mean} ({sd:.2f})"


def two_decimals(score: float | None) -> str:
    if score is None:
        return "-"
    return f"{score:.2f}"
