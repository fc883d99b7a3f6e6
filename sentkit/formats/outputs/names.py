"""The format of an output by its name."""

import re
from functools import partial
from pathlib import Path

from sentkit.errors import UsageError
from sentkit.formats.files import (
    COMPRESSED,
    bare_suffix,
    import_pyarrow,
    is_parquet,
    is_safetensors,
)
from sentkit.formats.outputs.outputs import is_special

JSONL = {".jsonl", ".ndjson", ".json"}  # the same suffixes as for inputs
NO_FORMAT = re.compile(r".*\.v?\d+(\.gz|\.zst)?|tmp\.[A-Za-z0-9]{10}")  # version, shard, mktemp
ROW_SUFFIXES = ".jsonl, .jsonl.gz, .jsonl.zst or .parquet"
TABLES = (".csv", ".tsv")
TO_TABLE = (
    "write .parquet for DuckDB, or JSONL, and convert it: mlr --ijsonl --ocsv cat (or --otsv)"
)


def check_output(path: str, *, may_be_vectors: bool = True) -> None:
    """Raise an error for a suffix of another format; also for that of a vector file, unless the
    output `may_be_vectors`.

    JSONL is also the format of names without a suffix, with a version or shard number (`run.v2`,
    `part.003`) or from mktemp, and of all devices, pipes and descriptors.
    """
    if is_safetensors(path) and not may_be_vectors:
        advice = f"use a name with {ROW_SUFFIXES}"
        raise UsageError(f"{path}: this output cannot be a vector file", advice=advice)
    if is_safetensors(path) and is_special(path):  # its header is written at last
        raise UsageError(f"{path}: is a pipe or a device, a vector file needs a file")
    if path == "-" or is_special(path) or is_safetensors(path) or not is_file_name(path):
        return
    if is_parquet(path):
        import_pyarrow()
        return

    # The advice for an unknown suffix. That of compression is shown with the one before it.
    suffix = bare_suffix(path)
    if suffix in JSONL:
        return
    if suffix in TABLES:
        advice = TO_TABLE
    elif may_be_vectors:
        advice = f"use a name with {ROW_SUFFIXES.replace(' or', ',')} or .safetensors"
    else:
        advice = f"use a name with {ROW_SUFFIXES}"
    shown_suffix = Path(path).suffixes[-1]
    if shown_suffix.lower() in COMPRESSED:
        shown_suffix = "".join(Path(path).suffixes[-2:])
    raise UsageError(f"{path}: unknown output format {shown_suffix}", advice=advice)


check_rows_output = partial(check_output, may_be_vectors=False)


def is_file_name(path: str) -> bool:
    """Whether the suffix is a format, and not a version or shard number."""
    return bool(bare_suffix(path)) and not NO_FORMAT.fullmatch(Path(path).name)
