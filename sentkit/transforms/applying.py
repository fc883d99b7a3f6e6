"""Application of a transform to rows: replaces vectors, renames their space, keeps other fields."""

from itertools import chain
from typing import Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import UNNAMED, Spec
from sentkit.formats.vectors.sinks import Sink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import Store, common_spec, is_store, with_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.transforms.steps import Step, applied, check_fitted, read_transform

ROWS_PER_BLOCK = 1024  # maximum number of rows processed at once
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
    spec = with_fields(spec, inputs) if is_store(output) else spec
    names = reader.names if is_store(output) else reader.theirs
    width = step.width(step.takes)
    with open_sinks([output], [spec], names, width, form) as [sink]:
        for block in chain([first], blocks):
            write(block, step, sink, inputs, apart=is_store(output))


def write(block: VectorBlock, step: Step, sink: Sink, inputs: Inputs, *, apart: bool) -> None:
    """Write rows. A non-finite result is a bad row.

    `apart`: the output stores vectors separately from the rows.
    """
    others = {*VECTORS}.difference(inputs.fields, block.names)
    vectors = block.vectors
    with np.errstate(all="ignore"):  # non-finite results become bad rows
        moved = applied(step, vectors.reshape(-1, vectors.shape[-1])).reshape(*vectors.shape[:-1], -1)
    for place, values in enumerate(block.rows.values):
        if not others.isdisjoint(values):  # its vector would have the name of the new space
            other = next(name for name in VECTORS if name in values and name in others)
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
