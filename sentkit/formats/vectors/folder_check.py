"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks."""

import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sentkit.errors import DataError, SentkitError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs, Meter, Rejects
from sentkit.formats.vectors.folders import Status, VectorFolder, describe_input
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vector_file import VectorFile


def counts_of(folder: VectorFolder, status: Status, shards: int | None) -> dict[str, Any]:
    """The report of a folder. `missing` is None if the length of an input is unknown."""
    records = list(map(folder.record, status.done))
    numbers = list[int]()
    if shards is not None:  # all of them if the length of an input is unknown
        own = {(block.index - 1) % shards + 1 for block in status.missing}
        numbers = [*range(1, shards + 1)] if status.unknown else sorted(own)
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    spans = ([number for _, number in run] for _, run in runs)
    indices = ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return {
        "blocks": len(status.done),
        "missing": None if status.unknown else len(status.missing),
        "rows": sum(record["rows"] for record in records),
        "truncated": sum(record["truncated"] for record in records),
        "skipped": sum(record["skipped"] for record in records),
        **({"missing_shards": indices} if indices else {}),  # 1,3-5, as in `sbatch --array=`
        "leftovers": [readable(str(path)) for path in status.leftovers],
    }


def problems(folder: VectorFolder, status: Status) -> Iterator[tuple[str, str | None]]:
    """Read each block and its input; yield the name and the problem of each block, None if it is intact.

    The problem of an input has no name of a block.
    """
    sources: dict[str, str] = {}
    for number, record in enumerate(folder.inputs):
        path = record["path"] or ""
        if not path or "\ufffd" in path or "\0" in path or path.endswith("?..."):
            continue  # run.json cannot name it
        path = os.fsdecode(path.encode())
        try:
            inputs = inputs_of(folder, number, path)
            now = describe_input(inputs, path)
            differs = [name for name in ("size", "head", "tail") if now[name] != record[name]]
            if differs:
                yield "", f"{path}: has changed: its {differs[0]} differs from run.json"
            else:
                for block in folder.read(inputs, number, path):
                    sources[block.name] = block.digest(inputs)
        except SentkitError as error:
            yield "", str(error)
    first: VectorFile | None = None
    for name in status.done:
        problem: str | None = None
        try:
            first = folder.verified(name, first)
            source = folder.record(name)["source"]
            if sources.get(name, source) != source:
                problem = f"{folder.file(name)}: made from other rows than its input has now"
        except DataError as error:
            problem = f"{folder.file(name)}: damaged: {error.problem.removeprefix('damaged: ')}"
        yield name, problem


def inputs_of(folder: VectorFolder, number: int, path: str) -> Inputs:
    record, settings = folder.inputs[number], folder.settings
    quoting = None if settings["quoting"] == "by format" else settings["quoting"]
    format = None if record["grid"] == "bytes" else record["format"] or None
    return open_inputs(
        [path],
        format=format,
        rejects=Rejects(skip=True),
        meter=Meter(()),  # a part can have no rows
        quoting=quoting,
    )
