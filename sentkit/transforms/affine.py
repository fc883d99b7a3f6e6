"""Affine files: a kernel and a bias, applied as (x + bias) @ kernel, with a note of what they fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.vectors.fingerprint import emb_problem, shown, space_of
from sentkit.formats.vectors.safetensors_header import read_array, read_note, write_arrays
from sentkit.transforms.steps import Linear


def read_affine(path: str) -> tuple[Linear, str | None]:
    """The transform as a dense layer, and the `_emb` of what it was fitted on, where the file says it."""
    kernel, bias = (read_array(path, name).astype(np.float64) for name in ("kernel", "bias"))
    if kernel.ndim != 2 or bias.size != kernel.shape[0] or 0 in kernel.shape:
        raise DataError("kernel and bias do not fit each other", source=path)
    note = read_fit_note(path)
    return dense_layer(kernel, bias.ravel(), kind=_kind(note), source=path), note.get("_emb")


def read_fit_note(path: str) -> dict[str, Any]:
    """The note of a transform; a malformed name of the space that it was fitted on is a DataError."""
    note = read_note(path)
    if problem := emb_problem(note.get("_emb")):
        raise DataError(problem, source=path)
    return note


def dense_layer(kernel: NDArray[np.float64], bias: NDArray[np.float64], *, kind: str, source: str) -> Linear:
    """(d, k) and (d,) as the float32 layer that every vector meets."""
    with np.errstate(all="ignore"):  # what does not fit is refused below
        offset = bias @ kernel  # in float64: a mean far from zero would cost digits
        weight = np.ascontiguousarray(kernel.T, dtype=np.float32)
        layer = Linear(weight, offset.astype(np.float32), kind=kind)
    if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
        raise DataError("the kernel or the bias holds NaN or infinity", source=source)
    return layer


def _kind(note: Mapping[str, Any]) -> str:
    """The word for labels, if the file says one that can stand in a label."""
    kind = note.get("kind")
    return kind if isinstance(kind, str) and kind.isascii() and kind.isidentifier() else "affine"


def check_fitted(path: str, emb: str | None) -> None:
    """Refuse a transform fitted on vectors of another space; one that does not say so takes any.

    `"_emb": null` says that they had no name, and neither must these.
    """
    note = read_fit_note(path)
    fitted = note.get("_emb")
    if "_emb" not in note or fitted == emb:
        return
    if fitted is None or emb is None or space_of(fitted) != space_of(emb):
        raise DataError(f"fitted on {named(fitted)}, these vectors are {shown(emb)}", source=path)


def named(emb: str | None) -> str:
    """What a transform was fitted on, as an error says it."""
    return "vectors without _emb" if emb is None else shown(emb)


def write_affine(path: Path, kernel: NDArray[Any], bias: NDArray[Any], note: Mapping[str, Any]) -> None:
    """`note` says the kind, and the `_emb` of what it was fitted on."""
    write_arrays(path, {"kernel": kernel, "bias": bias}, {"sentkit": orjson.dumps(note).decode()})
