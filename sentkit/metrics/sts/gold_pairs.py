"""Rows with two vectors -> similarities, gold scores and groups, in 16 bytes per row."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.rows.kinds import scored, wrong_field
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.metrics.ranks import RankSimilarity
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
    ranks: RankSimilarity | None = None  # replaces the metric
    seen: SeenPairs | None = None  # gets the pairs

    @property
    def metric_name(self) -> str:
        return self.metric if self.ranks is None else self.ranks.name

    def note_texts(self, row: VectorRow, names: Sequence[str], emb: str | None) -> None:
        """Add a pair to the pairs that are looked for in training rows."""
        if self.seen is not None:
            self.seen.add(row, names, emb)


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """Similarities of n pairs by one encoder, and gold scores; `groups[k]` is an index in `names`."""

    similarities: Float64
    gold: Float64
    groups: NDArray[np.integer] | None = None
    names: tuple[str, ...] = ()
    file: str = ""
    encoder: str | None = None
    skipped: int = 0  # rows with a null gold score
    identities: NDArray[np.int64] | None = None  # hashes of texts and gold scores, for a comparison

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


def read_gold_pairs(inputs: Inputs, path: str, options: ScoreOptions, *, paired: bool) -> GoldPairs:
    """Compute the similarities of a file. `paired`: its pairs will be compared with those of another file."""
    reader, fields = VectorReader(inputs), fields_of(inputs, path)
    texts = [fields.get(name, name) for name in ("text_a", "text_b")]
    gold, groups, identities = array("d"), array("i"), array("q")
    names: dict[str, int] = {}
    skipped = 0

    def take(row: VectorRow) -> VectorRow | None:
        """Keep the row's score, or count it as skipped."""
        nonlocal skipped
        values = expect_pair(row).row.values
        if options.ranks is not None:
            options.ranks.check(row, reader.emb)
        score = scored(row.row, options.gold)
        if options.group is not None:
            name = values.get(options.group)
            if not isinstance(name, str | int | float):
                raise wrong_field(row.row, options.group, "a string or a number")
            code = names.setdefault(str(name), len(names))
            if score is not None:
                groups.append(code)
        if score is None:
            skipped += 1
            return None
        gold.append(score)
        if paired:
            identities.append(hash((score, *(str(values.get(text)) for text in texts))))
        options.note_texts(row, texts, reader.emb)
        return row

    rows = (row for row in reader.read_file(path, take) if row is not None)
    similarities = array("d", (value for _, value in compare_rows(rows, options.ranks or options.metric)))
    if len(gold) < 2:
        raise DataError(f'{len(gold)} rows with a score in "{options.gold}", expected 2 or more', source=path)
    scores = np.frombuffer(gold, np.float64)
    if scores.min() == scores.max():  # equal similarities are valid: [CLS] at layer 0 gives them
        raise DataError(
            f'"{options.gold}" is the same in all {len(gold)} rows: the correlation is undefined', source=path
        )
    return GoldPairs(
        similarities=np.frombuffer(similarities, np.float64),
        gold=scores,
        groups=None if options.group is None else np.frombuffer(groups, np.intc),
        names=tuple(names),
        file=path,
        encoder=reader.emb,
        skipped=skipped,
        identities=np.array(identities, np.int64) if paired else None,
    )


def compare_rows(
    rows: Iterable[VectorRow], metric: str | RankSimilarity
) -> Iterator[tuple[VectorRow, float]]:
    """Each row of two vectors with their similarity."""
    similarity = SIMILARITIES[metric] if isinstance(metric, str) else metric
    for block in blocks(rows, ROWS_PER_BLOCK):
        vectors = np.stack([row.vectors for row in block])  # (b, 2, d)
        yield from zip(block, similarity(vectors[:, 0], vectors[:, 1]).tolist(), strict=True)


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
