"""The input of a fit: the moments of a stream of vectors, and a record of the files."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentkit.arrays import Float32
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.transforms.moments import MAX_SCATTER_WIDTH, Moments, moments_of

ROWS_PER_BLOCK = 1024  # rows read at once


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a transform was fitted to; only files from elsewhere lack a name or a hash."""

    file: str | None
    rows: int
    blake2b: str | None  # of the vectors


@dataclass(frozen=True, slots=True)
class Sample:
    moments: Moments
    emb: str | None
    inputs: list[InputFile]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.inputs)

    @property
    def warnings(self) -> list[str]:
        """Warnings about vectors that occur in two files or shards, which is usually a mistake."""
        inputs = [each for each in self.inputs if each.rows]
        counts = Counter(each.blake2b for each in inputs)
        names = {each.blake2b: each.file for each in inputs}
        repeated = [(names[digest], count) for digest, count in counts.items() if count > 1]
        return [f"the vectors of {name} are counted {count} times" for name, count in repeated]


def read_sample(inputs: Inputs, keep: Callable[[Float32], None]) -> Sample:
    """Read the rows once. `keep` receives every block (n, d); the vectors of one row are adjacent."""
    reader = VectorReader(inputs)
    total: Moments | None = None
    inputs_read: list[InputFile] = []
    for path in inputs.paths:
        own, file = read_one(reader, path, keep)
        inputs_read.append(file)
        if own is not None:  # per file, so that `merge` gives the same bits
            total = own if total is None else total + own
    if total is None:
        raise NoRowsError(inputs.paths)
    return Sample(total, reader.emb, inputs_read)


def read_one(
    reader: VectorReader, path: str, keep: Callable[[Float32], None]
) -> tuple[Moments | None, InputFile]:
    hashed, moments, rows = hashlib.blake2b(digest_size=16), None, 0
    for block in reader.read_blocks(path, ROWS_PER_BLOCK):
        check_width(reader.width, path)
        rows += len(block)
        vectors = block.reshape(-1, reader.width)
        hashed.update(vectors.astype("<f4", copy=False).data)
        own = moments_of(vectors)
        moments = own if moments is None else moments + own
        keep(vectors)
    name = path if path == "-" else readable(Path(path).name)
    return moments, InputFile(name, rows, hashed.hexdigest())


def check_width(width: int, path: str) -> None:
    """Refuse wide vectors: their scatter and kernel need too much memory."""
    if width > MAX_SCATTER_WIDTH:
        problem = f"vectors of {width} numbers: a transform accepts at most {MAX_SCATTER_WIDTH}"
        raise DataError(problem, source=path)
