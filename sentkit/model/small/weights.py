"""Reads the weights of a packed encoder from safetensors files, as float32 arrays."""

from pathlib import Path

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.lora import is_adapter
from sentkit.formats.vectors.safetensors_header import NUMPY, Entry, read_header
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.weight_names import canonical_names, encoder_shapes, pooler_shapes

FLOATS = {kind: NUMPY[kind] for kind in ("F16", "F32", "F64")} | {"BF16": "<u2"}


def read_arrays(checkpoint: Checkpoint, architecture: Architecture) -> dict[str, Float32] | None:
    """Return the encoder and its pooler under the plain names of the family.

    None if the files are not complete safetensors, do not fit the architecture or have a LoRA adapter.
    """
    files = checkpoint.weights()
    if is_adapter(checkpoint.transformer) or any(path.suffix != ".safetensors" for path in files):
        return None
    try:
        entries = {name: (path, entry) for path in files for name, entry in read_header(path).entries.items()}
    except DataError:
        return None
    names = canonical_names(entries, architecture)
    pooler = pooler_shapes(architecture)
    wanted = encoder_shapes(architecture) | (pooler if pooler.keys() & names.keys() else {})
    if {plain: entries[stored][1].shape for plain, stored in names.items()} != wanted:
        return None
    if not all(entries[stored][1].dtype in FLOATS for stored in names.values()):
        return None
    contents = {path: np.memmap(path, np.uint8, "r") for path in files}
    return {plain: as_float32(contents, *entries[stored]) for plain, stored in names.items()}


def as_float32(
    contents: dict[Path, "np.memmap[tuple[int], np.dtype[np.uint8]]"], path: Path, entry: Entry
) -> Float32:
    """Return a tensor of a file: a view of the file if it has this type."""
    stored = (
        np.asarray(contents[path][entry.start : entry.end]).view(FLOATS[entry.dtype]).reshape(entry.shape)
    )
    if entry.dtype == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)
