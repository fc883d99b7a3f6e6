"""Convert natural language inference data, as distributed, to rows for training.

Input, each also as .gz:
  SNLI, MNLI  .jsonl, .txt or .tsv with gold_label, sentence1 and sentence2; also the copies of GLUE
  SimCSE      nli_for_simcse.csv: sent0, sent1, hard_neg
  PairSupCon  nli_train_posneg.csv: sentence1, sentence2, pairsimi (1: entailment, 0: contradiction)
Output: JSONL pairs with "text_a", "text_b", "label"; or --triplets with "anchor", "positive",
"negative".

Pairs without a gold label ("-") or with an empty text are skipped. Duplicates stay, as in the
papers. A triplet is a premise with its first entailed and its first contradicted hypothesis; the
rows of SimCSE are triplets already. stderr shows the counts of each file. If a file has the name of
a published file and other counts, the exit code is 1.
"""

import argparse
import csv
import gzip
import io
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

LABELS = ("entailment", "neutral", "contradiction", "-")
PAIR = ("text_a", "text_b", "label")  # fields of the output
TRIPLET = ("anchor", "positive", "negative")
NLI = ("sentence1", "sentence2", "gold_label")  # fields of the input
SIMCSE = ("sent0", "sent1", "hard_neg")
PAIRSUPCON = ("sentence1", "sentence2", "pairsimi")
SIMILAR = {"1": "entailment", "0": "contradiction"}
TRIPLETS = 275_601  # of SimCSE, from SNLI and MNLI
PUBLISHED = {  # of each label
    "snli_1.0_train": (183_416, 182_764, 183_187, 785),
    "multinli_1.0_train": (130_899, 130_900, 130_903, 0),
    "nli_for_simcse": (TRIPLETS, 0, TRIPLETS, 0),
    "nli_train_posneg": (TRIPLETS, 0, TRIPLETS, 0),
}


def main():
    parser = argparse.ArgumentParser(description="Convert natural language inference data to rows.")
    parser.add_argument(
        "file", nargs="+", help="a file of SNLI, MNLI, SimCSE or PairSupCon, as distributed"
    )
    parser.add_argument(
        "--triplets", action="store_true", help="write triplets instead of labelled pairs"
    )
    arguments = parser.parse_args()
    counts = {path: Counter() for path in arguments.file}
    rows = (row for path in counts for row in usable(path, counts[path]))
    rows = triplets_of(rows) if arguments.triplets else pairs_of(rows)
    for row in rows:
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    return max(report(path, counts[path]) for path in counts)


def pairs_of(rows):
    for row in rows:
        if "label" in row:
            yield row
        else:
            premise = row["anchor"]
            yield {"text_a": premise, "text_b": row["positive"], "label": "entailment"}
            yield {"text_a": premise, "text_b": row["negative"], "label": "contradiction"}


def triplets_of(rows):
    hypotheses = {}  # premise -> label -> its first hypothesis
    for row in rows:
        if "anchor" in row:
            yield row
        else:
            hypotheses.setdefault(row["text_a"], {}).setdefault(row["label"], row["text_b"])
    for premise, by_label in hypotheses.items():
        if {"entailment", "contradiction"} <= by_label.keys():
            yield {
                "anchor": premise,
                "positive": by_label["entailment"],
                "negative": by_label["contradiction"],
            }


def usable(path, counts):
    """The pairs or triplets of a file, without those that training cannot use."""
    for row in read(path):
        if "label" in row:
            counts[row["label"]] += 1
        else:
            counts["entailment"] += 1
            counts["contradiction"] += 1
        if not all(text.strip() for text in row.values()):
            counts["empty"] += 1
        elif row.get("label") != "-":
            yield row


def read(path):
    """The pairs or triplets of a file, as they are."""
    number = 1
    suffix = Path(path.removesuffix(".gz")).suffix
    opener = gzip.open if path.endswith(".gz") else io.open
    newline = "" if suffix == ".csv" else "\n"
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            for record in records(file, suffix):
                yield row_of(record)
                number += 1
    except (OSError, EOFError) as error:
        sys.exit(f"nli_rows.py: {path}: {getattr(error, 'strerror', None) or error}")
    except (ValueError, csv.Error) as error:
        sys.exit(f"nli_rows.py: {path}: row {number}: {error}")


def records(file, suffix):
    if suffix == ".jsonl":
        yield from map(json.loads, file)
    elif suffix == ".csv":
        yield from csv.DictReader(file, strict=True)
    else:  # quotes are text; columns of absent annotators may be missing at the end of a line
        header = file.readline().rstrip("\r\n").split("\t")
        for line in file:
            cells = line.rstrip("\r\n").split("\t")
            yield dict(zip(header, cells, strict=False))


def row_of(record):
    for source, target in ((NLI, PAIR), (PAIRSUPCON, PAIR), (SIMCSE, TRIPLET)):
        values = [record.get(name) for name in source]
        if all(isinstance(value, str) for value in values):
            row = dict(zip(target, values, strict=True))
            break
    else:
        names = [", ".join(source) for source in (NLI, PAIRSUPCON, SIMCSE)]
        raise ValueError(f"expected texts in {' or '.join(names)}")
    if "label" in row:
        if "pairsimi" in record:
            row["label"] = SIMILAR.get(row["label"], row["label"])
        if row["label"] not in LABELS:
            raise ValueError(f'unknown label "{row["label"]}"')
    return row


def report(path, counts):
    """Print the counts of a file; return 1 if they are not the published ones, else 0."""
    measured = tuple(counts[label] for label in LABELS)
    published = PUBLISHED.get(
        re.sub(r"\.(jsonl|txt|tsv|csv)(\.gz)?$", "", Path(path).name), measured
    )
    empty = f"{counts['empty']:,} with an empty text"
    print(f"nli_rows.py: {path}: {listed(measured)}, {empty}", file=sys.stderr)
    if measured != published:
        print(f"nli_rows.py: {path}: not complete; published: {listed(published)}", file=sys.stderr)
    return int(measured != published)


def listed(counts):
    return ", ".join(f"{count:,} {label}" for label, count in zip(LABELS, counts, strict=True))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
