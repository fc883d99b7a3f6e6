"""Transforms fitted to a stream of vectors, and the file that one becomes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.safetensors_header import put_arrays
from sentkit.transforms.affine import dense_layer
from sentkit.transforms.ica import Descent, ica
from sentkit.transforms.kinds import KINDS, Asked, Fit
from sentkit.transforms.sample import Block, Sample, read_sample, together


@dataclass(frozen=True, slots=True)
class Fitted:
    """A transform with all that its file keeps."""

    kind: str
    sample: Sample
    fit: Fit
    mergeable: bool = True

    @property
    def note(self) -> dict[str, Any]:
        """No time and no path: the same vectors are the same bytes."""
        return {
            "kind": self.kind,
            "_emb": self.sample.emb,
            "rows": self.sample.rows,
            "vectors": self.sample.moments.count,
            "width": self.sample.moments.width,
            "kept": self.fit.kernel.shape[1],
            **self.fit.record,
            "inputs": self.sample.inputs,
        }

    def write(self, file: BinaryIO, source: str) -> None:
        """In float64: kernel and bias, and the moments where they are what a transform comes from."""
        moments, bias = self.sample.moments, 0.0 - self.fit.mean
        dense_layer(self.fit.kernel, bias, kind=self.kind, source=source)  # refused before it is written
        arrays = {"kernel": self.fit.kernel, "bias": bias[np.newaxis]}
        if self.mergeable:
            count = np.array([moments.count], np.float64)
            arrays |= {"count": count, "mean": moments.mean, "scatter": moments.scatter}
        put_arrays(file, arrays, {"sentkit": orjson.dumps(self.note).decode()})


def fit_moments(inputs: Inputs, kind: str, asked: Asked) -> Fitted:
    """One pass, in constant memory."""
    sample = read_sample(inputs, lambda block: None)
    check_varied(kind, sample, inputs.paths)
    return Fitted(kind, sample, KINDS[kind](sample.moments, asked))


def fit_ica(inputs: Inputs, asked: Asked, descent: Descent) -> Fitted:
    """All vectors are held in memory."""
    held: list[Block] = []
    sample = read_sample(inputs, held.append)
    check_varied("ica", sample, inputs.paths)
    return Fitted("ica", sample, ica(held, sample.moments, asked, descent), mergeable=False)


def check_varied(kind: str, sample: Sample, paths: Sequence[str]) -> None:
    """Equal vectors, or one alone, have a mean to take away and nothing else."""
    if kind != "center" and not sample.moments.deviations.any():
        raise DataError("all vectors are the same: there is nothing to fit", source=together(paths))
