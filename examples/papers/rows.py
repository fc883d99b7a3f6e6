"""Rows that systems are trained on, made from the data. `rows` of a paper has the names and
functions.
"""

import fcntl
import json
import random
from pathlib import Path

from running import MissingError, python, sentkit

ENDS = (".jsonl", ".jsonl.gz", ".test.jsonl", ".test.jsonl.gz", ".txt", ".txt.gz")
FEW = 96  # rows of --quick
TEXTS = ("text", "text_a", "text_b")


class Rows:
    def __init__(self, data, folder, kinds, tokenizer, *, quick):
        self.data, self.folder, self.kinds, self.quick = data, folder, kinds, quick
        self.tokenizer = tokenizer  # of BERT

    def file(self, name):
        """The file of prepared rows, or of a copy of those in the data; made once."""
        kind, *arguments = self.kinds.get(name) or ("copied", name)
        lines = getattr(self, kind)
        return made(self.folder / f"{name}.jsonl", lambda path: self.write(path, lines(*arguments)))

    def write(self, path, lines):
        """All lines, or with --quick a few from all parts."""
        path.write_text("".join(spread(list(lines), FEW) if self.quick else lines))

    def files(self, pattern):
        """The files of the data with these names, which are without their ends."""
        paths = sorted({str(path) for end in ENDS for path in self.data.glob(f"{pattern}{end}")})
        if not paths:
            raise MissingError(f"{self.data}/{pattern}: no such file")
        return paths

    def lines(self, name):
        return Path(self.file(name)).read_text().splitlines(keepends=True)

    # How rows are made.

    def copied(self, pattern):
        for path in self.files(pattern):
            yield from sentkit("cat", path).splitlines(keepends=True)

    def texts(self, *patterns):
        for row in (json.loads(line) for pattern in patterns for line in self.copied(pattern)):
            for name in TEXTS:
                if name in row:
                    yield json.dumps({"text": row[name]}) + "\n"

    def texts_like(self, other, *patterns):
        """As many texts as other rows have."""
        return spread(list(self.texts(*patterns)), len(self.lines(other)))

    def sample(self, other, count):
        lines = self.lines(other)
        if count > len(lines) and not self.quick:
            raise MissingError(f"{count} texts; {other} has {len(lines)}")
        random.Random(0).shuffle(lines)  # a smaller sample is a part of a larger one
        return lines[:count]

    def augmented(self, other, words):
        return sentkit("augment", self.file(other), *words.split()).splitlines(keepends=True)

    def dictionary(self, pattern):
        return python("dictionary_rows.py", *self.files(pattern)).splitlines(keepends=True)

    def single_tokens(self, other):
        """With the tokenizer of BERT for all families (footnote 8 of the paper)."""
        words = ("--single-tokens", self.tokenizer, self.file(other))
        return python("dictionary_rows.py", *words).splitlines(keepends=True)


def made(path, write):
    """A file that several processes need: the first one makes it, under a temporary name."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                part = path.with_name(f".part-{path.name}")
                part.unlink(missing_ok=True)
                write(part)
                part.rename(path)
    return str(path)


def spread(lines, most):
    """At most so many, from all parts."""
    step = max(1, len(lines) / most)
    return [lines[int(place * step)] for place in range(min(most, len(lines)))]
