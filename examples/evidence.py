"""List the commands that made the measured tables, and mark tables that are older than their code.

    python examples/evidence.py [DOCUMENT...]

A measured table is followed by a paragraph of this form: "Measured on 2026-11-28 with one thread of
an Intel Xeon: `sentkit report ...`." If no script measures the table, the paragraph ends with
"without a script." The listing has the tables in the order of the documents, by default all of
them: the date, the number of changes of the measured code since this date (from the history of the
checkout), the line of the document, and the command.

Exit codes: 0; 1 if a table has no date; 66 if a document is missing, or the history.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    "README.md",
    "examples/README.md",
    *(f"sentkit/papers/{paper}/README.md" for paper in ("sg_bert", "consert")),
    *(f"sentkit/papers/{paper}/README.md" for paper in ("pairsupcon", "defsent")),
    "tests/benchmarks/README.md",
)
MEASURED = re.compile(
    r"Measured on (?P<date>\d{4}-\d\d-\d\d) (?P<machine>[^`]*)"
    r"(?:: `(?P<command>[^`]+)`|, without a script\.)"
)
# A command, or the name of a script -> the code that its figures depend on.
MODEL = ("sentkit/model", "sentkit/formats/checkpoints", "sentkit/metrics")
TRAINING = (*MODEL, "sentkit/training", "sentkit/papers")
REPORT = (*MODEL, "sentkit/reports", "sentkit/labels", "sentkit/transforms")
CODE = {
    "report": REPORT,
    "train": TRAINING,
    "whiten": (*MODEL, "sentkit/transforms"),
    "papers.py": (*TRAINING, *REPORT, "examples/papers"),
    "main_table.py": (*TRAINING, "examples/main_table.py"),
    "models.py": (*REPORT, "examples/models.py", "examples/distill_texts.py"),
    "defsent_plus.sh": (*TRAINING, "sentkit/transforms"),
    "whiten.sh": (*MODEL, "sentkit/transforms"),
    "orderings.py": (*TRAINING, *REPORT, "examples/papers"),
    "run.py": (*MODEL, "sentkit/training", "tests/benchmarks"),
    "encode": MODEL,
    "cluster": ("sentkit/labels", "sentkit/formats/vectors"),
    "cat": ("sentkit/formats/vectors", "sentkit/metrics"),
    "search.py": ("sentkit/metrics",),
    "classifiers.py": ("sentkit/labels/probes",),
    "storage.py": ("sentkit/formats/vectors", "sentkit/metrics"),
    "referee.py": (*MODEL, "sentkit/reports", "tests/defects.py"),
    **dict.fromkeys(("busy.py", "training.py", "gradient.py", "gpu.py"), TRAINING),
    **dict.fromkeys(("host.py", "parallel.py", "schedule.py", "runtimes.py", "kills.py"), MODEL),
}


@dataclass(frozen=True)
class MeasuredTable:
    document: str
    line: int  # of its header
    date: str = ""  # "": no paragraph of the form follows
    machine: str = ""
    command: str = ""


def main():
    options = parse(sys.argv[1:])
    undated = 0
    for document in options.documents:
        path = ROOT / document
        if not path.exists():
            fail(66, f"{document}: no such document")
        for table in measured_tables(document, path.read_text()):
            changes = "no date"
            if table.date:
                changes = said(changes_since(table)) if table.command else "no script"
            else:
                undated += 1
            print(f"{table.date:10}  {changes:12}  {table.document}:{table.line}")
            if table.command:
                print(f"    {table.command}")
    sys.stdout.flush()
    sys.exit(1 if undated else 0)


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", default=DOCUMENTS)
    return parser.parse_args(words)


def fail(code, problem):
    print(f"evidence.py: {problem}", file=sys.stderr)
    sys.exit(code)


def measured_tables(document, text):
    """The tables of a document with measured figures, in its order."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|---"):
            continue
        end = number
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        rows = lines[number + 1 : end]
        match = MEASURED.match(paragraph_after(lines[end:]))
        if match is None and not is_measured(lines[number - 1], rows):
            continue
        if match is None:
            yield MeasuredTable(document, number)
        else:
            yield MeasuredTable(document, number, **match.groupdict(default=""))


def paragraph_after(lines):
    """The first paragraph with a date, before the next table or heading."""
    following = re.split(r"\n(?:#|\|)", "\n" + "\n".join(lines))[0]
    paragraphs = [" ".join(paragraph.split()) for paragraph in following.split("\n\n")]
    return next((text for text in paragraphs if text.startswith("Measured on ")), "")


def is_measured(header, rows):
    """Whether most cells after the first one have figures, and not those of a paper beside them."""
    if "published" in header and "higher" not in header and "lr" not in header:
        return False
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]
    figures = [cell for cell in cells if re.match(r"[*+-]*\.?\d", cell)]
    return 2 * len(figures) > len([cell for cell in cells if cell])


def changes_since(table):
    """The number of commits since the day of the measurement that changed the measured code; None
    if the code of the command is unknown.
    """
    words = shlex.split(table.command)
    paths = []
    for word in words:
        paths += CODE.get(Path(word).name, ())
    if not paths:
        return None
    log = ["git", "-C", ROOT, "log", f"--since={table.date} 23:59:59", "--format=%h", "--", *paths]
    listed = subprocess.run(log, capture_output=True, text=True)
    if listed.returncode:
        fail(66, f"no history of changes: {listed.stderr.strip()}")
    return len(listed.stdout.split())


def said(changes):
    if changes is None:
        return "unknown code"
    if changes == 0:
        return "current"
    return f"{changes} change{'s' * (changes > 1)}"


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
