"""Transforms fitted to a stream of vectors, or merged from fits to shards: input, fit and file.

The moments of the shards are added. The result is the transform that one fit to all vectors would give.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.files import readable, together
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import space_of
from sentkit.formats.vectors.tensors import put_arrays, read_array, read_header
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.transforms.flow import PARAMETERS, FlowFit, FlowOptions, fit_parameters
from sentkit.transforms.ica import IcaOptions, ica
from sentkit.transforms.kinds import KINDS, MAX_SCATTER_WIDTH, MOMENTS, Fit, FitOptions, Moments, moments_of
from sentkit.transforms.steps import dense_layer, named, read_fit_note

ROWS_PER_BLOCK = 1024  # rows read at once


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a transform was fitted to; only files from elsewhere lack a name or a hash."""

    file: str | None
    rows: int
    blake2b: str | None  # of the vectors


@dataclass(frozen=True, slots=True)
class Sample:
    moments: Moments
    emb: str | None
    inputs: list[InputFile]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.inputs)

    @property
    def warnings(self) -> list[str]:
        """Warnings about vectors that occur in two files or shards, which is usually a mistake."""
        inputs = [each for each in self.inputs if each.rows]
        counts = Counter(each.blake2b for each in inputs)
        names = {each.blake2b: each.file for each in inputs}
        repeated = [(names[digest], count) for digest, count in counts.items() if count > 1]
        return [f"the vectors of {name} are counted {count} times" for name, count in repeated]


def read_sample(inputs: Inputs, keep: Callable[[Float32], None]) -> Sample:
    """Read the rows once. `keep` receives every block (n, d); the vectors of one row are adjacent."""
    reader = VectorReader(inputs)
    total: Moments | None = None
    inputs_read: list[InputFile] = []
    for path in inputs.paths:
        own, file = read_one(reader, path, keep)
        inputs_read.append(file)
        if own is not None:  # per file, so that `merge` gives the same bits
            total = own if total is None else total + own
    if total is None:
        raise NoRowsError(inputs.paths)
    return Sample(total, reader.emb, inputs_read)


def read_one(
    reader: VectorReader, path: str, keep: Callable[[Float32], None]
) -> tuple[Moments | None, InputFile]:
    hashed, moments, rows = hashlib.blake2b(digest_size=16), None, 0
    for block in reader.arrays(path, ROWS_PER_BLOCK):
        check_width(reader.width, path)
        rows += len(block)
        vectors = block.reshape(-1, reader.width)
        hashed.update(vectors.astype("<f4", copy=False).data)
        own = moments_of(vectors)
        moments = own if moments is None else moments + own
        keep(vectors)
    name = path if path == "-" else readable(Path(path).name)
    return moments, InputFile(name, rows, hashed.hexdigest())


def check_width(width: int, path: str) -> None:
    """Refuse wide vectors: their scatter and kernel need too much memory."""
    if width > MAX_SCATTER_WIDTH:
        problem = f"vectors of {width} numbers: a transform accepts at most {MAX_SCATTER_WIDTH}"
        raise DataError(problem, source=path)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A transform with the contents of its file."""

    kind: str
    sample: Sample
    fit: Fit | FlowFit
    mergeable: bool = True

    @property
    def note(self) -> dict[str, Any]:
        """The metadata of the file. It has no time and no path, so equal vectors give equal bytes."""
        width = self.sample.moments.width
        return {
            "kind": self.kind,
            "_emb": self.sample.emb,
            "rows": self.sample.rows,
            "vectors": self.sample.moments.count,
            "width": width,
            "kept": self.fit.kernel.shape[1] if isinstance(self.fit, Fit) else width,
            **self.fit.record,
            "inputs": [asdict(each) for each in self.sample.inputs],
        }

    def write(self, file: BinaryIO, source: str) -> None:
        """Write the transform in float64, and the moments if it can be computed from them."""
        moments = self.sample.moments
        if isinstance(self.fit, FlowFit):
            arrays = {PARAMETERS: self.fit.parameters}
        else:
            bias = 0.0 - self.fit.mean
            dense_layer(self.fit.kernel, bias, kind=self.kind, source=source)  # raises if not finite
            arrays = {"kernel": self.fit.kernel, "bias": bias[np.newaxis]}
        if self.mergeable:
            count = np.array([moments.count], np.float64)
            arrays |= {"count": count, "mean": moments.mean, "scatter": moments.scatter}
        put_arrays(file, arrays, {"sentkit": orjson.dumps(self.note).decode()})


def fit_moments(inputs: Inputs, kind: str, options: FitOptions) -> Fitted:
    """Fit in one pass and constant memory."""
    sample = read_sample(inputs, lambda block: None)
    check_varied(kind, sample, inputs.paths)
    return Fitted(kind, sample, KINDS[kind](sample.moments, options))


def fit_ica(inputs: Inputs, options: FitOptions, ica_options: IcaOptions) -> Fitted:
    """Fit ICA; all vectors are held in memory."""
    held: list[Float32] = []
    sample = read_sample(inputs, held.append)
    check_varied("ica", sample, inputs.paths)
    return Fitted("ica", sample, ica(held, sample.moments, options, ica_options), mergeable=False)


def fit_flow(inputs: Inputs, options: FlowOptions) -> Fitted:
    """Fit a flow; all vectors are held in memory."""
    held: list[Float32] = []
    sample = read_sample(inputs, held.append)
    check_varied("flow", sample, inputs.paths)
    fit = fit_parameters(np.concatenate(held), options, together(inputs.paths))
    return Fitted("flow", sample, fit, mergeable=False)


def check_varied(kind: str, sample: Sample, paths: Sequence[str]) -> None:
    """Refuse vectors with nothing to fit: equal vectors, or for svd zero vectors. A mean always exists."""
    moments = sample.moments
    if kind == "center" or moments.deviations.any():
        return
    if kind != "svd":
        raise DataError("all vectors are equal, so there is nothing to fit", source=together(paths))
    if not moments.mean.any():
        raise DataError("all vectors are 0, so there is nothing to fit", source=together(paths))


ALIKE = ("kind", "dim", "remove", "width")  # transforms can be merged only if these fields are equal


@dataclass(frozen=True, slots=True)
class Part:
    path: str
    note: Mapping[str, Any]
    sample: Sample


def merge_transforms(paths: Sequence[str]) -> Fitted:
    first, *others = [read_part(path) for path in paths]
    sample = first.sample
    for part in others:
        check_alike(part, first)
        both = sample.moments + part.sample.moments
        sample = Sample(both, sample.emb, sample.inputs + part.sample.inputs)
    kind, dim, remove = (first.note.get(name) for name in ALIKE[:3])
    check_varied(str(kind), sample, paths)
    fit = KINDS[str(kind)](sample.moments, FitOptions(dim, remove))
    return Fitted(str(kind), sample, fit)


def read_part(path: str) -> Part:
    note = read_fit_note(path)
    kind = note.get("kind")
    if kind in ("ica", "flow"):
        problem = f"transforms of kind {kind} cannot be merged"
        raise DataError(problem, advice="run sentkit whiten fit on all files together", source=path)
    if not isinstance(kind, str) or kind not in KINDS or not read_header(path).entries.keys() >= set(MOMENTS):
        problem = "contains no moments, so it cannot be merged"
        raise DataError(problem, source=path, advice="use a file from sentkit whiten fit")
    count, mean, scatter = (read_array(path, name).astype(np.float64) for name in MOMENTS)
    wide = mean.shape == (note.get("width"),) and scatter.shape == (mean.size, mean.size)
    if not wide or mean.size == 0 or count.size != 1 or not is_complete(note):
        raise DataError("the moments and the metadata do not match", source=path)
    number = count.item()
    if number < 1 or not number.is_integer() or not np.isfinite(mean).all() or not np.isfinite(scatter).all():
        raise DataError("the moments contain NaN or infinity, or are of 0 vectors", source=path)
    moments = Moments(int(number), mean, scatter)
    inputs = [InputFile(each.get("file"), each["rows"], each.get("blake2b")) for each in note["inputs"]]
    return Part(path, note, Sample(moments, note["_emb"], inputs))


def is_complete(note: Mapping[str, Any]) -> bool:
    """Check that each field of the note has its type and a possible value."""
    inputs, width = note.get("inputs"), note["width"]
    dim, remove = note.get("dim"), note.get("remove")
    return (
        "_emb" in note
        and (dim is None or (type(dim) is int and 1 <= dim <= width))
        and (remove is None or (type(remove) is int and 1 <= remove < width))
        and isinstance(inputs, list)
        and all(is_input(each) for each in inputs)
    )


def is_input(value: object) -> bool:
    if not isinstance(value, dict) or type(value.get("rows")) is not int:
        return False
    return all(isinstance(value.get(name), str | None) for name in ("file", "blake2b"))


def check_alike(part: Part, first: Part) -> None:
    for name in ALIKE:
        ours, theirs = part.note.get(name), first.note.get(name)
        if ours != theirs:
            raise DataError(
                f"{name} is {format_setting(ours)}, but {format_setting(theirs)} in {first.path}",
                source=part.path,
                advice="merge only files with the same kind, width and settings",
            )
    one, other = part.sample.emb, first.sample.emb
    if one != other and (one is None or other is None or space_of(one) != space_of(other)):
        raise DataError(f"fitted on {named(one)}, {first.path} on {named(other)}", source=part.path)


def format_setting(setting: object) -> str:
    return "missing" if setting is None else str(setting)
