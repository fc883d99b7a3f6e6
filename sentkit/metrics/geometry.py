"""The report of `inspect` about a vector file, rows with vectors, or a transform, and about their geometry.

The geometry of a vector space needs one pass and constant memory: directions, alignment, covariance, axes.

Wang and Isola (arXiv:2005.10242) define uniformity on the unit sphere, so vectors are scaled to length 1. The
moments of an axis are sums of centred rows, because a mean far from zero would lose precision. Higher sums
are combined by the formulas of Pebay (2008). The result of a measure is None if it is undefined.
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
from sentkit.formats.files import is_folder, is_safetensors, readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import scored
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.tensors import Header, read_header
from sentkit.formats.vectors.vector_file import VectorSource
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.metrics.gold_pairs import expect_pair
from sentkit.metrics.similarity import lengths
from sentkit.transforms.flow import PARAMETERS
from sentkit.transforms.kinds import FLOOR, MAX_SCATTER_WIDTH, MOMENTS, Moments, moments_of
from sentkit.transforms.steps import read_fit_note

SAMPLE_VECTORS = 20_000  # vectors; the distances of all their pairs are computed
LEFT_ROWS, RIGHT_ROWS = 512, 2048  # rows and columns of a block


def nonzero_directions(rows: Float64) -> Float64:
    """Scale rows to length 1, (n, d) -> (m, d); zero vectors are omitted."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    return rows[lengths > 0] / lengths[lengths > 0, None]


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
        fitting = units[: SAMPLE_VECTORS - len(self.sample)]
        if len(fitting):
            self.sample = np.concatenate([self.sample, fitting.astype(np.float32)])
        self.count += len(fitting)
        # Row number k of the others replaces a random sampled row with probability SAMPLE_VECTORS / k.
        others = units[len(fitting) :]
        places = self.random.integers(0, np.arange(self.count, self.count + len(others)) + 1)
        chosen = np.flatnonzero(places < len(self.sample))
        self.sample[places[chosen]] = others[chosen]  # of two rows at one index the later one is kept
        self.count += len(others)

    def mean_cosine(self) -> float | None:
        """The mean over all pairs of two rows: the squared sum of unit vectors, minus each row's own 1."""
        if self.count < 2:
            return None
        mean = (self.total @ self.total - self.count) / (self.count * (self.count - 1))
        return min(1.0, max(-1.0, float(mean)))  # limit rounding errors


def uniformity(units: Float32) -> float | None:
    """Log mean exp(-2 |x - y|^2) over all pairs of rows (n, d), equal rows included; lower is more even."""
    count, total = len(units), 0.0
    if count < 2:
        return None
    for top in range(0, count, LEFT_ROWS):
        rows = units[top : top + LEFT_ROWS]
        for start in range(top, count, RIGHT_ROWS):
            block = rows @ units[start : start + RIGHT_ROWS].T
            block -= 1.0
            block *= 4.0  # -2 |x - y|^2 of two unit vectors
            np.exp(block, out=block)
            if start < top + LEFT_ROWS:
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
        """Set the score of each pair as its text."""
        count = block.vectors.shape[1]

        def parse(row: Row) -> float | None:
            expect_pair(row, count)
            return scored(row, self.gold)

        block.rows.parse(parse)
        return block

    def add(self, block: VectorBlock) -> None:
        for vectors, [score] in zip(block.vectors, block.rows.texts, strict=True):
            if score is None:
                self.unscored += 1
            elif score > self.above:
                finite = vectors[np.isfinite(vectors).all(axis=1)]
                units = nonzero_directions(finite.astype(np.float64))
                if len(units) < 2:
                    self.left_out += 1
                else:
                    gap = units[0] - units[1]
                    self.pairs += 1
                    self.total += float(gap @ gap)

    def record(self) -> dict[str, Any]:
        counts = {"pairs": self.pairs, "unscored": self.unscored, "left_out": self.left_out}
        return {
            "alignment": self.total / self.pairs if self.pairs else None,
            "alignment_pairs": {"gold": self.gold, "above": self.above, **counts},
        }


class AxisMoments:
    """Sums over the rows added so far; the third and fourth powers are (d,)."""

    def __init__(self, width: int) -> None:
        nothing = np.zeros(width)
        self.axes = Moments(0, nothing, np.zeros((width, width)))
        self.third, self.fourth = np.zeros(width), np.zeros(width)

    def add(self, rows: Float64) -> None:
        """Add rows (n, d), n >= 1: combine sums about the mean of all rows."""
        more = moments_of(rows)
        centred = rows - more.mean
        squares = centred * centred
        third, fourth = (squares * centred).sum(axis=0), (squares * squares).sum(axis=0)
        before, count = float(self.axes.count), float(self.axes.count + more.count)
        share, left, gap = more.count / count, before / count, more.mean - self.axes.mean
        # Highest power first: each uses the old lower powers.
        self.fourth += fourth + gap**4 * (before * share * (left**2 - left * share + share**2))
        self.fourth += 6 * gap**2 * (left**2 * more.squares + share**2 * self.axes.squares)
        self.fourth += 4 * gap * (left * third - share * self.third)
        self.third += third + gap**3 * (before * share * (left - share))
        self.third += 3 * gap * (left * more.squares - share * self.axes.squares)
        self.axes += more

    def shapes(self) -> tuple[Indices, Float64, Float64]:
        """The non-constant axes (v,), their skewness and their excess kurtosis (population formulas)."""
        axes = np.flatnonzero(self.axes.squares)  # the sum of a constant axis is exactly zero
        second, third, fourth = (
            sums[axes] / self.axes.count for sums in (self.axes.squares, self.third, self.fourth)
        )
        return axes, third / second**1.5, fourth / second**2 - 3.0


def eigenvalues(scatter: Float64) -> Float64:
    """In descending order, (d,); negative rounding errors become zero."""
    return np.maximum(np.linalg.eigvalsh(scatter)[::-1], 0.0)


def spectrum(values: Float64) -> dict[str, Any]:
    """Measures of the eigenvalues of a covariance, of which only the ratios matter.

    IsoScore (arXiv:2108.07344) is 1 for equal variance in all directions, and 0 for variance in one direction
    only. In closed form it is (p - 1) / (d - 1), with the participation ratio p = (sum l)^2 / sum l^2.
    The effective rank is the number of equal eigenvalues with the same entropy (Roy and Vetterli, 2007).
    """
    rank = int((values > FLOOR * values.max(initial=0.0)).sum())
    shares = values / (values.sum() or 1.0)
    some = shares[shares > 0]
    return {
        "isoscore": float((1 / (some @ some) - 1) / (len(values) - 1)) if rank and len(values) > 1 else None,
        "effective_rank": math.exp(-float(some @ np.log(some))) if rank else None,
        "rank": rank,
        "component_share": {
            name: float(shares[:count].sum()) if rank else None
            for name, count in (("first", 1), ("first_3", 3), ("first_10", 10))
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
    """The report about finite vectors; None for values that too few or equal vectors leave undefined.

    `blocks` have one size, so that those of the input do not affect the result. `counter` counts them all.
    """
    first = next(blocks, None)
    width = counter.width
    if width > MAX_SCATTER_WIDTH:  # its covariance needs too much memory
        problem = f"vectors of {width} numbers: inspect has no geometry above {MAX_SCATTER_WIDTH}"
        raise UsageError(problem, advice="use --no-geometry")
    moments, directions = AxisMoments(width), Directions(width, SEED)
    for rows in chain([] if first is None else [first], blocks):
        wide = rows.astype(np.float64)
        moments.add(wide)
        directions.add(nonzero_directions(wide))
    sample, mean, scatter = directions.sample, moments.axes.mean, moments.axes.scatter
    sampled = directions.count > len(sample)
    covariance = spectrum(eigenvalues(scatter))
    about_zero = spectrum(eigenvalues(scatter + moments.axes.count * np.outer(mean, mean)))
    covariance["component_share"]["first_uncentred"] = about_zero["component_share"]["first"]
    return {
        "vectors": moments.axes.count,
        "left_out": counter.broken,
        "directions": directions.count,
        "mean_cosine": directions.mean_cosine(),
        "uniformity": uniformity(sample),
        "uniformity_sample": {"vectors": len(sample), "seed": SEED} if sampled else None,
        **(alignment.record() if alignment else {}),
        **covariance,
        "axis_correlation": mean_absolute_correlation(scatter),
        **axes_record(moments),
    }


def axes_record(sums: AxisMoments) -> dict[str, Any]:
    """The distribution along the axes, with the axes furthest from a normal distribution."""
    axes, skewness, kurtosis = sums.shapes()
    skewed: dict[str, Any] = dict.fromkeys(("mean_absolute", "largest", "axis"))
    heavy: dict[str, Any] = dict.fromkeys(("mean", "max", "axis"))
    if len(axes):
        sizes = np.abs(skewness)
        most, heaviest = int(sizes.argmax()), int(kurtosis.argmax())
        found = float(sizes.mean()), float(skewness[most]), int(axes[most])
        skewed = dict(zip(skewed, found, strict=True))
        found = float(kurtosis.mean()), float(kurtosis[heaviest]), int(axes[heaviest])
        heavy = dict(zip(heavy, found, strict=True))
    constant = len(sums.axes.mean) - len(axes)
    return {"constant_axes": constant, "skewness": skewed, "excess_kurtosis": heavy}


def describe_transform(path: str) -> dict[str, Any]:
    """The fields of its note, with `_emb` renamed to `fitted_on`, and the shapes of its tensors."""
    header, note = read_header(path), read_fit_note(path)
    kernel = header.entries["kernel"].shape if "kernel" in header.entries else ()
    known = {
        "file": readable(path),
        "kind": note.pop("kind", "affine"),
        **dict(zip(("width", "kept"), kernel, strict=False)),
    }
    own = {"fitted_on": note.pop("_emb", None), "mergeable": header.entries.keys() >= set(MOMENTS)}
    return known | note | known | own | {"tensors": shapes(header)}  # the note cannot change what is known


class VectorCounter:
    """Counts over blocks of vectors. Duplicates are found by a hash of eight bytes for each."""

    def __init__(self) -> None:
        self.count = self.broken = self.width = 0
        self.hashes, self.norms = list[Indices](), list[Float64]()  # those of finite vectors

    def add(self, vectors: Float32) -> Float32:
        """Add vectors (n, d) and return the finite ones."""
        self.count += len(vectors)
        self.width = vectors.shape[1]
        self.hashes.append(np.array([hash(row.tobytes()) for row in vectors], np.int64))
        whole = np.isfinite(vectors).all(axis=1)
        self.broken += int((~whole).sum())
        finite = vectors[whole]
        self.norms.append(lengths(finite))
        return finite

    def record(self) -> dict[str, Any]:
        distinct = len(np.unique(np.concatenate(self.hashes))) if self.hashes else 0
        norms = np.concatenate([np.empty(0), *self.norms])
        measures: dict[str, Any] = {"min": np.min, "mean": np.mean, "max": np.max}
        return {
            "vectors": self.count,
            "numbers": self.width,  # of one vector
            "norm": {name: float(of(norms)) for name, of in measures.items()} if len(norms) else None,
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
    if is_safetensors(path) and not is_folder(path):
        header = read_header(path)
        names = header.entries.keys()
        if names and "embeddings" not in names:
            if {"kernel", "bias"} <= names or names == {PARAMETERS}:
                return describe_transform(path)
            # For example, a part of a model.
            return {"file": readable(path), "tensors": shapes(header), "metadata": dict(header.metadata)}
    file: VectorSource | None = inputs.vector_file(path)
    if file is not None:
        vectors = stacked(reader, alignment) if alignment else file.blocks()
        described = {"rows": file.count, "vectors_per_row": list(file.names), "store": file.kind}
        described |= measured(vectors, alignment, geometry=geometry)
        spec = {name: value for name, value in file.spec.items() if name != "vectors"}
        return {"file": readable(path), **described, "spec": spec}
    counted = measured(stacked(reader, alignment), alignment, geometry=geometry)
    rows = counted["vectors"] // max(1, len(reader.names))
    if not rows:
        raise NoRowsError([path])
    described = {"rows": rows, "vectors_per_row": list(reader.names), **counted}
    return {"file": readable(path), **described, "spec": {"_emb": reader.emb}}


def measured(blocks: Iterable[Float32], alignment: Alignment | None, *, geometry: bool) -> dict[str, Any]:
    """Count the vectors of blocks (n, k, d), and measure their geometry if requested, in one pass."""
    counter = VectorCounter()
    finite = (counter.add(block.reshape(-1, block.shape[-1])) for block in blocks)
    if geometry:
        same_size = resized(finite, np.concatenate, ROWS_PER_BLOCK)
        found = {"geometry": geometry_of(same_size, counter, alignment)}
        return counter.record() | found
    for _ in finite:
        pass
    return counter.record()


def stacked(reader: VectorReader, alignment: Alignment | None) -> Iterator[Float32]:
    blocks = reader.blocks(alignment.check) if alignment else reader.blocks()
    for block in resized(blocks, joined, DESCRIBED_ROWS):
        if alignment is not None:
            alignment.add(block)
        yield block.vectors


def shapes(header: Header) -> dict[str, str]:
    return {name: f"{each.dtype} {' x '.join(map(str, each.shape))}" for name, each in header.entries.items()}
