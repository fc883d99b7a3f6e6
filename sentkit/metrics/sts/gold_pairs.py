"""Rows with two vectors -> similarities, gold scores and groups, in 16 bytes per row."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_of, labelled, scored, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.sts.seen import SeenPairs

ROWS_PER_BLOCK = 256
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
    dims: Sequence[int] = ()  # also compare only so many first numbers of the vectors


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
    dim: int = 0  # numbers of a vector
    cut: tuple["GoldPairs", ...] = ()  # the same pairs with the first numbers only, as the options want

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
    columns = [array("d") for _ in (None, *options.dims)]  # similarities, of each width
    width = 0
    codes: dict[str, int] = {}  # of groups with scores, in their order: equal in compared files
    names: dict[str, None] = {}  # of all groups
    skipped = 0

    def check(block: VectorBlock) -> VectorBlock:
        return check_rows(block, options, texts)

    for block in resized(reader.blocks_of(path, check), joined, ROWS_PER_BLOCK):
        scores, found = zip(*block.rows.texts, strict=True)
        scored = [place for place, score in enumerate(scores) if score is not None]
        skipped += len(block) - len(scored)
        vectors, width = block.vectors[scored], block.vectors.shape[-1]
        for column, dim in zip(columns, (None, *options.dims), strict=True):
            short = vectors if dim is None else first_numbers(vectors, dim)
            column.extend(similarities_of(short, options.metric).tolist())
        names |= dict.fromkeys(group for group in found if group is not None)
        gold.extend(scores[place] for place in scored)
        if options.group is not None:
            groups.extend(codes.setdefault(found[place], len(codes)) for place in scored)
        for place in scored if paired else ():
            known = (str(block.rows.values[place].get(text)) for text in texts)
            identities.append(hash((scores[place], found[place], *known)))
        for place in scored if options.seen is not None else ():
            assert options.seen is not None
            options.seen.add(block.rows.row(place), texts)
    if len(gold) < 2:
        what = "label" if options.binary else "score"
        raise DataError(
            f'{len(gold)} rows with a {what} in "{options.gold}", expected 2 or more', source=path
        )
    values = np.frombuffer(gold, np.float64)
    if values.min() == values.max():  # equal similarities are valid: [CLS] at layer 0 gives them
        value, problem = "the same", "the correlation is undefined"
        if options.binary:
            value, problem = f"{values[0]:g}", "the scores need pairs with 0 and pairs with 1"
        raise DataError(f'"{options.gold}" is {value} in all {len(gold)} rows: {problem}', source=path)
    whole, *others = (np.frombuffer(column, np.float64) for column in columns)
    pairs = GoldPairs(
        similarities=whole,
        gold=values,
        groups=None if options.group is None else np.frombuffer(groups, np.intc),
        names=tuple(dict.fromkeys([*codes, *names])),
        file=path,
        encoder=reader.emb,
        skipped=skipped,
        identities=np.array(identities, np.int64) if paired else None,
        dim=width,
    )
    cut = [replace(pairs, similarities=each, dim=dim) for each, dim in zip(others, options.dims, strict=True)]
    return replace(pairs, cut=tuple(cut))


def first_numbers(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """The first numbers of vectors; those of unit length have it again, as encode --dim does."""
    if not 1 <= dim < vectors.shape[-1]:
        raise UsageError(f"--dim {dim}: the vectors have only {vectors.shape[-1]} numbers")
    short, lengths = vectors[..., :dim], np.linalg.norm(vectors, axis=-1, keepdims=True)
    own = np.linalg.norm(short, axis=-1, keepdims=True)
    scales: NDArray[np.float32] = np.where((abs(lengths - 1) < UNIT) & (own > 0), own, 1).astype(np.float32)
    return short / scales


def check_rows(block: VectorBlock, options: ScoreOptions, texts: Sequence[str]) -> VectorBlock:
    """Check everything that can refuse a row, before any of its values is used. `texts` are fields.

    The rows then have their score, which is None if they are skipped, and their group, if there are groups.
    """
    read = labelled if options.binary else scored
    for place, row in enumerate(block.rows):
        score = group = None
        try:
            if place not in block.rows.bad:
                expect_pair(row, len(block.vectors[place]))
                score = read(row, options.gold)
                group = None if options.group is None else group_of(row, options.group)
                if score is not None and options.seen is not None:
                    options.seen.check(row, texts)
        except DataError as error:
            block.rows.bad[place] = error
        block.rows.texts.append((score, group))
    return block


def group_of(row: Row, name: str) -> str:
    """The group as a string. Unlike a class, it may be empty or have a fraction."""
    value = row.values.get(name)
    if not isinstance(value, str | int | float):
        raise wrong_field(row, name, "a string or a number")
    if value == "" or (isinstance(value, float) and not value.is_integer()):
        return str(value)
    return class_of(row, name)


def similarities_of(vectors: NDArray[np.float32], metric: str) -> NDArray[np.float64]:
    """The similarity of the two vectors of each row, (n, 2, d)."""
    similarity = SIMILARITIES[metric] if isinstance(metric, str) else metric
    return similarity(vectors[:, 0], vectors[:, 1]) if len(vectors) else np.empty(0)


def expect_pair(row: Row, vectors: int) -> None:
    if vectors != 2:
        raise row.error(f"expected 2 vectors for a gold score, this row has {vectors}")


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
