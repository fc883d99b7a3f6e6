"""Transforms fitted to a stream of vectors, and their file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32
from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.safetensors_header import put_arrays
from sentkit.transforms.affine import dense_layer
from sentkit.transforms.flow import PARAMETERS, flow_of
from sentkit.transforms.flow_fit import FlowFit, FlowOptions, fit_parameters
from sentkit.transforms.ica import IcaOptions, ica
from sentkit.transforms.kinds import KINDS, Fit, FitOptions
from sentkit.transforms.sample import Sample, read_sample


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
            flow_of(self.fit.parameters, moments.width, source)  # raises if not finite
            arrays = {PARAMETERS: self.fit.parameters}
        else:
            bias = 0.0 - self.fit.mean
            dense_layer(self.fit.kernel, bias, kind=self.kind, source=source)  # the same
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
