"""Compare pairs of systems as the papers order them, and print one table.

    python examples/papers/orderings.py --data DATA --out OUT

orderings.jsonl has the orderings that the abstracts of the four papers claim. OUT has a folder for
each paper, such as OUT/consert, with the runs and tables of papers.py; --data is the DATA of these
runs. The compared value is the average of a table. The published averages are those of the recipe
--preset (default: bert-base).

A seed of the higher system is compared with the same seed of the lower one by a paired bootstrap of
the average: `sentkit report --baseline` draws the pairs or texts of each test set again. p is the
largest of the seeds.

Holm's method corrects p for the number of orderings in the table. An ordering is reproduced if all
seeds have a positive difference and the corrected p is below 0.05; it is reversed if, with such a
p, all have a negative one; otherwise it is undecided.

A column has the number of seeds that both rows have. stderr names the orderings without runs.
"""

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from running import FailedError, sentkit
from systems import PAPERS

from sentkit.papers.published import published, same_base

AVERAGE = "avg"
SIDES = ("higher", "lower")
SEED = re.compile(r"seed-(\d+)")  # in the name of a checkpoint or a transform
LISTED = Path(__file__).with_name("orderings.jsonl")


@dataclass(frozen=True)
class Finished:
    """A row of a table of papers.py: its checkpoints, and the values of each test set."""

    arguments: list[str]  # of `sentkit report`, one for each seed
    values: dict[str, list[float]]  # test set -> the value of each seed
    suite: str

    def average(self, seeds):
        """That of these seeds."""
        averages = self.values[AVERAGE]
        return statistics.fmean(self.of_seed(averages, seed) for seed in seeds)

    def seeds(self):
        """Those of the arguments; None for an encoder that is not trained, which is the same for
        all seeds.
        """
        numbers = [SEED.findall(argument) for argument in self.arguments]
        if not all(numbers):
            return None
        return [int(numbers_of_argument[-1]) for numbers_of_argument in numbers]

    def of_seed(self, values, seed):
        """The one of these values, one for each argument, that belongs to a seed."""
        seeds = self.seeds()
        return values[0] if seeds is None else values[seeds.index(seed)]


@dataclass(frozen=True)
class Comparison:
    ordering: dict
    higher: Finished
    lower: Finished
    seeds: list[int | None]  # of both rows
    differences: list[float]  # of the averages, one for each seed
    ps: list[float]  # one for each seed


def main():
    options = parse(sys.argv[1:])
    orderings = [json.loads(line) for line in LISTED.open()]
    comparisons = []
    for ordering in orderings:
        higher = finished_row(options, ordering, "higher")
        lower = finished_row(options, ordering, "lower")
        if higher is None or lower is None:
            missing = ordering["higher"] if higher is None else ordering["lower"]
            say(f"not finished: {ordering['paper']}, table {ordering['table']}: {missing}")
            continue
        if not common_seeds(higher, lower):
            rows = f"{ordering['higher']} and {ordering['lower']} have no common seed"
            say(f"not finished: {ordering['paper']}, table {ordering['table']}: {rows}")
            continue
        comparisons.append(compare(options, ordering, higher, lower))
    if not comparisons:
        sys.exit(f"orderings.py: {options.out}: no finished runs that can be compared")
    print_table(options, comparisons)


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of test sets")
    parser.add_argument("--out", required=True, type=Path, help="folder with OUT of each paper")
    parser.add_argument("--preset", default="bert-base", help="encoder of the published averages")
    return parser.parse_args(words)


def say(text):
    print(f"orderings.py: {text}", file=sys.stderr)


def finished_row(options, ordering, side):
    """The row of a system in its table, with the readout after #; None without a finished run."""
    system, _, readout = ordering[side].partition("#")
    table = options.out / ordering["paper"] / "tables" / f"table-{ordering['table']}.jsonl"
    if not table.exists():
        return None
    rows = defaultdict(list)  # readout -> its records
    for line in table.open():
        record = json.loads(line)
        # the label of a row with a chosen readout: "no-tuning#cls"
        if "checkpoints" in record and record["row"].partition("#")[0] == system:
            rows[record["readout"]].append(record)
    for read_out, records in rows.items():
        plain = read_out
        if "transforms" in records[0]:  # "mean-last2+flow"
            plain, _, _ = read_out.rpartition("+")
        # the readout WK is "wk", or "L0+L1+L2:wk" of a small encoder
        if readout and readout not in (plain, plain.rpartition(":")[2]):
            continue
        values = {record["task"]: record["values"] for record in records}
        averages = values.get(AVERAGE, [None])
        if None not in averages:  # an undefined correlation has no average
            return Finished(arguments_of(records[0], plain), values, records[0]["suite"])
    return None


def arguments_of(record, readout):
    """The checkpoint, readout and transform of each seed, as `sentkit report` reads them."""
    arguments = [f"{checkpoint}#{readout}" for checkpoint in record["checkpoints"]]
    transforms = record.get("transforms", [])
    for number, transform in enumerate(transforms):
        arguments[number] += f"@{transform}"
    return arguments


def common_seeds(higher, lower):
    """Those that both rows have; [None] for two encoders that are not trained."""
    seeds_of_rows = [row.seeds() for row in (higher, lower) if row.seeds() is not None]
    if not seeds_of_rows:
        return [None]
    first, *others = seeds_of_rows
    return [seed for seed in first if all(seed in seeds for seeds in others)]


def compare(options, ordering, higher, lower):
    """The differences of the averages and their p-values, for each seed, by `sentkit report`."""
    paper = ordering["paper"]
    differences = []
    ps = []
    for seed in common_seeds(higher, lower):
        rows = [
            f"higher={higher.of_seed(higher.arguments, seed)}",
            f"lower={lower.of_seed(lower.arguments, seed)}",
        ]
        command = ["report", *rows, "--data", options.data, "--suites", higher.suite]
        command += ["--results", options.out / paper / "results", "--precision", "fp32"]
        command += flags_of_classifiers(paper, ordering["table"], higher.seeds())
        lines = sentkit([*command, "--baseline", "lower", "--format", "json"])
        for record in map(json.loads, lines.splitlines()):
            if record["row"].startswith("higher") and record["task"] == AVERAGE:
                differences.append(record["against"]["difference"])
                ps.append(record["against"]["p"])
    return Comparison(ordering, higher, lower, common_seeds(higher, lower), differences, ps)


def flags_of_classifiers(paper, table, seeds):
    """Those of the evaluation of a table, which papers.py made with these seeds."""
    flags = PAPERS[paper].flags.get(table, ())
    if "--head" not in flags:
        return []
    numbers = ",".join(map(str, seeds))
    return [flag.format(seeds=numbers) for flag in flags]


def published_average(options, ordering, side):
    system, _, readout = ordering[side].partition("#")
    for value in published():
        is_row = value["system"] == system and value["readout"] == (readout or value["readout"])
        is_table = (value["paper"], value["table"]) == (ordering["paper"], ordering["table"])
        is_average = value["task"] == AVERAGE and value["value"] is not None
        if is_row and is_table and is_average and same_base(value["base"], options.preset):
            return f"{value['value']:.2f}"
    return ""


def print_table(options, comparisons):
    corrected_ps = holm([max(comparison.ps) for comparison in comparisons])
    header = ["paper, table", "higher", "lower", "published", "here", "difference", "p"]
    header += ["corrected p", "verdict", "seeds"]
    print(f"| {' | '.join(header)} |")
    print("|---" * len(header) + "|")
    for comparison, corrected_p in zip(comparisons, corrected_ps, strict=True):
        ordering = comparison.ordering
        seeds = comparison.seeds
        averages = f"{comparison.higher.average(seeds):.2f}, {comparison.lower.average(seeds):.2f}"
        published_values = [published_average(options, ordering, side) for side in SIDES]
        cells = [f"{ordering['paper']}, {ordering['table']}", ordering["higher"], ordering["lower"]]
        cells += [", ".join(published_values), averages]
        # the difference, p of the seeds, the corrected p, and the verdict
        cells += verdict(comparison.differences, comparison.ps, corrected_p)
        cells.append(str(len(comparison.differences)))
        print(f"| {' | '.join(cells)} |")


def holm(ps):
    """Return p-values corrected for their number n: the smallest times n, the next times n - 1, and
    so on.
    """
    n = len(ps)
    corrected = [1.0] * n
    largest = 0.0  # of the corrected values until now: they do not decrease
    for rank, index in enumerate(sorted(range(n), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (n - rank) * ps[index]))
        corrected[index] = largest
    return corrected


def verdict(differences, ps, corrected):
    """Return the mean difference, the p-values of the seeds, that of the ordering, and the
    verdict.
    """
    result = "undecided"
    if corrected < 0.05 and all(difference > 0 for difference in differences):
        result = "reproduced"
    elif corrected < 0.05 and all(difference <= 0 for difference in differences):
        result = "reversed"
    return [f"{statistics.fmean(differences):+.1f}", listed(ps), listed([corrected]), result]


def listed(ps):
    return ", ".join(f"{p:.3f}".lstrip("0") for p in ps)


if __name__ == "__main__":
    try:
        main()
    except FailedError as error:  # of a command, which has printed its error
        sys.exit(error.code)
