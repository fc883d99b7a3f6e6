"""Rows with two vectors -> similarities, gold scores and groups, in 16 bytes per row."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.rows.blocks import blocks
from sentkit.formats.rows.kinds import scored, wrong_member
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.sts.report import Pairs

BLOCK = 256  # rows


@dataclass(frozen=True, slots=True)
class Judged:
    """The pairs of one file, with gold scores."""

    path: str
    emb: str | None
    pairs: Pairs
    skipped: int  # rows with a null gold score
    identities: NDArray[np.int64]  # hashes of texts and gold scores, for comparisons; may be empty


def compare_rows(rows: Iterable[VectorRow], metric: str) -> Iterator[tuple[VectorRow, float]]:
    """Each row of two vectors with their similarity."""
    for block in blocks(rows, BLOCK):
        vectors = np.stack([row.vectors for row in block])  # (b, 2, d)
        yield from zip(block, SIMILARITIES[metric](vectors[:, 0], vectors[:, 1]).tolist(), strict=True)


def expect_pair(row: VectorRow) -> VectorRow:
    if len(row.vectors) != 2:
        raise row.row.error(f"{len(row.vectors)} vectors in this row, and a gold score is for two")
    return row


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a score."""

    gold: str  # the field with the gold score
    group: str | None = None  # the field with the group of a row
    metric: str = "cosine"
    aggregate: str = "all"
    seed: int = 0


@dataclass(slots=True)
class Gold:
    """The gold scores and groups of the rows of one file."""

    name: str
    group: str | None
    texts: tuple[str, ...]  # the fields that identify a pair; empty if no comparison follows
    scores: "array[float]" = field(default_factory=lambda: array("d"))
    groups: "array[int]" = field(default_factory=lambda: array("i"))
    identities: "array[int]" = field(default_factory=lambda: array("q"))
    codes: dict[str, int] = field(default_factory=dict)
    skipped: int = 0

    def take(self, row: VectorRow) -> VectorRow | None:
        """Keep the row's score, or count it as skipped."""
        values = expect_pair(row).row.values
        score, code = scored(row.row, self.name), self._code(row)
        if score is None:
            self.skipped += 1
            return None
        self.scores.append(score)
        if self.group is not None:
            self.groups.append(code)
        if self.texts:
            self.identities.append(hash((score, *(str(values.get(name)) for name in self.texts))))
        return row

    def _code(self, row: VectorRow) -> int:
        if self.group is None:
            return 0
        value = row.row.values.get(self.group)
        if not isinstance(value, str | int | float):
            raise wrong_member(row.row, self.group, "a string or a number")
        return self.codes.setdefault(str(value), len(self.codes))


def judge(inputs: Inputs, path: str, question: Question, *, paired: bool) -> Judged:
    """Compute the similarities of a file. `paired`: its pairs will be compared with those of another file."""
    reader, gold = VectorReader(inputs), question.gold
    fields = fields_of(inputs, path)
    texts = tuple(fields.get(name, name) for name in ("text_a", "text_b")) if paired else ()
    taken = Gold(gold, question.group, texts)
    rows = (row for row in reader.read_file(path, taken.take) if row is not None)
    found = array("d", (value for _, value in compare_rows(rows, question.metric)))
    similarities = np.frombuffer(found, np.float64)
    scores = np.frombuffer(taken.scores, np.float64)
    if len(scores) < 2:
        raise DataError(f'{len(scores)} rows with a score in "{gold}": too few to correlate', source=path)
    if scores.min() == scores.max():  # equal similarities are valid: [CLS] at layer 0 gives them
        raise DataError(f'"{gold}" is the same in all {len(scores)} rows: no correlation', source=path)
    groups = np.frombuffer(taken.groups, np.intc) if question.group else None
    pairs = Pairs(similarities, scores, groups, tuple(taken.codes))
    return Judged(path, reader.emb, pairs, taken.skipped, np.array(taken.identities, np.int64))


def check_same_pairs(judged: Judged, baseline: Judged) -> None:
    """Refuse a paired comparison unless both files have the same pairs in the same order."""
    if len(judged.pairs) != len(baseline.pairs):
        numbers = f"{len(judged.pairs)} scored pairs, {baseline.path} has {len(baseline.pairs)}"
        raise DataError(numbers, source=judged.path)
    differing = np.flatnonzero(judged.identities != baseline.identities)
    if differing.size:
        raise DataError(
            f"scored pair {differing[0] + 1} is another than in {baseline.path}", source=judged.path
        )
