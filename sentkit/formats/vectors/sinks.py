"""Write rows with vectors as JSONL or as a vector file. The output name determines the format."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.files import COMPRESSED, bare_suffix
from sentkit.formats.outputs.outputs import is_special, open_output, refuse_existing
from sentkit.formats.rows import splice
from sentkit.formats.rows.rows import Row
from sentkit.formats.vectors import store
from sentkit.formats.vectors.fingerprint import Spec
from sentkit.formats.vectors.vectors import ENCODINGS, without_vectors

Members = Sequence[tuple[bytes, bytes]]  # field name and JSON value
JSONL = {".jsonl", ".ndjson", ".json"}  # the same suffixes as for inputs
NO_FORMAT = re.compile(r".*\.v?\d+(\.gz|\.zst)?|tmp\.[A-Za-z0-9]{10}")  # version, shard, mktemp


class Sink(Protocol):
    def write(self, row: Row, vectors: NDArray[np.float32], extra: Members = ()) -> None: ...

    def flush(self) -> None:
        """Send the rows so far to the reader of a pipe."""
        ...


class JsonlSink:
    """Writes the row with `_emb` and the vectors after its other fields."""

    def __init__(
        self, out: BinaryIO, emb: str | None, names: Sequence[str], *, encoding: str, replace: bool
    ) -> None:
        self.out, self.replace = out, replace
        self.encode = ENCODINGS[encoding]
        self.names = [name.encode() for name in names]
        self.emb: Members = [] if emb is None else [(b"_emb", orjson.dumps(emb))]

    def write(self, row: Row, vectors: NDArray[np.float32], extra: Members = ()) -> None:
        new = [(name, self.encode(vector)) for name, vector in zip(self.names, vectors, strict=True)]
        self.out.write(with_members(row, [*extra, *self.emb, *new], replace=self.replace) + b"\n")

    def flush(self) -> None:
        self.out.flush()


class StoreSink:
    """Writes the row and, separately, its vectors to a vector file."""

    def __init__(self, writer: store.StoreWriter, *, replace: bool) -> None:
        self.writer, self.replace = writer, replace
        self.names = ("_emb", *writer.names)

    def write(self, row: Row, vectors: NDArray[np.float32], extra: Members = ()) -> None:
        refuse_present(row, self.names, replace=self.replace)
        left = without_vectors(row, self.names)
        self.writer.write(with_members(left, extra, replace=self.replace), vectors)

    def flush(self) -> None:
        """Do nothing, because a vector file is readable only when it is complete."""


def with_members(row: Row, new: Members, *, replace: bool) -> bytes:
    """The line of the row with new fields. Existing fields need `replace`, or are an error."""
    names = [name.decode() for name, _ in new]
    if any(name in row.values for name in names):
        refuse_present(row, names, replace=replace)
        return row.put(new)
    return splice.append(row.line, new, empty=not row.values)


def refuse_present(row: Row, names: Sequence[str], *, replace: bool) -> None:
    present = next((name for name in names if name in row.values), None)
    if present is not None and not replace:
        raise row.error(
            f'"{present}" is there already', advice="use --replace to put the new one in its place"
        )


def check_output(path: str) -> None:
    """Raise an error for a suffix of another format.

    JSONL is also the format of names without a suffix, with a version or shard number (`run.v2`, `part.003`)
    or from mktemp, and of all devices, pipes and descriptors.
    """
    if path == "-" or is_special(path) or store.is_store(path) or not is_file_name(path):
        return
    if bare_suffix(path) not in JSONL:
        suffixes = Path(path).suffixes
        kind = "".join(suffixes[-2:]) if suffixes[-1].lower() in COMPRESSED else suffixes[-1]
        advice = "name it .jsonl, .jsonl.gz, .jsonl.zst or .safetensors"
        raise UsageError(f"{path}: unknown output format {kind}", advice=advice)


def is_file_name(path: str) -> bool:
    """Whether the suffix is a format, and not a version or shard number."""
    return bool(bare_suffix(path)) and not NO_FORMAT.fullmatch(Path(path).name)


def check_rows_output(path: str) -> None:
    """Like `check_output`, for rows without vectors."""
    check_output(path)
    if store.is_store(path):
        advice = "name it .jsonl, .jsonl.gz or .jsonl.zst"
        raise UsageError(f"{path}: a vector file is for vectors", advice=advice)


def open_sink(
    path: str,
    spec: Mapping[str, Any],
    names: Sequence[str],
    *,
    width: int,
    encoding: str,
    force: bool,
    replace: bool,
) -> AbstractContextManager[Sink]:
    """Open an output. `spec` contains `_emb` and more facts, which only vector files store."""
    check_output(path)
    if store.is_store(path):
        return _store_sink(path, spec, names, width, force, replace)
    return _jsonl_sink(path, spec.get("_emb"), names, encoding, force, replace)


@contextmanager
def _store_sink(
    path: str, spec: Mapping[str, Any], names: Sequence[str], width: int, force: bool, replace: bool
) -> Iterator[Sink]:
    with store.open_store(path, spec, names, width=width, force=force) as writer:
        yield StoreSink(writer, replace=replace)


@contextmanager
def _jsonl_sink(
    path: str, emb: str | None, names: Sequence[str], encoding: str, force: bool, replace: bool
) -> Iterator[Sink]:
    with open_output(path, force=force) as out:
        yield JsonlSink(out, emb, names, encoding=encoding, replace=replace)


def output_paths(output: str, readouts: Sequence[str], *, force: bool) -> list[str]:
    """The output path for each readout. Raises an error if the format is unknown or the path exists."""
    if len(readouts) == 1:
        paths = [output]
    elif output == "-" or Path(output).is_file() or is_file_name(output):
        raise UsageError("several readouts need a folder to write to", advice="use -o DIR")
    else:
        paths = [str(Path(output) / f"{file_name(readout)}{store.SUFFIX}") for readout in readouts]
    for path in paths:
        check_output(path)
        refuse_existing(path, force=force)
    return paths


def file_name(readout: str) -> str:
    """`L3:cls` -> `L03-cls`, so that the order of names is the order of layers."""
    layer, colon, reduction = readout.partition(":")
    return f"{'+'.join(f'L{int(k[1:]):02d}' for k in layer.split('+'))}-{reduction}" if colon else readout


@contextmanager
def open_sinks(
    paths: Sequence[str],
    specs: Sequence[Spec],
    names: Sequence[str],
    *,
    width: int,
    encoding: str,
    force: bool,
    replace: bool,
) -> Iterator[list[Sink]]:
    """Open a sink for each path. If the block fails, a new folder is removed again."""
    folder = Path(paths[0]).parent
    is_new = len(paths) > 1 and not folder.exists()
    if is_new:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    open_sink(
                        path, spec.full, names, width=width, encoding=encoding, force=force, replace=replace
                    )
                )
                for path, spec in zip(paths, specs, strict=True)
            ]
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
