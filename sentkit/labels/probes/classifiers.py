"""Classifiers of a probe, and their file: logistic regression, and SentEval's network in numpy.

The network (arXiv 1803.05449) is a linear layer, optionally after a sigmoid layer, with the default
configuration of SentEval: Adam, batches of 64, and an L2 penalty in the gradient, also for biases.
The dev accuracy is measured every four epochs, and the best weights are the result.

A fit to 4,000 vectors of 384 numbers with three classes takes 0.28 s of CPU time, or 0.58 s with 50
hidden units. MLPClassifier of scikit-learn takes 1.1 s and 2.4 s, with the same accuracy within the
deviation of the seeds (61.5 and 61.2; with hidden units 62.8 and 62.5). A probe has up to 440 fits.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
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
    train: Indices
    test: Indices
    penalty: float
    # for early stopping of a network; without it, a share of `train` is held out
    dev: Indices | None = None


# maximum; scikit-learn's default of 100 is too small for vectors of hundreds of numbers
ITERATIONS = 1000

# fits, and returns the codes that it predicts for the rows of `test`
Head = Callable[[Data, Fit], Indices]


def logreg(data: Data, fit: Fit) -> Indices:
    return fitted(data, fit).predict(data.features[fit.test])


def fitted(data: Data, fit: Fit) -> Any:
    """A regression by L-BFGS, which is deterministic. A larger penalty C regularises less."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=fit.penalty, max_iter=ITERATIONS)
    return model.fit(data.features[fit.train], data.codes[fit.train])


def weights_of(data: Data, fit: Fit) -> tuple[Float64, Float64]:
    """The weight (k, d) and bias (k,) of the same regression, for a softmax."""
    model = fitted(data, fit)
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


BATCH_ROWS = 64
EPOCHS_PER_EVALUATION = 4
EPOCHS = 200  # SentEval continues while at most so many are done: its last evaluation is after 204
# Evaluations without a new best, not only consecutive ones, before that at which SentEval stops.
PATIENCE = 5
# The defaults of Adam.
RATE = 1e-3
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8

HELD_OUT = 0.05  # share of the training rows, without dev rows

Layers = list[tuple[Floats, Floats]]  # weights (inputs, outputs) and biases of each layer


def adam_step(
    parameters: Floats, gradient: Floats, mean: Floats, square: Floats, step: int
) -> None:
    """Step number `step` of Adam (arXiv 1412.6980), with the formulas of torch.

    It changes the parameters and the means of gradients and of squared gradients in place.
    """
    mean += (1 - BETA1) * (gradient - mean)
    square *= BETA2
    square += (1 - BETA2) * gradient * gradient
    scale = np.sqrt(square) / (1 - BETA2**step) ** 0.5 + EPSILON
    parameters -= RATE / (1 - BETA1**step) * mean / scale


def start(widths: Sequence[int], random: np.random.Generator) -> Floats:
    """The initial parameters of all layers, as in torch: uniform within 1 / sqrt(inputs)."""
    parameters_of_layers = []
    for inputs, outputs in pairwise(widths):
        limit = inputs**-0.5
        parameters_of_layers.append(random.uniform(-limit, limit, (inputs + 1) * outputs))
    return np.concatenate(parameters_of_layers)


def layers_of(parameters: Floats, widths: Sequence[int]) -> Layers:
    """Views of the weights (inputs, outputs) and the biases of each layer."""
    layers = []
    begin = 0
    for inputs, outputs in pairwise(widths):
        middle = begin + inputs * outputs
        end = middle + outputs
        weights = parameters[begin:middle].reshape(inputs, outputs)
        biases = parameters[middle:end]
        layers.append((weights, biases))
        begin = end
    return layers


def forward(layers: Layers, features: Floats) -> list[Floats]:
    """The input of each layer, and then the scores (b, classes)."""
    values = [features]
    for weights, biases in layers:
        if len(values) > 1:
            values[-1] = sigmoid(values[-1])
        values.append(values[-1] @ weights + biases)
    return values


def sigmoid(values: Floats) -> Floats:
    return 0.5 * (np.tanh(0.5 * values) + 1)  # does not overflow


def write_gradient(gradient: Layers, layers: Layers, features: Floats, codes: Indices) -> None:
    """Set `gradient` to the gradient of the mean cross-entropy."""
    *layer_inputs, scores = forward(layers, features)

    # The gradient of the scores: softmax minus the true class.
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(codes)), codes] -= 1
    error /= len(codes)

    # From the last layer to the first.
    for i in reversed(range(len(layers))):
        weights, _ = layers[i]
        weight_gradient, bias_gradient = gradient[i]
        np.matmul(layer_inputs[i].T, error, out=weight_gradient)
        error.sum(axis=0, out=bias_gradient)
        if i > 0:
            sigmoids = layer_inputs[i]
            error = error @ weights.T * (sigmoids * (1 - sigmoids))


def learn(
    widths: Sequence[int],
    train: tuple[Floats, Indices],
    dev: tuple[Floats, Indices],
    penalty: float,
    random: np.random.Generator,
) -> Layers:
    """The layers with the best dev accuracy. Without finite numbers, the fit has not converged."""
    from sklearn.exceptions import ConvergenceWarning

    features, codes = train
    dev_features, dev_codes = dev
    parameters = start(widths, random).astype(features.dtype)
    gradient = np.empty_like(parameters)
    # Views, which every step changes.
    layers = layers_of(parameters, widths)
    gradient_of_layers = layers_of(gradient, widths)

    mean = np.zeros_like(parameters)
    square = np.zeros_like(parameters)
    step = 0
    best_accuracy = -1.0
    best_parameters = parameters.copy()
    evaluations_without_gain = 0
    epochs = 0
    while epochs <= EPOCHS:
        epochs += EPOCHS_PER_EVALUATION
        for _ in range(EPOCHS_PER_EVALUATION):
            order = random.permutation(len(codes))
            for begin in range(0, len(codes), BATCH_ROWS):
                batch = order[begin : begin + BATCH_ROWS]
                write_gradient(gradient_of_layers, layers, features[batch], codes[batch])
                step += 1
                adam_step(parameters, gradient + penalty * parameters, mean, square, step)
        accuracy = float(np.mean(predict(layers, dev_features) == dev_codes))
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_parameters = parameters.copy()
        elif evaluations_without_gain == PATIENCE:
            break
        else:
            evaluations_without_gain += 1
    if not np.isfinite([parameters, square]).all():
        warnings.warn("a parameter is not finite", ConvergenceWarning, stacklevel=2)
    return layers_of(best_parameters, widths)


def predict(layers: Layers, features: Floats) -> Indices:
    return forward(layers, features)[-1].argmax(axis=1)


def network(data: Data, fit: Fit, *, hidden: int, seed: int) -> Indices:
    """The predictions of a network with so many hidden units; 0: without a hidden layer.

    Each fit starts from the same seed, as in SentEval.
    """
    random = np.random.default_rng(seed)
    train = fit.train
    dev = fit.dev
    if dev is None:
        train, dev = held_out(fit.train, random)
    widths = [data.features.shape[1], data.classes]
    if hidden:
        widths.insert(1, hidden)
    train_data = (data.features[train], data.codes[train])
    dev_data = (data.features[dev], data.codes[dev])
    with np.errstate(over="ignore", invalid="ignore"):
        layers = learn(widths, train_data, dev_data, fit.penalty, random)
        return predict(layers, data.features[fit.test])


def held_out(rows: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Split the rows into training rows and one held-out row in twenty."""
    mixed = random.permutation(rows)
    count = max(1, int(HELD_OUT * len(rows)))
    return mixed[count:], mixed[:count]


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


def read_classifier(path: str) -> VectorClassifier:
    """Read a file of `sentkit probe -o`; raise a DataError for other files."""
    note = read_fit_note(path)
    if note.get("kind") != KIND:
        advice = "make one with sentkit probe -o FILE.safetensors"
        raise DataError("not a classifier", source=path, advice=advice)
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
