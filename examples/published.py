"""The tables of the papers, with the figures found here as their last line: published.py REPORTS

REPORTS is what evaluate.sh makes: a folder for each suite, and in it a report for each task. The figures of
the papers are in published.jsonl. A system with (?) stands in a table whose row names were lost, and put back
in order. A paper's average is shown of ours only where all of its tasks were measured.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

PAPERS = {"sg-bert": "SG-BERT", "consert": "ConSERT", "pairsupcon": "PairSupCon", "defsent-plus": "DefSent+"}
SUITES = {  # what a report holds of each: its value, its deviation, and what that is called
    "sts": ("spearman", None, "Spearman x 100"),
    "sts-multilingual": ("pearson", None, "Pearson x 100"),
    "clustering": ("acc", "acc_sd", "accuracy of k-means x 100"),
    "senteval": ("accuracy", "sd", "accuracy x 100"),
    "few-shot": ("accuracy", "sd", "accuracy x 100, from 16 rows of each class"),
}
TRACKS = {"sts17track1arar": "sts17ar", "sts17track3eses": "sts17es", "sts17track5enen": "sts17en"}


def main(folder: Path) -> None:
    published = [json.loads(line) for line in Path(__file__).with_name("published.jsonl").open()]
    first = True
    for suite in SUITES:
        found, encoder = ours(folder / suite, suite)
        for (paper, number), figures in tables(published, suite):
            tasks = sorted({figure["task"]: None for figure in figures}, key=place)
            if not any(key(task) in found for task in tasks):
                continue
            print("" if first else "\n", end="")
            print(f"{PAPERS[paper]}, table {number}: {suite}, {SUITES[suite][2]}")
            show(["base", "system", "readout", *tasks], [*lines(figures, tasks), mine(found, encoder, tasks)])
            first = False
    if first:
        sys.exit(f"published.py: {folder}: no report of a task that a paper has")


def tables(published, suite):
    grouped = defaultdict(list)
    for figure in published:
        if figure["suite"] == suite:
            grouped[figure["paper"], figure["table"]].append(figure)
    return sorted(grouped.items(), key=lambda item: (list(PAPERS).index(item[0][0]), int(item[0][1])))


def ours(folder, suite):
    """The figures found here by task, and the encoder's label."""
    value, deviation, _ = SUITES[suite]
    found, encoder = {}, ""
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text().splitlines()[-1])  # of several seeds the last line is their mean
        name = key(path.stem)
        mean = report[f"{value}_mean"] if f"{value}_mean" in report else report[value]
        found[TRACKS.get(name, name)] = (mean, report.get(deviation))
        encoder = (report["encoder"] or "").rpartition(":")[0]
    return found, encoder


def place(task):
    """STS by year, and averages last; what else there is stays in the order of the papers."""
    return task == "avg", task in ("STS-B", "SICK-R"), task if re.fullmatch(r"STS\d\d", task) else ""


def key(task):
    """A task as files and papers spell it: stsb is STS-B."""
    return re.sub(r"[^a-z0-9]", "", task.lower())


def lines(figures, tasks):
    """A line for each system, in the order of the paper."""
    systems = defaultdict(dict)
    for figure in figures:
        name = figure["system"] + (" (?)" if figure.get("inferred") else "")
        systems[figure["base"], name, figure["readout"]][figure["task"]] = shown(
            figure["value"], figure["sd"]
        )
    for names, values in systems.items():
        yield [*(name or "" for name in names), *(values.get(task, "") for task in tasks)]


def mine(found, encoder, tasks):
    means = [found.get(key(task), (None, None))[0] for task in tasks if task != "avg"]
    if "avg" in tasks and None not in means:
        found = {**found, "avg": (sum(means) / len(means), None)}
    name, _, readout = encoder.partition("/")
    return [
        "here:",
        name,
        readout,
        *(shown(*found[key(task)]) if key(task) in found else "" for task in tasks),
    ]


def shown(value, deviation=None):
    if value is None:  # all pairs are equally alike, and nothing correlates
        return "-"
    return f"{value:.2f}" + ("" if deviation is None else f" ({deviation:.2f})")


def show(heads, rows):
    rows = [heads, *rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    for row in rows:
        names = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        print("  ".join([*names, *numbers]).rstrip())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: published.py REPORTS")
    main(Path(sys.argv[1]))
