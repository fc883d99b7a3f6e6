"""Print the tables of the papers, with the figures found here as their last line: published.py [REPORTS...]

REPORTS is a folder as evaluate.sh makes it: a folder for each suite, with a report for each task. Several are
the seeds of one run: the line shows their mean and standard deviation. Only tables with a task of the reports
are printed; without REPORTS all tables are. published.jsonl holds the figures of the papers. (?) marks the
systems of a table that lost its row names; their order was inferred. An average needs all of its tasks.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

PAPERS = {"sg-bert": "SG-BERT", "consert": "ConSERT", "pairsupcon": "PairSupCon", "defsent-plus": "DefSent+"}
SUITES = {  # the fields of a report with the value and its deviation, and the unit
    "sts": ("spearman", None, "Spearman x 100"),
    "sts-multilingual": ("pearson", None, "Pearson x 100"),
    "clustering": ("acc", "acc_sd", "accuracy of k-means x 100"),
    "senteval": ("accuracy", "sd", "accuracy x 100"),
    "few-shot": ("accuracy", "sd", "accuracy x 100, from 16 rows of each class"),
}
UNITS = {suite: unit for suite, (_, _, unit) in SUITES.items()} | {
    "ablation": "averages x 100",
    "glue": "accuracy or Matthews correlation x 100",
    "efficiency": "seconds",
}
ABLATION = {"avg": ("sts", "avg"), "stsavg": ("sts", "avg"), "clusteringavg": ("clustering", "avg")}
TRACKS = {"sts17track1arar": "sts17ar", "sts17track3eses": "sts17es", "sts17track5enen": "sts17en"}


def main(folders):
    published = [json.loads(line) for line in Path(__file__).with_name("published.jsonl").open()]
    tasks = {suite: {key(row["task"]) for row in published if row["suite"] == suite} for suite in UNITS}
    problems, encoders = [], []
    runs = [read_run(folder, tasks, problems, encoders) for folder in folders]
    found = combined(runs, problems)
    printed = print_tables(published, found, label(encoders, len(folders)) if folders else [])
    others = [(suite, task) for suite, task in found if suite in SUITES and task not in tasks[suite]]
    if others:
        print(
            "\nReports of tasks that are in no table of a paper:"
            if printed
            else "Reports in no table of a paper:"
        )
        for suite, task in others:
            print(f"{suite}  {task}  {shown(*found[suite, task])}")
    for problem in problems:
        print(f"published.py: {problem}", file=sys.stderr)
    if folders and not found:
        print(f"published.py: {', '.join(folders)}: no report", file=sys.stderr)
    sys.exit(1 if problems or (folders and not found) else 0)


def read_run(folder, tasks, problems, encoders):
    """(suite, task) -> (mean, deviation) of the reports of a folder."""
    found = {}
    for path in sorted(Path(folder).glob("*/*")):
        suite, task = path.parent.name, TRACKS.get(key(path.stem), key(path.stem))
        if suite not in SUITES or path.suffix != ".json":
            print(f"published.py: not used: {path}", file=sys.stderr)
            continue
        task = task if task in tasks[suite] else path.stem
        try:
            found[suite, task], encoder = read_report(path, *SUITES[suite][:2])
            encoders.append(encoder)
        except (OSError, ValueError, LookupError, TypeError) as error:
            problems.append(f"{path}: not a report of {suite}: {error!r}")
    for suite, names in tasks.items():
        values = [found.get((suite, task), (None, None))[0] for task in names - {"avg"}]
        if "avg" in names and values and None not in values and suite in SUITES:
            found[suite, "avg"] = statistics.fmean(values), None
    found |= {("ablation", task): found[source] for task, source in ABLATION.items() if source in found}
    return found


def read_report(path, value, deviation):
    """The mean and deviation of a report, which may have a line for each seed, and its encoder."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    last = rows[-1]
    encoder = str(last["encoder"] or "").rpartition(":")[0]
    if len(rows) > 1 and f"{value}_mean" not in last:
        return spread([number(row[value]) for row in rows]), encoder
    mean = last[f"{value}_mean"] if f"{value}_mean" in last else last[value]
    return (number(mean), number(last.get(deviation))), encoder


def number(value):
    return None if value is None else float(value)


def spread(values):
    """Mean and standard deviation of a sample; both None where a value is undefined."""
    return (None, None) if None in values else (statistics.fmean(values), statistics.stdev(values))


def combined(runs, problems):
    """The figures of the tasks that all runs have."""
    found = {}
    for suite, task in sorted({name for run in runs for name in run}):
        values = [run[suite, task] for run in runs if (suite, task) in run]
        if len(values) == len(runs):
            found[suite, task] = values[0] if len(runs) == 1 else spread([mean for mean, _ in values])
        elif task != "avg" and suite != "ablation":
            problems.append(
                f"{suite}/{task}: skipped, because only {len(values)} of {len(runs)} folders have it"
            )
    return found


def label(encoders, count):
    """The names of the last line: "nano" and "mean"."""
    names = sorted({encoder.partition("/")[0] for encoder in encoders})
    readouts = sorted({encoder.partition("/")[2] for encoder in encoders})
    return [names[0] if len(names) == 1 else f"{count} checkpoints", " ".join(readouts)]


def print_tables(published, found, names):
    """Print the tables with a task that was found, or all where no folder was given; return how many."""
    count = 0
    for suite in UNITS:
        for (paper, number), figures in tables(published, suite):
            tasks = sorted({figure["task"]: None for figure in figures}, key=place)
            mine = {task: found[suite, key(task)] for task in tasks if (suite, key(task)) in found}
            if names and not mine:
                continue
            print("\n" if count else "", end="")
            print(f"{PAPERS[paper]}, table {number}: {suite}, {UNITS[suite]}")
            here = [["here:", *names, *(shown(*mine[task]) if task in mine else "" for task in tasks)]]
            show(["base", "system", "readout", *tasks], [*lines(figures, tasks), *(here if mine else [])])
            count += 1
    return count


def tables(published, suite):
    grouped = defaultdict(list)
    for figure in published:
        if figure["suite"] == suite:
            grouped[figure["paper"], figure["table"]].append(figure)
    return sorted(grouped.items(), key=lambda item: (list(PAPERS).index(item[0][0]), int(item[0][1])))


def place(task):
    """Sort key: STS by year, averages last, the others in the order of the papers."""
    return task == "avg", task in ("STS-B", "SICK-R"), task if re.fullmatch(r"STS\d\d", task) else ""


def key(task):
    """The name of a task without the differences of spelling: stsb is STS-B."""
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


def shown(value, deviation=None):
    if value is None:  # all pairs are equally similar: no correlation
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
    main(sys.argv[1:])
