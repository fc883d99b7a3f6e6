"""Rows that systems are trained on, made from the data. `rows` of a paper has the names and
functions.
"""

import fcntl
import json
import random
import re
import shutil
import sys
from pathlib import Path

from running import MissingError, python, sentkit

ENDS = (".jsonl", ".jsonl.gz", ".test.jsonl", ".test.jsonl.gz", ".txt", ".txt.gz")
FEW = 96  # rows of --quick
TEXTS = ("text", "text_a", "text_b")


class Rows:
    def __init__(self, data, folder, kinds, tokenizer, *, quick):
        self.data = data
        self.folder = folder
        self.kinds = kinds  # name -> function below, and its arguments
        self.tokenizer = tokenizer  # of BERT
        self.quick = quick

    def file(self, name):
        """The file of prepared rows, or of a copy of those in the data; made once."""
        kind, *arguments = self.kinds.get(name) or ("copied", name)
        lines_of_kind = getattr(self, kind)

        def write(path):
            lines = list(lines_of_kind(*arguments))
            if self.quick:
                lines = spread(lines, FEW)
            path.write_text("".join(lines))

        return made_once(self.folder / f"{name}.jsonl", write)

    def files(self, pattern):
        """The files of the data with these names, which are without their ends."""
        names = {str(path) for end in ENDS for path in self.data.glob(f"{pattern}{end}")}
        # A packed copy beside its file has the same rows.
        copies = {f"{name}.gz" for name in names}
        paths = sorted(names - copies)
        if not paths:
            raise MissingError(f"{self.data}/{pattern}: no such file")
        return paths

    def lines(self, name):
        content = Path(self.file(name)).read_text()
        return lines_of(content)

    # How rows are made.

    def copied(self, pattern):
        for path in self.files(pattern):
            yield from lines_of(sentkit(["cat", path]))

    def texts(self, *patterns):
        for pattern in patterns:
            for line in self.copied(pattern):
                row = json.loads(line)
                for name in TEXTS:
                    if name in row:
                        yield json.dumps({"text": row[name]}) + "\n"

    def texts_with(self, further, *patterns):
        """The texts of these files, and of further ones, which may be missing."""
        yield from self.texts(*patterns)
        try:
            yield from self.texts(further)
        except MissingError as error:
            print(f"papers.py: not used: {error}", file=sys.stderr, flush=True)

    def texts_like(self, other, *patterns):
        """As many texts as other rows have."""
        return spread(list(self.texts(*patterns)), len(self.lines(other)))

    def sample(self, other, count):
        """So many lines, repeated to about the number of all, so that runs have equal numbers of
        steps: an option of the released code (do_upsampling).
        """
        lines = self.lines(other)
        if count > len(lines) and not self.quick:
            raise MissingError(f"{count} texts; {other} has {len(lines)}")
        random.Random(0).shuffle(lines)  # a smaller sample is a part of a larger one
        return lines[:count] * max(1, len(lines) // count)

    def augmented(self, other, words):
        rows = sentkit(["augment", self.file(other), *words.split()])
        return lines_of(rows)

    def dictionary(self, pattern):
        rows = python("dictionary_rows.py", self.files(pattern))
        return lines_of(rows)

    def single_tokens(self, other):
        """With the tokenizer of BERT for all families (footnote 8 of the paper)."""
        flags = ["--single-tokens", self.tokenizer]
        rows = python("dictionary_rows.py", [*flags, self.file(other)])
        return lines_of(rows)


def lines_of(text):
    """The lines with their newlines; str.splitlines also splits at U+0085, U+2028 and U+2029,
    which the text of a row can have.
    """
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def made_once(path, write):
    """A file or folder that several processes need: the first one makes it, under a temporary
    name.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                temporary = path.with_name(f".part-{path.name}")
                if temporary.is_dir():
                    shutil.rmtree(temporary)
                temporary.unlink(missing_ok=True)
                write(temporary)
                temporary.rename(path)
    return str(path)


def spread(lines, count):
    """At most `count` lines, from the beginning to the end."""
    step = max(1, len(lines) / count)
    return [lines[int(i * step)] for i in range(min(count, len(lines)))]
