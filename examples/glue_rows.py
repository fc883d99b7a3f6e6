"""Convert the tasks SST-2, CoLA, MRPC, QNLI, RTE and STS-B of GLUE, as distributed, to rows for
training.

python examples/glue_rows.py SST-2/train.tsv > train.jsonl
python examples/glue_rows.py --part validation SST-2/dev.tsv > dev.jsonl
python examples/glue_rows.py --part test SST-2/dev.tsv > test.jsonl
sentkit train classify train.jsonl --dev dev.jsonl --test test.jsonl \\
    --preset sg-bert-glue --seed 0..7 -o runs

Input: train.tsv or dev.tsv of a task, or msr_paraphrase_train.txt and msr_paraphrase_test.txt of
MRPC. The header determines the task; a file without a header is CoLA. The files test.tsv have no
labels.
Output: JSONL with "text" or "text_a" and "text_b", and "label", or for STS-B "score".

--part divides a file as SG-BERT does for its table 10: the first tenth of its rows is for
validation and the rest for the test. The paper does not state how a tenth is rounded; here it is
rounded down.
"""

import argparse
import json
import math
import os
import sys
from itertools import chain
from pathlib import Path

TASKS = {  # columns of the texts, and of the label or score -> fields
    ("sentence", "label"): ("text", "label"),  # SST-2
    ("#1 String", "#2 String", "Quality"): ("text_a", "text_b", "label"),  # MRPC
    ("question", "sentence", "label"): ("text_a", "text_b", "label"),  # QNLI
    ("sentence1", "sentence2", "label"): ("text_a", "text_b", "label"),  # RTE
    ("sentence1", "sentence2", "score"): ("text_a", "text_b", "score"),  # STS-B
}
COLA = (3, 1)  # indices of the columns of text and label; the file has no header


def main():
    parser = argparse.ArgumentParser(description="Convert a file of GLUE to rows.")
    parser.add_argument("file", help="train.tsv or dev.tsv of a task, as distributed")
    parser.add_argument(
        "--part", choices=("validation", "test"), help="the first tenth, or the rest"
    )
    arguments = parser.parse_args()
    rows = list(read(arguments.file))
    tenth = len(rows) // 10
    if arguments.part == "validation":
        rows = rows[:tenth]
    elif arguments.part == "test":
        rows = rows[tenth:]
    for row in rows:
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def read(path):
    number = 1
    try:
        with Path(path).open(encoding="utf-8-sig", newline="\n") as file:
            first_line = file.readline()
            columns, fields = layout(cells_of(first_line))
            lines = file
            if columns == COLA:
                lines = chain([first_line], file)
            else:
                number = 2
            for line in lines:
                cells = cells_of(line)
                yield row_of([cells[column] for column in columns], fields)
                number += 1
    except OSError as error:
        sys.exit(f"glue_rows.py: {path}: {error.strerror}")
    except IndexError:
        sys.exit(f"glue_rows.py: {path}:{number}: too few columns")
    except ValueError as error:
        sys.exit(f"glue_rows.py: {path}:{number}: {error}")


def cells_of(line):
    """Quotes are text in all files of GLUE."""
    return line.rstrip("\r\n").split("\t")


def layout(first):
    """Return the indices of the columns, and their fields; `first`: the cells of the first line."""
    # The most columns first: the header of QNLI contains that of SST-2.
    for names in sorted(TASKS, key=len, reverse=True):
        if set(names) <= set(first):
            return [first.index(name) for name in names], TASKS[names]
    if len(first) == 4 and first[1] in ("0", "1"):
        return COLA, ("text", "label")
    raise ValueError("not a labelled file of SST-2, CoLA, MRPC, QNLI, RTE or STS-B")


def row_of(values, fields):
    row = dict(zip(fields, values, strict=True))
    if "score" in row:
        score = float(row["score"])
        if not math.isfinite(score):
            raise ValueError(f'the score "{row["score"]}" is not a number')
        row["score"] = score
    return row


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
