"""The tables of the papers that `sentkit report` does not make, from the runs of papers.py.

Each function returns a `Table`.
"""

import json
import re
from pathlib import Path
from statistics import fmean, stdev

from data_of_papers import SETS, statistics
from figures import OF_AVERAGE, OF_STSB, averages, clustering_sets, records_of
from rows import lines_of
from running import MissingError, sentkit
from systems import Entries

from sentkit.errors import DataError
from sentkit.flag_values import classifier_protocol
from sentkit.formats.files import read_object, read_object_if_there
from sentkit.labels.probes import network
from sentkit.papers.published import published
from sentkit.reports.tables import HERE, Line, Table, published_table, shown, tables_of
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import format_value

METRICS = {  # of GLUE
    "qnli": "accuracy",
    "sst2": "accuracy",
    "cola": "matthews",
    "mrpc": "accuracy",
    "rte": "accuracy",
}
# Recipe -> minutes of training, and the GPU.
MINUTES = {
    "defsent-plus": {
        "bert-base": ("48", "RTX 2080 Ti"),
        "bert-large": ("75", "RTX 3090"),
        "roberta-base": ("49", "TITAN RTX"),
        "roberta-large": ("75", "RTX 3090"),
    },
    "pairsupcon": {"bert-base": ("less than 60", "")},
}
ENTRIES_OF_PAPER = 150_518  # of dictionary a of DefSent+
SETTINGS = (  # of sg-bert, in table 8
    "objective temperature drift_weight guide_pool head_width epochs batch lr optimizer beta1 "
    "beta2 weight_decay schedule warmup max_length eval_every patience"
)
# Table 1 of DefSent+: definitions, entries, mean tokens, and most tokens for BERT and RoBERTa.
DICTIONARIES = {
    "dictionary": ("a, Oxford and WordNet", "331472", "150518", "12", "138", "141"),
    "oxford": ("b, Oxford", "122209", "36767", "", "108", "113"),
    "single": ("c, one token of BERT", "67553", "9647", "", "85", "93"),
}


def plain(title, names, columns, rows):
    """A table without a comparison; a row has the cells of names and columns."""
    lines = []
    for row in rows:
        cells = tuple(str(cell) for cell in row)
        lines.append(Line(cells[: len(names)], cells[len(names) :]))
    return Table(title, names, columns, tuple(lines))


def beside(runner, number, lines, suite=None, seeds=()):
    """The lines made here, and the published ones of the base. `seeds`: those of each line."""
    [table] = [table for table in tables_of(runner.name, number) if suite in (None, table.suite)]
    return published_table(table, lines, [runner.recipe], seeds)


def glue(runner, number):
    """SG-BERT, table 10: the mean and the deviation of the seeds on the test part of the
    dev sets.
    """
    lines = []
    seeds = []
    for start in ("no-tuning", "sg-opt"):
        systems = {task: runner.systems[f"{start}-{task}"] for task in METRICS}
        cells = tuple(glue_cell(runner, systems[task], METRICS[task]) for task in METRICS)
        lines += [Line((HERE, start, ""), cells, is_measured=True)]
        counts = [len(runner.checkpoints(system)) for system in systems.values()]
        if min(counts) == max(counts):
            seeds.append(str(counts[0]))
        else:
            seeds.append(f"{min(counts)} to {max(counts)}")
    if not any(cell for line in lines for cell in line.cells):
        raise MissingError("none of its runs is there")
    return beside(runner, number, lines, seeds=seeds)


def glue_cell(runner, system, metric):
    paths = [Path(path).with_suffix(".json") for path in runner.checkpoints(system).values()]
    reports = [path.read_text() for path in paths if path.exists()]  # a given checkpoint has none
    values = [json.loads(report.splitlines()[0])["test"][metric] for report in reports]
    defined = [value for value in values if value is not None]
    if not values:
        return ""
    if not defined:
        return "-"
    deviation = stdev(defined) if len(defined) > 1 else None
    return shown(fmean(defined), deviation)


def efficiency(runner, number):
    """SG-BERT, table 6: the seconds of training and of encoding."""
    path = runner.out / "runs/efficiency/table.md"
    if not path.exists():
        raise MissingError("its run is not there")
    lines = []
    for line in path.read_text().splitlines()[2:]:
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) == 5:
            encoder, training_seconds, _, encoding_seconds, _ = cells
            system = ("no-tuning", encoder)  # a readout of the base
            if encoder == "flow":
                system = ("flow", "")
            elif encoder == "sg-bert":
                system = ("sg-opt", "")
            seconds = (encoding_seconds, training_seconds.strip("-"))
            lines.append(Line((HERE, *system), seconds, is_measured=True))
    return beside(runner, number, lines)


def settings(runner, number):
    """SG-BERT, tables 8 and 9: the settings of the training, and of SentEval."""
    if number == "8":
        title = "training"
        defaults = METHODS["sg-bert"].load().Settings()
        rows = [(name, format_value(getattr(defaults, name))) for name in SETTINGS.split()]
    else:
        title = "SentEval"
        _, hidden, folds = classifier_protocol(runner.paper.flags["4"][1])
        rows = [
            ("folds", folds),
            ("hidden units of the classifier", hidden),
            ("optimizer", "adam"),
            ("batch", network.BATCH_ROWS),
            ("epochs between two evaluations", network.EPOCHS_PER_EVALUATION),
            ("evaluations without a better score", network.PATIENCE),
        ]
    rows.insert(0, ("seeds", runner.paper.seeds))
    return plain(f"SG-BERT, table {number}: settings of {title}", ("setting",), ("value",), rows)


def extremes(runner, number):
    """SG-BERT, figure 1: the worst and the best layer and readout of the base."""
    path = runner.out / "tables/layers.jsonl"
    if not path.exists():
        raise MissingError("its runs are not there")
    rows = [json.loads(line) for line in path.open()]
    of_base = [row for row in rows if "/L" in row["encoder"] and row["spearman"] is not None]
    worst = min(of_base, key=lambda row: row["spearman"])
    best = max(of_base, key=lambda row: row["spearman"])
    lines = []
    for row in (worst, best):
        readout = row["encoder"].partition("/")[2].rpartition(":")[0]
        lines.append(
            Line((HERE, "no-tuning", readout), (f"{row['spearman']:.2f}",), is_measured=True)
        )
    return beside(runner, number, lines)


def losses(runner, number):
    """SG-BERT, figure 4: the loss with texts of NLI instead of STS-B."""
    values = {}  # (row, task) -> score
    count_of_row = {}
    for record in records_of(runner, "domains"):
        row = record["row"].partition("#")[0]
        values[row, record["task"]] = record["value"]
        count_of_row[row] = len(record["values"])
    lines = []
    seeds = []
    for name, system in (("SG-OPT", "sg-opt"), ("flow", "flow")):
        cells = []
        for task in ("STS-B", "avg"):
            from_stsb = values.get((f"{name},STS-B", task))
            from_nli = values.get((f"{name},NLI", task))
            if from_stsb is None or from_nli is None:
                cells.append("")
            else:
                cells.append(f"{from_stsb - from_nli:.2f}")
        lines.append(Line((HERE, system, ""), tuple(cells), is_measured=True))
        counts = {count_of_row[row] for row in count_of_row if row.startswith(f"{name},")}
        seeds.append(" to ".join(map(str, sorted(counts))))
    return beside(runner, number, lines, seeds=seeds)


def steps(runner, number):
    """ConSERT, table 4: the step that the dev pairs chose."""
    lines = []
    seeds = []
    for system, row in runner.rows_of("4"):
        paths = [Path(path) / "sentkit.json" for path in runner.checkpoints(system).values()]
        records = map(read_object_if_there, paths)
        chosen = [str(record["step"]) for record in records if "step" in record]
        if chosen:  # a given checkpoint can have no record of its training
            lines.append(Line((HERE, row.name, ""), (", ".join(chosen),), is_measured=True))
            seeds.append(str(len(chosen)))
    if not lines:
        raise MissingError("none of its runs is there")
    return beside(runner, "4", lines, "steps", seeds)


def gain_without_tokens(runner, number):
    """ConSERT, figure 4: the best score without frequent tokens minus that with all of them, of
    one seed.
    """
    path = runner.out / "tables/masking.jsonl"
    if not path.exists():
        raise MissingError("its runs are not there")
    scores = {}  # (encoder, number of tokens) -> scores of the sets
    for line in path.open():
        row = json.loads(line)
        encoder, _, space = row["encoder"].partition("/")
        left_out = re.search(r"/out(\d+)", space)
        count = int(left_out[1]) if left_out else 0
        [score] = [row[label] for label in (OF_AVERAGE, OF_STSB) if label in row]
        if score is None:
            raise MissingError("a score is undefined")
        scores.setdefault((encoder, count), []).append(score)
    lines = []
    for encoder, system in (("base", "no-tuning"), ("consert", "consert")):
        means = {
            count: fmean(values) for (name, count), values in scores.items() if name == encoder
        }
        with_all = means.pop(0)
        gain = f"{max(means.values()) - with_all:.2f}"
        lines.append(Line((HERE, system, "mean-last2"), (gain,), is_measured=True))
    return beside(runner, number, lines, seeds=("", "1"))


def without_views(runner, number):
    """ConSERT, figure 5: the score without augmentation."""
    records, _ = averages(records_of(runner, "views"))
    lines = []
    seeds = []
    for record in records:
        if record["row"] == "none,none":
            cell = shown(record["value"], record["sd"])
            lines.append(Line((HERE, "none,none", "mean-last2"), (cell,), is_measured=True))
            seeds.append(str(len(record["values"])))
    if not lines:
        raise MissingError("its run is not there")
    return beside(runner, number, lines, seeds=seeds)


def best_temperature(runner, number):
    """ConSERT, figure 7: the temperature with the best score."""
    records, _ = averages(records_of(runner, "temperature"))
    scores = {record["row"]: record["value"] for record in records}
    missing = [row.name for _, row in runner.rows_of("temperature") if scores.get(row.name) is None]
    if missing:
        raise MissingError(f"no score with temperature {', '.join(missing)}")
    best = max(records, key=lambda record: record["value"])
    line = Line((HERE, "consert", "mean-last2"), (best["row"],), is_measured=True)
    return beside(runner, number, [line], seeds=[str(len(best["values"]))])


def seconds_in(path):
    """The seconds in the file of a run."""
    seconds = read_object(path).get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise DataError('"seconds" is not a time', source=str(path), advice="remove the file")
    return seconds


def minutes(runner, number):
    """DefSent+ and PairSupCon: the wall-clock time of training on this machine, without runs that
    were interrupted.
    """
    rows = []
    trained = [system for system in runner.systems.values() if system.train]
    for system in trained:
        times = []
        devices = set()
        for path in runner.checkpoints(system).values():
            time_file = runner.time_of_run(path)
            if time_file.exists():
                times.append(seconds_in(time_file) / 60)
                made_with = read_object_if_there(Path(path) / "sentkit.json").get("made_with", {})
                devices.add(str(made_with.get("device", "unknown")))
        if times:
            mean = f"{fmean(times):.1f}"
            rows.append((HERE, system.name, len(times), mean, ", ".join(sorted(devices))))
    if not rows:
        raise MissingError("no run has a time")
    if runner.recipe in MINUTES[runner.name]:
        rows.append(("published", "", "", *MINUTES[runner.name][runner.recipe]))
    names = ("", "system", "seeds")
    return plain("minutes of training", names, ("minutes", "device"), rows)


def words(runner, number):
    """ConSERT: the word vectors by rank of their frequency in a corpus."""
    from sentkit.papers.consert.figures import word_statistics

    columns = ("1-99", "100-499", "500-4999", "5000-")
    statistics_by_name = word_statistics([runner.prepared.file("corpus")], model=runner.base)
    rows = []
    for name, values in statistics_by_name.items():
        missing = [""] * (len(columns) - len(values))
        rows.append((name, *(f"{value:.2f}" for value in values), *missing))
    return plain("ConSERT: word vectors by rank of their frequency", ("mean",), columns, rows)


def statistics_of_sets(runner, number):
    """PairSupCon, table 2: the clustering sets."""
    tests = clustering_sets(runner)
    paths = {f"clustering/{test.name}": test.path for test in tests}
    sets = {}
    for name in SETS:
        if name in paths:
            lines = lines_of(sentkit(["cat", paths[name]]))
            sets[name] = [json.loads(line) for line in lines]
    header, *rows = statistics(sets)
    title = "PairSupCon, table 2: the clustering sets"
    return plain(title, (header[0],), header[1:], rows)


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
    for name, (title, *published_counts) in DICTIONARIES.items():
        try:
            path = Path(runner.prepared.file(name))
        except MissingError as error:
            runner.say(f"not made: table 1, {title}: {error}")
        else:
            records = [json.loads(line) for line in path.open()]
            texts = [record["definition"] for record in records]
            entries = {record["entry"] for record in records}
            lengths = {}  # of the definitions, in tokens of each family
            for family, tokenizer in tokenizers.items():
                if not texts:  # a dictionary can have no entry of one token
                    break
                lengths[family] = [len(ids) for ids in tokenizer(texts)["input_ids"]]
            mean = f"{fmean(lengths['bert']):.1f}" if "bert" in lengths else ""
            longest = [max(lengths.get(family, [0])) or "" for family in ("bert", "roberta")]
            rows.append((HERE, title, len(records), len(entries), mean, *longest))
        rows.append(("published", title, *published_counts))
    columns = ("definitions", "entries", "mean tokens", "most tokens, BERT", "most tokens, RoBERTa")
    return plain("DefSent+, table 1: the dictionaries", ("", "dictionary"), columns, rows)


def increments(runner, number):
    """DefSent+, table 3: what each start gains by DefSent+."""
    path = runner.out / "tables/table-3.jsonl"
    if not path.exists():
        raise MissingError("table 3 is not there")
    records = [json.loads(line) for line in path.open()]
    measured = {row["row"]: row["value"] for row in records if row["task"] == "avg"}
    in_paper = {}
    for figure in published():
        key = (figure["paper"], figure["table"], figure["base"], figure["task"])
        if key == (runner.name, "3", runner.recipe, "avg"):
            in_paper[figure["system"]] = figure["value"]
    rows = []
    for source, values in ((HERE, measured), ("published", in_paper)):
        for system, value in values.items():
            name, comma, which_seeds = system.partition(", ")  # a mean is compared with a mean
            start, plus, _ = name.partition("+")
            start += comma + which_seeds
            if plus and start in values:
                rows.append((source, system, f"{value - values[start]:+.2f}"))
    if not any(row[0] == HERE for row in rows):
        raise MissingError("table 3 has no average of a start and of DefSent+")
    return plain("DefSent+, table 3: increments", ("", "system"), ("average",), rows)


def space_of_ica(runner, number):
    """DefSent+: sentences in the ICA axes of the entries of step 2."""
    system = runner.systems["defsent-plus-2-a"]
    if not runner.checkpoints(system):
        raise MissingError(f"{system.name} is not there")
    if problem := runner.missing_sets("2"):
        raise MissingError(problem)
    spec = Entries(system.name, transform="ica")
    entries = Path(runner.entries(spec))
    fitted = entries.with_name(f"fit-{entries.name}")
    readout = spec.readout.format_map(runner.values)
    argument = f"{system.name}={runner.best(system)}#{readout}@{fitted}"
    output = runner.report([argument], ["sts"], ["--format", "json"])
    records = [json.loads(line) for line in output.splitlines()]
    [value] = [record["value"] for record in records if record["task"] == "avg"]
    line = Line((HERE, "defsent-plus-2-a-ica-space", readout), (shown(value),), is_measured=True)
    return beside(runner, number, [line], seeds=("1",))


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


def rates(runner, number):
    """DefSent+, table 5: the learning rate of each step, from the presets."""
    presets = METHODS["defsent-plus"].load().presets
    rows = []
    for start in ("", "simcse-", "sncse-"):
        for base in runner.paper.recipes:
            cells = []
            for step in ("", "-step2", "-step3"):
                preset = presets.get(f"{start}{base}{step}", {})
                cells.append(format_value(preset["lr"]) if preset else "")
            rows.append((start.removesuffix("-") or "pretrained", base, *cells))
    columns = ("step 1", "step 2", "step 3")
    return plain("DefSent+, table 5: learning rates", ("start", "base"), columns, rows)
