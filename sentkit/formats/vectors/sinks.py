"""Write rows with vectors as JSONL, Parquet or a vector file, by the name of the output."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.arrays import Float64, Floats
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import (
    COMPRESSED,
    bare_suffix,
    import_pyarrow,
    is_parquet,
    is_safetensors,
    readable,
)
from sentkit.formats.outputs.outputs import is_special, open_output, refuse_existing
from sentkit.formats.rows.block import NewFields, Row, RowBlock
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.folders import SUFFIX
from sentkit.formats.vectors.store import common_fields, common_spec, recorded_fields
from sentkit.formats.vectors.tensors import FLOAT16_MAX
from sentkit.formats.vectors.vector_file import VectorFileWriter, create_vector_file
from sentkit.formats.vectors.vectors import ENCODINGS, VectorBlock, VectorReader, refuse_not_finite

JSONL = {".jsonl", ".ndjson", ".json"}  # the same suffixes as for inputs
NO_FORMAT = re.compile(r".*\.v?\d+(\.gz|\.zst)?|tmp\.[A-Za-z0-9]{10}")  # version, shard, mktemp


class Sink(Protocol):
    taken: Sequence[str]  # names of the new fields
    kind: str | None  # of the numbers in a vector file
    replace: bool

    def check(self, rows: RowBlock, vectors: NDArray[np.float32], more: Sequence[str] = ()) -> None:
        """Mark the rows that cannot be written as bad. `more` are the names of further new fields."""
        refuse_not_finite(rows, vectors)  # JSON cannot represent NaN
        refuse_kind(rows, vectors, self.kind)
        refuse_existing_fields(rows, [*more, *self.taken], replace=self.replace)

    def write(self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()) -> None:
        """Write rows that `check` has passed, with their vectors (n, k, d) and further new fields."""

    def flush(self) -> None:
        """Send the rows so far to the reader of a pipe. A vector file is readable only when complete."""
        return

    def put(self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()) -> None:
        """Write rows; raise the error of the first one that cannot be written."""
        self.check(rows, vectors, [name.decode() for name, _ in extra[0]] if extra else ())
        if rows.bad:
            raise rows.bad[min(rows.bad)]
        self.write(rows, vectors, extra)


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
        if self.store is not None and not is_safetensors(path):
            advice = "use -o with a name that ends in .safetensors"
            raise UsageError(f"--store {self.store} needs a vector file", advice=advice)


class JsonlSink(Sink):
    """Writes the row with `_emb` and the vectors after its other fields."""

    def __init__(self, out: BinaryIO, emb: str | None, names: Sequence[str], form: VectorOutput) -> None:
        self.out, self.replace, self.kind = out, form.replace, None
        self.taken = names if emb is None else ["_emb", *names]
        self.encode = ENCODINGS[form.encoding]
        self.names = [name.encode() for name in names]
        self.emb: NewFields = [] if emb is None else [(b"_emb", orjson.dumps(emb))]

    def write(self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()) -> None:
        own = [[*self.emb, *zip(self.names, map(self.encode, each), strict=True)] for each in vectors]
        new = [[*one, *each] for one, each in zip(extra, own, strict=True)] if extra else own
        self.out.write(b"\n".join([*with_fields(rows, new), b""]))

    def flush(self) -> None:
        self.out.flush()


class StoreSink(Sink):
    """Writes the row and, separately, its vectors to a vector file."""

    def __init__(self, writer: VectorFileWriter, form: VectorOutput) -> None:
        self.writer, self.replace, self.kind = writer, form.replace, writer.kind
        self.taken = ("_emb", *writer.names)

    def write(self, rows: RowBlock, vectors: NDArray[np.float32], extra: Sequence[NewFields] = ()) -> None:
        rows = rows.without(self.taken)
        self.writer.write(with_fields(rows, extra) if extra else rows.lines, vectors)


def refuse_kind(rows: RowBlock, vectors: NDArray[np.float32], kind: str | None) -> None:
    """Mark rows with a number that this kind of vector file cannot store."""
    if kind == "float16":
        largest = np.abs(vectors).max(axis=(1, 2), initial=0.0)
        problem = f"a vector contains a number beyond {FLOAT16_MAX:.0f}, the largest of float16"
        for place in np.flatnonzero(largest > FLOAT16_MAX).tolist():
            rows.refuse(place, problem, advice="use --store float32 or int8")


def refuse_existing_fields(rows: RowBlock, names: Sequence[str], *, replace: bool) -> None:
    """Mark rows that have one of these fields, unless they are replaced."""
    taken = frozenset(names)
    if replace or not names or all(map(taken.isdisjoint, rows.values)):
        return
    for place, values in enumerate(rows.values):
        if present := next((name for name in names if name in values), None):
            rows.refuse(place, f'field "{present}" already exists', advice="use --replace to overwrite it")


def with_fields(rows: RowBlock, new: Sequence[NewFields]) -> list[bytes]:
    """The lines with new fields at their end; existing fields are replaced in place."""
    texts = [b",".join([b'"%b":%b' % field for field in own]) for own in new]
    parts = zip(rows.lines, rows.values, texts, strict=True)  # an object without fields needs no comma
    lines = [b"%b%b%b}" % (line[:-1], b"," if values else b"", text) for line, values, text in parts]
    names = {name.decode() for name, _ in new[0]} if new else set()
    if not all(map(names.isdisjoint, rows.values)):
        for place, values in enumerate(rows.values):
            if not names.isdisjoint(values):
                lines[place] = rows.row(place).add(new[place], replace=True)
    return lines


ROW_SUFFIXES = ".jsonl, .jsonl.gz, .jsonl.zst or .parquet"
TABLES = (".csv", ".tsv")
TO_TABLE = "write .parquet for DuckDB, or JSONL, and convert it: mlr --ijsonl --ocsv cat (or --otsv)"


def check_output(path: str, *, vectors: bool = True) -> None:
    """Raise an error for a suffix of another format; without `vectors`, also for that of a vector file.

    JSONL is also the format of names without a suffix, with a version or shard number (`run.v2`, `part.003`)
    or from mktemp, and of all devices, pipes and descriptors.
    """
    if is_safetensors(path) and not vectors:
        advice = f"use a name with {ROW_SUFFIXES}"
        raise UsageError(f"{path}: this output cannot be a vector file", advice=advice)
    if path == "-" or is_special(path) or is_safetensors(path) or not is_file_name(path):
        return
    if is_parquet(path):
        import_pyarrow()
    elif bare_suffix(path) not in JSONL:
        ends = Path(path).suffixes
        kind = "".join(ends[-2:]) if ends[-1].lower() in COMPRESSED else ends[-1]
        suffixes = ROW_SUFFIXES.replace(" or", ",") + " or .safetensors" if vectors else ROW_SUFFIXES
        advice = TO_TABLE if bare_suffix(path) in TABLES else f"use a name with {suffixes}"
        raise UsageError(f"{path}: unknown output format {kind}", advice=advice)


check_rows_output = partial(check_output, vectors=False)


def is_file_name(path: str) -> bool:
    """Whether the suffix is a format, and not a version or shard number."""
    return bool(bare_suffix(path)) and not NO_FORMAT.fullmatch(Path(path).name)


def output_paths(output: str, readouts: Sequence[str], form: VectorOutput, *, force: bool) -> list[str]:
    """The output path for each readout. Raises an error if the format is unknown or the path exists."""
    if len(readouts) == 1:
        paths = [output]
    elif output == "-" or Path(output).is_file() or is_file_name(output):
        raise UsageError("several readouts need an output folder", advice="use -o DIR")
    else:
        paths = [str(Path(output, f"{file_name(readout)}{SUFFIX}")) for readout in readouts]
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
    """Open a sink for each path. A spec contains `_emb` and properties that only vector files store."""
    for path in paths:
        form.check(path)
    if len(paths) > 1:
        Path(paths[0]).parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for path, spec in zip(paths, specs, strict=True):
            if is_safetensors(path):
                kind = form.store or "float32"
                writer = create_vector_file(path, spec, names, width=width, force=form.force, kind=kind)
                sinks.append(StoreSink(stack.enter_context(writer), form))
            else:
                out = stack.enter_context(open_output(path, force=form.force))
                sinks.append(JsonlSink(out, spec.get("_emb"), names, form))
        yield sinks


@dataclass(frozen=True, slots=True)
class Answers:
    """The meaning of the outputs of a classifier."""

    classes: tuple[str, ...]  # empty: the output is one score
    function: str  # of the outputs: sigmoid, identity, softmax or tanh

    def fields(
        self,
        outputs: Floats,
        name: str | None,
        *,
        every: bool,
        threshold: float = 0.0,
        label_below: str = "",
    ) -> list[NewFields]:
        """The new fields of each row, from the outputs (n, k).

        A row whose most probable class is less probable than `threshold` gets the label `label_below`.
        """
        values, fields = self.values(outputs.astype(np.float64)), list[NewFields]()
        key = (name or ("label" if self.classes else "score")).encode()
        labels = list(map(orjson.dumps, self.classes))
        for best, row in zip(values.argmax(1).tolist(), values.tolist(), strict=True):
            numbers = [repr(significant(value)).encode() for value in (row if every else [row[best]])]
            label = b""
            if self.classes:
                label = labels[best] if row[best] >= threshold else orjson.dumps(label_below)
            if not self.classes:
                fields.append([(key, numbers[0])])
            elif every:
                members = b",".join(b"%b:%b" % pair for pair in zip(labels, numbers, strict=True))
                fields.append([(key, label), (b"probabilities", b"{%b}" % members)])
            else:
                fields.append([(key, label), (b"probability", numbers[0])])
        return fields

    def values(self, outputs: Float64) -> Float64:
        """The probability of each class, or the score; NaN for outputs that are not finite."""
        if self.function == "sigmoid":
            return 1 / (1 + np.exp(-outputs))
        if self.function != "softmax":
            return np.tanh(outputs) if self.function == "tanh" else outputs
        powers = np.exp(outputs - outputs.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


def convert(
    inputs: Inputs,
    output: str,
    form: VectorOutput,
    *,
    head: int | None,
    encoding: str | None,
    name_field: str | None = None,
) -> int:
    """Write the rows to `output`, with our names for the fields of `inputs`. Returns the number of rows."""
    form.check(output)
    reader = VectorReader(inputs, optional=True)
    reader.verifies = head is None  # the first rows alone are read without a look at the whole file

    def ours(block: VectorBlock) -> VectorBlock:
        refuse_kind(block.rows, block.vectors, form.store)
        return renamed(inputs.fields, name_field, block)

    blocks = reader.blocks(ours, head)
    if is_safetensors(output):
        return write_vectors(reader, blocks, output, form)
    count = 0
    with open_output(output, force=form.force) as out:
        for block in blocks:
            out.write(b"\n".join([*as_jsonl(block, reader.emb, encoding), b""]))
            count += len(block)
    return count


def write_vectors(
    reader: VectorReader, blocks: Iterator[VectorBlock], output: str, form: VectorOutput
) -> int:
    """Write a vector file. Returns the number of rows."""
    inputs, count = reader.inputs, 0
    first = list(islice(blocks, 1))
    if first and not first[0].names:
        problem = "this row has no vector; in a vector file every row needs a vector"
        raise first[0].rows.row(0).error(problem)
    spec = {**common_spec(inputs, form.store), **({"_emb": reader.emb} if reader.emb else {})}
    names = reader.names or ("embedding",)
    recorded = recorded_fields(common_fields(inputs)).items()
    kept = {ours: theirs for ours, theirs in recorded if ours not in inputs.fields}  # the others are renamed
    spec |= {"fields": kept} if kept else {}
    with open_sinks([output], [spec], names, reader.width, form) as [sink]:
        for block in chain(first, blocks):
            sink.put(block.rows.without(block.names), block.vectors)
            count += len(block)
    return count


def renamed(fields: Mapping[str, str], name_field: str | None, block: VectorBlock) -> VectorBlock:
    """The rows with our names for their fields, and with the field `name_field` for their files."""
    rows, ours = block.rows, {theirs: name for name, theirs in fields.items()}
    for place, row in enumerate(rows) if fields or name_field is not None else ():
        try:
            row = row.renamed(fields) if fields else row
            if name_field is not None:
                file = readable(row.source)
                line = row.add([(name_field.encode(), orjson.dumps(file))], replace=False)
                row = Row(line, {**row.values, name_field: file}, row.source, row.number)
        except DataError as error:
            rows.bad.setdefault(place, error)
        else:
            rows.lines[place], rows.values[place] = row.line, row.values
    return replace(block, names=tuple(ours.get(name, name) for name in block.names))


def as_jsonl(block: VectorBlock, emb: str | None, encoding: str | None) -> list[bytes]:
    """The lines with their vectors in `encoding`. With None, vectors in the lines are unchanged."""
    rows = block.rows
    if not block.names or (encoding is None and not block.apart):
        return rows.lines
    encode, space = ENCODINGS[encoding or "list"], [] if emb is None else [(b"_emb", orjson.dumps(emb))]
    names, new = [name.encode() for name in block.names], list[NewFields]()
    for values, vectors in zip(rows.values, block.vectors, strict=True):
        own = zip(names, map(encode, vectors), strict=True)
        new.append([*([] if "_emb" in values else space), *own])
    return with_fields(rows, new)
