"""Classifiers of a probe: the data and results of a fit, logistic regression, and its file."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Floats, Indices
from sentkit.errors import DataError
from sentkit.formats.rows.answers import Answers
from sentkit.formats.rows.kinds import Label, class_name
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import record_of_label
from sentkit.formats.vectors.tensors import put_arrays, read_array
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
)
from sentkit.transforms.steps import check_fitted, read_fit_note


@dataclass(frozen=True, slots=True)
class Data:
    """All rows of all files."""

    features: Floats  # (n, d)
    codes: Indices
    classes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A classifier for each penalty, fitted to the same rows."""

    train: Indices
    test: Indices
    penalties: Sequence[float]
    # for early stopping of a network; without it, a share of `train` is held out
    dev: Indices | None = None


# maximum; scikit-learn's default of 100 is too small for vectors of hundreds of numbers
ITERATIONS = 1000

# fits, and returns the codes that each classifier predicts for the rows of `test`
Head = Callable[[Data, Fit], list[Indices]]


def logreg(data: Data, fit: Fit) -> list[Indices]:
    models = [fitted(data, fit.train, penalty) for penalty in fit.penalties]
    return [model.predict(data.features[fit.test]) for model in models]


def fitted(data: Data, rows: Indices, penalty: float) -> Any:
    """A regression by L-BFGS, which is deterministic. A larger penalty C regularises less."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=penalty, max_iter=ITERATIONS)
    return model.fit(data.features[rows], data.codes[rows])


def weights_of(data: Data, rows: Indices, penalty: float) -> tuple[Float64, Float64]:
    """The weight (k, d) and bias (k,) of the same regression, for a softmax."""
    model = fitted(data, rows, penalty)
    if data.classes > 2:
        return model.coef_, model.intercept_
    # For two classes, scikit-learn has only the logit of the second: that of the first is 0.
    zero = np.zeros_like(model.coef_)
    return np.concatenate([zero, model.coef_]), np.concatenate([zero[:, 0], model.intercept_])


@contextmanager
def quiet_and_single() -> Iterator[list[Any]]:
    """Yield a list that gets the warning of each fit that does not converge.

    L-BFGS can also end before the last iteration without convergence: only its warning shows it.
    A fit has one thread, as the number affects the rounding of sums.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    show = warnings.showwarning
    unfinished = list[Any]()

    def receive(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, ConvergenceWarning):
            unfinished.append(message)
        else:
            show(message, category, *args, **kwargs)

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.showwarning = receive
        yield unfinished


KIND = "classifier"
ROWS = 1024  # most rows that are classified at a time


def features_of(block: VectorBlock) -> Float32:
    """The vectors of sentences; (|u - v|, u * v) of pairs, as in SentEval (arXiv 1803.05449)."""
    if block.vectors.shape[1] == 1:
        return block.vectors[:, 0]
    u = block.vectors[:, 0]
    v = block.vectors[:, 1]
    with np.errstate(over="ignore"):
        return np.concatenate([abs(u - v), u * v], axis=1)


def refuse_without_features(block: VectorBlock) -> VectorBlock:
    """Mark triplets, and pairs whose products are not finite."""
    if block.vectors.shape[1] > 2:
        block.rows.refuse_all("this row is a triplet; probe reads sentences and pairs")
    is_finite = np.isfinite(features_of(block)).all(axis=1)
    for index in np.flatnonzero(~is_finite).tolist():
        block.rows.refuse(index, "the vectors of this pair are too large to multiply")
    return block


@dataclass(frozen=True, slots=True)
class VectorClassifier:
    path: str
    classes: tuple[str, ...]
    weight: Float64  # (k, d), for the features of a row
    bias: Float64  # (k,)
    spec: Mapping[str, Any] = field(default_factory=dict)  # of the vectors, as far as it is known
    # of the classes, with the type of the training rows; empty: strings
    labels: Sequence[Label] = ()

    @property
    def answers(self) -> Answers:
        return Answers(self.classes, "softmax", self.labels)

    def outputs(self, inputs: Inputs) -> Iterator[tuple[VectorBlock, Float64]]:
        """Yield blocks of rows, and their outputs (n, k)."""
        reader = VectorReader(inputs)

        def check(block: VectorBlock) -> VectorBlock:
            # The first row is alone in its block.
            if not (reader.has_accepted or block.rows.error_of_row):
                check_fitted(self.path, reader.space_name)
            return self.checked(block)

        blocks = in_blocks_of_size(reader.blocks(check), joined_vector_blocks, ROWS, FIRST_BLOCK)
        for block in blocks:
            yield block, self.outputs_of(block)

    def checked(self, block: VectorBlock) -> VectorBlock:
        features = features_of(refuse_without_features(block))
        width = features.shape[1]
        expected = self.weight.shape[1]
        if width != expected:
            block.rows.refuse_all(f"the classifier takes {expected} features, this row has {width}")
        return block

    def outputs_of(self, block: VectorBlock) -> Float64:
        return features_of(block).astype(np.float64) @ self.weight.T + self.bias


def not_a_classifier(path: str) -> DataError:
    advice = "make one with sentkit probe -o FILE.safetensors"
    return DataError("not a classifier", source=path, advice=advice)


def read_classifier(path: str) -> VectorClassifier:
    """Read a file of `sentkit probe -o`; raise a DataError for other files."""
    note = read_fit_note(path)
    if note.get("kind") != KIND:
        raise not_a_classifier(path)
    classes: Any = note.get("classes")
    weight = read_array(path, "weight").astype(np.float64)
    bias = read_array(path, "bias").astype(np.float64)
    if not are_classes(classes) or not are_weights(weight, bias, len(classes)):
        raise DataError("the classes and the weights do not match", source=path)
    spec = note.get("spec")
    if not isinstance(spec, dict):
        spec = record_of_label(note.get("_emb") or "")
    labels: Any = note.get("labels", classes)  # a file of an older version has only strings
    if not are_labels(labels, classes):
        raise DataError("the classes and their labels do not match", source=path)
    return VectorClassifier(path, tuple(classes), weight, bias, spec, labels)


def are_classes(classes: Any) -> bool:
    """Whether these are different strings."""
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        return False
    return len(set(classes)) == len(classes)


def are_labels(labels: Any, classes: Sequence[str]) -> bool:
    """Whether these are strings, whole numbers, true or false whose strings are the classes."""
    if not isinstance(labels, list) or not all(type(label) in (str, int, bool) for label in labels):
        return False
    return [class_name(label) for label in labels] == list(classes)


def label_of_class(name: str, values: Sequence[Any]) -> Label:
    """The label of a class, from the values of its rows: a number, true or false if all are.

    A whole number that JSON libraries round (more than 64 bits) stays a string.
    """
    types = {type(value) for value in values}
    if types == {bool}:
        return name == "true"
    if types <= {int, float} and -(2**63) <= int(name) < 2**64:
        return int(name)
    return name


def are_weights(weight: Float64, bias: Float64, classes: int) -> bool:
    """Whether these are finite weights (k, d) and biases (k,) of k classes."""
    if weight.ndim != 2 or not weight.size:
        return False
    if len(weight) != classes or bias.shape != (classes,):
        return False
    return bool(np.isfinite(weight).all() and np.isfinite(bias).all())


def write_classifier(file: BinaryIO, classifier: VectorClassifier, record: dict[str, Any]) -> None:
    """Write a classifier; `record` describes the fit."""
    note = {"kind": KIND, "classes": list(classifier.classes), **record}
    if classifier.spec:
        note["spec"] = classifier.spec
    if classifier.labels and tuple(classifier.labels) != classifier.classes:  # some are not strings
        note["labels"] = list(classifier.labels)
    metadata = {"format": "np", "sentkit": orjson.dumps(note).decode()}
    put_arrays(file, {"weight": classifier.weight, "bias": classifier.bias}, metadata)
