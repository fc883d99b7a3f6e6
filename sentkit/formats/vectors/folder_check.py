"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from sentkit.errors import DataError, SentkitError
from sentkit.formats.files import check_input, shown_path
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from sentkit.formats.vectors.folders import FolderRun, Status
from sentkit.formats.vectors.grid import describe_input
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vector_file import VectorFile


def counts_of(run: FolderRun, status: Status, shards: int | None) -> dict[str, Any]:
    """The report of a folder. `missing` is None if the length of an input is unknown."""
    records = list(map(run.record, status.complete_blocks))
    counts: dict[str, Any] = {
        "blocks": len(status.complete_blocks),
        "missing": None if status.length_is_unknown else len(status.missing_blocks),
        "rows": sum(record["rows"] for record in records),
        "truncated": sum(record["truncated"] for record in records),
        "skipped": sum(record["skipped"] for record in records),
    }
    if shards is not None:
        # As `Block.index` says; shard N has the blocks whose index is 0 modulo N.
        missing_shards = {(block.index - 1) % shards + 1 for block in status.missing_blocks}
        if status.length_is_unknown:  # any shard may have one of the other blocks
            missing_shards = {*range(1, shards + 1)}
        if missing_shards:
            counts["missing_shards"] = spans_of(sorted(missing_shards))
    counts["leftovers"] = [shown_path(str(path)) for path in status.leftovers]
    return counts


def spans_of(numbers: Sequence[int]) -> str:
    """Sorted numbers as in `sbatch --array=`: 1,3-5."""
    spans: list[str] = []
    # equal for consecutive ones
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        consecutive = [number for _, number in run]
        if len(consecutive) > 1:
            spans.append(f"{consecutive[0]}-{consecutive[-1]}")
        else:
            spans.append(str(consecutive[0]))
    return ",".join(spans)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of an input or of a block of a folder, with its path."""

    kind: Literal["unreadable input", "changed input", "block of other rows", "damaged block"]
    message: str
    path: str


def problems_of_inputs(run: FolderRun, digests: dict[str, str]) -> Iterator[Problem]:
    """Read the inputs, and yield their problems. `digests` gets those of the blocks of unchanged
    inputs, by name.
    """
    for number, record in enumerate(run.inputs):
        path = record["path"] or ""
        # run.json can name only some inputs.
        if not path or "\ufffd" in path or "\0" in path or path.endswith("?..."):
            continue
        path = os.fsdecode(path.encode())
        try:
            check_input(path)
            inputs = inputs_of(run, number, path)
            description = describe_input(inputs, path)
            changed = [
                name for name in ("size", "head", "tail") if description[name] != record[name]
            ]
            if changed:
                message = f"{path}: has changed: its {changed[0]} differs from run.json"
                yield Problem("changed input", message, path)
            else:
                for block in run.read(inputs, number, path):
                    digests[block.name] = block.digest()
        except SentkitError as error:
            yield Problem("unreadable input", str(error), path)


def problems_outside(run: FolderRun, status: Status) -> Iterator[Problem]:
    """The problems of blocks that are not in the grid. They count as damaged."""
    for name in status.names_outside:
        path = run.block_path(name)
        yield Problem("damaged block", f"{path}: damaged: not in the grid of run.json", path)


def problems_of_blocks(
    run: FolderRun, status: Status, digests: Mapping[str, str]
) -> Iterator[tuple[str, Problem | None]]:
    """Read the blocks, and yield the name and the problem of each, None if it is intact."""
    first: VectorFile | None = None
    for name in status.complete_blocks:
        path = run.block_path(name)
        problem: Problem | None = None
        try:
            first = run.open_verified_block(name, first)
            recorded_digest = run.record(name)["source"]
            if digests.get(name, recorded_digest) != recorded_digest:
                message = f"{path}: made from other rows than its input has now"
                problem = Problem("block of other rows", message, path)
        except DataError as error:
            message = f"{path}: damaged: {error.problem.removeprefix('damaged: ')}"
            problem = Problem("damaged block", message, path)
        yield name, problem


def inputs_of(run: FolderRun, number: int, path: str) -> Inputs:
    """The input at `path`, read as when the folder was made."""
    record = run.inputs[number]
    quoting = run.settings["quoting"]
    format = record["format"] or None
    if record["grid"] == "bytes":  # the blocks know it
        format = None
    return open_inputs(
        [path],
        format=format,
        rejects=Rejects(skip=True),
        counter=ReadCounter.accepting_no_rows(),  # a block can have no rows
        quoting=None if quoting == "by format" else quoting,
    )
