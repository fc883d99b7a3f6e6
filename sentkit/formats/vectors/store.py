"""Open the vector files and folders of a command, and what is common to all of them.

A command opens each of them once, through `Inputs.open_vector_file`, so all reads see the same
blocks.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import is_safetensors
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.arrays import OPEN_MAPS
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.folders import FolderRun, find_folder
from sentkit.formats.vectors.vector_file import RECORDED_FIELDS, VectorFile, VectorSource

# Settings that only some vector files record, and the setting whose meaning they change: a file
# with "max_length" and without "window" has vectors of truncated texts.
CHANGED_SETTING = {
    "on_truncate": "max_length",
    "window": "max_length",
    "stride": "max_length",
    "chunks": "max_length",
    "largest_weight": "precision",
}


class VectorFolder(VectorSource):
    """The blocks of a complete vector folder for reading, or some of them."""

    def __init__(
        self, run: FolderRun, files: Sequence[VectorFile], digest_of_all: str = ""
    ) -> None:
        """`files` are consecutive blocks; the digest is of all blocks, if these are only some of
        them.
        """
        self.run = run
        self.path = run.path
        self.digest = digest_of_all
        self._files = files
        # an empty block may have no width
        first = next((file for file in files if file.count), files[0])
        for file in files:
            file.refuse_difference(first)
        self.metadata = first.metadata
        self.space_name = first.space_name
        self.fields = first.fields
        self.names = first.names
        self.kind = first.kind
        self.width = first.width
        self.rows_before = files[0].rows_before
        self.starts = [0, *accumulate(file.count for file in files)]  # of each file; the end
        self.count = self.starts[-1]
        self._reader_of = lru_cache(OPEN_MAPS)(VectorFile.row_reader)

    @property
    def files(self) -> Sequence[VectorFile]:
        return self._files

    def shard(self, number: int, count: int) -> "VectorFolder":
        """Consecutive blocks, shard `number` of `count`. The rows keep their numbers."""
        first = (number - 1) * len(self.files) // count
        stop = number * len(self.files) // count
        if first == stop:
            problem = f"part {number} of {count}: {self.path} has {len(self.files)} blocks"
            raise UsageError(problem, advice="use at most as many parts as blocks")
        return VectorFolder(self.run, self.files[first:stop], self.digest_of_blocks())

    def digest_of_blocks(self) -> str:
        return digest([[file.header.metadata, file.count] for file in self.files])

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        return chain.from_iterable(file.blocks() for file in self.files)

    def row_blocks(self) -> Iterator[RowBlock]:
        return chain.from_iterable(file.row_blocks() for file in self.files)

    def row(self, index: int) -> Row:
        number = bisect_right(self.starts, index) - 1
        read = self._reader_of(self.files[number])
        return read(index - self.starts[number])


def open_vectors(path: str) -> VectorSource | None:
    """Open a vector file or a vector folder; None for other files. An incomplete folder is an
    error.
    """
    run = find_folder(path)
    if run is not None:
        return VectorFolder(run, files_of(run))
    if is_safetensors(path):
        return VectorFile(path)
    return None


def files_of(run: FolderRun) -> list[VectorFile]:
    """The blocks of a vector folder in input order. A folder with missing blocks is an error."""
    status = run.status()
    if not status.is_complete:
        count = "an unknown number" if status.length_is_unknown else len(status.missing_blocks)
        problem = f"an incomplete vector folder, missing blocks: {count}"
        path = quote(run.path.rstrip("/"))
        advice = f"encode --resume writes them; the complete blocks are {path}/*.safetensors"
        raise DataError(problem, source=run.path, advice=advice)
    files: list[VectorFile] = []
    before = 0
    for name in status.complete_blocks:
        file = run.open_block(name, before)
        files.append(file)
        before += file.count
    return files


def open_inputs(paths: Sequence[str], **options: Any) -> Inputs:
    """The rows of files, which can be vector files or folders."""
    return Inputs(paths, open_vector_file=cache(open_vectors), **options)


def encoded_files(inputs: Inputs) -> set[str]:
    """The vector files and folders among the inputs that name the space of their vectors."""
    sources = map(inputs.open_vector_file, inputs.paths)
    return {source.path for source in sources if source is not None and source.space_name}


def recorded_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The part of a field mapping that a vector file records. Vectors always have their standard
    names.
    """
    recorded: dict[str, str] = {}
    for standard, name in sorted(fields.items()):
        if standard in RECORDED_FIELDS and name != standard:
            recorded[standard] = name
    return recorded


def field_names_of(inputs: Inputs, path: str) -> dict[str, str]:
    """Standard name -> name in the rows of one file. --field overrides the record of a
    vector file.
    """
    source = inputs.open_vector_file(path)
    if source is None:
        return {**inputs.fields}
    return {**source.fields, **inputs.fields}


def common_field_names(inputs: Inputs) -> dict[str, str]:
    """The field mapping of all files of a command; a DataError if they differ."""
    first_path, *other_paths = inputs.paths
    first_fields = field_names_of(inputs, first_path)
    for path in other_paths:
        fields = field_names_of(inputs, path)
        for standard in RECORDED_FIELDS:
            name = fields.get(standard, standard)
            first_name = first_fields.get(standard, standard)
            if name != first_name:
                problem = f'"{standard}" is read from the field "{name}", '
                problem += f'but in {first_path} from the field "{first_name}"'
                advice = (
                    f"to use one field for all files, add --field "
                    f"{quote(f'{standard}={first_name}')}"
                )
                raise DataError(problem, source=path, advice=advice)
    return first_fields


def common_metadata(inputs: Inputs, output_kind: str | None = None) -> dict[str, Any]:
    """The metadata that are equal in all input files. Empty if one input is not a vector file.

    "rounded" is float16 or int8 if the numbers of an input were rounded to it, now or earlier, and
    the output does not store them in this kind.
    """
    sources = [inputs.open_vector_file(path) for path in inputs.paths]
    if None in sources:
        return {}
    first, *others = (source.metadata for source in sources)
    common: dict[str, Any] = {}
    for name, value in first.items():
        if name not in ("fields", "rounded") and all(
            metadata.get(name) == value for metadata in others
        ):
            common[name] = value
    # If one of them differs, no value of the changed setting describes all vectors.
    for name, changed_name in CHANGED_SETTING.items():
        if any(metadata.get(name) != first.get(name) for metadata in others):
            common.pop(changed_name, None)

    # The kinds that rounded the numbers: that of the file, and that of a file before it.
    kinds = {source.kind for source in sources}
    kinds |= {str(source.metadata.get("rounded")) for source in sources}
    rounding_kinds = kinds & ({"float16", "int8"} - {output_kind})
    if rounding_kinds:
        common["rounded"] = min(rounding_kinds)  # one of them, the same in every run
    return common


def with_field_names(spec: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The spec with the recorded field names of the inputs, which must agree."""
    fields = recorded_fields(common_field_names(inputs))
    return {**spec, "fields": fields} if fields else dict(spec)
