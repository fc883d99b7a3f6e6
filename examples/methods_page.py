"""Write the man page sentkit-methods.7: python -m examples.methods_page man/man7/sentkit-methods.7

Sources: the catalogue of training methods with their settings and presets; systems.jsonl, the
systems of the papers with their commands; the figures of the papers that `sentkit report` prints. A
test compares the result with the committed page.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from sentkit import __version__
from sentkit.manual import escape, wrapped
from sentkit.papers import PAPERS
from sentkit.papers.published import published
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import changes_of, format_value, notes

HERE = Path(__file__).parent
KEYS = ("paper", "table", "base", "system", "readout")
AVERAGES = ("avg", "sts-avg")  # of the seven STS tasks
SOURCES = {
    "paper": "from the paper",
    "released code": "from the released code",
    "our choice": "chosen by sentkit",
}
NOT_SUPPORTED = "Not supported: it requires the code or the weights of another program."
DESCRIPTION = (
    "This page lists the methods of sentkit train with their default settings, and every system "
    "that the papers of SG-BERT, ConSERT, PairSupCon and DefSent+ name, with its command and its "
    "published figures. It leaves out the rows of BERT-large, SBERT-large and DistilBERT, and "
    "those of RoBERTa (all of table 11 of SG-BERT) except for steps of DefSent+ that only RoBERTa "
    "has: their commands are those of BERT-base with another model and, if there is one, its "
    "preset. sentkit report --paper prints all rows.",
    "Published figures are Spearman x 100 as the paper prints them, with BERT-base unless the "
    "system states another model. Where no task is named, the figure is the mean of all tasks of "
    "the table, which are seven STS tasks unless a note names others.",
    "Measured figures are Spearman x 100 on STS-B test, the mean and the standard deviation of "
    "seeds. The trained systems start from a small raw language model and use few steps, so "
    "measured and published figures cannot be compared. "
    "examples/README.md and the README of each paper in sentkit/papers describe the measurements. "
    "The weights of BERT, GLUE and the Oxford dictionary were not available.",
)
EXPLAINED = "sentkit train METHOD --list explains each setting."


def page():
    lines = [
        f'.TH SENTKIT\\-METHODS 7 "" "sentkit {__version__}" "sentkit manual"',
        ".SH NAME",
        r"sentkit\-methods \- training methods, and the systems of the papers",
        ".SH DESCRIPTION",
    ]
    for index, paragraph in enumerate(DESCRIPTION):
        if index:
            lines.append(".PP")
        lines += wrapped(paragraph)
    lines += [".SH METHODS", *wrapped(EXPLAINED)]
    for name, listing in METHODS.items():
        lines += method(name, listing)
    lines += [".SH SYSTEMS"]
    for line in (HERE / "systems.jsonl").open():
        lines += system(json.loads(line), published())
    lines += [".SH SEE ALSO", r"sentkit\-train(1), sentkit\-encode(1), sentkit\-rows(5)"]
    return "\n".join(lines).replace("±", r"\(+-") + "\n"


def method(name, listing):
    kind = listing.load()
    rules = notes(kind.Settings)
    summary = listing.summary
    if listing.cite:
        summary += f" (arXiv {listing.cite})"
    if kind.needs.static:
        summary += "; also for static models"
    yield from (f".SS {escape(name)}", *wrapped(summary))
    if listing.note:
        yield from (".PP", *wrapped(listing.note))
    by_source = defaultdict(list)
    for setting in fields(kind.Settings):
        value = format_value(setting.default)
        by_source[rules[setting.name].source].append(f"{setting.name}={value}")
    for source, words in SOURCES.items():
        yield from (".TP", f"Defaults {words}", *wrapped(" ".join(by_source[source]) or "none"))
    for preset, values in kind.presets.items():
        changes = changes_of(kind.Settings, values).items()
        words = " ".join(f"{setting}={format_value(value)}" for setting, value in changes)
        yield from (
            ".TP",
            rf"\fB{escape(f'--preset {preset}')}\fR",
            *wrapped(words or "the defaults"),
        )


def system(row, every_figure):
    yield from (".TP", escape(row["system"]))
    if row["status"] == "no":
        yield from (*wrapped(NOT_SUPPORTED), ".br")
    for command in row["commands"]:
        yield from (rf"\fB{escape(command)}\fR", ".br")
    if "measured" in row:
        yield from (escape(f"Measured: {row['measured']}"), ".br")
    yield from wrapped(f"Published: {'; '.join(figures(row['published'], every_figure))}")
    if "note" in row:
        yield from (".br", *wrapped(row["note"]))


def figures(references, every_figure):
    """The published figures, by table: SG-BERT, table 1: 31.40, 52.57."""
    for table, group in groupby(references, lambda reference: reference.split("/")[:2]):
        values = []
        for reference in group:
            values += of_reference(reference, every_figure)
        paper, number = table
        title = f"table {number}" if number.isdecimal() else number
        yield f"{PAPERS[paper].name}, {title}: {', '.join(values)}"


def of_reference(reference, every_figure):
    """PAPER/TABLE/BASE/SYSTEM[/READOUT]: the average, or each task where the paper has no
    average.
    """
    values = dict(zip(KEYS, reference.split("/"), strict=False))
    rows = [
        row
        for row in every_figure
        if all((row[key] or "-") == value for key, value in values.items())
    ]
    if not rows:
        raise ValueError(f"systems.jsonl: {reference}: no such published figures")
    averages = [row for row in rows if row["task"] in AVERAGES]
    if len(averages) > 1:
        raise ValueError(f"systems.jsonl: {reference}: {len(averages)} averages")
    if averages:
        return [decimals(averages[0])]
    return [f"{row['task']} {decimals(row)}" for row in rows]


def decimals(row):
    """As the paper prints it: PairSupCon has one decimal, the others two."""
    digits = 1 if row["paper"] == "pairsupcon" else 2
    return f"{row['value']:.{digits}f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", metavar="FILE", type=Path)
    parser.parse_args().output.write_text(page())
