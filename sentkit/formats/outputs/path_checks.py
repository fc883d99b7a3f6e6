"""Compare the output paths of a command with its input paths before the work starts."""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentkit.errors import UsageError
from sentkit.formats.outputs.outputs import descriptor_of
from sentkit.formats.outputs.temporary import leftovers

Paths = Mapping[str, str | Sequence[str] | None]  # flag -> paths; the key of the input rows is "FILE"


@dataclass(frozen=True, slots=True)
class Place:
    """The file of a path, after symbolic links and standard streams are resolved."""

    flag: str
    path: str
    number: int | None  # the number of an open descriptor
    real: str | None  # the resolved path; None for an open descriptor
    status: (
        os.stat_result | None
    )  # None if the file does not exist, and for devices and pipes, which store no data

    @property
    def called(self) -> str:
        return (
            {0: "standard input", 1: "standard output"}[self.number or 0] if self.path == "-" else self.path
        )

    def is_same(self, other: "Place") -> bool:
        if self.status is not None and other.status is not None:
            return os.path.samestat(self.status, other.status)
        return self.real is not None and self.real == other.real and not is_device(self.real)

    def holds(self, other: "Place") -> bool:
        """Whether this is a folder that contains the other path, at any depth."""
        if self.real is None or other.real is None or self.status is None:
            return False
        return stat.S_ISDIR(self.status.st_mode) and Path(other.real).is_relative_to(self.real)


def check_places(writes: Paths, reads: Paths) -> None:
    """Raise a UsageError for conflicts between outputs and inputs, and between two outputs.

    Only one flag can read standard input. An output must not be an input, contain an input, or replace a file
    in an input folder. Missing inputs are ignored here, because reading them fails later.
    """
    outputs, inputs = places(writes, 1), places(reads, 0)
    flags = [source.flag for source in inputs if source.number == 0]
    if len(flags) > 1 and {*flags} != {"FILE"}:
        raise UsageError("standard input can be read only once", advice="name a file for the other input")
    for output in outputs:
        what = output.called if output.path == "-" else f"{output.flag} {output.path}"
        for source in inputs:
            overwrites = source.holds(output) and output.status is not None
            if source.status is not None and (output.is_same(source) or output.holds(source) or overwrites):
                problem = f"{what}: would overwrite the input {source.called}"
                raise UsageError(problem, advice="choose another output")
    for place, output in enumerate(outputs):
        for other in outputs[:place]:
            same = output.is_same(other) or (output.number is not None and output.number == other.number)
            if same or output.holds(other) or other.holds(output):
                relation = "is also the path of" if same else "contains, or is inside, the path of"
                problem = f"{output.flag} {output.path}: {relation} {other.flag}"
                raise UsageError(problem, advice="choose another path for one of them")


def places(paths: Paths, stream: int) -> list[Place]:
    """Resolve the paths; `stream` is the descriptor number of "-"."""
    resolved = []
    for flag, named in paths.items():
        for path in [named] if isinstance(named, str) else named or ():
            number = stream if path == "-" else descriptor_of(path)
            real = os.path.realpath(path) if number is None and "\0" not in path else None
            resolved.append(Place(flag, path, number, real, status_of(path, number)))
    return resolved


def status_of(path: str, number: int | None) -> os.stat_result | None:
    try:
        status = Path(path).stat() if number is None else os.fstat(handle_of(path, number))
    except (OSError, ValueError, AttributeError):  # no such file, a closed stream, or a stream in memory
        return None
    return status if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def handle_of(path: str, number: int) -> int:
    return (sys.stdout if number else sys.stdin).fileno() if path == "-" else number


def is_device(path: str) -> bool:
    """Whether two processes can write here without damage, as to a terminal or /dev/null."""
    return Path(path).is_char_device()


def leftovers_of(writes: Paths) -> list[Path]:
    """The temporary files of killed processes for these outputs."""
    targets = dict.fromkeys(place.real for place in places(writes, 1) if place.real is not None)
    return [path for target in targets for path in leftovers(Path(target)) if not is_device(target)]
