"""Application of a transform to rows: replaces vectors, renames their space, keeps other fields."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import Inputs, growing
from sentkit.formats.vectors.convert import common_spec, with_fields
from sentkit.formats.vectors.fingerprint import UNNAMED, Spec
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.transforms.steps import Step, applied, check_fitted, read_transform

ROWS_PER_BLOCK = 1024  # maximum number of rows processed at once
BARE = {"_emb", "vectors", "fields"}  # the metadata of a vector file made from JSONL


def apply_transform(inputs: Inputs, transform: str, output: str, form: VectorOutput) -> None:
    form.check(output)
    step = read_transform(transform)
    reader = VectorReader(inputs)
    rows = growing(reader.read(lambda row: row), ROWS_PER_BLOCK)
    first = next(rows)
    check_fitted(transform, reader.emb)
    if reader.width != step.takes:
        problem = f"takes vectors of {step.takes} numbers, these have {reader.width}"
        raise DataError(problem, source=transform)
    spec = moved_spec(inputs, reader.emb, step, transform)
    spec = with_fields(spec, inputs) if is_store(output) else spec
    names = reader.names if is_store(output) else reader.theirs
    width = step.width(step.takes)
    with open_sinks([output], [spec], names, width, form) as [sink]:
        for window in chain([first], rows):
            write(window, step, sink, inputs, apart=is_store(output))


def write(window: Sequence[VectorRow], step: Step, sink: Sink, inputs: Inputs, *, apart: bool) -> None:
    """Write one window of rows. A non-finite result is a bad row.

    `apart`: the output stores vectors separately from the rows.
    """

    def put(pair: tuple[VectorRow, Float32]) -> None:
        row, vectors = pair
        others = (name for name in VECTORS if name in row.row.values and name not in inputs.fields)
        other = next((name for name in others if name not in row.names), None)
        if other is not None:  # its vector would have the name of the new space
            raise row.row.error(f'"{other}" is another vector, and it is not transformed', advice="remove it")
        sink.write(row.row.without(row.names) if apart else row.row, vectors)

    moved = zip(window, moved_vectors(window, step), strict=True)
    for _ in inputs.rejects.each(moved, put, lambda pair: pair[0].input_line):
        pass
    sink.flush()


def moved_vectors(window: Sequence[VectorRow], step: Step) -> Float32:
    """Apply the step: (b, k, d) -> (b, k, d')."""
    vectors = np.stack([row.vectors for row in window])
    with np.errstate(all="ignore"):  # non-finite results become bad rows
        moved = applied(step, vectors.reshape(-1, vectors.shape[-1]))
    return moved.reshape(*vectors.shape[:-1], -1)


def moved_spec(inputs: Inputs, emb: str | None, step: Step, transform: str) -> dict[str, Any]:
    """The output spec: the common fields of all vector files, plus this step; for JSONL only `_emb`."""
    record = {name: value for name, value in common_spec(inputs).items() if name not in BARE}
    steps = steps_before(inputs)
    label, _, space = (emb or UNNAMED.emb).rpartition(":")
    full = Spec(label, space, {**record, "steps": steps or ()}).after(step.suffix, step.hash).full
    if steps is None:
        del full["steps"]  # unknown earlier steps: a list of only this step would be wrong
    elif full.pop("transform", None) is None:  # no record can name two
        full["transform"] = readable(transform)
    return full


def steps_before(inputs: Inputs) -> list[str] | None:
    """The steps that all vector files record; None if they are unknown or differ."""
    if not all(map(is_store, inputs.paths)):
        return None
    specs = [Store(path).spec for path in inputs.paths]
    first = specs[0].get("steps", [])
    known = all(spec.keys() - BARE and spec.get("steps", []) == first for spec in specs)
    return first if known and isinstance(first, list) else None
