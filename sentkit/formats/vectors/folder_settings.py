"""The settings of a vector folder in `run.json`: created once, and compared by each later command."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

import orjson

from sentkit.errors import CannotCreateError, DataError
from sentkit.formats.files import COMPRESSED, is_input_file, name_of, open_file, readable, suffix_of
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.outputs.temporary import Draft
from sentkit.formats.outputs.uploads import is_written, newest
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import LINES, Inputs
from sentkit.formats.urls import commit_in, is_url
from sentkit.formats.vectors.fingerprint import without_machine
from sentkit.formats.vectors.folders import (
    FORMAT,
    RUN_NAME,
    VERSION,
    Settings,
    VectorFolder,
    is_vector_folder,
    shown,
)

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
        record |= {"grid": "bytes", "format": inputs.detected_format(path)}
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
    if is_url(path):
        created = create_at(f"{path}/{RUN_NAME}", content)
        folder = VectorFolder(newest(path))
        if not created:
            compare(folder, settings)
        return folder, created
    target = Path(os.path.realpath(path), RUN_NAME)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{path}: cannot be created: {trouble}") from error
    if not target.exists():
        draft = Draft(target, force=False, name=str(Path(path, RUN_NAME)))
        try:
            draft.file.write(content)
            draft.finish()
            draft.publish()
            return VectorFolder(path), True
        except CannotCreateError:  # another process created it
            if not target.exists():
                raise
        finally:
            draft.discard()
    folder = VectorFolder(path)
    compare(folder, settings)
    return folder, False


def create_at(url: str, content: bytes) -> bool:
    """Write a file at a URL; false if there is one, also from another process."""
    try:
        with published_together(), open_output(url, force=False) as out:
            out.write(content)
    except CannotCreateError:
        if not is_written(url):
            raise
        return False
    return True


OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def compare(folder: VectorFolder, settings: Settings) -> None:
    """Refuse a setting that differs from run.json."""
    for name, value in settings.items():
        if name not in ("inputs", "encoder") and value is not None and folder.settings.get(name) != value:
            raise different(folder, name, folder.settings.get(name), value)
    encoder, own = without_machine(folder.settings.get("encoder", {})), without_machine(settings["encoder"])
    for name in dict.fromkeys([*own, *encoder]):
        if encoder.get(name) != own.get(name):
            raise different(folder, name, encoder.get(name), own.get(name))
    if (change := input_change(folder, settings["inputs"])) is not None:
        raise change


def input_change(folder: VectorFolder, inputs: Sequence[Mapping[str, Any]]) -> DataError | None:
    """The error for inputs that differ from those of run.json; None if they are the same."""
    names = [each["name"] for each in folder.inputs], [each["name"] for each in inputs]
    advice = f"restore the input, or update the folder with --reuse {quote(folder.path)}"
    if names[0] != names[1]:
        return DataError(f"other inputs: {first_difference(*names)}", source=folder.source, advice=advice)
    for before, now in zip(folder.inputs, inputs, strict=True):
        commits = commit_in(before["path"]), commit_in(now["path"])
        if None not in commits and commits[0] != commits[1]:
            problem = (
                f"{now['name']} is at the commit {commits[1]}, for the first block it was at {commits[0]}"
            )
            again = f"name the commit of the first block: {before['path']}; or {advice.partition('or ')[2]}"
            return DataError(problem, source=folder.source, advice=again)
        for name in dict.fromkeys([*before, *now]):
            if name != "path" and before.get(name) != now.get(name):
                if name in ("name", "format"):
                    return different(folder, f"{now['name']}: {name}", before.get(name), now.get(name))
                return DataError(changed_input(before, now, name), source=folder.source, advice=advice)
    return None


def first_difference(before: Sequence[str], now: Sequence[str]) -> str:
    """The first input that differs between run.json and this command."""
    for place, names in enumerate(zip_longest(before, now), 1):
        if names[0] != names[1]:
            old, new = (shown(name) if name is not None else "missing" for name in names)
            return f"input {place} of {len(before)} is {old}, in this command of {len(now)} inputs {new}"
    raise AssertionError("the lists are equal")


def changed_input(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    """How the content of an input differs from run.json."""
    if None not in (before["size"], now["size"]) and before["size"] != now["size"]:
        difference = f"it had {before['size']:,} bytes, it has {now['size']:,}"
    elif name in ("head", "tail"):
        end = "first" if name == "head" else "last"
        difference = f"the same size, but other bytes in the {end} {EDGE >> 10} KiB"
    else:
        difference = f'"{name}" was {shown(before.get(name))}, it is {shown(now.get(name))}'
    return f"{now['name']} has changed since the first block: {difference}"


def different(folder: VectorFolder, name: str, before: object, now: object) -> DataError:
    problem = f'"{name}" is {shown(before)}, this command has {shown(now)}'
    return DataError(problem, source=folder.source, advice=AGAIN)
