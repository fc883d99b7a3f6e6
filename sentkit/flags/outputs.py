"""The outputs of commands: rows, vectors, reports and pictures; and the check of all paths of a
command.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sentkit.console import Console, R, in_words, print_pairs, show
from sentkit.errors import DataError, UsageError

if TYPE_CHECKING:
    from sentkit.formats.outputs.outputs import Paths
    from sentkit.formats.vectors.writers import VectorOutput
    from sentkit.plots.picture import Picture

COLUMN = 84.0  # millimetres: the width of a column of a page
PAGE = 174.0
FEW_CHARACTERS = 5  # of a warning about fonts


def check_paths(console: Console, writes: "Paths", reads: "Paths") -> None:
    """Check before any work that no output overwrites an input or another output.

    Also remove temporary files of killed processes, and name folders that they renamed.
    """
    from sentkit.formats.outputs.outputs import check_places, clean

    check_places(writes, reads)
    for path in clean(writes):
        content = "the previous output, renamed by a killed process; to restore it, rename it back"
        console.warn(f"{path}: {content}")


def model_paths(model: str | None) -> str | list[str] | None:
    """The paths that -m names; None for a model behind an API, and for an included model, even if a
    file or folder has its name.
    """
    from sentkit.formats.checkpoints.folders import INCLUDED, is_endpoint

    if model is None or model in INCLUDED or is_endpoint(model):
        return None
    if not model.endswith(".npy"):
        return model
    from sentkit.formats.lexicons.word_vectors import words_beside

    words = words_beside(model)
    if words is None:
        return model
    return [model, str(words)]


@dataclass(frozen=True)
class Output:
    """The output of a command, which appears when the command succeeds."""

    path: str = "-"
    force: bool = False

    def __post_init__(self) -> None:
        from sentkit.formats.outputs.outputs import refuse_url

        refuse_url(self.path)

    @property
    def on_terminal(self) -> bool:
        return self.path == "-" and sys.stdout is not None and sys.stdout.isatty()

    def open(self) -> AbstractContextManager[BinaryIO]:
        from sentkit.formats.outputs.outputs import open_output

        return open_output(self.path, force=self.force)

    def check_creatable(self) -> None:
        """Refuse an output that exists or cannot be created, before any work."""
        from sentkit.formats.outputs.outputs import check_creatable

        check_creatable(self.path, force=self.force)

    def check_rows(self) -> None:
        """The same, and refuse an output that is not of rows."""
        from sentkit.formats.outputs.names import check_rows_output

        check_rows_output(self.path)
        self.check_creatable()

    def check_rows_or_vectors(self) -> None:
        """The same, and refuse an output that is neither of rows nor of vectors."""
        from sentkit.formats.outputs.names import check_output

        check_output(self.path)
        self.check_creatable()

    def check_encoding(self, encoding: str | None) -> None:
        """Refuse --vectors for a vector file or folder. The default, "list", and a value of the
        variable SENTKIT_VECTORS are for the other outputs.
        """
        from sentkit.formats.files import is_safetensors

        is_given = encoding not in (None, "list", os.environ.get("SENTKIT_VECTORS"))
        in_folder = self.path.endswith("/")
        if is_given and (in_folder or is_safetensors(self.path)):
            output = "folder" if in_folder else "file"
            problem = f"--vectors {encoding} has no effect on a vector {output}"
            raise UsageError(problem, advice="--store sets how it stores the numbers")

    def vectors(self, *, replace: bool = False) -> "VectorOutput":
        """How the vectors are written: float32, in JSONL as the variable SENTKIT_VECTORS says."""
        from sentkit.formats.vectors.writers import VectorOutput

        encoding = os.environ.get("SENTKIT_VECTORS") or "list"
        if encoding not in ("list", "base64"):
            raise UsageError(
                f'the variable SENTKIT_VECTORS is "{encoding}", expected list or base64'
            )
        return VectorOutput(encoding, force=self.force, replace=replace)

    def write_records(
        self,
        records: Iterable[R],
        line: Callable[[R], dict[str, str]],
        *,
        as_table: bool,
        **layout: Any,
    ) -> None:
        """Write the records, or print a table with a line for each; `layout` is that of `show`."""
        with self.open() as file:
            show(records, lambda record: [line(record)], file, as_table=as_table, **layout)

    def write_record(
        self,
        record: Mapping[str, Any],
        *,
        as_table: bool,
        pairs: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        """Write the record, or print the pairs of a name and a value; by default, those of the
        record.
        """
        if as_table:
            if pairs is None:
                pairs = [(name, in_words(value, "unknown")) for name, value in record.items()]
            print_pairs(pairs)
            return
        from sentkit.formats.files import json_line

        with self.open() as file:
            file.write(json_line(record))


@dataclass(frozen=True)
class PictureOutput(Output):
    """The file of a picture, and its width in millimetres."""

    width: float | None = None

    @property
    def format(self) -> str:
        """`svg`, `png`, `pdf` or `jsonl`; empty for standard output."""
        if self.path == "-":
            return ""
        return Path(self.path).suffix.lower()[1:]

    def check(self) -> None:
        """Refuse an unknown format, and a picture without matplotlib, before any work."""
        from sentkit.plots.drawing import FORMATS, import_matplotlib

        is_picture = self.format in FORMATS
        if self.path != "-" and not is_picture and self.format != "jsonl":
            problem = f"{self.path}: unknown format of a picture"
            raise UsageError(problem, advice="use a name with .svg, .png, .pdf or .jsonl")
        if self.on_terminal:
            advice = "use -o FIGURE.svg, or | cat for the numbers of the picture"
            raise UsageError("a terminal shows no picture", advice=advice)
        if self.width is not None and not is_picture:
            raise UsageError("--width needs a picture", advice="use -o with .svg, .png or .pdf")
        if is_picture:
            import_matplotlib()
        self.check_creatable()

    def write(self, picture: "Picture", console: Console) -> None:
        """Draw the picture, or write its numbers as JSON."""
        from sentkit.formats.files import json_line, shown_path
        from sentkit.plots.drawing import FORMATS, draw
        from sentkit.plots.picture import LARGEST

        if self.format not in FORMATS:
            with self.open() as file:
                file.writelines(json_line(record) for record in picture.records())
            return
        if picture.largest_value() > LARGEST:
            problem = f"a value of {picture.largest_value():g} is too large for a picture"
            advice = "-o with .jsonl writes the numbers"
            raise DataError(problem, source=self.path, advice=advice)
        width = self.width
        if width is None:
            width = PAGE if picture.needs_page else COLUMN
        with self.open() as file:
            missing = draw(picture, file, self.format, width)
        if missing:
            examples = " ".join(sorted(missing)[:FEW_CHARACTERS])
            console.warn(
                f"{shown_path(self.path)}: characters that no installed font has are boxes: "
                f"{examples}."
                " Use -o with .svg, whose texts remain texts, or install fonts such as Noto"
            )
