"""Affine files: a kernel and a bias, applied as (x + bias) @ kernel, with a note about the fitted space."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.vectors.fingerprint import emb_problem, short_label, space_of
from sentkit.formats.vectors.safetensors_header import read_array, read_note
from sentkit.transforms.flow import Flow, read_flow
from sentkit.transforms.steps import Linear


def read_transform(path: str) -> Linear | Flow:
    note = read_fit_note(path)
    return read_flow(path, note.get("width")) if note.get("kind") == "flow" else read_affine(path)[0]


def read_affine(path: str) -> tuple[Linear, str | None]:
    """The transform as a dense layer, and the `_emb` of the fitted vectors if the file records it."""
    kernel, bias = (read_array(path, name).astype(np.float64) for name in ("kernel", "bias"))
    if kernel.ndim != 2 or bias.size != kernel.shape[0] or 0 in kernel.shape:
        raise DataError("the shapes of kernel and bias do not match", source=path)
    note = read_fit_note(path)
    return dense_layer(kernel, bias.ravel(), kind=_kind(note), source=path), note.get("_emb")


def read_fit_note(path: str) -> dict[str, Any]:
    """The note of a transform; raises DataError if its `_emb` is malformed."""
    note = read_note(path)
    if problem := emb_problem(note.get("_emb")):
        raise DataError(problem, source=path)
    return note


def dense_layer(kernel: Float64, bias: Float64, *, kind: str, source: str) -> Linear:
    """Convert kernel (d, k) and bias (d,) to a float32 dense layer."""
    with np.errstate(all="ignore"):  # overflow is refused below
        offset = bias @ kernel  # in float64: a large mean would lose precision
        weight = np.ascontiguousarray(kernel.T, dtype=np.float32)
        layer = Linear(weight, offset.astype(np.float32), kind=kind)
    if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
        raise DataError("the kernel or the bias contains NaN or infinity", source=source)
    return layer


def _kind(note: Mapping[str, Any]) -> str:
    """The kind for labels; "affine" if the file has none that is valid in a label."""
    kind = note.get("kind")
    return kind if isinstance(kind, str) and kind.isascii() and kind.isidentifier() else "affine"


def check_fitted(path: str, emb: str | None) -> None:
    """Refuse a transform that was fitted on vectors of another space.

    A file without `_emb` fits all vectors. `"_emb": null` fits only vectors without `_emb`.
    """
    note = read_fit_note(path)
    fitted = note.get("_emb")
    if "_emb" not in note or fitted == emb:
        return
    if fitted is None or emb is None or space_of(fitted) != space_of(emb):
        raise DataError(f"fitted on {named(fitted)}, but the vectors are {short_label(emb)}", source=path)


def named(emb: str | None) -> str:
    return "vectors without _emb" if emb is None else short_label(emb)
