"""Merging of transforms that were fitted to shards.

The moments of the shards are added. The result is the transform that one fit to all vectors would give.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.vectors.fingerprint import space_of
from sentkit.formats.vectors.safetensors_header import read_array, read_header
from sentkit.transforms.affine import named, read_fit_note
from sentkit.transforms.fitting import Fitted, check_varied
from sentkit.transforms.kinds import KINDS, FitOptions
from sentkit.transforms.moments import MOMENTS, Moments
from sentkit.transforms.sample import InputFile, Sample

ALIKE = ("kind", "dim", "remove", "width")  # transforms can be merged only if these fields are equal


@dataclass(frozen=True, slots=True)
class Part:
    """One transform to merge."""

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
        raise DataError(
            f"transforms of kind {kind} cannot be merged",
            advice="run sentkit whiten fit on all files together",
            source=path,
        )
    if not isinstance(kind, str) or kind not in KINDS or not read_header(path).entries.keys() >= set(MOMENTS):
        raise DataError(
            "contains no moments, so it cannot be merged",
            source=path,
            advice="use a file from sentkit whiten fit",
        )
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
    """Check the description of one file that a transform was fitted on."""
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
