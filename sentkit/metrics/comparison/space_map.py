"""Fits a map to two encodings of the same texts, and measures it on texts that the fit leaves out.

Letters in shapes: m vectors of a block, s held-out vectors, d and e dimensions of both spaces.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError
from sentkit.formats.files import shown_path
from sentkit.formats.vectors.fingerprint import UNNAMED
from sentkit.formats.vectors.tensors import put_arrays
from sentkit.formats.vectors.vectors import in_blocks_of_size
from sentkit.metrics.comparison.differences import Lowest
from sentkit.metrics.comparison.matches import VECTORS_PER_BLOCK, Matches, Sides, joined_matches
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.statistics import multiplicities, percentile_interval, resamples_for
from sentkit.transforms.fitting import check_width
from sentkit.transforms.maps import (
    PairMoments,
    SpaceMap,
    orthogonal_map,
    pair_moments_of,
    ridge_map,
)
from sentkit.transforms.steps import dense_layer, digest_of_map

KIND = "map"
HELD_OUT = 10  # one text in so many
EVALUATED = 10_000  # held-out vectors for the cosines and the neighbours
FEWEST = 12  # held-out vectors, so that each has ten neighbours and one that is none
TOP = 10


@dataclass(frozen=True, slots=True)
class FittedMap:
    space_map: SpaceMap
    note: Mapping[str, Any]  # the metadata of the file
    warnings: tuple[str, ...]

    def write(self, file: BinaryIO) -> None:
        arrays = {
            "kernel": self.space_map.kernel,
            "bias": (0.0 - self.space_map.mean_old)[np.newaxis],
            "offset": self.space_map.mean_new,
        }
        put_arrays(file, arrays, {"sentkit": orjson.dumps(self.note).decode()})

    @property
    def report(self) -> str:
        """The map and its measures, in one sentence for people."""
        note = self.note
        name = "orthogonal map"
        if note["penalty"] is not None:
            name = f"ridge map (penalty {note['penalty']:.2g})"
        measures = note["held_out"]
        return (
            f"{name} of {note['width']} to {note['kept']} numbers, fitted to {note['vectors']:,} "
            f"vectors; on {measures['vectors']:,} held-out ones: "
            f"cosine {with_interval(measures['cosine'])}, "
            f"{TOP} nearest neighbours kept {with_interval(measures['neighbours'])}"
        )


def with_interval(measure: Mapping[str, Any]) -> str:
    low, high = measure["interval"]
    return f"{measure['mean']:.4f} [{low:.4f}, {high:.4f}]"


def fit_map(sides: Sides, key: str | None, output: str) -> FittedMap:
    """Fit a map from the space of A to that of B, in one pass and constant memory.

    The map is orthogonal if the widths agree, otherwise a ridge regression. One text in ten is left
    out of the fit. It chooses the penalty, and the measures are of at most `EVALUATED` such texts.
    """
    # Sums of the fitted and of the held-out pairs, and a sample of the latter.
    fitted: PairMoments | None = None
    held_out: PairMoments | None = None
    evaluated = Lowest(EVALUATED)
    vector_count = 0  # of each file
    digests = [hashlib.blake2b(digest_size=16) for _ in sides.paths]  # of the vectors of each file
    zero_count = 0
    for block in in_blocks_of_size(sides.matches(key), joined_matches, VECTORS_PER_BLOCK):
        for reader, path in zip(sides.readers, sides.paths, strict=True):
            check_width(reader.width, path)
        vector_count += len(block)
        for file_digest, vectors in zip(digests, (block.a, block.b), strict=True):
            file_digest.update(vectors.astype("<f4", copy=False).tobytes())
        is_zero = ~(block.a.any(axis=1) & block.b.any(axis=1))
        zero_count += int(is_zero.sum())
        pairs = block[np.flatnonzero(~is_zero)]
        hashes = hashes_of(pairs.a)
        is_held_out = hashes % HELD_OUT == 0
        fitted = added(fitted, pairs[np.flatnonzero(~is_held_out)])
        held_out_pairs = pairs[np.flatnonzero(is_held_out)]
        held_out = added(held_out, held_out_pairs)
        evaluated.add(hashes[is_held_out].astype(np.float64), held_out_pairs)

    # Too few texts, or nothing to fit.
    both_files = f"{shown_path(sides.paths[0])} and {shown_path(sides.paths[1])}"
    if fitted is None or held_out is None or held_out.count < FEWEST:
        count = vector_count - zero_count
        problem = f"{count} texts are too few for a map: one in {HELD_OUT} is held out"
        raise DataError(problem, source=both_files, advice="encode some thousand texts with both")
    if not fitted.scatter_old.any() or not fitted.cross.any():
        raise DataError("all vectors are equal, so there is nothing to fit", source=both_files)

    # The map, and its measures.
    width_old, width_new = fitted.cross.shape
    is_ridge = width_old != width_new
    space_map = ridge_map(fitted, held_out) if is_ridge else orthogonal_map(fitted)
    bias = 0.0 - space_map.mean_old
    layer = dense_layer(
        space_map.kernel,
        bias,
        kind=KIND,
        source=output,
        offset=space_map.mean_new,
    )
    _, sample = evaluated.result()
    warnings = list[str]()
    for path, count in zip(sides.paths, sides.only, strict=True):
        if count:
            reason = f'have no row with their "{key}" in the other file, and are left out'
            warnings.append(f"{shown_path(path)}: {count:,} rows {reason}")
    if zero_count:
        reason = "are zero on a side, as those of empty texts are, and are left out"
        warnings.append(f"{zero_count:,} of {vector_count:,} vectors {reason}")
    if fitted.count <= width_old:
        warnings.append(
            f"{fitted.count} vectors of {width_old} numbers are few: a map needs some thousand"
        )
    inputs = []
    for path, file_digest in zip(sides.paths, digests, strict=True):
        inputs.append(
            {
                "file": shown_path(Path(path).name),
                "vectors": vector_count,
                "blake2b": file_digest.hexdigest(),
            }
        )
    emb = sides.readers[0].space_name
    target = sides.readers[1].space_name or UNNAMED.name
    note = {
        "kind": KIND,
        "_emb": emb,
        "target": target,
        "digest": digest_of_map(space_map.kernel, bias, space_map.mean_new, emb, target),
        "vectors": fitted.count,
        "width": width_old,
        "kept": width_new,
        "method": "ridge" if is_ridge else "orthogonal",
        "penalty": space_map.penalty,
        "held_out": measures_of(layer(sample.a), sample.b),
        "inputs": inputs,
    }
    return FittedMap(space_map, note, tuple(warnings))


def hashes_of(vectors: Float32) -> NDArray[np.int64]:
    """A hash of each vector, (m,): equal texts are held out together, in any order of the rows."""
    return np.array([zlib.crc32(row) for row in vectors.astype("<f4", copy=False)], np.int64)


def added(total: PairMoments | None, pairs: Matches) -> PairMoments | None:
    if not len(pairs):
        return total
    moments = pair_moments_of(pairs.a, pairs.b)
    if total is None:
        return moments
    return total + moments


def measures_of(mapped: Float32, new: Float32) -> dict[str, Any]:
    """The mean cosine of mapped and new vectors (s, e) of the same texts, and the mean share of
    the nearest neighbours that are kept, with 95 % intervals of the bootstrap.
    """
    cosines = SIMILARITIES["cosine"](mapped, new)
    shares = kept_neighbours(mapped, new, TOP)
    return {
        "vectors": len(new),
        "cosine": mean_record(cosines),
        "neighbours": {"top": TOP, **mean_record(shares)},
    }


def mean_record(values: Float64) -> dict[str, Any]:
    """The mean of values (s,) and its interval, by resamples of the texts."""
    n = len(values)
    means = [counts @ values / n for counts in multiplicities(n, resamples_for(n), 0)]
    return {"mean": float(values.mean()), "interval": percentile_interval(np.concatenate(means))}


def kept_neighbours(mapped: Float32, new: Float32, top: int) -> Float64:
    """For each new vector, the share of its nearest other texts that stay nearest if they have
    mapped vectors, (s,), as in a search with new queries in a mapped corpus.
    """
    nearest_new = other_rows(new, new, top)
    nearest_mapped = other_rows(mapped, new, top)
    is_kept = (nearest_new[:, :, np.newaxis] == nearest_mapped[:, np.newaxis, :]).any(axis=2)
    return is_kept.mean(axis=1)


def other_rows(corpus: Float32, queries: Float32, top: int) -> Indices:
    """The `top` rows of the corpus nearest to each query, without the row of the query, (s, k)."""
    searcher = Searcher(corpus)
    rows = list[Indices]()
    size = searcher.queries_at_once(top + 1)
    for start in range(0, len(queries), size):
        nearest = searcher.nearest(queries[start : start + size], top + 1).rows
        is_itself = nearest == np.arange(start, start + len(nearest))[:, np.newaxis]
        is_itself[~is_itself.any(axis=1), -1] = True  # its own row is not among the nearest
        rows.append(nearest[~is_itself].reshape(-1, top))
    return np.concatenate(rows)
