"""The report of `inspect` about a vector file, rows with vectors, or a transform, and about their
geometry.

The geometry of a vector space needs one pass and constant memory: directions, alignment,
covariance, axes.

Wang and Isola (arXiv:2005.10242) define uniformity on the unit sphere, so vectors are scaled to
length 1. The moments of an axis are sums of centred rows, because a mean far from zero would lose
precision. Higher sums are combined by the formulas of Pebay (2008). The result of a measure is None
if it is undefined.

Letters in shapes: n rows, d dimensions.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import NoRowsError, UsageError
from sentkit.formats.files import is_folder, is_safetensors, shown_path
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import score_value
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.tensors import Header, read_header
from sentkit.formats.vectors.vector_file import VectorSource
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
)
from sentkit.metrics.gold_pairs import expect_pair
from sentkit.metrics.similarity import lengths
from sentkit.transforms.flow import PARAMETERS
from sentkit.transforms.kinds import FLOOR, MAX_SCATTER_WIDTH, MOMENTS, Moments, moments_of
from sentkit.transforms.steps import read_fit_note, read_transform

SAMPLE_VECTORS = 20_000  # vectors; the distances of all their pairs are computed
# Rows and columns of a block.
BLOCK_ROWS = 512
BLOCK_COLUMNS = 2048


def nonzero_directions(rows: Float64) -> Float64:
    """Scale rows to length 1, (n, d) -> (m, d); zero vectors are omitted."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    is_nonzero = lengths > 0
    return rows[is_nonzero] / lengths[is_nonzero, None]


class Directions:
    """The sum of unit vectors, and a uniform random sample of them (algorithm R)."""

    def __init__(self, width: int, seed: int) -> None:
        self.count = 0  # of the added vectors
        self.total = np.zeros(width)
        self.sample = np.empty((0, width), np.float32)
        self.random = np.random.Generator(np.random.Philox(seed))

    def add(self, units: Float64) -> None:
        """Add unit vectors (n, d)."""
        self.total += units.sum(axis=0)
        # The first rows fill the sample.
        first = units[: SAMPLE_VECTORS - len(self.sample)]
        if len(first):
            self.sample = np.concatenate([self.sample, first.astype(np.float32)])
        self.count += len(first)
        # From here on, row number k replaces a random sampled row with probability SAMPLE_VECTORS /
        # k.
        remaining = units[len(first) :]
        row_numbers = np.arange(self.count, self.count + len(remaining)) + 1
        indices = self.random.integers(0, row_numbers)
        chosen = np.flatnonzero(indices < SAMPLE_VECTORS)
        # of two rows at one index the later one is kept
        self.sample[indices[chosen]] = remaining[chosen]
        self.count += len(remaining)

    def mean_cosine(self) -> float | None:
        """The mean over all pairs of two rows: the squared sum of unit vectors, minus each row's
        own 1.
        """
        if self.count < 2:
            return None
        mean = (self.total @ self.total - self.count) / (self.count * (self.count - 1))
        return min(1.0, max(-1.0, float(mean)))  # limit rounding errors


def uniformity(units: Float32) -> float | None:
    """Log mean exp(-2 |x - y|^2) over all pairs of rows (n, d), equal rows included; lower is more
    even.
    """
    count = len(units)
    if count < 2:
        return None
    total = 0.0
    for top in range(0, count, BLOCK_ROWS):
        rows = units[top : top + BLOCK_ROWS]
        for start in range(top, count, BLOCK_COLUMNS):
            block = rows @ units[start : start + BLOCK_COLUMNS].T
            block -= 1.0
            block *= 4.0  # -2 |x - y|^2 of two unit vectors
            np.exp(block, out=block)
            if start < top + BLOCK_ROWS:  # the block is on the diagonal: each pair counts once
                block = np.triu(block, top - start + 1)
            total += float(block.sum(dtype=np.float64))
    return math.log(total / (count * (count - 1) / 2))


@dataclass(slots=True)
class Alignment:
    """The mean |a - b|^2 of unit vectors over pairs with a score above a threshold."""

    gold: str  # the field with the gold score
    above: float = 4.0  # as in SimCSE (arXiv:2104.08821)
    pairs: int = 0
    unscored: int = 0  # rows with a null score
    left_out: int = 0  # pairs above the threshold with a vector that is zero, NaN or infinite
    total: float = 0.0

    def check(self, block: VectorBlock) -> VectorBlock:
        """Read the score of each pair."""
        count = block.vectors.shape[1]

        def parse(row: Row) -> float | None:
            expect_pair(row, count)
            return score_value(row, self.gold)

        block.rows.parse(parse)
        return block

    def add(self, block: VectorBlock) -> None:
        for vectors, score in zip(block.vectors, block.rows.parsed, strict=True):
            if score is None:
                self.unscored += 1
                continue
            if score <= self.above:
                continue
            finite = vectors[np.isfinite(vectors).all(axis=1)]
            units = nonzero_directions(finite.astype(np.float64))
            if len(units) < 2:
                self.left_out += 1
                continue
            difference = units[0] - units[1]
            self.pairs += 1
            self.total += float(difference @ difference)

    def record(self) -> dict[str, Any]:
        return {
            "alignment": self.total / self.pairs if self.pairs else None,
            "alignment_pairs": {
                "gold": self.gold,
                "above": self.above,
                "pairs": self.pairs,
                "unscored": self.unscored,
                "left_out": self.left_out,
            },
        }


class AxisMoments:
    """Sums over the rows added so far; the third and fourth powers are (d,)."""

    def __init__(self, width: int) -> None:
        self.axes = Moments(0, np.zeros(width), np.zeros((width, width)))
        self.third = np.zeros(width)
        self.fourth = np.zeros(width)

    def add(self, rows: Float64) -> None:
        """Add rows (n, d), n >= 1: combine sums about the mean of all rows."""
        # Sums of these rows about their own mean.
        new = moments_of(rows)
        centred = rows - new.mean
        squares = centred * centred
        third = (squares * centred).sum(axis=0)
        fourth = (squares * squares).sum(axis=0)

        # Pebay's formulas: p is the share of the rows before, q that of these rows, delta their
        # distance.
        n_before = float(self.axes.count)
        n_all = float(self.axes.count + new.count)
        p = n_before / n_all
        q = new.count / n_all
        delta = new.mean - self.axes.mean
        # Highest power first: each uses the old lower powers.
        self.fourth += fourth + delta**4 * (n_before * q * (p**2 - p * q + q**2))
        self.fourth += 6 * delta**2 * (p**2 * new.squares + q**2 * self.axes.squares)
        self.fourth += 4 * delta * (p * third - q * self.third)
        self.third += third + delta**3 * (n_before * q * (p - q))
        self.third += 3 * delta * (p * new.squares - q * self.axes.squares)
        self.axes += new

    def skewness_and_kurtosis(self) -> tuple[Indices, Float64, Float64]:
        """The non-constant axes (v,), their skewness and their excess kurtosis (population
        formulas).
        """
        count = self.axes.count
        axes = np.flatnonzero(self.axes.squares)  # the sum of a constant axis is exactly zero
        variance = self.axes.squares[axes] / count
        skewness = self.third[axes] / count / variance**1.5
        kurtosis = self.fourth[axes] / count / variance**2 - 3.0
        return axes, skewness, kurtosis


def eigenvalues(scatter: Float64) -> Float64:
    """In descending order, (d,); negative rounding errors become zero."""
    return np.maximum(np.linalg.eigvalsh(scatter)[::-1], 0.0)


def spectrum(values: Float64) -> dict[str, Any]:
    """Measures of the eigenvalues of a covariance, of which only the ratios matter.

    IsoScore (arXiv:2108.07344) is 1 for equal variance in all directions, and 0 for variance in one
    direction only. In closed form it is (p - 1) / (d - 1), with the participation ratio p = (sum
    l)^2 / sum l^2. The effective rank is the number of equal eigenvalues with the same entropy (Roy
    and Vetterli, 2007).
    """
    rank = int((values > FLOOR * values.max(initial=0.0)).sum())
    if not rank:
        component_share = dict.fromkeys(("first", "first_3", "first_10"))
        return {
            "isoscore": None,
            "effective_rank": None,
            "rank": 0,
            "component_share": component_share,
        }
    width = len(values)
    shares = values / (values.sum() or 1.0)
    positive = shares[shares > 0]
    isoscore = None
    if width > 1:
        participation_ratio = 1 / (positive @ positive)
        isoscore = float((participation_ratio - 1) / (width - 1))
    entropy = -float(positive @ np.log(positive))
    return {
        "isoscore": isoscore,
        "effective_rank": math.exp(entropy),
        "rank": rank,
        "component_share": {
            "first": float(shares[:1].sum()),
            "first_3": float(shares[:3].sum()),
            "first_10": float(shares[:10].sum()),
        },
    }


def mean_absolute_correlation(scatter: Float64) -> float | None:
    """The mean over all pairs of two non-constant axes; None without such a pair."""
    lengths = np.sqrt(np.diagonal(scatter))
    axes = np.flatnonzero(lengths)
    if len(axes) < 2:
        return None
    correlations = np.abs(scatter[np.ix_(axes, axes)])
    correlations /= lengths[axes]
    correlations /= lengths[axes, None]
    np.fill_diagonal(correlations, 0.0)
    return float(correlations.sum() / (len(axes) * (len(axes) - 1)))


ROWS_PER_BLOCK = 1024  # rows processed at once
SEED = 0  # of the sample for the uniformity


def geometry_of(
    blocks: Iterator[Float32], counter: "VectorCounter", alignment: Alignment | None
) -> dict[str, Any]:
    """The report about finite vectors; None for values that too few or equal vectors leave
    undefined.

    `blocks` have one size, so that those of the input do not affect the result. `counter` counts
    them all.
    """
    first = next(blocks, None)  # the counter knows the width when a block has been read
    width = counter.width
    if width > MAX_SCATTER_WIDTH:  # its covariance needs too much memory
        problem = f"vectors of {width} numbers: inspect has no geometry above {MAX_SCATTER_WIDTH}"
        raise UsageError(problem, advice="use --no-geometry")
    moments = AxisMoments(width)
    directions = Directions(width, SEED)
    if first is not None:
        for rows in chain([first], blocks):
            wide = rows.astype(np.float64)
            moments.add(wide)
            directions.add(nonzero_directions(wide))

    # Spectra about the mean and about zero.
    mean = moments.axes.mean
    scatter = moments.axes.scatter
    covariance = spectrum(eigenvalues(scatter))
    about_zero = spectrum(eigenvalues(scatter + moments.axes.count * np.outer(mean, mean)))
    covariance["component_share"]["first_uncentred"] = about_zero["component_share"]["first"]

    sample = directions.sample
    uniformity_sample = None
    if directions.count > len(sample):
        uniformity_sample = {"vectors": len(sample), "seed": SEED}
    return {
        "vectors": moments.axes.count,
        "left_out": counter.broken,
        "directions": directions.count,
        "mean_cosine": directions.mean_cosine(),
        "uniformity": uniformity(sample),
        "uniformity_sample": uniformity_sample,
        **(alignment.record() if alignment else {}),
        **covariance,
        "axis_correlation": mean_absolute_correlation(scatter),
        **axes_record(moments),
    }


def axes_record(sums: AxisMoments) -> dict[str, Any]:
    """The distribution along the axes, with the axes furthest from a normal distribution."""
    axes, skewness, kurtosis = sums.skewness_and_kurtosis()
    skewness_record: dict[str, Any] = {"mean_absolute": None, "largest": None, "axis": None}
    kurtosis_record: dict[str, Any] = {"mean": None, "max": None, "axis": None}
    if len(axes):
        magnitudes = np.abs(skewness)
        i = int(magnitudes.argmax())
        skewness_record = {
            "mean_absolute": float(magnitudes.mean()),
            "largest": float(skewness[i]),
            "axis": int(axes[i]),
        }
        i = int(kurtosis.argmax())
        kurtosis_record = {
            "mean": float(kurtosis.mean()),
            "max": float(kurtosis[i]),
            "axis": int(axes[i]),
        }
    return {
        "constant_axes": len(sums.axes.mean) - len(axes),
        "skewness": skewness_record,
        "excess_kurtosis": kurtosis_record,
    }


def describe_transform(path: str) -> dict[str, Any]:
    """The fields of its note, with `_emb` renamed to `fitted_on`, and the shapes of its tensors."""
    header = read_header(path)
    note = read_fit_note(path)
    if note.get("kind") == "map" or "offset" in header.entries:
        read_transform(path)  # refuses a damaged map, which has a digest
    record = {"file": shown_path(path), "kind": note.pop("kind", "affine")}
    if "kernel" in header.entries:
        record |= dict(zip(("width", "kept"), header.entries["kernel"].shape, strict=False))
    computed = {
        **record,
        "fitted_on": note.pop("_emb", None),
        "mergeable": header.entries.keys() >= set(MOMENTS),
    }
    # The fields of the note come between, in their order, but do not change what is computed.
    return record | note | computed | {"tensors": shapes(header)}


def describe_classifier(path: str) -> dict[str, Any]:
    """The fields of the note of `probe -o`, with `_emb` renamed to `fitted_on`, and the shapes of
    its tensors.
    """
    note = read_fit_note(path)
    note.pop("file", None)  # it would replace the path
    record = {"file": shown_path(path), "kind": note.pop("kind", None)}
    computed = {"fitted_on": note.pop("_emb", None), "tensors": shapes(read_header(path))}
    return record | note | computed


class VectorCounter:
    """Counts over blocks of vectors. Duplicates are found by a hash of eight bytes for each."""

    def __init__(self) -> None:
        self.count = 0
        self.broken = 0  # vectors with NaN or infinity
        self.width = 0
        self.hashes = list[Indices]()
        self.norms = list[Float64]()  # of finite vectors

    def add(self, vectors: Float32) -> Float32:
        """Add vectors (n, d) and return the finite ones."""
        self.count += len(vectors)
        self.width = vectors.shape[1]
        hashes = [hash(row.tobytes()) for row in vectors]
        self.hashes.append(np.array(hashes, np.int64))
        is_finite = np.isfinite(vectors).all(axis=1)
        self.broken += int((~is_finite).sum())
        finite = vectors[is_finite]
        self.norms.append(lengths(finite))
        return finite

    def record(self) -> dict[str, Any]:
        distinct = 0
        if self.hashes:
            distinct = len(np.unique(np.concatenate(self.hashes)))
        norms = np.concatenate([np.empty(0), *self.norms])
        norm_record = None
        if len(norms):
            norm_record = {
                "min": float(norms.min()),
                "mean": float(norms.mean()),
                "max": float(norms.max()),
            }
        return {
            "vectors": self.count,
            "numbers": self.width,  # of one vector
            "norm": norm_record,
            "zero": int((norms == 0).sum()),
            "nan_or_infinite": self.broken,
            "duplicates": self.count - distinct,
        }


DESCRIBED_ROWS = 256  # rows of a block


def describe_vectors(
    inputs: Inputs, alignment: Alignment | None = None, *, geometry: bool = False
) -> dict[str, Any]:
    """Describe the only file of the inputs. An alignment needs rows."""
    (path,) = inputs.paths
    reader = VectorReader(inputs, finite=False)  # vectors with NaN or infinity are counted

    # A transform, or for example a shard of a model.
    if is_safetensors(path) and not is_folder(path):
        header = read_header(path)
        names = header.entries.keys()
        if names and "embeddings" not in names:
            if {"kernel", "bias"} <= names or names == {PARAMETERS}:
                return describe_transform(path)
            if names == {"weight", "bias"} and "sentkit" in header.metadata:
                return describe_classifier(path)
            return {
                "file": shown_path(path),
                "tensors": shapes(header),
                "metadata": dict(header.metadata),
            }

    store: VectorSource | None = inputs.open_vector_file(path)
    if store is None:
        counts = measured(stacked(reader, alignment), alignment, geometry=geometry)
        rows = counts["vectors"] // max(1, len(reader.names))
        if not rows:
            raise NoRowsError([path])
        record = {"file": shown_path(path), "rows": rows, "vectors_per_row": list(reader.names)}
        return {**record, **counts, "spec": {"_emb": reader.space_name}}
    vectors = stacked(reader, alignment) if alignment else store.blocks()
    return {
        "file": shown_path(path),
        "rows": store.count,
        "vectors_per_row": list(store.names),
        "store": store.kind,
        **measured(vectors, alignment, geometry=geometry),
        "spec": {name: value for name, value in store.metadata.items() if name != "vectors"},
    }


def measured(
    blocks: Iterable[Float32], alignment: Alignment | None, *, geometry: bool
) -> dict[str, Any]:
    """Count the vectors of blocks (n, k, d), and measure their geometry if requested, in
    one pass.
    """
    counter = VectorCounter()
    if not geometry:
        for block in blocks:
            counter.add(vectors_as_rows(block))
        return counter.record()
    finite = (counter.add(vectors_as_rows(block)) for block in blocks)
    blocks_of_one_size = in_blocks_of_size(finite, np.concatenate, ROWS_PER_BLOCK)
    record = {"geometry": geometry_of(blocks_of_one_size, counter, alignment)}
    return counter.record() | record


def vectors_as_rows(block: Float32) -> Float32:
    """(n, k, d) -> (n k, d)."""
    return block.reshape(-1, block.shape[-1])


def stacked(reader: VectorReader, alignment: Alignment | None) -> Iterator[Float32]:
    """The vectors of rows in blocks (n, k, d); the alignment gets the rows."""
    blocks = reader.blocks(alignment.check) if alignment else reader.blocks()
    for block in in_blocks_of_size(blocks, joined_vector_blocks, DESCRIBED_ROWS):
        if alignment is not None:
            alignment.add(block)
        yield block.vectors


def shapes(header: Header) -> dict[str, str]:
    """The type and shape of each tensor, as in "F32 768 x 256"."""
    described = {}
    for name, entry in header.entries.items():
        described[name] = f"{entry.dtype} {' x '.join(map(str, entry.shape))}"
    return described
