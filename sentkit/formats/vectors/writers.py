"""Write rows with vectors as JSONL, Parquet or a vector file, by the name of the output."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.files import is_safetensors
from sentkit.formats.outputs.names import check_output, is_file_name
from sentkit.formats.outputs.outputs import open_output, refuse_existing
from sentkit.formats.rows.block import NewFields, RowBlock
from sentkit.formats.vectors.file_writer import VectorFileWriter, create_vector_file
from sentkit.formats.vectors.grid import SUFFIX
from sentkit.formats.vectors.tensors import FLOAT16_MAX
from sentkit.formats.vectors.vectors import ENCODINGS, VectorBlock, refuse_not_finite

LAYERS = re.compile(r"L\d+(?:\+L\d+)*")  # the beginning of a readout of layers


@dataclass(frozen=True, slots=True)
class VectorOutput:
    """How the vectors are written."""

    encoding: str = "list"  # in JSONL: list or base64
    force: bool = False  # overwrite an existing output
    replace: bool = False  # overwrite existing fields of a row
    # in vector files: float32 and so on; None: float32, or as in a vector folder
    store: str | None = None

    def check(self, path: str) -> None:
        """Raise an error for an output of another format, or one that does not store vectors
        separately.
        """
        check_output(path)
        if self.store is not None and not is_safetensors(path):
            advice = "use -o with a name that ends in .safetensors"
            raise UsageError(f"--store {self.store} needs a vector file", advice=advice)


class VectorWriter(ABC):
    """Writes rows with their vectors."""

    new_fields: Sequence[str]  # their names, with that of the space
    kind: str | None  # how a vector file stores the numbers, as float16; None: not in a vector file
    replace: bool

    def check(
        self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[str] = ()
    ) -> None:
        """Mark the rows that cannot be written as bad. `extra` are the names of the new fields that
        are not vectors.
        """
        refuse_not_finite(rows, vectors)  # JSON cannot represent NaN
        refuse_beyond_float16(rows, vectors, self.kind)
        refuse_existing_fields(rows, [*extra, *self.new_fields], replace=self.replace)

    @abstractmethod
    def write(
        self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()
    ) -> None:
        """Write rows that `check` has passed, with their vectors (n, k, d) and further new
        fields.
        """

    @abstractmethod
    def flush(self) -> None:
        """Send the rows so far to the reader of a pipe."""

    def put(
        self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()
    ) -> None:
        """Write rows; raise the error of the first one that cannot be written."""
        self.check(rows, vectors, [name.decode() for name, _ in extra[0]] if extra else ())
        if rows.error_of_row:
            raise rows.error_of_row[min(rows.error_of_row)]
        self.write(rows, vectors, extra)


class JsonlWriter(VectorWriter):
    """Writes the row with `_emb` and the vectors after its other fields."""

    kind = None

    def __init__(
        self, out: BinaryIO, emb: str | None, names: Sequence[str], vector_output: VectorOutput
    ) -> None:
        self.out = out
        self.replace = vector_output.replace
        self.encode = ENCODINGS[vector_output.encoding]
        self.names = [name.encode() for name in names]
        self.emb: NewFields = []
        self.new_fields = names
        if emb is not None:
            self.emb = [(b"_emb", orjson.dumps(emb))]
            self.new_fields = ["_emb", *names]

    def write(
        self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()
    ) -> None:
        new_fields = list[NewFields]()
        for row_vectors in vectors:
            fields_of_vectors = zip(self.names, map(self.encode, row_vectors), strict=True)
            new_fields.append([*self.emb, *fields_of_vectors])
        if extra:
            new_fields = [
                [*fields, *vectors] for fields, vectors in zip(extra, new_fields, strict=True)
            ]
        self.out.write(b"\n".join([*with_fields(rows, new_fields), b""]))

    def flush(self) -> None:
        self.out.flush()


class SeparateWriter(VectorWriter):
    """Writes the row and, separately, its vectors to a vector file."""

    def __init__(self, writer: VectorFileWriter, vector_output: VectorOutput) -> None:
        self.writer = writer
        self.replace = vector_output.replace
        self.kind = writer.kind
        self.new_fields = ("_emb", *writer.names)

    def write(
        self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()
    ) -> None:
        rows = rows.without(self.new_fields)
        lines = with_fields(rows, extra) if extra else rows.lines
        self.writer.write(lines, vectors)

    def flush(self) -> None:
        """A vector file is readable only when it is complete."""


def refuse_beyond_float16(rows: RowBlock, vectors: NDArray[np.float32], kind: str | None) -> None:
    """Mark rows with a number that float16 cannot store, if it is the kind of the output."""
    if kind != "float16":
        return
    largest = np.abs(vectors).max(axis=(1, 2), initial=0.0)
    problem = f"a vector contains a number beyond {FLOAT16_MAX:.0f}, the largest of float16"
    for index in np.flatnonzero(largest > FLOAT16_MAX).tolist():
        rows.refuse(index, problem, advice="use --store float32 or int8")


def refuse_existing_fields(
    rows: RowBlock, names: Sequence[str], *, replace: bool, rename: Mapping[str, str] | None = None
) -> None:
    """Mark rows that have one of these fields, unless they are replaced.

    `rename`: for some of the names, the flag that gives the new field another name.
    """
    new_names = frozenset(names)
    if replace or not names or all(map(new_names.isdisjoint, rows.values)):
        return
    for index, values in enumerate(rows.values):
        present = next((name for name in names if name in values), None)
        if present is None:
            continue
        advice = "use --replace to overwrite it"
        if rename is not None and present in rename:
            advice = f"use {rename[present]} to keep it, or --replace to overwrite it"
        rows.refuse(index, f'field "{present}" already exists', advice=advice)


def refuse_names_of_vectors(rows: RowBlock, names: Sequence[str]) -> None:
    """Mark rows of a vector file that have a field with the name of a vector: --field has read
    another field as the vector, and this one would be lost.
    """
    for index, values in enumerate(rows.values):
        name = next((name for name in names if name in values), None)
        if name is not None:
            problem = f'"{name}" is the name of the vectors in a vector file'
            rows.refuse(index, problem, advice="remove it, or write JSONL")


def with_fields(rows: RowBlock, new_fields: Sequence[NewFields]) -> list[bytes]:
    """The lines with new fields at their end; existing fields are replaced in place."""
    members = [b",".join([b'"%b":%b' % field for field in fields]) for fields in new_fields]
    lines: list[bytes] = []
    for line, values, text in zip(rows.lines, rows.values, members, strict=True):
        comma = b"," if values else b""  # an object without fields needs none
        lines.append(b"%b%b%b}" % (line[:-1], comma, text))
    if not new_fields:
        return lines
    names = {name.decode() for name, _ in new_fields[0]}
    if not all(map(names.isdisjoint, rows.values)):
        for index, values in enumerate(rows.values):
            if not names.isdisjoint(values):
                lines[index] = rows.row(index).add(new_fields[index], replace=True)
    return lines


def as_jsonl(block: VectorBlock, emb: str | None, encoding: str | None) -> list[bytes]:
    """The lines with their vectors in `encoding`. With None, vectors in the lines are unchanged.

    `emb` is the name of the space, for rows that do not have it.
    """
    rows = block.rows
    if not block.names or (encoding is None and not block.separate):
        return rows.lines
    encode = ENCODINGS[encoding or "list"]
    names = [name.encode() for name in block.names]
    new_fields = list[NewFields]()
    for values, vectors in zip(rows.values, block.vectors, strict=True):
        fields = list(zip(names, map(encode, vectors), strict=True))
        if emb is not None and "_emb" not in values:
            fields.insert(0, (b"_emb", orjson.dumps(emb)))
        new_fields.append(fields)
    return with_fields(rows, new_fields)


def output_paths(
    output: str, readouts: Sequence[str], vector_output: VectorOutput, *, force: bool
) -> list[str]:
    """The output path for each readout. Raises an error if the format is unknown or the path
    exists.
    """
    if len(readouts) == 1:
        paths = [output]
    elif output == "-" or Path(output).is_file() or is_name_of_file(output):
        raise UsageError("several readouts need an output folder", advice="use -o DIR")
    else:
        paths = [str(Path(output, f"{file_name(readout)}{SUFFIX}")) for readout in readouts]
    for path in paths:
        vector_output.check(path)
        refuse_existing(path, force=force)
    return paths


def is_name_of_file(output: str) -> bool:
    """Whether an output is not the name of a folder."""
    return is_file_name(output) and not (output.endswith("/") or Path(output).is_dir())


def file_name(readout: str) -> str:
    """`L3:cls` -> `L03-cls`, so that the order of names is the order of layers; others have only
    another sign than the colon.
    """
    layers, _, reduction = readout.partition(":")
    if LAYERS.fullmatch(layers) is None:
        return readout.replace(":", "-")
    padded = [f"L{int(layer[1:]):02d}" for layer in layers.split("+")]
    return f"{'+'.join(padded)}-{reduction}"


@contextmanager
def open_writers(
    paths: Sequence[str],
    specs: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    width: int,
    vector_output: VectorOutput,
) -> Iterator[list[VectorWriter]]:
    """Open a writer for each path, with one spec for each: `_emb`, and settings that only vector
    files record. `names` are the fields of the vectors, which have `width` numbers.
    """
    for path in paths:
        vector_output.check(path)
    if len(paths) > 1:
        Path(paths[0]).parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers: list[VectorWriter] = []
        for path, spec in zip(paths, specs, strict=True):
            if is_safetensors(path):
                kind = vector_output.store or "float32"
                file = create_vector_file(
                    path, spec, names, width=width, force=vector_output.force, kind=kind
                )
                writers.append(SeparateWriter(stack.enter_context(file), vector_output))
            else:
                out = stack.enter_context(open_output(path, force=vector_output.force))
                writers.append(JsonlWriter(out, spec.get("_emb"), names, vector_output))
        yield writers
