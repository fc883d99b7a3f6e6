"""Rows with two vectors -> similarities, gold scores and groups, in 16 bytes per row."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.rows.kinds import class_of, labelled, scored, wrong_field
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.sts.seen import SeenPairs

ROWS_PER_BLOCK = 256


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    gold: str  # the field with the gold score
    group: str | None = None  # the field with the group of a row
    metric: str = "cosine"
    aggregate: str = "all"
    seed: int = 0
    seen: SeenPairs | None = None  # gets the pairs
    binary: bool = False  # the scores are labels, 0 or 1


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """Similarities of n pairs by one encoder, and gold scores; `groups[k]` is an index in `names`."""

    similarities: Float64
    gold: Float64  # or labels, 0.0 and 1.0
    groups: NDArray[np.integer] | None = None
    names: tuple[str, ...] = ()
    file: str = ""
    encoder: str | None = None
    skipped: int = 0  # rows with a null gold score
    identities: NDArray[np.int64] | None = None  # hashes of all but the vectors, for a comparison

    def __len__(self) -> int:
        return len(self.gold)

    def split(self) -> list["GoldPairs"]:
        """One part per name, including empty parts; the unchanged pairs if they have no groups."""
        if self.groups is None or not self.names:
            return [self]
        chosen = [self.groups == code for code in range(len(self.names))]
        return [GoldPairs(self.similarities[rows], self.gold[rows]) for rows in chosen]

    def only(self, chosen: NDArray[np.bool_]) -> "GoldPairs":
        """The chosen pairs, in the same groups."""
        groups = None if self.groups is None else self.groups[chosen]
        return GoldPairs(self.similarities[chosen], self.gold[chosen], groups, self.names)


@dataclass(frozen=True, slots=True)
class GoldRow:
    """A row that passed all checks."""

    row: VectorRow
    gold: float | None  # None: the row is skipped
    group: str | None  # None without `ScoreOptions.group`


def read_gold_pairs(inputs: Inputs, path: str, options: ScoreOptions, *, paired: bool) -> GoldPairs:
    """Compute the similarities of a file. `paired`: its pairs will be compared with those of another file."""
    reader, fields = VectorReader(inputs), fields_of(inputs, path)
    texts = [fields.get(name, name) for name in ("text_a", "text_b")]
    similarities, gold, groups, identities = array("d"), array("d"), array("i"), array("q")
    codes: dict[str, int] = {}  # of groups with scores, in their order: equal in compared files
    names: dict[str, None] = {}  # of all groups
    skipped = 0

    def check(row: VectorRow) -> GoldRow:
        return check_row(row, options, texts)

    for block in blocks(reader.read_file(path, check), ROWS_PER_BLOCK):
        pairs = [each for each in block if each.gold is not None]
        skipped += len(block) - len(pairs)
        similarities.extend(similarities_of([each.row for each in pairs], options.metric))
        names |= dict.fromkeys(each.group for each in block if each.group is not None)
        for each in pairs:
            assert each.gold is not None
            gold.append(each.gold)
            if each.group is not None:
                groups.append(codes.setdefault(each.group, len(codes)))
            if paired:
                known = (str(each.row.row.values.get(text)) for text in texts)
                identities.append(hash((each.gold, each.group, *known)))
            if options.seen is not None:
                options.seen.add(each.row.row, texts)
    if len(gold) < 2:
        what = "label" if options.binary else "score"
        raise DataError(
            f'{len(gold)} rows with a {what} in "{options.gold}", expected 2 or more', source=path
        )
    scores = np.frombuffer(gold, np.float64)
    if scores.min() == scores.max():  # equal similarities are valid: [CLS] at layer 0 gives them
        value, problem = "the same", "the correlation is undefined"
        if options.binary:
            value, problem = f"{scores[0]:g}", "the scores need pairs with 0 and pairs with 1"
        raise DataError(f'"{options.gold}" is {value} in all {len(gold)} rows: {problem}', source=path)
    return GoldPairs(
        similarities=np.frombuffer(similarities, np.float64),
        gold=scores,
        groups=None if options.group is None else np.frombuffer(groups, np.intc),
        names=tuple(dict.fromkeys([*codes, *names])),
        file=path,
        encoder=reader.emb,
        skipped=skipped,
        identities=np.array(identities, np.int64) if paired else None,
    )


def check_row(row: VectorRow, options: ScoreOptions, texts: Sequence[str]) -> GoldRow:
    """Check everything that can refuse a row, before any of its values is used. `texts` are fields."""
    expect_pair(row)
    score = (labelled if options.binary else scored)(row.row, options.gold)
    group = None if options.group is None else group_of(row.row, options.group)
    if score is not None and options.seen is not None:
        options.seen.check(row.row, texts)
    return GoldRow(row, score, group)


def group_of(row: Row, name: str) -> str:
    """The group as a string. Unlike a class, it may be empty or have a fraction."""
    value = row.values.get(name)
    if not isinstance(value, str | int | float):
        raise wrong_field(row, name, "a string or a number")
    if value == "" or (isinstance(value, float) and not value.is_integer()):
        return str(value)
    return class_of(row, name)


def similarities_of(rows: Sequence[VectorRow], metric: str) -> list[float]:
    """The similarity of the two vectors of each row."""
    if not rows:
        return []
    vectors = np.stack([row.vectors for row in rows])  # (b, 2, d)
    similarity = SIMILARITIES[metric] if isinstance(metric, str) else metric
    return similarity(vectors[:, 0], vectors[:, 1]).tolist()


def compare_rows(rows: Iterable[VectorRow], metric: str) -> Iterator[tuple[VectorRow, float]]:
    """Each row of two vectors with their similarity."""
    for block in blocks(rows, ROWS_PER_BLOCK):
        yield from zip(block, similarities_of(block, metric), strict=True)


def expect_pair(row: VectorRow) -> VectorRow:
    if len(row.vectors) != 2:
        raise row.row.error(f"expected 2 vectors for a gold score, this row has {len(row.vectors)}")
    return row


def check_same_pairs(pairs: GoldPairs, baseline: GoldPairs) -> None:
    """Refuse a paired comparison unless both files have the same pairs in the same order."""
    if len(pairs) != len(baseline):
        problem = f"{len(pairs)} scored pairs, but {len(baseline)} in {baseline.file}"
        raise DataError(problem, source=pairs.file, advice="use the same rows in the same order")
    assert pairs.identities is not None
    assert baseline.identities is not None
    differing = np.flatnonzero(pairs.identities != baseline.identities)
    if differing.size:
        problem = f"scored pair {differing[0] + 1} is not the same pair as in {baseline.file}"
        raise DataError(problem, source=pairs.file, advice="use the same rows in the same order")
