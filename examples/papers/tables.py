"""The tables of the papers that `sentkit report` does not make, from the runs of papers.py.

Each function returns a `Table`.
"""

import json
from pathlib import Path
from statistics import fmean, stdev

from data_of_papers import SETS, statistics
from figures import records_of
from running import MissingError, sentkit

from sentkit.labels.probes import classifiers
from sentkit.labels.probes.probing import ProbeOptions
from sentkit.reports.suites import find_test_sets
from sentkit.reports.tables import HERE, Line, Table, published_table, shown, tables_of
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import format_value

METRICS = dict.fromkeys(("qnli", "sst2", "cola", "mrpc", "rte"), "accuracy") | {
    "cola": "matthews"
}  # GLUE
DICTIONARIES = {  # table 1 of DefSent+: definitions, entries, most tokens for BERT and RoBERTa
    "dictionary": ("a, Oxford and WordNet", "331472", "150518", "138", "141"),
    "oxford": ("b, Oxford", "122209", "36767", "108", "113"),
    "single": ("c, one token of BERT", "67553", "9647", "85", "93"),
}


def plain(title, names, columns, rows):
    """A table without a comparison; a row has the cells of names and columns."""
    count = len(names)
    lines = tuple(Line(tuple(map(str, row[:count])), tuple(map(str, row[count:]))) for row in rows)
    return Table(title, names, columns, lines)


def beside(runner, number, lines, suite=None):
    """The own lines, and the published ones of the base."""
    [table] = [each for each in tables_of(runner.name, number) if suite in (None, each.suite)]
    return published_table(table, lines, [runner.recipe])


def glue(runner, number):
    """SG-BERT, table 10: the mean and the deviation of the seeds on the test part of the
    dev sets.
    """
    lines = []
    for start in ("no-tuning", "sg-opt"):
        cells = tuple(
            glue_cell(runner, runner.systems[f"{start}-{task}"], METRICS[task]) for task in METRICS
        )
        lines += [Line((HERE, start, ""), cells, here=True)]
    if not any(cell for line in lines for cell in line.cells):
        raise MissingError("none of its runs is there")
    return beside(runner, number, lines)


def glue_cell(runner, system, metric):
    paths = [Path(path).with_suffix(".json") for path in runner.checkpoints(system).values()]
    values = [json.loads(path.read_text().splitlines()[0])["test"][metric] for path in paths]
    defined = [value for value in values if value is not None]
    if not defined:
        return "-" if values else ""
    return shown(fmean(defined), stdev(defined) if len(defined) > 1 else None)


def efficiency(runner, number):
    """SG-BERT, table 6: the seconds of training and of encoding."""
    path = runner.out / "runs/efficiency/table.md"
    if not path.exists():
        raise MissingError("its run is not there")
    lines = []
    for line in path.read_text().splitlines()[2:]:
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) == 5:
            readout = cells[0] if cells[0] not in ("flow", "sg-bert") else ""
            name = {"flow": "flow", "sg-bert": "sg-opt"}.get(cells[0], "no-tuning")
            lines.append(Line((HERE, name, readout), (cells[3], cells[1].strip("-")), here=True))
    return beside(runner, number, lines)


def settings(runner, number):
    """SG-BERT, tables 8 and 9: the settings of the training, and of SentEval."""
    if number == "8":
        title, kind = "training", METHODS["sg-bert"].load().Settings()
        names = (
            "objective temperature drift_weight guide_pool head_width epochs batch lr optimizer "
            "beta1 beta2"
            " weight_decay schedule warmup max_length eval_every patience"
        )
        rows = [(name, format_value(getattr(kind, name))) for name in names.split()]
    else:
        title, head = "SentEval", runner.paper.flags["4"][1]
        rows = [
            ("folds", ProbeOptions("label").folds),
            ("hidden units of the classifier", head.partition(":")[2]),
            ("batch", classifiers.BATCH_ROWS),
            ("epochs between two evaluations", classifiers.EPOCHS_PER_EVALUATION),
            ("evaluations without a better score", classifiers.PATIENCE),
        ]
    rows.insert(0, ("seeds", runner.paper.seeds))
    return plain(f"SG-BERT, table {number}: settings of {title}", ("setting",), ("value",), rows)


def extremes(runner, number):
    """SG-BERT, figure 1: the worst and the best layer and readout of the base."""
    path = runner.out / "tables/layers.jsonl"
    if not path.exists():
        raise MissingError("its runs are not there")
    rows = [json.loads(line) for line in path.open()]
    own = [row for row in rows if "/L" in row["encoder"] and row["spearman"] is not None]
    ends = (choose(own, key=lambda row: row["spearman"]) for choose in (min, max))
    lines = []
    for row in ends:
        readout = row["encoder"].partition("/")[2].rpartition(":")[0]
        lines.append(Line((HERE, "no-tuning", readout), (f"{row['spearman']:.2f}",), here=True))
    return beside(runner, number, lines)


def losses(runner, number):
    """SG-BERT, figure 4: what is lost with texts of NLI instead of STS-B."""
    values = {
        (record["row"].partition("#")[0], record["task"]): record["value"]
        for record in records_of(runner, "domains")
    }
    lines = []
    for name, system in (("SG-OPT", "sg-opt"), ("flow", "flow")):
        cells = []
        for task in ("STS-B", "avg"):
            pair = [values.get((f"{name},{texts}", task)) for texts in ("STS-B", "NLI")]
            cells.append("" if None in pair else f"{pair[0] - pair[1]:.2f}")
        lines.append(Line((HERE, system, ""), tuple(cells), here=True))
    return beside(runner, number, lines)


def steps(runner, number):
    """ConSERT, table 4: the step that the dev pairs chose."""
    lines = []
    for system, row in runner.rows_of("4"):
        paths = [Path(path) / "sentkit.json" for path in runner.checkpoints(system).values()]
        found = [str(json.loads(path.read_text())["step"]) for path in paths]
        lines += [Line((HERE, row.name, ""), (", ".join(found),), here=True)] if found else []
    if not lines:
        raise MissingError("none of its runs is there")
    return beside(runner, "4", lines, "steps")


def words(runner, number):
    """ConSERT: the word vectors by rank of their frequency in a corpus."""
    from sentkit.papers.consert.figures import word_statistics

    columns = ("1-99", "100-499", "500-4999", "5000-")
    found = word_statistics([runner.prepared.file("corpus")], model=runner.base)
    rows = [
        (name, *(f"{value:.2f}" for value in values), *[""] * (4 - len(values)))
        for name, values in found.items()
    ]
    return plain("ConSERT: word vectors by rank of their frequency", ("mean",), columns, rows)


def statistics_of_sets(runner, number):
    """PairSupCon, table 2: the clustering sets."""
    paths = {
        f"clustering/{each.name}": each.path
        for each in find_test_sets(str(runner.tests), ["clustering"])[0]
    }
    sets = {
        name: [*map(json.loads, sentkit("cat", paths[name]).splitlines())]
        for name in SETS
        if name in paths
    }
    (first, *columns), *rows = statistics(sets)
    return plain("PairSupCon, table 2: the clustering sets", (first,), columns, rows)


def dictionaries(runner, number):
    """DefSent+, table 1: sizes, and the longest definition for the tokenizers of both families."""
    from transformers import AutoTokenizer

    tokenizers = {}
    for family, name in runner.tokenizers().items():
        try:
            tokenizers[family] = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError):
            problem = f"{name}: no tokenizer (--given {family}=FOLDER)"
            runner.say(f"not made: table 1, tokens of {family}: {problem}")
    rows = []
    for name, (title, *published) in DICTIONARIES.items():
        try:
            path = Path(runner.prepared.file(name))
        except MissingError as error:
            runner.say(f"not made: table 1, {title}: {error}")
        else:
            records = [json.loads(line) for line in path.open()]
            texts = [record["definition"] for record in records]
            most = [
                max(map(len, tokenizers[family](texts)["input_ids"]))
                if family in tokenizers
                else ""
                for family in ("bert", "roberta")
            ]
            rows.append(
                (HERE, title, len(records), len({record["entry"] for record in records}), *most)
            )
        rows.append(("published", title, *published))
    columns = ("definitions", "entries", "most tokens, BERT", "most tokens, RoBERTa")
    return plain("DefSent+, table 1: the dictionaries", ("", "dictionary"), columns, rows)


def readouts(runner, number):
    """DefSent+, table 7: the readout of each suite."""
    starts = (("step 3", ""), ("simcse", "-simcse"), ("sncse", "-sncse"))
    rows = [
        (name, *(runner.values[f"{suite}{end}"] for suite in ("sts", "senteval")))
        for name, end in starts
    ]
    return plain(
        f"DefSent+, table 7: readouts of {runner.recipe}", ("start",), ("STS", "SentEval"), rows
    )
