"""Write rows with vectors as JSONL, Parquet or a vector file. The output name determines the format."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.files import COMPRESSED, bare_suffix, import_pyarrow, is_parquet
from sentkit.formats.outputs.outputs import is_special, open_output, refuse_existing
from sentkit.formats.rows.rows import Row
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.folders import SUFFIX
from sentkit.formats.vectors.storage import FLOAT16_MAX
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vector_file import VectorFileWriter, create_vector_file
from sentkit.formats.vectors.vectors import ENCODINGS, check_finite, without_vectors

JSONL = {".jsonl", ".ndjson", ".json"}  # the same suffixes as for inputs
NO_FORMAT = re.compile(r".*\.v?\d+(\.gz|\.zst)?|tmp\.[A-Za-z0-9]{10}")  # version, shard, mktemp


class Sink(Protocol):
    def prepare(self, row: Row, vectors: NDArray[np.float32], extra: NewFields = ()) -> Callable[[], object]:
        """Check a row; return the function that writes it."""

    def write(self, row: Row, vectors: NDArray[np.float32], extra: NewFields = ()) -> None:
        self.prepare(row, vectors, extra)()

    def flush(self) -> None:
        """Send the rows so far to the reader of a pipe."""


@dataclass(frozen=True, slots=True)
class VectorOutput:
    """How the vectors are written."""

    encoding: str = "list"  # in JSONL: list or base64
    force: bool = False  # overwrite an existing output
    replace: bool = False  # overwrite existing fields of a row
    store: str | None = None  # in vector files: float32 and so on; None: float32, or as in a vector folder

    def check(self, path: str) -> None:
        """Raise an error for an output of another format, or one that does not store vectors separately."""
        check_output(path)
        if self.store is not None and not is_store(path):
            advice = "use -o with a name that ends in .safetensors"
            raise UsageError(f"--store {self.store} needs a vector file", advice=advice)


class JsonlSink(Sink):
    """Writes the row with `_emb` and the vectors after its other fields."""

    def __init__(self, out: BinaryIO, emb: str | None, names: Sequence[str], form: VectorOutput) -> None:
        self.out, self.replace = out, form.replace
        self.encode = ENCODINGS[form.encoding]
        self.names = [name.encode() for name in names]
        self.emb: NewFields = [] if emb is None else [(b"_emb", orjson.dumps(emb))]

    def prepare(self, row: Row, vectors: NDArray[np.float32], extra: NewFields = ()) -> Callable[[], object]:
        check_finite(row, vectors)  # JSON cannot represent NaN
        new = [(name, self.encode(vector)) for name, vector in zip(self.names, vectors, strict=True)]
        line = row.add([*extra, *self.emb, *new], replace=self.replace) + b"\n"
        return lambda: self.out.write(line)

    def flush(self) -> None:
        self.out.flush()


class StoreSink(Sink):
    """Writes the row and, separately, its vectors to a vector file."""

    def __init__(self, writer: VectorFileWriter, form: VectorOutput) -> None:
        self.writer, self.replace = writer, form.replace
        self.names = ("_emb", *writer.names)

    def prepare(self, row: Row, vectors: NDArray[np.float32], extra: NewFields = ()) -> Callable[[], object]:
        check_finite(row, vectors)
        check_kind(row, vectors, self.writer.kind)
        row.check_absent(self.names, replace=self.replace)
        line = without_vectors(row, self.names).add(extra, replace=self.replace)
        return lambda: self.writer.write(line, vectors)

    def flush(self) -> None:
        """Do nothing, because a vector file is readable only when it is complete."""


def check_kind(row: Row, vectors: NDArray[np.float32], kind: str | None) -> None:
    """Raise an error for a number that this kind of vector file cannot store."""
    if kind == "float16" and np.abs(vectors).max(initial=0.0) > FLOAT16_MAX:
        problem = f"a vector contains a number beyond {FLOAT16_MAX:.0f}, the largest of float16"
        raise row.error(problem, advice="use --store float32 or int8")


ROW_SUFFIXES = ".jsonl, .jsonl.gz, .jsonl.zst or .parquet"


def check_output(path: str, *, vectors: bool = True) -> None:
    """Raise an error for a suffix of another format; without `vectors`, also for that of a vector file.

    JSONL is also the format of names without a suffix, with a version or shard number (`run.v2`, `part.003`)
    or from mktemp, and of all devices, pipes and descriptors.
    """
    if path == "-" or is_special(path) or is_store(path) or not is_file_name(path):
        return
    if is_parquet(path):
        import_pyarrow()
    elif bare_suffix(path) not in JSONL:
        ends = Path(path).suffixes
        kind = "".join(ends[-2:]) if ends[-1].lower() in COMPRESSED else ends[-1]
        suffixes = ROW_SUFFIXES.replace(" or", ",") + " or .safetensors" if vectors else ROW_SUFFIXES
        raise UsageError(f"{path}: unknown output format {kind}", advice=f"use a name with {suffixes}")


def is_file_name(path: str) -> bool:
    """Whether the suffix is a format, and not a version or shard number."""
    return bool(bare_suffix(path)) and not NO_FORMAT.fullmatch(Path(path).name)


def check_rows_output(path: str) -> None:
    """Like `check_output`, for rows without vectors."""
    check_output(path, vectors=False)
    if is_store(path):
        advice = f"use a name with {ROW_SUFFIXES}"
        raise UsageError(f"{path}: this output cannot be a vector file", advice=advice)


def output_paths(output: str, readouts: Sequence[str], form: VectorOutput, *, force: bool) -> list[str]:
    """The output path for each readout. Raises an error if the format is unknown or the path exists."""
    if len(readouts) == 1:
        paths = [output]
    elif output == "-" or Path(output).is_file() or is_file_name(output):
        raise UsageError("several readouts need an output folder", advice="use -o DIR")
    else:
        paths = [str(Path(output) / f"{file_name(readout)}{SUFFIX}") for readout in readouts]
    for path in paths:
        form.check(path)
        refuse_existing(path, force=force)
    return paths


def file_name(readout: str) -> str:
    """`L3:cls` -> `L03-cls`, so that the order of names is the order of layers."""
    layer, colon, reduction = readout.partition(":")
    return f"{'+'.join(f'L{int(k[1:]):02d}' for k in layer.split('+'))}-{reduction}" if colon else readout


@contextmanager
def open_sinks(
    paths: Sequence[str],
    specs: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    width: int,
    form: VectorOutput,
) -> Iterator[list[Sink]]:
    """Open a sink for each path. If the block fails, a new folder is removed again.

    A spec contains `_emb` and more properties, which only vector files store.
    """
    for path in paths:
        form.check(path)
    folder = Path(paths[0]).parent
    is_new = len(paths) > 1 and not folder.exists()
    if is_new:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            sinks: list[Sink] = []
            for path, spec in zip(paths, specs, strict=True):
                if is_store(path):
                    kind = form.store or "float32"
                    writer = create_vector_file(path, spec, names, width=width, force=form.force, kind=kind)
                    sinks.append(StoreSink(stack.enter_context(writer), form))
                else:
                    out = stack.enter_context(open_output(path, force=form.force))
                    sinks.append(JsonlSink(out, spec.get("_emb"), names, form))
            yield sinks
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
