"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks.

A folder of changed inputs is updated by a new one, which is beside it until it is complete.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import join, quote
from typing import Any

import orjson

from sentkit.errors import CannotCreateError, DataError, SentkitError
from sentkit.formats.files import inside, read_object_if_there, readable, together
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.outputs.temporary import lock, publish_folder
from sentkit.formats.outputs.uploads import newest
from sentkit.formats.rows.parts import digest_of_part, row_ranges
from sentkit.formats.rows.rows import Inputs, Meter, Rejects
from sentkit.formats.urls import is_at, is_url, open_url
from sentkit.formats.vectors.folder_settings import compare, describe_input, input_change
from sentkit.formats.vectors.folders import (
    RUN_NAME,
    Settings,
    Status,
    VectorFolder,
    as_now,
    is_vector_folder,
)
from sentkit.formats.vectors.store import rows_in
from sentkit.formats.vectors.vector_file import VectorFile

CARD, WRITTEN = "README.md", "<!-- of sentkit encode -->"
START = f"---\nviewer: false\ntags: [sentence-embeddings]\n---\n{WRITTEN}\n# Sentence embeddings\n"
REQUESTS = 8  # headers of blocks at a URL that are read at the same time


def counts_of(folder: VectorFolder, status: Status, shards: int | None) -> dict[str, Any]:
    """The report of a folder. `missing` is None if the length of an input is unknown."""
    local = not is_url(folder.path)
    with ThreadPoolExecutor(1 if local else REQUESTS) as pool:
        records = list(pool.map(folder.record, status.done))
    times = [Path(folder.file(name)).stat().st_mtime if local else 0.0 for name in status.done]
    rows = [record["rows"] for record in records]
    created = Path(folder.source).stat().st_mtime if local else 0.0  # blocks that --reuse copied are older
    encoded = sorted((time, count) for time, count in zip(times, rows, strict=True) if time >= created)
    rate = None  # between the first and the last encoded block
    if encoded and encoded[-1][0] > encoded[0][0]:
        rate = sum(count for _, count in encoded[1:]) / (encoded[-1][0] - encoded[0][0])
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


def write_card(path: str, command: Sequence[str]) -> bool:
    """Write the card of a folder at a URL, unless a person wrote one; false if blocks are missing."""
    folder = VectorFolder(newest(path))
    status = folder.status()
    if not status.complete:
        return False
    card = inside(folder.path, CARD)
    if not is_at(card) or WRITTEN.encode() in open_url(card).read():
        with published_together(), open_output(inside(path, CARD), force=True) as out:
            out.write(card_of(folder, status, command, path).encode())
    return True


def card_of(folder: VectorFolder, status: Status, command: Sequence[str], path: str) -> str:
    """The card: model, space, counts and commands."""
    encoder, counts = folder.settings["encoder"], counts_of(folder, status, None)
    table = {
        "model": encoder.get("model"),
        "space": encoder["_emb"],
        **{name: encoder.get(name) for name in ("readout", "prompt", "max_length", "precision")},
        "store": folder.store,
        **{name: counts[name] for name in ("rows", "truncated", "skipped", "blocks")},
        "inputs": together([each["name"] for each in folder.inputs]),
    }
    shown = {
        name: orjson.dumps(value).decode().strip('"') for name, value in table.items() if value is not None
    }
    cells = [(name, readable(text).replace("|", r"\|")) for name, text in shown.items() if text]
    rows = [f"| {name} | `{text}` |" for name, text in cells]
    commands = [command, ["search", "a text", "--corpus", path], ["check", path]]
    lines = [f"    {readable(join(['sentkit', *each]))}" for each in commands]
    return "\n".join([START, "| | |", "|---|---|", *rows, "", *lines, ""])


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
    kept = zip(map(path_of, folder.inputs), changed, strict=True)
    sources = source_digests(folder, [path if reason is None else None for path, reason in kept])
    first: VectorFile | None = None
    for name in status.done:
        try:
            first = folder.verified(name, first)
        except DataError as error:
            yield name, f"{folder.file(name)}: damaged: {error.problem.removeprefix('damaged: ')}"
            continue
        if name in sources and folder.record(name)["source"] != sources[name]:
            yield name, f"{folder.file(name)}: made from other rows than its input has now"
        else:
            yield name, None


def without(folder: VectorFolder, status: Status, damaged: Collection[str]) -> Status:
    """The status with the damaged blocks as missing."""
    done = [name for name in status.done if name not in damaged]
    return replace(status, done=done, missing=[*status.missing, *map(folder.block_named, damaged)])


def input_problem(folder: VectorFolder, number: int) -> str | None:
    """The reason why an input is not the recorded one."""
    record, path = folder.inputs[number], path_of(folder.inputs[number])
    if path is None:
        return None
    try:
        now = describe_input(inputs_of(folder, number, path), path)
    except SentkitError as error:
        return str(error)
    name = next((name for name in ("size", "head", "tail") if now[name] != record[name]), None)
    return None if name is None else f"{path}: has changed: its {name} differs from run.json"


def path_of(record: Mapping[str, Any]) -> str | None:
    """The path of an input in the encoding of this system; None if run.json cannot name it."""
    path = record["path"]
    return None if path is None or "\ufffd" in path or path.endswith("?...") else os.fsdecode(path.encode())


def inputs_of(folder: VectorFolder, number: int, path: str) -> Inputs:
    record, settings = folder.inputs[number], folder.settings
    quoting = None if settings["quoting"] == "by format" else settings["quoting"]
    format = None if record["grid"] == "bytes" else record["format"] or None
    return Inputs(
        [path],
        format,
        rejects=Rejects(skip=True),
        meter=Meter(()),  # a part can have no rows
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
            for rows in row_ranges(inputs, path, folder.block_rows, by_line=folder.by_line):
                block = folder.block_at(number, rows.start, rows.stop - rows.start)
                digests[block.name] = rows.digest
        else:
            for block in folder.blocks(number):
                digests[block.name] = digest_of_part(folder.part(block, path), inputs)
    return digests


UPDATE = ".part"  # the end of the name of the new folder


def place_of_update(path: str, settings: Settings) -> str:
    """The folder for the blocks of an update of a vector folder: a new one, or the same if it is up to date.

    An error is raised if other settings than the inputs differ.
    """
    folder = VectorFolder(path)
    compare(folder, {**settings, "inputs": folder.inputs})
    if is_current(folder, settings):
        return path
    target = Path(os.path.realpath(path))
    if target.is_mount():
        advice = "encode into another folder with -o, and reuse this one"
        raise CannotCreateError(f"{path}: a mount point cannot be replaced", advice=advice)
    new = Path(f"{target}{UPDATE}")
    if is_vector_folder(str(new)):
        free = input_change(VectorFolder(str(new)), settings["inputs"]) is None
    else:  # a hidden file is the run.json that another process is writing
        free = not new.exists() or (new.is_dir() and all(each.name[0] == "." for each in new.iterdir()))
    if not free:
        problem = f"{new}: is not an update of {path} to these inputs, which needs this name"
        raise CannotCreateError(problem, advice=f"move it, or remove it: rm -r {quote(str(new))}")
    return f"{path}{UPDATE}" if not Path(path).is_symlink() else str(new)


def is_current(folder: VectorFolder, settings: Settings) -> bool:
    """Whether the blocks were made from the bytes that the inputs have now; false for a stream."""
    inputs = settings["inputs"]
    if input_change(folder, inputs) is not None or any(each["size"] is None for each in inputs):
        return False
    digests = source_digests(folder, [each["path"] for each in inputs])
    return all(folder.record(name)["source"] == digests.get(name) for name in folder.existing()[0])


def publish_update(new: VectorFolder, path: str) -> bool:
    """Replace a vector folder by its complete update, in one step; false if blocks are missing.

    One of several processes does it. Other files in the folder are kept.
    """
    run, target = Path(new.source), Path(os.path.realpath(path))
    with suppress(FileNotFoundError), run.open("rb") as file:
        lock(file.fileno())
        # After the replacement by another process, this name is that of the old folder, or of none.
        if as_now(read_object_if_there(run)) != new.settings:
            return True
        if not new.status().complete:
            return False
        own = VectorFolder(path).existing()[0] | {RUN_NAME}
        for each in [each for each in target.iterdir() if each.name not in own]:
            each.rename(run.with_name(each.name))
        shutil.copymode(target, run.parent)
        publish_folder(run.parent, target, force=True, name=path)
    return True
