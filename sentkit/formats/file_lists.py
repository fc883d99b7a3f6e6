"""The input files of a command: lists of files, and patterns that the shell did not expand."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.files import open_input

MARKS = frozenset("*?[")


def read_list(path: str) -> list[str]:
    """The names in a file, one per line, or separated by NUL bytes as from `find -print0`."""
    with open_input(path) as file:
        content = file.read()
    separator = b"\0" if b"\0" in content else b"\n"
    names = [os.fsdecode(name) for name in content.split(separator) if name]
    if not names:
        raise DataError("no file names", source=path)
    if path == "-" and "-" in names:
        raise UsageError("standard input is the list of files, so it cannot be one of the files")
    return names


def expanded(paths: Sequence[str]) -> Iterator[str]:
    """The paths; for a pattern that is not the name of a file, the matching files in sorted order.

    A pattern matches no folders except vector folders.
    """
    for path in paths:
        if MARKS.isdisjoint(path) or os.path.lexists(path):
            yield path
            continue
        found = glob.glob(path, recursive=True)  # noqa: PTH207  # Path.glob refuses absolute patterns
        matches = [each for each in sorted(found) if is_source(Path(each))]
        if not matches:
            raise NoInputError(f"{path}: no file matches this pattern")
        yield from matches


def is_source(path: Path) -> bool:
    """Whether the path can be an input: not a folder without run.json."""
    return not path.is_dir() or (path / "run.json").is_file()
