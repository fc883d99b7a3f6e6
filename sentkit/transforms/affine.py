"""Affine files: a kernel and a bias, applied as (x + bias) @ kernel, with a note of what they fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sentkit.errors import DataError
from sentkit.formats.tensors import read_array, read_header, write_arrays
from sentkit.transforms.steps import Linear, Matrix


def read_affine(path: str) -> tuple[Linear, str | None]:
    """The transform as a dense layer, and the `_emb` of what it was fitted on, where the file says it."""
    kernel, bias = (read_array(path, name).astype(np.float64) for name in ("kernel", "bias"))
    if kernel.ndim != 2 or bias.size != kernel.shape[0] or 0 in kernel.shape:
        raise DataError("kernel and bias do not fit each other", source=path)
    note = _note(path)
    with np.errstate(all="ignore"):  # what does not fit is refused below
        offset = bias.ravel() @ kernel  # in float64: a mean far from zero would cost digits
        layer = Linear(
            np.ascontiguousarray(kernel.T, dtype=np.float32), offset.astype(np.float32), kind=_kind(note)
        )
    if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
        raise DataError("the kernel or the bias holds NaN or infinity", source=path)
    fitted = note.get("_emb")
    return layer, fitted if isinstance(fitted, str) else None


def _kind(note: Mapping[str, Any]) -> str:
    """The word for labels, if the file says one that can stand in a label."""
    kind = note.get("kind")
    return kind if isinstance(kind, str) and kind.isascii() and kind.isidentifier() else "affine"


def _note(path: str) -> dict[str, Any]:
    try:
        note = orjson.loads(read_header(path).metadata.get("sentkit", "{}"))
    except orjson.JSONDecodeError as error:
        raise DataError("its note is not JSON", source=path) from error
    return note if isinstance(note, dict) else {}


def write_affine(path: Path, kernel: Matrix, bias: Matrix, note: Mapping[str, Any]) -> None:
    """`note` says the kind, and the `_emb` of what it was fitted on."""
    write_arrays(path, {"kernel": kernel, "bias": bias}, {"sentkit": orjson.dumps(note).decode()})
