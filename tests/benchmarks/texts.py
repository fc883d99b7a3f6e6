"""The first sentences of a text file, plain or .gz, one a line."""

import gzip
from itertools import islice
from pathlib import Path


def read_texts(path: str, count: int) -> list[str]:
    with gzip.open(path, "rt") if path.endswith(".gz") else Path(path).open() as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]
