"""The formats of rows, by the names of `sentkit cat --from`. A decorator of its reader adds one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Reader = TypeVar("Reader", bound=Callable[..., Any])

# Of a file, which its reader gets as blocks of lines, from the path and these. In "lines", each
# line is a row, so that a vector folder can divide the file at any line; a row of "records" can
# have several lines; the reader of a "table" also gets `TableOptions`. The reader of a "file" opens
# it by its path.
Layout = Literal["lines", "records", "table", "file"]


@dataclass(frozen=True, slots=True)
class InputFormat:
    layout: Layout
    read: Callable[..., Any]
    suffixes: Sequence[str]  # of the files that are read in this format without --from
    summary: str  # for the manual


FORMATS: dict[str, InputFormat] = {}


def input_format(name: str, layout: Layout, *suffixes: str) -> Callable[[Reader], Reader]:
    """Add a format. The first line of the docstring of its reader is its text in the manual."""

    def add(read: Reader) -> Reader:
        summary, _, _ = (read.__doc__ or "").partition("\n")
        FORMATS[name] = InputFormat(layout, read, suffixes, summary.removesuffix("."))
        return read

    return add
