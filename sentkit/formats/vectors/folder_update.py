"""Replace a vector folder by one of changed inputs: the new folder is beside it until it is complete."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from sentkit.errors import CannotCreateError
from sentkit.formats.json_files import read_object_if_there
from sentkit.formats.outputs.temporary import lock, publish_folder
from sentkit.formats.vectors.folder_check import source_digests
from sentkit.formats.vectors.folder_settings import compare, input_change
from sentkit.formats.vectors.folders import RUN_NAME, Settings, VectorFolder, is_vector_folder

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
        raise CannotCreateError(problem, advice=f"move it, or remove it: rm -r {new}")
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
        if read_object_if_there(run) != new.settings:
            return True
        if not new.status().complete:
            return False
        own = VectorFolder(path).existing()[0] | {RUN_NAME}
        for each in [each for each in target.iterdir() if each.name not in own]:
            each.rename(run.with_name(each.name))
        shutil.copymode(target, run.parent)
        publish_folder(run.parent, target, force=True, name=path)
    return True
