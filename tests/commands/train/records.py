"""What a run of `sentkit train` has written."""

import json
from pathlib import Path


def record_of(folder="out"):
    return json.loads((Path(folder) / "sentkit.json").read_text())


def log_of(folder="out"):
    return [json.loads(line) for line in (Path(folder) / "steps.jsonl").read_text().splitlines()]
