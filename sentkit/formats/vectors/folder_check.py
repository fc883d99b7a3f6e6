"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks."""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

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


def problems(run: FolderRun, status: Status) -> Iterator[tuple[str, str | None]]:
    """Read each block and its input; yield the name and the problem of each block, None if it is
    intact.

    The problem of an input has no name of a block.
    """
    # The digests of the blocks of all inputs that run.json can name.
    digests: dict[str, str] = {}
    for number, record in enumerate(run.inputs):
        path = record["path"] or ""
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
                yield "", f"{path}: has changed: its {changed[0]} differs from run.json"
            else:
                for block in run.read(inputs, number, path):
                    digests[block.name] = block.digest()
        except SentkitError as error:
            yield "", str(error)

    # The blocks.
    first: VectorFile | None = None
    for name in status.complete_blocks:
        problem: str | None = None
        try:
            first = run.open_verified_block(name, first)
            recorded_digest = run.record(name)["source"]
            if digests.get(name, recorded_digest) != recorded_digest:
                problem = f"{run.block_path(name)}: made from other rows than its input has now"
        except DataError as error:
            problem = f"{run.block_path(name)}: damaged: {error.problem.removeprefix('damaged: ')}"
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
        counter=ReadCounter(()),  # a block can have no rows
        quoting=None if quoting == "by format" else quoting,
    )
