"""Transforms of rows: fitted to a stream of vectors, or merged from fits to shards, and applied to
vectors.

The moments of the shards are added. The result is the transform that one fit to all vectors would
give. An application replaces the vectors, renames their space, and keeps other fields.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.files import is_safetensors, shown_path, text_of_paths
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import UNNAMED, Space, space_of
from sentkit.formats.vectors.store import common_metadata, with_field_names
from sentkit.formats.vectors.tensors import put_arrays, read_array, read_header
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    is_vector,
    joined_vector_blocks,
)
from sentkit.formats.vectors.writers import VectorOutput, VectorWriter, open_writers
from sentkit.transforms.flow import PARAMETERS, FlowFit, fit_parameters
from sentkit.transforms.kinds import (
    KINDS,
    MAX_SCATTER_WIDTH,
    MOMENTS,
    Fit,
    FitOptions,
    Moments,
    ica,
    moments_of,
)
from sentkit.transforms.steps import (
    Step,
    apply_step,
    check_fitted,
    dense_layer,
    named,
    read_fit_note,
    read_transform,
)

ROWS_PER_BLOCK = 1024  # rows that are read at once


@dataclass(frozen=True, slots=True)
class Sample:
    moments: Moments
    emb: str | None
    inputs: list[dict[str, Any]]  # name, rows and hash of each file
    zero_count: int = 0  # vectors that are zero, which the moments leave out

    @property
    def warnings(self) -> list[str]:
        """Warnings about zero vectors, and about vectors that occur in two files or shards, which
        is usually a mistake.
        """
        warnings = list[str]()
        if self.zero_count:
            count = self.zero_count + self.moments.count
            reason = "are zero, as those of empty texts are, and are left out"
            warnings.append(f"{self.zero_count:,} of {count:,} vectors {reason}")
        counts = Counter[str]()
        names = {}
        for record in self.inputs:
            if record["rows"]:
                counts[record["blake2b"]] += 1
                names[record["blake2b"]] = record["file"]
        warnings += [
            f"the vectors of {names[digest]} are counted {count} times"
            for digest, count in counts.items()
            if count > 1
        ]
        return warnings


def read_sample(inputs: Inputs, keep: Callable[[Float32], None]) -> Sample:
    """Read the rows once. `keep` receives the vectors of every block (n, d) that are not zero;
    those of one row are adjacent.

    A zero vector, of a text without tokens, remains zero in every space (`apply_step`).
    """
    reader = VectorReader(inputs)
    total: Moments | None = None
    records = []
    zero_count = 0
    for path in inputs.paths:
        vector_hash = hashlib.blake2b(digest_size=16)
        moments: Moments | None = None  # of this file
        row_count = 0
        for block in reader.arrays(path, ROWS_PER_BLOCK):
            check_width(reader.width, path)
            row_count += len(block)
            vectors = block.reshape(-1, reader.width)
            vector_hash.update(vectors.astype("<f4", copy=False).data)
            is_zero = ~vectors.any(axis=1)
            if is_zero.any():
                zero_count += int(is_zero.sum())
                vectors = vectors[~is_zero]
            if len(vectors):
                moments = added(moments, moments_of(vectors))
                keep(vectors)
        name = path if path == "-" else shown_path(Path(path).name)
        records.append({"file": name, "rows": row_count, "blake2b": vector_hash.hexdigest()})
        if moments is not None:  # added file by file, so that `merge` gives the same bits
            total = added(total, moments)
    if total is None and zero_count:
        problem = "all vectors are zero, so there is nothing to fit"
        raise DataError(problem, source=text_of_paths(inputs.paths))
    if total is None:
        raise NoRowsError(inputs.paths)
    return Sample(total, reader.space_name, records, zero_count)


def added(total: Moments | None, moments: Moments) -> Moments:
    if total is None:
        return moments
    return total + moments


def check_width(width: int, path: str) -> None:
    """Refuse wide vectors: their scatter and kernel need too much memory."""
    if width > MAX_SCATTER_WIDTH:
        problem = f"vectors of {width} numbers: a transform accepts at most {MAX_SCATTER_WIDTH}"
        raise DataError(problem, source=path)


@dataclass(frozen=True, slots=True)
class Fitted:
    kind: str
    sample: Sample
    fit: Fit | FlowFit

    @property
    def note(self) -> dict[str, Any]:
        """The metadata of the file. It has no time and no path, so equal vectors give equal
        bytes.
        """
        width = self.sample.moments.width
        result_width = width
        if isinstance(self.fit, Fit):
            result_width = self.fit.kernel.shape[1]
        return {
            "kind": self.kind,
            "_emb": self.sample.emb,
            "rows": sum(record["rows"] for record in self.sample.inputs),
            "vectors": self.sample.moments.count,
            "width": width,
            "kept": result_width,
            **self.fit.record,
            "inputs": self.sample.inputs,
        }

    def write(self, file: BinaryIO, source: str) -> None:
        """Write the transform in float64, and the moments if it can be computed from them."""
        moments = self.sample.moments
        if isinstance(self.fit, FlowFit):
            arrays = {PARAMETERS: self.fit.parameters}
        else:
            bias = 0.0 - self.fit.mean
            # raises if not finite
            dense_layer(self.fit.kernel, bias, kind=self.kind, source=source)
            arrays = {"kernel": self.fit.kernel, "bias": bias[np.newaxis]}
        if self.kind in KINDS:  # which can be merged
            count = np.array([moments.count], np.float64)
            arrays |= {"count": count, "mean": moments.mean, "scatter": moments.scatter}
        put_arrays(file, arrays, {"sentkit": orjson.dumps(self.note).decode()})


def fit_transform(inputs: Inputs, kind: str, options: FitOptions) -> Fitted:
    """Fit in one pass and constant memory; for ica and flow, all vectors are held in memory."""
    if kind in KINDS:
        sample = read_sample(inputs, lambda vectors: None)
        check_varied(kind, sample, inputs.paths)
        return Fitted(kind, sample, KINDS[kind](sample.moments, options))

    all_vectors: list[Float32] = []
    sample = read_sample(inputs, all_vectors.append)
    check_varied(kind, sample, inputs.paths)
    if kind == "ica":
        return Fitted(kind, sample, ica(all_vectors, sample.moments, options))
    flow = fit_parameters(np.concatenate(all_vectors), options, text_of_paths(inputs.paths))
    return Fitted(kind, sample, flow)


def check_varied(kind: str, sample: Sample, paths: Sequence[str]) -> None:
    """Refuse equal vectors, which have nothing to fit except a mean, or for svd a direction."""
    if kind not in ("center", "svd") and not sample.moments.deviations.any():
        raise DataError(
            "all vectors are equal, so there is nothing to fit", source=text_of_paths(paths)
        )


# transforms can be merged only if these fields are equal
ALIKE = (
    "kind",
    "dim",
    "remove",
    "width",
)


def merge_transforms(paths: Sequence[str]) -> Fitted:
    """The transform of the sum of the moments, which must have one space and one kind of fit."""
    notes_and_samples = [read_fitted_sample(path) for path in paths]
    first_note, total = notes_and_samples[0]
    for path, (note, sample) in zip(paths[1:], notes_and_samples[1:], strict=True):
        for name in ALIKE:
            if note.get(name) != first_note.get(name):
                advice = "merge only files with the same kind, width and settings"
                problem = f"{name} is {note.get(name)}, but {first_note.get(name)} in {paths[0]}"
                raise DataError(problem, source=path, advice=advice)
        if not is_same_space(sample.emb, total.emb):
            raise DataError(
                f"fitted on {named(sample.emb)}, {paths[0]} on {named(total.emb)}", source=path
            )
        total = Sample(total.moments + sample.moments, total.emb, total.inputs + sample.inputs)
    kind = first_note["kind"]
    check_varied(kind, total, paths)
    options = FitOptions(dim=first_note.get("dim"), remove=first_note.get("remove"))
    return Fitted(kind, total, KINDS[kind](total.moments, options))


def is_same_space(emb: str | None, other: str | None) -> bool:
    if emb is None or other is None:
        return emb == other
    return space_of(emb) == space_of(other)


def read_fitted_sample(path: str) -> tuple[Mapping[str, Any], Sample]:
    """The note of a transform, and the moments that it was fitted to."""
    note = read_fit_note(path)
    kind = note.get("kind")
    if (
        not isinstance(kind, str)
        or kind not in KINDS
        or not read_header(path).entries.keys() >= set(MOMENTS)
    ):
        problem = "contains no moments, so it cannot be merged"
        raise DataError(
            problem, source=path, advice="run sentkit whiten fit on all vectors together"
        )
    count, mean, scatter = (read_array(path, name).astype(np.float64) for name in MOMENTS)
    # The note comes from a file of any origin: each access may fail.
    try:
        inputs = [
            {"file": record.get("file"), "rows": record["rows"], "blake2b": record.get("blake2b")}
            for record in note["inputs"]
        ]
        sample = Sample(Moments(int(count.item()), mean, scatter), note["_emb"], inputs)
        width = note["width"]
        settings = [note[name] for name in ("dim", "remove") if note.get(name) is not None]
        is_valid = (
            sample.moments.count > 0
            and width > 0
            and mean.shape == (width,)
            and scatter.shape == (mean.size, mean.size)
            and bool(np.isfinite(mean).all())
            and bool(np.isfinite(scatter).all())
            # the type, because True is an instance of int
            and all(type(setting) is int and 1 <= setting <= width for setting in settings)
            and all(type(record["rows"]) is int for record in inputs)
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        is_valid = False
    if not is_valid:
        raise DataError("the moments and the metadata do not match", source=path)
    return note, sample


BARE = {"_emb", "vectors", "fields"}  # the metadata of a vector file made from JSONL


def apply_transform(
    inputs: Inputs, transform: str, output: str, vector_output: VectorOutput
) -> None:
    """Write the rows with their vectors in the space of the file `transform`."""
    vector_output.check(output)
    step = read_transform(transform)
    reader = VectorReader(inputs)
    blocks = in_blocks_of_size(reader.blocks(), joined_vector_blocks, ROWS_PER_BLOCK, FIRST_BLOCK)

    # The space and the width are known after the first block.
    first_block = next(blocks)
    check_fitted(transform, reader.space_name)
    if reader.width != step.input_width:
        problem = f"takes vectors of {step.input_width} numbers, these have {reader.width}"
        raise DataError(problem, source=transform)

    metadata = transformed_metadata(inputs, reader.space_name, step, transform)
    if is_safetensors(output):
        metadata = with_field_names(metadata, inputs)
        names = reader.names
    else:
        names = reader.names_in_rows
    with open_writers(
        [output], [metadata], names, step.output_width(step.input_width), vector_output
    ) as [sink]:
        for block in chain([first_block], blocks):
            write_transformed(block, step, sink, inputs, has_vectors_apart=is_safetensors(output))


def write_transformed(
    block: VectorBlock, step: Step, sink: VectorWriter, inputs: Inputs, *, has_vectors_apart: bool
) -> None:
    """Write the rows of a block; one whose result is not finite is a bad row.

    `has_vectors_apart`: the output is a vector file, whose rows have no vectors among their fields.
    """
    vectors = block.vectors  # (n, k, d)
    with np.errstate(all="ignore"):  # non-finite results become bad rows
        results = apply_step(step, vectors.reshape(-1, vectors.shape[-1]))
    results = results.reshape(*vectors.shape[:-1], -1)

    # Any further vector of a row would have the name of the new space. A field of this name can be
    # another thing if --field renames the vectors, but not in a vector file.
    other_vectors = [name for name in VECTORS if name not in block.names]
    for index, values in enumerate(block.rows.values):
        for name in other_vectors:
            if name not in values:
                continue
            if name not in inputs.fields or is_vector(values[name]):
                problem = f'"{name}" is another vector, and it is not transformed'
                block.rows.refuse(index, problem, advice="remove it")
                break
            if has_vectors_apart:
                problem = f'"{name}" is the name of the new vectors in a vector file'
                block.rows.refuse(index, problem, advice="remove it, or write JSONL")
                break

    removed_fields = block.names if has_vectors_apart else ()
    sink.check(block.rows.without(removed_fields), results)
    for indices in block.good_indices(inputs.rejects):
        sink.write(block.rows.take(indices).without(removed_fields), results[indices])
    sink.flush()


def transformed_metadata(
    inputs: Inputs, emb: str | None, step: Step, transform: str
) -> dict[str, Any]:
    """The metadata of the output: what all vector files say, plus this step; for JSONL only
    `_emb`.
    """
    common = {name: value for name, value in common_metadata(inputs).items() if name not in BARE}
    steps_before = common_steps(inputs)
    label, _, space = (emb or UNNAMED.name).rpartition(":")
    before = Space(label, space, {**common, "steps": steps_before or ()})
    metadata = before.after_step(step.suffix, step.hash).full_metadata
    if steps_before is None:
        del metadata["steps"]  # a list of only this step would be wrong
    elif metadata.pop("transform", None) is None:  # the field can name one transform, not two
        metadata["transform"] = shown_path(transform)
    return metadata


def common_steps(inputs: Inputs) -> list[Any] | None:
    """The earlier steps of the vectors; None if a file does not record them, or if files differ."""
    all_steps = []
    for path in inputs.paths:
        store = inputs.open_vector_file(path)
        metadata = {} if store is None else store.metadata
        if not metadata.keys() - BARE:
            return None
        all_steps.append(metadata.get("steps", []))
    first_steps = all_steps[0]
    if not isinstance(first_steps, list) or any(steps != first_steps for steps in all_steps):
        return None
    return first_steps
