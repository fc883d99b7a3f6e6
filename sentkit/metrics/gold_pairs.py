"""Rows with two vectors -> similarities, gold scores and groups, in 16 bytes per row."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import (
    KINDS,
    PAIR,
    class_value,
    label_value,
    score_value,
    string_value,
    wrong_field,
)
from sentkit.formats.rows.rows import Inputs, ReadCounter
from sentkit.formats.vectors.store import field_names_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.seen_pairs import SeenPairs
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.zero_vectors import ZeroVectorCounter

UNIT = 1e-2  # largest error of the length of a stored unit vector


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    gold: str  # the field with the gold score
    group: str | None = None  # the field with the group of a row
    metric: str = "cosine"
    aggregate: str = "all"
    seed: int = 0
    seen: SeenPairs | None = None  # gets the pairs
    binary: bool = False  # the scores are labels, 0 or 1
    dim: int | None = None  # also compare only so many first numbers of the vectors


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """Similarities of n pairs by one encoder, and gold scores; `groups[k]` is an index in
    `names`.
    """

    similarities: Float64
    gold: Float64  # or labels, 0.0 and 1.0
    groups: NDArray[np.integer] | None = None
    names: tuple[str, ...] = ()
    file: str = ""
    encoder: str | None = None
    skipped: int = 0  # rows with a null gold score
    identities: Sequence[int] = ()  # hashes of all but the vectors, for a comparison
    dim: int = 0  # numbers of a vector
    cut: "GoldPairs | None" = None  # the same pairs, compared by the first numbers only

    def __len__(self) -> int:
        return len(self.gold)

    def split(self) -> list["GoldPairs"]:
        """The pairs of each name, which may be none; the unchanged pairs if they have no groups."""
        if self.groups is None or not self.names:
            return [self]
        pairs_of_groups = []
        for code in range(len(self.names)):
            in_group = self.groups == code
            pairs_of_groups.append(GoldPairs(self.similarities[in_group], self.gold[in_group]))
        return pairs_of_groups

    def only(self, chosen: NDArray[np.bool_]) -> "GoldPairs":
        """The chosen pairs, in the same groups."""
        groups = None if self.groups is None else self.groups[chosen]
        return GoldPairs(self.similarities[chosen], self.gold[chosen], groups, self.names)


def read_gold_pairs(
    inputs: Inputs, path: str, options: ScoreOptions, *, with_identities: bool = False
) -> GoldPairs:
    """Compute the similarities of a file. `check_same_pairs` needs the identities of the pairs."""
    reader = VectorReader(inputs)
    fields = field_names_of(inputs, path)
    similarity = SIMILARITIES[options.metric]

    # One list entry for each block; of the rows that have a gold score.
    gold = [np.empty(0)]
    similarities = [np.empty(0)]
    similarities_of_first_numbers = [np.empty(0)]
    groups: list[str] = []
    group_names: dict[str, None] = {}  # also of rows without a score
    identities = array("q")
    zero_vectors = ZeroVectorCounter("pairs")
    rows = 0
    width = 0

    def text_fields() -> list[str]:
        """The fields of the texts, by the names of the vectors, which the first row determines."""
        kind = next((kind for kind in KINDS if kind.vector_names == reader.names), PAIR)
        return [fields.get(name, name) for name in kind.text_names]

    def check(block: VectorBlock) -> VectorBlock:
        return check_rows(block, options, text_fields())

    for block in reader.blocks(check, paths=[path]):
        scores_and_groups = block.rows.parsed
        scores = np.array([score for score, _ in scores_and_groups], np.float64)  # NaN for None
        scored_rows = np.flatnonzero(~np.isnan(scores))
        gold.append(scores[scored_rows])
        rows += len(block)
        text_fields_of_block = text_fields()
        width = block.vectors.shape[-1]
        zero_vectors.add(block.vectors[scored_rows])
        similarities.append(similarity(block.vectors[:, 0], block.vectors[:, 1])[scored_rows])
        if options.dim is not None:
            short = first_numbers(block.vectors, options.dim)
            similarities_of_first_numbers.append(similarity(short[:, 0], short[:, 1])[scored_rows])
        if options.group is not None:
            group_names |= dict.fromkeys(group for _, group in scores_and_groups)
            groups += [scores_and_groups[i][1] for i in scored_rows.tolist()]
        if with_identities:
            for i in scored_rows.tolist():
                texts = [str(block.rows.values[i].get(field)) for field in text_fields_of_block]
                score, group = scores_and_groups[i]
                # Python has the same hash for -1.0 and -2.0, but not for their texts.
                identities.append(hash((repr(float(score) + 0.0), group, *texts)))
        if options.seen is not None:
            for i in scored_rows.tolist():
                values = block.rows.values[i]
                options.seen.add(*(values[field] for field in text_fields_of_block))

    zero_vectors.warn(inputs, path)
    gold_scores = np.concatenate(gold)
    if len(gold_scores) < 2 or gold_scores.min() == gold_scores.max():
        # Equal similarities are not an error: [CLS] at layer 0 has them.
        problem = (
            f'"{options.gold}" has no two different values in {len(gold_scores)} rows that have it'
        )
        raise DataError(problem, source=path)
    # Groups with scores come first, in their order, which is equal in compared files.
    codes = {name: code for code, name in enumerate(dict.fromkeys([*groups, *group_names]))}
    pairs = GoldPairs(
        similarities=np.concatenate(similarities),
        gold=gold_scores,
        groups=None if options.group is None else np.array([codes[group] for group in groups]),
        names=tuple(codes),
        file=path,
        encoder=reader.space_name,
        skipped=rows - len(gold_scores),
        identities=identities,
        dim=width,
    )
    if options.dim is None:
        return pairs
    cut = replace(
        pairs, similarities=np.concatenate(similarities_of_first_numbers), dim=options.dim
    )
    return replace(pairs, cut=cut)


def read_baseline(inputs: Inputs, path: str, options: ScoreOptions) -> GoldPairs:
    """The pairs of --baseline. Its rows are counted apart from those of the files."""
    source = replace(inputs, paths=[path], counter=ReadCounter([path]))
    pairs = read_gold_pairs(source, path, replace(options, seen=None), with_identities=True)
    inputs.counter.bad_count += source.counter.bad_count
    return pairs


def first_numbers(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """The first numbers of vectors; those of unit length have it again, as encode --dim does."""
    width = vectors.shape[-1]
    if not 1 <= dim < width:
        raise UsageError(f"--dim {dim}: expected less than {width}, the length of the vectors")
    short = vectors[..., :dim]
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    short_lengths = np.linalg.norm(short, axis=-1, keepdims=True)
    is_unit = (abs(lengths - 1) < UNIT) & (short_lengths > 0)
    scales: NDArray[np.float32] = np.where(is_unit, short_lengths, 1).astype(np.float32)
    return short / scales


def check_rows(
    block: VectorBlock, options: ScoreOptions, text_fields: Sequence[str]
) -> VectorBlock:
    """Mark bad rows, and parse the score (None: skipped) and the group of the others."""
    rows = block.rows
    vector_count = block.vectors.shape[1]

    # Finite numbers in all rows need no parsing of each row.
    needs_parsing = options.binary or options.group or options.seen or rows.error_of_row
    if vector_count == 2 and not needs_parsing:
        column: list[Any] = [values.get(options.gold) for values in rows.values]
        are_numbers = {type(score) for score in column} <= {float, int}
        if are_numbers and np.isfinite(column).all():
            rows.parsed = [(score, None) for score in column]
            return block

    read_score = label_value if options.binary else score_value

    def parse(row: Row) -> tuple[float | None, str | None]:
        expect_pair(row, vector_count)
        score = read_score(row, options.gold)
        group = None
        if options.group is not None:
            group = group_of(row, options.group)
        if score is not None and options.seen is not None:
            for field in text_fields:
                string_value(row, field)
        return score, group

    rows.parse(parse)
    return block


def group_of(row: Row, name: str) -> str:
    """The group as a string. Unlike a class, it may be empty or have a fraction."""
    value = row.values.get(name)
    if not isinstance(value, str | int | float):
        raise wrong_field(row, name, "a string or a number")
    if value == "" or (isinstance(value, float) and not value.is_integer()):
        return str(value)
    return class_value(row, name)


def expect_pair(row: Row, vectors: int) -> None:
    if vectors != 2:
        raise row.error(f"expected 2 vectors for a gold score, this row has {vectors}")


def check_same_pairs(pairs: GoldPairs, baseline: GoldPairs) -> None:
    """Refuse a paired comparison unless both files have the same pairs in the same order.

    Both have been read with identities.
    """
    if pairs.identities != baseline.identities:
        problem = f"not the same scored pairs as in {baseline.file}"
        raise DataError(problem, source=pairs.file, advice="use the same rows in the same order")
