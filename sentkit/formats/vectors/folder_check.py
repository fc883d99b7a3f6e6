"""The state of a vector folder: counts, missing blocks and shards, and damaged blocks.

A folder of changed inputs is updated by a new one, which is beside it until it is complete.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby, zip_longest
from pathlib import Path
from shlex import join, quote
from typing import Any

import orjson

from sentkit.errors import CannotCreateError, DataError, SentkitError
from sentkit.formats.files import (
    COMPRESSED,
    inside,
    is_input_file,
    is_there,
    name_of,
    open_file,
    open_input,
    read_object_if_there,
    readable,
    suffix_of,
    together,
)
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.outputs.temporary import not_writable, publish_folder
from sentkit.formats.outputs.uploads import is_written, newest
from sentkit.formats.rows.lines import looks_like_json, numbered
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import LINES, Inputs, Meter, Rejects
from sentkit.formats.urls import commit_in, is_at, is_url, open_url
from sentkit.formats.vectors.fingerprint import without_machine
from sentkit.formats.vectors.folders import (
    FORMAT,
    RUN_NAME,
    VERSION,
    Settings,
    Status,
    VectorFolder,
    as_now,
    is_vector_folder,
    shown,
)
from sentkit.formats.vectors.store import rows_in
from sentkit.formats.vectors.vector_file import VectorFile

CARD, WRITTEN = "README.md", "<!-- of sentkit encode -->"
START = f"---\nviewer: false\ntags: [sentence-embeddings]\n---\n{WRITTEN}\n# Sentence embeddings\n"
REQUESTS = 8  # headers of blocks at a URL that are read at the same time


def counts_of(folder: VectorFolder, status: Status, shards: int | None) -> dict[str, Any]:
    """The report of a folder. `missing` is None if the length of an input is unknown."""
    with ThreadPoolExecutor(REQUESTS if is_url(folder.path) else 1) as pool:
        records = list(pool.map(folder.record, status.done))
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


def write_card(path: str, command: Sequence[str]) -> bool:
    """Write the card of a folder at a URL: model, space, counts and commands; false if blocks are missing.

    The card of a person stays.
    """
    folder = VectorFolder(newest(path))
    status = folder.status()
    if not status.complete:
        return False
    card = inside(folder.path, CARD)
    if is_at(card) and WRITTEN.encode() not in open_url(card).read():
        return True
    encoder, counts = folder.settings["encoder"], counts_of(folder, status, None)
    table = {
        "model": encoder.get("model"),
        "space": encoder["_emb"],
        **{name: encoder.get(name) for name in ("readout", "prompt", "max_length", "precision")},
        "store": folder.store,
        **{name: counts[name] for name in ("rows", "truncated", "skipped", "blocks")},
        "inputs": together([each["name"] for each in folder.inputs]),
    }
    given = {name: orjson.dumps(value).decode().strip('"') for name, value in table.items()}
    cells = [(name, readable(text).replace("|", r"\|")) for name, text in given.items()]
    rows = [f"| {name} | `{text}` |" for name, text in cells if text not in ("", "null")]
    commands = [command, ["search", "a text", "--corpus", path], ["check", path]]
    lines = [f"    {readable(join(['sentkit', *each]))}" for each in commands]
    with published_together(), open_output(inside(path, CARD), force=True) as out:
        out.write("\n".join([START, "| | |", "|---|---|", *rows, "", *lines, ""]).encode())
    return True


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
            now = describe_input(inputs_of(folder, number, path), path)
            differs = [name for name in ("size", "head", "tail") if now[name] != record[name]]
            if differs:
                yield "", f"{path}: has changed: its {differs[0]} differs from run.json"
            else:
                sources |= source_digests(folder, number, path)
        except SentkitError as error:
            yield "", str(error)
    first: VectorFile | None = None
    for name in status.done:
        problem: str | None = None
        try:
            first = folder.verified(name, first)
            if sources.get(name, folder.record(name)["source"]) != folder.record(name)["source"]:
                problem = f"{folder.file(name)}: made from other rows than its input has now"
        except DataError as error:
            problem = f"{folder.file(name)}: damaged: {error.problem.removeprefix('damaged: ')}"
        yield name, problem


def source_digests(folder: VectorFolder, number: int, path: str) -> dict[str, str]:
    """The digests of the blocks of an input at `path`."""
    inputs = inputs_of(folder, number, path)
    return {block.name: block.digest(inputs) for block in folder.read(inputs, number, path)}


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
        vector_file=rows_in,
    )


UPDATE = ".part"  # the end of the name of the new folder


def place_of_update(path: str, settings: Settings) -> str:
    """The folder for the blocks of an update: a new one, or the same if it is up to date."""
    folder = VectorFolder(path)
    compare(folder, {**settings, "inputs": folder.inputs})
    inputs = settings["inputs"]
    if input_change(folder, inputs) is None and all(each["size"] is not None for each in inputs):
        digests: dict[str, str] = {}
        for number, each in enumerate(inputs):
            digests |= source_digests(folder, number, each["path"])
        if all(folder.record(name)["source"] == digests.get(name) for name in folder.existing()[0]):
            return path
    target = Path(os.path.realpath(path))
    new = Path(f"{target}{UPDATE}")
    if is_vector_folder(str(new)):
        free = input_change(VectorFolder(str(new)), inputs) is None
    else:  # a hidden file is the run.json that another process is writing
        free = not new.exists() or (new.is_dir() and all(each.name[0] == "." for each in new.iterdir()))
    if not free:
        problem = f"{new}: is not an update of {path} to these inputs, which needs this name"
        raise CannotCreateError(problem, advice=f"move it, or remove it: rm -r {quote(str(new))}")
    return f"{path}{UPDATE}" if not Path(path).is_symlink() else str(new)


def publish_update(new: VectorFolder, path: str) -> bool:
    """Replace a vector folder by its complete update, in one step; false if blocks are missing."""
    run, target = Path(new.source), Path(os.path.realpath(path))
    with suppress(FileNotFoundError), run.open("rb") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
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


AGAIN = "repeat the first command with --resume, or name another folder"
EDGE = 1 << 16  # bytes at both ends of an input that run.json identifies


def describe_input(inputs: Inputs, path: str) -> dict[str, Any]:
    """What run.json records about an input. A grid of rows is for inputs that cannot be split at a byte.

    `rows` is the number of rows of a Parquet file, and null for other inputs.
    """
    name, full = readable(name_of(path).name), path if is_url(path) else os.path.realpath(path)
    record: dict[str, Any] = {"name": name, "path": None, "grid": "rows", "rows": None}
    unknown = {"size": None, "head": None, "tail": None}
    if path != "-" and is_vector_folder(path):
        return {**record, "path": readable(full), "format": "", **unknown}
    if path == "-" or not is_input_file(path):
        return {**record, "format": inputs.format_of(path), **unknown}
    record |= {"path": readable(full), "format": inputs.format_of(path)}
    packed = suffix_of(path) in COMPRESSED or inputs.vector_file(path) is not None
    if record["format"] == "parquet":
        with open_parquet(path) as table:
            record["rows"] = table.count
    elif not packed and record["format"] in LINES:
        record["grid"] = "bytes"
        if not record["format"]:  # as the reader detects it
            with open_input(path) as file:
                lines = (line for _, line in numbered(file) if line.strip())
                record["format"] = "jsonl" if looks_like_json(next(lines, b"")) else "detected text"
    with open_file(path) as file:
        record["size"] = file.seek(0, os.SEEK_END)
        for name, place in (("head", 0), ("tail", max(0, record["size"] - EDGE))):
            file.seek(place)
            record[name] = hashlib.sha256(file.read(EDGE)).hexdigest()
    return record


def open_folder(path: str, settings: Settings, defaults: Settings) -> tuple[VectorFolder, bool]:
    """Create run.json, or compare these settings with it. Also returns whether this process created it.

    A setting with the value None has the value that run.json has; `defaults` are for a new run.json.
    """
    new = {name: defaults.get(name) if value is None else value for name, value in settings.items()}
    content = orjson.dumps({"format": FORMAT, "version": VERSION, **new}, option=OPTIONS)
    if not is_url(path):
        try:
            Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(path, error) from error
    run, created = inside(path, RUN_NAME), True
    try:
        with published_together(), open_output(run, force=False) as out:
            out.write(content)
    except CannotCreateError:  # there is one, also from another process
        created = False
        if not (is_written(run) if is_url(run) else is_there(run)):
            raise
    folder = VectorFolder(newest(path) if is_url(path) else path)
    if not created:
        compare(folder, settings)
    return folder, created


OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def compare(folder: VectorFolder, settings: Settings) -> None:
    """Refuse a setting that differs from run.json."""
    given = {name for name, value in settings.items() if value is not None} - {"inputs", "encoder"}
    before, now = without_machine(folder.settings["encoder"]), without_machine(settings["encoder"])
    before |= {name: folder.settings.get(name) for name in given}
    now |= {name: settings[name] for name in given}
    for name in {**settings, **now, **before}:
        if before.get(name) != now.get(name):
            problem = f'"{name}" is {shown(before.get(name))}, this command has {shown(now.get(name))}'
            raise DataError(problem, source=folder.source, advice=AGAIN)
    if (change := input_change(folder, settings["inputs"])) is not None:
        raise change


def input_change(folder: VectorFolder, inputs: Sequence[Mapping[str, Any]]) -> DataError | None:
    """The error for inputs that differ from those of run.json; None if they are the same."""
    advice = f"restore the input, or update the folder with --reuse {quote(folder.path)}"
    nothing: Mapping[str, Any] = {}
    for place, (before, now) in enumerate(zip_longest(folder.inputs, inputs, fillvalue=nothing), 1):
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and name != "path"]
        if "name" in changed:
            old, new = (shown(each["name"]) if each else "missing" for each in (before, now))
            problem = f"other inputs: input {place} of {len(folder.inputs)} is {old}, "
            problem += f"in this command of {len(inputs)} inputs {new}"
            return DataError(problem, source=folder.source, advice=advice)
        commits = commit_in(before["path"]), commit_in(now["path"])
        if changed or (None not in commits and commits[0] != commits[1]):
            part = changed[0] if changed else "commit"
            problem = f"{now['name']} has changed since the first block (its {part})"
            return DataError(problem, source=folder.source, advice=advice)
    return None
