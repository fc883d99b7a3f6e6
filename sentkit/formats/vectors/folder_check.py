"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentkit.errors import SentkitError
from sentkit.formats.files import readable
from sentkit.formats.rows.parts import digest_of_part, row_ranges
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.folder_settings import describe_input
from sentkit.formats.vectors.folders import Status, VectorFolder
from sentkit.formats.vectors.store import rows_in


def counts_of(folder: VectorFolder, status: Status, shards: int | None) -> dict[str, Any]:
    """The report of a folder. `missing` is None if the length of an input is unknown."""
    records = [folder.record(name) for name in status.done]
    times = [Path(folder.file(name)).stat().st_mtime for name in status.done]
    rows = [record["rows"] for record in records]
    rate = None  # between the first and the last block
    if times and max(times) > min(times):
        rate = (sum(rows) - rows[times.index(min(times))]) / (max(times) - min(times))
    indices = array_indices(missing_shards(status, shards)) if shards is not None else ""
    return {
        "blocks": len(status.done),
        "missing": None if status.unknown else len(status.missing),
        "rows": sum(rows),
        "truncated": sum(record["truncated"] for record in records),
        "skipped": sum(record["skipped"] for record in records),
        "rows_per_s": rate,
        **({"missing_shards": indices} if indices else {}),  # in the syntax of `sbatch --array=`
        "leftovers": [readable(str(path)) for path in status.leftovers],
    }


def missing_shards(status: Status, count: int) -> set[int]:
    """The shards, from 1, with missing blocks; all of them if the length of an input is unknown."""
    if status.unknown:
        return set(range(1, count + 1))
    return {(block.index - 1) % count + 1 for block in status.missing}


def array_indices(numbers: Iterable[int]) -> str:
    """`1,3-5` for 1, 3, 4 and 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def problems(folder: VectorFolder, status: Status) -> Iterator[tuple[str, str | None]]:
    """Read each block and its input; yield the name and the problem of each block, None if it is intact.

    A changed input has an empty name.
    """
    changed = [input_problem(folder, number) for number in range(len(folder.inputs))]
    yield from (("", problem) for problem in changed if problem is not None)
    kept = zip(folder.inputs, changed, strict=True)
    sources = source_digests(folder, [each["path"] if reason is None else None for each, reason in kept])
    for name in status.done:
        problem = folder.damage(name)
        if problem is not None:
            yield name, f"{folder.file(name)}: damaged: {problem}"
        elif name in sources and folder.record(name)["source"] != sources[name]:
            yield name, f"{folder.file(name)}: made from other rows than its input has now"
        else:
            yield name, None


def without(folder: VectorFolder, status: Status, damaged: Collection[str]) -> Status:
    """The status with the damaged blocks as missing."""
    done = [name for name in status.done if name not in damaged]
    return replace(status, done=done, missing=[*status.missing, *map(folder.block_named, damaged)])


def input_problem(folder: VectorFolder, number: int) -> str | None:
    """The reason why an input is not the recorded one."""
    record = folder.inputs[number]
    if record["path"] is None:
        return None
    try:
        now = describe_input(inputs_of(folder, number, record["path"]), record["path"])
    except SentkitError as error:
        return str(error)
    name = next((name for name in ("size", "head", "tail") if now[name] != record[name]), None)
    return None if name is None else f"{record['path']}: has changed: its {name} differs from run.json"


def inputs_of(folder: VectorFolder, number: int, path: str) -> Inputs:
    record, settings = folder.inputs[number], folder.settings
    quoting = None if settings["quoting"] == "by format" else settings["quoting"]
    format = None if record["grid"] == "bytes" else record["format"] or None
    return Inputs(
        [path],
        format,
        rejects=Rejects(skip=True),
        quoting=quoting,
        longest=settings["max_line"],
        vector_file=rows_in,
    )


def source_digests(folder: VectorFolder, paths: Sequence[str | None]) -> dict[str, str]:
    """The digest of the input of each block; `paths` has None for an input that is not read."""
    digests: dict[str, str] = {}
    for number, path in enumerate(paths):
        if path is None:
            continue
        inputs = inputs_of(folder, number, path)
        if folder.length(number) is None:
            for rows in row_ranges(inputs, path, folder.block_rows):
                block = folder.block_at(number, rows.start, rows.stop - rows.start)
                digests[block.name] = rows.digest
        else:
            for block in folder.blocks(number):
                digests[block.name] = digest_of_part(folder.part(block, path), inputs)
    return digests
