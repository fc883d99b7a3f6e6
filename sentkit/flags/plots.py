"""The output of `sentkit plot`: a picture in a file, or its numbers as JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flags.options import OutputFlags
from sentkit.flags.rows import Known, RowFlags
from sentkit.flags.rules import Named, Range

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots.picture import Picture

HALF, FULL = 84.0, 174.0  # millimetres: the width of a column, and of a page


@dataclass(frozen=True)
class PlotFlags(OutputFlags):
    """The file of a picture, and its size.

    -o, --output PATH: A .svg, .png or .pdf picture, or .jsonl. [default: JSON, but not on a terminal]
    --width MM: Width in millimetres. [default: 84, or 174 for several panels]
    """

    path: Annotated[str, Named("--output")] = "-"
    json: bool = False
    width: Annotated[float | None, Range(min=30, max=1000)] = None

    @property
    def format(self) -> str:
        """`svg`, `png`, `pdf` or `jsonl`; empty for standard output."""
        return "" if self.path == "-" else Path(self.path).suffix.lower()[1:]

    def check(self) -> None:
        """Refuse an unknown format, and a picture without matplotlib, before any work."""
        from sentkit.plots.drawing import FORMATS, import_matplotlib

        picture = self.format in FORMATS
        if self.path != "-" and not picture and self.format != "jsonl":
            problem = f"{self.path}: unknown format of a picture"
            raise UsageError(problem, advice="use a name with .svg, .png, .pdf or .jsonl")
        if self.on_terminal and not self.json:
            advice = "use -o FIGURE.svg, or --json for the numbers of the picture"
            raise UsageError("a terminal shows no picture", advice=advice)
        if self.width is not None and not picture:
            raise UsageError("--width needs a picture", advice="use -o with .svg, .png or .pdf")
        if self.json and picture:
            raise UsageError(f"--json cannot be used with -o {self.path}", advice="use a name with .jsonl")
        if picture:
            import_matplotlib()
        self.check_creatable()

    def draw(
        self, name: str, rows: RowFlags, known: Known, picture: Callable[["Inputs", Console], "Picture"]
    ) -> None:
        """Write the picture of the rows. `name` is that of the command."""
        console = Console(f"plot {name}")
        self.check()
        with rows.open(console, self, known=known) as inputs:
            made = picture(inputs, console)
        self.write(made, console)

    def write(self, picture: "Picture", console: Console) -> None:
        from sentkit.plots.drawing import FORMATS, draw

        if self.format in FORMATS:
            width = self.width or (FULL if len(picture.panels) > 1 else HALF)
            with self.open() as out:
                warnings = draw(picture, out, self.format, width)
            console.warn(*warnings)
            return
        from sentkit.formats.files import json_line

        with self.open() as out:
            out.writelines(json_line(record) for record in picture.records())
