"""The figures of the papers, from the runs of papers.py."""

import json
from dataclasses import replace
from itertools import product
from statistics import fmean

from running import MissingError, run, sentkit
from systems import ENTRIES, VIEWS

from sentkit.console import Console
from sentkit.errors import NoInputError
from sentkit.flags.outputs import PictureOutput
from sentkit.plots.picture import Picture
from sentkit.reports.suites import find_test_sets
from sentkit.reports.tables import tasks_without_test

OF_AVERAGE = "average, Spearman x 100"
OF_STSB = "STS-B, Spearman x 100"
LEFT_OUT = (0, 1, 2, 5, 10, 20, 36, 50, 100, 200)  # numbers of frequent tokens, figure 4 of ConSERT


def make(runner, name):
    """Write figures/NAME."""
    if name in ENTRIES:
        entries(runner, name)
    elif name in ("batch", "temperature", "texts"):
        scale(runner, name)
    else:
        globals()[name](runner)


def path_of(runner, name):
    return runner.out / "figures" / f"{name}.{runner.options.figures}"


def plot(runner, name, kind, *words):
    run(["sentkit", "plot", kind, *words, "-o", path_of(runner, name), "-f"])


def write(runner, name, picture):
    output = PictureOutput(path=str(path_of(runner, name)), force=True)
    output.check()
    output.write(picture, Console("papers.py"))


def rows_file(runner, name, rows):
    """The numbers of a figure, in tables/."""
    path = runner.out / "tables" / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def records_of(runner, table):
    """The values of all rows of a table or figure."""
    arguments = runner.arguments_of(table)
    lines = runner.report(arguments, runner.suites_of(table), ["--format", "json"])
    return [json.loads(line) for line in lines.splitlines()]


def averages(records):
    """The records of the averages, and a label; of STS-B if some test sets are missing."""
    of_sets = [record for record in records if record["task"] == "avg"]
    if of_sets:
        return of_sets, OF_AVERAGE
    return [record for record in records if record["task"] == "STS-B"], OF_STSB


def checkpoint(runner, name):
    """That of the first seed."""
    checkpoints = runner.checkpoints(runner.systems[name])
    if not checkpoints:
        raise MissingError(f"{name} is not there")
    return next(iter(checkpoints.values()))


# SG-BERT


def layers(runner):
    """Figure 1: each layer and readout of the base, and [CLS] of SG and SG-OPT."""
    folder = runner.out / "rows/layers"
    encode = ["encode", runner.pairs, "-m", runner.base, "--precision", "fp32"]
    sentkit([*encode, "--readout", "L*:cls,L*:mean,L*:max", "-o", folder, "-f"])
    rows = scored(sorted(folder.glob("*.safetensors")))
    model = rows[0]["encoder"].partition("/")[0]
    for name in ("sg", "sg-opt"):
        vectors = runner.encoded(f"layers-{name}", checkpoint(runner, name), runner.pairs)
        [row] = scored([vectors])
        rows.append(row | {"encoder": f"{model}/{name}:{row['encoder'].rpartition(':')[2]}"})
    plot(runner, "layers", "sweep", rows_file(runner, "layers", rows))


def scored(paths):
    """The records of vector files, without that of their average."""
    lines = sentkit(["score", *paths, "--gold", "score"]).splitlines()
    return [row for row in map(json.loads, lines) if row.get("file") != "average"]


def domains(runner):
    """Figure 4: trained on texts of STS-B and of NLI."""
    from sentkit.papers.sg_bert.figures import domains as bars

    rows = []
    for record in records_of(runner, "domains"):
        system, _, texts = record["row"].partition("#")[0].partition(",")
        test = {"STS-B": "STS-B", "avg": "average"}.get(record["task"])
        if test:
            domain = f"{test}, texts of {texts}"
            rows += [
                {"system": system, "domain": domain, "spearman": value}
                for value in record["values"]
            ]
    rows.sort(key=lambda row: (row["domain"].startswith("average"), row["domain"].endswith("NLI")))
    panels = bars([rows_file(runner, "domains", rows)], name="system", domain="domain").panels

    # What the texts of NLI lose against those of STS-B, from the means of the seeds.
    means = {}  # (system, test, texts) -> score
    for row in rows:
        test, _, texts = row["domain"].partition(", texts of ")
        means.setdefault((row["system"], test, texts), []).append(row["spearman"])
    gap = "lost with texts of NLI, Spearman x 100"
    gaps = []
    for (system, test, texts), values in means.items():
        from_nli = means.get((system, test, "NLI"))
        if texts == "STS-B" and from_nli and None not in (*values, *from_nli):
            gaps.append({"system": system, "domain": test, gap: fmean(values) - fmean(from_nli)})
    picture = Picture(panels, height=0.7)
    if gaps:
        path = rows_file(runner, "domain-gaps", gaps)
        panels += bars([path], name="system", domain="domain", value=gap).panels
        picture = Picture(panels, height=0.35, columns=1)
    write(runner, "domains", picture)


def space(runner):
    """Figures 5 and 6: texts of the dev pairs, before and after training.

    Figure 5 has the [CLS] of BERT, figure 6 the vectors of SBERT, which are not its [CLS].
    """
    if runner.name == "pairsupcon":
        return clusters(runner)
    readout = "cls"
    if runner.recipe.startswith("sbert"):
        readout = None  # as the checkpoint declares
    base = runner.encoded("space/base", runner.base, runner.dev, readout)
    trained = runner.encoded("space/sg-opt", checkpoint(runner, "sg-opt"), runner.dev)
    return plot(runner, "space", "space", base, trained, "--gold", "score")


# ConSERT


def pairs(runner):
    """Figure 1: similarities over gold scores, before and after the training."""
    base = runner.encoded("pairs/base", runner.base, runner.pairs, "mean-last2")
    trained = runner.encoded("pairs/consert", checkpoint(runner, "consert"), runner.pairs)
    plot(runner, "pairs", "pairs", base, trained, "--gold", "score")


def masking(runner):
    """Figure 4: scores without the most frequent tokens in the mean; the average of the STS sets.

    The tokens are those of STS-B.
    """
    from sentkit.papers.consert.figures import count_words, encode_without
    from sentkit.papers.consert.figures import masking as lines

    folder = runner.out / "rows/masking"
    folder.mkdir(parents=True, exist_ok=True)
    models = {"base": runner.base, "consert": checkpoint(runner, "consert")}
    frequent_tokens = count_words([runner.pairs], runner.base)[2]
    sets, label = sets_of_average(runner)
    rows = []
    for count in sorted({min(count, len(frequent_tokens)) for count in LEFT_OUT}):
        tokens = [json.dumps({"token": token}) + "\n" for token in frequent_tokens[:count]]
        tokens_file = folder / f"tokens-{count}.jsonl"
        tokens_file.write_text("".join(tokens))
        left_out = None
        if count:
            left_out = str(tokens_file)
        for name, model in models.items():
            vectors = []
            for set_name, path in sets.items():
                vectors.append(str(folder / f"{name}-{count}-{set_name}.safetensors"))
                encode_without(path, left_out, model=model, output=vectors[-1], force=True)
            for set_name, row in zip(sets, scored(vectors), strict=True):
                space = row["encoder"].partition("/")[2]
                score = {"set": set_name, label: row["spearman"]}
                rows.append({"encoder": f"{name}/{space}", **score})
    write(runner, "masking", lines([rows_file(runner, "masking", rows)], value=label))


def sets_of_average(runner):
    """The files of the STS sets by name, and a label; only STS-B if some of them are missing."""
    tests = find_test_sets(str(runner.tests), ["sts"])[0]
    if tasks_without_test("sts", tests):
        return {"stsb": runner.pairs}, OF_STSB
    return {test.name: test.path for test in tests}, OF_AVERAGE


def words(runner):
    """The word vectors by frequency, counted on a corpus."""
    from sentkit.papers.consert.figures import words as by_frequency

    write(runner, "words", by_frequency([runner.prepared.file("corpus")], model=runner.base))


def scale(runner, name):
    """Table 4, figures 6 and 7."""
    from sentkit.papers.consert.figures import scale as line

    records, label = averages(records_of(runner, name))
    rows = []
    for record in records:
        setting, _, number = record["row"].rpartition(",")  # figure 6 has two settings
        if number == "all":
            number = len(runner.prepared.lines("sts"))
        row = {name: float(number), label: record["value"], f"{label}_sd": record["sd"]}
        if setting:
            row["setting"] = setting
        rows.append(row)
    rows.sort(key=lambda row: row[name])
    path = rows_file(runner, name, rows)
    lines_by = "setting" if name == "texts" else ""
    is_log = name in ("batch", "texts")
    write(runner, name, line([path], x=name, value=label, name=lines_by, log=is_log))


def views(runner):
    """Figure 5: the pairs of views."""
    from sentkit.papers.consert.figures import views as grid

    records, label = averages(records_of(runner, "views"))
    values = {record["row"]: record["value"] for record in records}
    rows = [
        {"view_a": a, "view_b": b, label: values[f"{a},{b}"]}
        for a, b in product(VIEWS, VIEWS)
        if f"{a},{b}" in values
    ]
    write(runner, "views", grid([rows_file(runner, "views", rows)], value=label))


# PairSupCon


def bars_of(runner, name, records):
    """A panel for each suite: a group of bars for each test set, and a bar for each system."""
    from sentkit.papers.sg_bert.figures import domains as bars

    panels = []
    for suite, metric in (("sts", "Spearman x 100"), ("clustering", "accuracy x 100")):
        rows = [
            {
                "system": record["row"].partition("#")[0],
                "task": record["task"],
                metric: record["value"],
                f"{metric}_sd": record["sd"],
            }
            for record in records
            if record["suite"] == suite
        ]
        if rows:
            path = rows_file(runner, f"{name}-{suite}", rows)
            panels += bars([path], name="system", domain="task", value=metric).panels
    height = 0.6 if len(panels) == 1 else 0.35
    write(runner, name, Picture(tuple(panels), height=height, columns=1))


def scores(runner):
    """Figure 1: the scores by test set."""
    bars_of(runner, "scores", records_of(runner, "3"))


def clustering_sets(runner):
    try:
        return find_test_sets(str(runner.tests), ["clustering"])[0]
    except NoInputError as error:
        raise MissingError(str(error)) from error


def clusters(runner):
    """Figure 1: the vectors of StackOverflow in two dimensions."""
    sets = clustering_sets(runner)
    questions = next((test.path for test in sets if test.name == "stackoverflow"), None)
    if questions is None:
        raise MissingError(f"{runner.tests}/clustering/stackoverflow: no such file")
    models = {"base": runner.base}
    for name in ("sbert", "pairsupcon"):
        models[name] = checkpoint(runner, name)
    paths = [runner.encoded(f"space/{name}", model, questions) for name, model in models.items()]
    plot(runner, "space", "space", *paths, "--label", "label")


def abilities(runner):
    """Figure 3: both objectives and each alone, on STS and on clustering."""
    bars_of(runner, "abilities", records_of(runner, "abilities"))


# DefSent+


def entries(runner, name):
    from sentkit.papers.defsent.figures import axes

    spec = ENTRIES[name]
    if runner.recipe == "roberta-large" and name in ("entries-simcse", "entries-sncse"):
        # The second step, which the paper has only for this base.
        spec = replace(spec, maker=f"{spec.maker}+defsent-plus-1")
    write(runner, name, axes([entries_of(runner, spec)]))


def correlations(runner):
    from sentkit.papers.defsent.figures import correlations as panels

    plain = ENTRIES["entries-3"]
    paths = [entries_of(runner, spec) for spec in (plain, replace(plain, transform="ica"))]
    write(runner, "correlations", panels(paths))


def entries_of(runner, spec):
    if spec.maker != "base":
        maker = runner.systems[spec.maker]
        if not all(runner.mark(maker, seed).exists() for seed in runner.seeds_of(maker)):
            raise MissingError(f"{spec.maker} is not complete")
    return runner.entries(spec)
