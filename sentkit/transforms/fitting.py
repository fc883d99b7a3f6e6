"""Transforms of rows: fitted to a stream of vectors, or merged from fits to shards, and applied to vectors.

The moments of the shards are added. The result is the transform that one fit to all vectors would give. An
application replaces the vectors, renames their space, and keeps other fields.
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
from sentkit.formats.files import is_safetensors, readable, together
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import UNNAMED, Space, space_of
from sentkit.formats.vectors.store import common_spec, with_fields
from sentkit.formats.vectors.tensors import put_arrays, read_array, read_header
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
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
    applied,
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

    @property
    def warnings(self) -> list[str]:
        """Warnings about vectors that occur in two files or shards, which is usually a mistake."""
        inputs = [each for each in self.inputs if each["rows"]]
        counts = Counter(each["blake2b"] for each in inputs)
        names = {each["blake2b"]: each["file"] for each in inputs}
        repeated = [(names[digest], count) for digest, count in counts.items() if count > 1]
        return [f"the vectors of {name} are counted {count} times" for name, count in repeated]


def read_sample(inputs: Inputs, keep: Callable[[Float32], None]) -> Sample:
    """Read the rows once. `keep` receives every block (n, d); the vectors of one row are adjacent."""
    reader = VectorReader(inputs)
    total, files = None, []
    for path in inputs.paths:
        hashed, moments, rows = hashlib.blake2b(digest_size=16), None, 0
        for block in reader.arrays(path, ROWS_PER_BLOCK):
            check_width(reader.width, path)
            rows += len(block)
            vectors = block.reshape(-1, reader.width)
            hashed.update(vectors.astype("<f4", copy=False).data)
            own = moments_of(vectors)
            moments = own if moments is None else moments + own
            keep(vectors)
        name = path if path == "-" else readable(Path(path).name)
        files.append({"file": name, "rows": rows, "blake2b": hashed.hexdigest()})
        if moments is not None:  # per file, so that `merge` gives the same bits
            total = moments if total is None else total + moments
    if total is None:
        raise NoRowsError(inputs.paths)
    return Sample(total, reader.emb, files)


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
        """The metadata of the file. It has no time and no path, so equal vectors give equal bytes."""
        width = self.sample.moments.width
        return {
            "kind": self.kind,
            "_emb": self.sample.emb,
            "rows": sum(each["rows"] for each in self.sample.inputs),
            "vectors": self.sample.moments.count,
            "width": width,
            "kept": self.fit.kernel.shape[1] if isinstance(self.fit, Fit) else width,
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
            dense_layer(self.fit.kernel, bias, kind=self.kind, source=source)  # raises if not finite
            arrays = {"kernel": self.fit.kernel, "bias": bias[np.newaxis]}
        if self.kind in KINDS:  # which can be merged
            count = np.array([moments.count], np.float64)
            arrays |= {"count": count, "mean": moments.mean, "scatter": moments.scatter}
        put_arrays(file, arrays, {"sentkit": orjson.dumps(self.note).decode()})


def fit_transform(inputs: Inputs, kind: str, options: FitOptions) -> Fitted:
    """Fit in one pass and constant memory; for ica and flow, all vectors are held in memory."""
    held: list[Float32] = []
    sample = read_sample(inputs, (lambda block: None) if kind in KINDS else held.append)
    check_varied(kind, sample, inputs.paths)
    if kind == "flow":
        return Fitted(kind, sample, fit_parameters(np.concatenate(held), options, together(inputs.paths)))
    if kind == "ica":
        return Fitted(kind, sample, ica(held, sample.moments, options))
    return Fitted(kind, sample, KINDS[kind](sample.moments, options))


def check_varied(kind: str, sample: Sample, paths: Sequence[str]) -> None:
    """Refuse vectors with nothing to fit: equal vectors, or for svd zero vectors. A mean always exists."""
    moments = sample.moments
    if not (kind == "center" or moments.deviations.any() or (kind == "svd" and moments.mean.any())):
        raise DataError("all vectors are equal, so there is nothing to fit", source=together(paths))


ALIKE = ("kind", "dim", "remove", "width")  # transforms can be merged only if these fields are equal


def merge_transforms(paths: Sequence[str]) -> Fitted:
    """The transform of the sum of the moments, which must have one space and one kind of fit."""
    (note, sample), *others = map(read_part, paths)
    for path, (theirs, other) in zip(paths[1:], others, strict=True):
        for name in ALIKE:
            if theirs.get(name) != note.get(name):
                advice = "merge only files with the same kind, width and settings"
                problem = f"{name} is {theirs.get(name)}, but {note.get(name)} in {paths[0]}"
                raise DataError(problem, source=path, advice=advice)
        one, first = other.emb, sample.emb
        if one != first and (one is None or first is None or space_of(one) != space_of(first)):
            raise DataError(f"fitted on {named(one)}, {paths[0]} on {named(first)}", source=path)
        sample = Sample(sample.moments + other.moments, sample.emb, sample.inputs + other.inputs)
    check_varied(note["kind"], sample, paths)
    fit = KINDS[note["kind"]](sample.moments, FitOptions(note.get("dim"), note.get("remove")))
    return Fitted(note["kind"], sample, fit)


def read_part(path: str) -> tuple[Mapping[str, Any], Sample]:
    """The note of a transform, and the moments that it was fitted to."""
    note = read_fit_note(path)
    kind = note.get("kind")
    if not isinstance(kind, str) or kind not in KINDS or not read_header(path).entries.keys() >= set(MOMENTS):
        problem = "contains no moments, so it cannot be merged"
        raise DataError(problem, source=path, advice="run sentkit whiten fit on all vectors together")
    count, mean, scatter = (read_array(path, name).astype(np.float64) for name in MOMENTS)
    numbers = [note[name] for name in ("dim", "remove") if note.get(name) is not None]
    try:
        inputs = [
            {"file": each.get("file"), "rows": each["rows"], "blake2b": each.get("blake2b")}
            for each in note["inputs"]
        ]
        sample = Sample(Moments(int(count.item()), mean, scatter), note["_emb"], inputs)
        good = sample.moments.count > 0 and bool(np.isfinite(mean).all() and np.isfinite(scatter).all())
        good &= mean.shape == (note["width"],) != (0,) and scatter.shape == (mean.size, mean.size)
        good &= all(type(each) is int and 1 <= each <= note["width"] for each in numbers)
        good &= all(type(each["rows"]) is int for each in inputs)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise DataError("the moments and the metadata do not match", source=path)
    return note, sample


BARE = {"_emb", "vectors", "fields"}  # the metadata of a vector file made from JSONL


def apply_transform(inputs: Inputs, transform: str, output: str, form: VectorOutput) -> None:
    form.check(output)
    step = read_transform(transform)
    reader = VectorReader(inputs)
    blocks = resized(reader.blocks(), joined, ROWS_PER_BLOCK, FIRST_BLOCK)
    first = next(blocks)
    check_fitted(transform, reader.emb)
    if reader.width != step.takes:
        problem = f"takes vectors of {step.takes} numbers, these have {reader.width}"
        raise DataError(problem, source=transform)
    spec = moved_spec(inputs, reader.emb, step, transform)
    spec = with_fields(spec, inputs) if is_safetensors(output) else spec
    names = reader.names if is_safetensors(output) else reader.names_in_rows
    width = step.width(step.takes)
    with open_writers([output], [spec], names, width, form) as [sink]:
        for block in chain([first], blocks):
            write(block, step, sink, inputs, apart=is_safetensors(output))


def write(block: VectorBlock, step: Step, sink: VectorWriter, inputs: Inputs, *, apart: bool) -> None:
    """Write rows; a result that is not finite is a bad row. `apart`: rows have no vectors in the output."""
    # Its vector would have the name of the new space.
    others = [name for name in VECTORS if name not in {*inputs.fields, *block.names}]
    vectors = block.vectors
    with np.errstate(all="ignore"):  # non-finite results become bad rows
        moved = applied(step, vectors.reshape(-1, vectors.shape[-1])).reshape(*vectors.shape[:-1], -1)
    for place, values in enumerate(block.rows.values):
        if other := next((name for name in others if name in values), None):
            problem = f'"{other}" is another vector, and it is not transformed'
            block.rows.refuse(place, problem, advice="remove it")
    sink.check(block.rows.without(block.names) if apart else block.rows, moved)
    for places in block.good_places(inputs.rejects):
        rows = block.rows.take(places)
        sink.write(rows.without(block.names) if apart else rows, moved[places])
    sink.flush()


def moved_spec(inputs: Inputs, emb: str | None, step: Step, transform: str) -> dict[str, Any]:
    """The output spec: the common fields of all vector files, plus this step; for JSONL only `_emb`."""
    record = {name: value for name, value in common_spec(inputs).items() if name not in BARE}
    stores = [inputs.vector_file(path) for path in inputs.paths]
    specs = [{} if store is None else store.spec for store in stores]
    steps = [spec.get("steps", []) if spec.keys() - BARE else None for spec in specs]
    known = isinstance(steps[0], list) and all(each == steps[0] for each in steps)
    label, _, space = (emb or UNNAMED.emb).rpartition(":")
    before = steps[0] if known else ()
    full = Space(label, space, {**record, "steps": before}).after(step.suffix, step.hash).full
    if not known:
        del full["steps"]  # unknown earlier steps: a list of only this step would be wrong
    elif full.pop("transform", None) is None:  # no record can name two
        full["transform"] = readable(transform)
    return full
