"""Flags that several commands share, with one definition each, and records of them."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from sentkit.console import Console, R, in_words, print_pairs, show
from sentkit.errors import UsageError
from sentkit.flags import MAY_BE_EMPTY, Excludes, Named, Range, Variable
from sentkit.process import may_have_gpu

if TYPE_CHECKING:
    from sentkit.formats.outputs.outputs import Paths
    from sentkit.formats.vectors.writers import VectorOutput
    from sentkit.metrics.device import Device
    from sentkit.model.reading import ReadingOptions
    from sentkit.plots.picture import Picture

HALF, FULL = 84.0, 174.0  # millimetres: the width of a column, and of a page
FEW_CHARACTERS = 5  # of a warning about fonts
Count = Annotated[int | None, Range(min=1)]
Seed = Annotated[int, Range(min=0)]
OnTruncate = Literal["warn", "error"]
Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
Store = Literal["float32", "float16", "int8", "binary"] | None


def head_of(head: str) -> tuple[str, int]:
    """The classifier of --head, and its hidden units."""
    name, colon, hidden = head.partition(":")
    if name not in ("logreg", "senteval") or (colon and not (name == "senteval" and hidden.isdecimal())):
        raise UsageError(f'--head "{head}"', advice="available: logreg, senteval, senteval:N")
    return name, int(hidden or 0)


def check_name(flag: str, name: str | None) -> None:
    """Refuse the name of a new field that JSON would have to escape."""
    if name is not None and not (name.isprintable() and not {'"', "\\"} & set(name)):
        raise UsageError(f"{flag} {name!r}: expected a printable name without quotes and backslashes")


def check_threshold(threshold: float | None, metric: str) -> None:
    """Refuse a threshold that no similarity reaches, or that every similarity reaches."""
    least, most = {"cosine": (-1.0, 1.0), "dot": (-math.inf, math.inf)}.get(metric, (-math.inf, 0.0))
    if threshold is None or least <= threshold <= most:
        return
    expected = "a number from -1 to 1" if metric == "cosine" else "0 or less: distances are made negative"
    raise UsageError(f"--threshold {threshold:g}: expected {expected}")


def check_paths(console: Console, writes: "Paths", reads: "Paths") -> None:
    """Check before any work that no output overwrites an input or another output.

    Also remove temporary files of killed processes, and name folders that they renamed.
    """
    from sentkit.formats.outputs.outputs import check_places, clean

    check_places(writes, reads)
    for path in clean(writes):
        content = "the previous output, renamed by a killed process; to restore it, rename it back"
        console.warn(f"{path}: {content}")


def model_paths(model: str) -> str | list[str] | None:
    """The paths that -m names; None for an included model, even if a file or folder has its name."""
    from sentkit.formats.checkpoints.folders import INCLUDED

    if not model.endswith(".npy"):
        return None if model in INCLUDED else model
    from sentkit.formats.lexicons.word_vectors import words_beside

    words = words_beside(model)
    return model if words is None else [model, str(words)]


@dataclass(frozen=True)
class OutputFlags:
    """The output of a command, which appears when the command succeeds."""

    path: Annotated[str, Named("--output")] = "-"
    force: bool = False

    def __post_init__(self) -> None:
        from sentkit.formats.outputs.outputs import refuse_url

        refuse_url(self.path)

    def open(self) -> AbstractContextManager[BinaryIO]:
        from sentkit.formats.outputs.outputs import open_output

        return open_output(self.path, force=self.force)

    def check_creatable(self) -> None:
        """Refuse an output that exists or cannot be created, before any work."""
        from sentkit.formats.outputs.outputs import check_creatable

        check_creatable(self.path, force=self.force)

    def check_rows(self, *, vectors: bool = False) -> None:
        """The same, and refuse an output that is not of rows or, with `vectors`, of rows or vectors."""
        from sentkit.formats.outputs.names import check_output, check_rows_output

        (check_output if vectors else check_rows_output)(self.path)
        self.check_creatable()

    def vectors(self, *, replace: bool = False) -> "VectorOutput":
        """How the vectors are written: float32, in JSONL as the variable SENTKIT_VECTORS says."""
        from sentkit.formats.vectors.writers import VectorOutput

        encoding = os.environ.get("SENTKIT_VECTORS") or "list"
        if encoding not in ("list", "base64"):
            raise UsageError(f'the variable SENTKIT_VECTORS is "{encoding}", expected list or base64')
        return VectorOutput(encoding, force=self.force, replace=replace)

    @property
    def on_terminal(self) -> bool:
        return self.path == "-" and sys.stdout is not None and sys.stdout.isatty()


@dataclass(frozen=True)
class VectorOutputFlags(OutputFlags):
    """An output with vectors: rows, or a vector file.

    --vectors: Format of vectors in JSONL.
    """

    encoding: Annotated[Literal["list", "base64"], Named("--vectors"), Variable("SENTKIT_VECTORS")] = "list"
    store: Store = None

    def vectors(self, *, replace: bool = False) -> "VectorOutput":
        from sentkit.formats.vectors.writers import VectorOutput

        return VectorOutput(self.encoding, force=self.force, replace=replace, store=self.store)


@dataclass(frozen=True)
class ReportFlags(OutputFlags):
    """An output that is a table on a terminal."""

    json: bool = False

    @property
    def as_table(self) -> bool:
        return self.on_terminal and not self.json

    def show(self, records: Iterable[R], line: Callable[[R], dict[str, str]], **layout: Any) -> None:
        """Write the records, or print a table with a line for each."""
        with self.open() as out:
            show(records, lambda record: [line(record)], out, as_table=self.as_table, **layout)

    def write(self, record: Mapping[str, Any], pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Print the pairs, by default those of the record, on a terminal, otherwise write the record."""
        if self.as_table:
            print_pairs(pairs or [(name, in_words(value, "unknown")) for name, value in record.items()])
            return
        from sentkit.formats.files import json_line

        with self.open() as out:
            out.write(json_line(record))


@dataclass(frozen=True)
class TableFlags(ReportFlags):
    """An output that is a table on a terminal, or on request in a pipe.

    --json/--table: Print a report as JSON, or as a table. [default: a table on a terminal]
    """

    json: Annotated[bool | None, Named("--json/--table")] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json is False and self.path != "-":
            raise UsageError("--table is for standard output", advice="use > FILE in place of -o FILE")

    @property
    def as_table(self) -> bool:
        return self.on_terminal if self.json is None else not self.json


@dataclass(frozen=True)
class PlotFlags(OutputFlags):
    """The file of a picture, and its size.

    -o, --output PATH: A .svg, .png or .pdf picture, or .jsonl. [default: JSON, but not on a terminal]
    --width MM: Width in millimetres. [default: 84, or 174 for several panels or many sentences]
    """

    path: Annotated[str, Named("--output")] = "-"
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
        if self.on_terminal:
            advice = "use -o FIGURE.svg, or | cat for the numbers of the picture"
            raise UsageError("a terminal shows no picture", advice=advice)
        if self.width is not None and not picture:
            raise UsageError("--width needs a picture", advice="use -o with .svg, .png or .pdf")
        if picture:
            import_matplotlib()
        self.check_creatable()

    def write(self, picture: "Picture", console: Console) -> None:
        from sentkit.formats.files import json_line, readable
        from sentkit.plots.drawing import FORMATS, draw

        if self.format in FORMATS:
            width = self.width or (FULL if picture.needs_page else HALF)
            with self.open() as out:
                missing = draw(picture, out, self.format, width)
            if missing:
                examples = " ".join(sorted(missing)[:FEW_CHARACTERS])
                console.warn(
                    f"{readable(self.path)}: characters that no installed font has are boxes: {examples}."
                    " Use -o with .svg, whose texts remain texts, or install fonts such as Noto"
                )
            return

        with self.open() as out:
            out.writelines(json_line(record) for record in picture.records())


@dataclass(frozen=True)
class MachineFlags:
    """The device and the number format of a model.

    --precision: auto: bf16 on a GPU that supports it well, else fp32. int8: see sentkit-encode(1).
    """

    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class ExactMachineFlags(MachineFlags):
    """The same for vectors that are stored in a model or averaged: float32 by default.

    --precision: auto: bf16 on a GPU that supports it well, else fp32.
    """

    precision: Literal["auto", "fp32", "bf16"] = "fp32"


def find_device(name: str) -> "Device | None":
    """The device that compares vectors; None for the CPU, without an import of torch."""
    if name == "cpu" or (name == "auto" and not may_have_gpu()):
        return None
    from sentkit.metrics.device import Device
    from sentkit.model.transformer.device import pick_device

    device = pick_device(name)
    return None if name == "auto" and device.type == "cpu" else Device(device)


@dataclass(frozen=True)
class ComparingFlags:
    """The device that compares vectors.

    --device cpu|cuda[:N]|auto: Device that compares vectors; the output has the same bytes on each.
    """

    device: Annotated[
        str,
        Excludes("--metric euclidean|manhattan", ", which the CPU compares"),
        Excludes("--algorithm agglomerative|hdbscan", ", which runs on the CPU"),
    ] = "cpu"

    def find(self) -> "Device | None":
        return find_device(self.device)


@dataclass(frozen=True)
class ReadoutFlags:
    """The reading of texts by a model; without a flag, the checkpoint decides."""

    readout: str | None = None
    max_length: Count = None

    def options(self) -> "ReadingOptions":
        """The flags as a model takes them."""
        from sentkit.model.reading import ReadingOptions

        return ReadingOptions(**vars(self))


@dataclass(frozen=True)
class DeclarationFlags(ReadoutFlags):
    """The reading of texts, and the operations after the readout.

    --prompt TEXT: Text to add before every input text.
    --prompt-name NAME: A prompt of the checkpoint, such as query. [default: as the checkpoint declares]
    """

    prompt: Annotated[str | None, MAY_BE_EMPTY] = None
    prompt_name: str | None = None
    normalize: bool = False


@dataclass(frozen=True)
class ExportFlags(DeclarationFlags):
    """All that a checkpoint can declare, which is one prompt for all texts.

    --transform PATH: A transform file to apply after all other operations.
    --template NAME|TEXT: For the readout prompt: a template name, or text with [X] and [MASK].
    --full-stop: Rule that adds missing final punctuation. [default: as in the template's paper]
    """

    transform: str | None = None
    template: str | None = None
    full_stop: Literal["none", "promptbert", "sncse"] | None = None

    def __post_init__(self) -> None:
        from sentkit.formats.rows.kinds import split_by_side

        if split_by_side(self.prompt or ""):
            advice = "prompts by side are for encode, and for train --set prompt"
            raise UsageError("--prompt: a checkpoint declares one prompt for all texts", advice=advice)


@dataclass(frozen=True)
class ReadingFlags(DeclarationFlags):
    """The reading of texts, and the width of the vectors.

    --prompt TEXT: Text to add before every input text, or by side: a='query: ',b='passage: '.
    --prompt-name NAME: A prompt of the checkpoint, such as query, or by side: a=query,b=document. [default:
        as the checkpoint declares]
    --dim N: Keep the first N numbers, at unit length again if they had it (unlike truncate_dim).
    """

    dim: Count = None

    def options(self) -> "ReadingOptions":
        return replace(super().options(), by_side=True)
