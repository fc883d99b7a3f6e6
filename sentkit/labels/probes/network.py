"""SentEval's network in numpy: one network for each penalty, trained side by side.

A network (arXiv 1803.05449) is a linear layer, optionally after a sigmoid layer, with the default
configuration of SentEval: Adam, batches of 64, and an L2 penalty in the gradient, also for biases.
The dev accuracy is measured every four epochs, and the best weights are the result.

SentEval begins each fit with the same seed, so the networks of a grid start with equal weights and
see the same batches. Arrays of parameters have one row for each network. A network that stops early
leaves the arrays. Its weights are to the bit those of a network that is trained alone.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sentkit.arrays import Bools, Floats, Indices
from sentkit.labels.probes.classifiers import Data, Fit

BATCH_ROWS = 64
EPOCHS_PER_EVALUATION = 4
EPOCHS = 200  # SentEval continues while at most so many are done: its last evaluation is after 204
PATIENCE = 5  # SentEval stops after more evaluations without a new best, not only consecutive ones
# The defaults of Adam.
RATE = 1e-3
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8

HELD_OUT = 0.05  # share of the training rows, without dev rows

# The weights (..., inputs, outputs) and biases (..., 1, outputs) of each layer.
Layers = list[tuple[Floats, Floats]]


def network(data: Data, fit: Fit, *, hidden: int, seed: int) -> list[Indices]:
    """The predictions of networks with so many hidden units; 0: without a hidden layer."""
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
        parameters = learn(widths, train_data, dev_data, fit.penalties, random)
        predicted = predict(layers_of(parameters, widths), data.features[fit.test])
    return list(predicted)


def held_out(rows: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Split the rows into training rows and one held-out row in twenty."""
    mixed = random.permutation(rows)
    count = max(1, int(HELD_OUT * len(rows)))
    return mixed[count:], mixed[:count]


def learn(
    widths: Sequence[int],
    train: tuple[Floats, Indices],
    dev: tuple[Floats, Indices],
    penalties: Sequence[float],
    random: np.random.Generator,
) -> Floats:
    """The parameters with the best dev accuracy of each network, one row for each penalty."""
    features, codes = train
    dev_features, dev_codes = dev
    first = start(widths, random).astype(features.dtype)
    training = Training(widths, first, penalties)
    best_parameters = training.parameters.copy()
    best_accuracies = np.full(len(penalties), -1.0)
    evaluations_without_gain = np.zeros(len(penalties), np.intp)
    running = np.arange(len(penalties))  # the networks that have not stopped
    epochs = 0
    while epochs <= EPOCHS and len(running):
        epochs += EPOCHS_PER_EVALUATION
        for _ in range(EPOCHS_PER_EVALUATION):
            order = random.permutation(len(codes))
            for begin in range(0, len(codes), BATCH_ROWS):
                batch = order[begin : begin + BATCH_ROWS]
                training.step(features[batch], codes[batch])

        accuracies = np.mean(predict(training.layers, dev_features) == dev_codes, axis=1)
        gains = accuracies > best_accuracies[running]
        best_accuracies[running[gains]] = accuracies[gains]
        best_parameters[running[gains]] = training.parameters[gains]
        evaluations_without_gain[running[~gains]] += 1
        stops = evaluations_without_gain[running] > PATIENCE
        if stops.any():
            training.keep(~stops)
            running = running[~stops]
    training.keep(np.zeros(len(running), np.bool_))
    return best_parameters


class Training:
    """Networks that are trained with the same batches, and the state of Adam."""

    def __init__(self, widths: Sequence[int], first: Floats, penalties: Sequence[float]) -> None:
        self.widths = widths
        self.penalties = np.array(penalties, first.dtype)[:, None]
        self.parameters = np.repeat(first[None], len(penalties), axis=0)
        self.mean = np.zeros_like(self.parameters)
        self.square = np.zeros_like(self.parameters)
        self.steps = 0
        self._make_views()

    def _make_views(self) -> None:
        """Every step changes the parameters and the gradient through these views."""
        self.gradient = np.empty_like(self.parameters)
        self.layers = layers_of(self.parameters, self.widths)
        self.gradient_of_layers = layers_of(self.gradient, self.widths)

    def step(self, features: Floats, codes: Indices) -> None:
        write_gradient(self.gradient_of_layers, self.layers, features, codes)
        self.steps += 1
        gradient = self.gradient + self.penalties * self.parameters
        adam_step(self.parameters, gradient, self.mean, self.square, self.steps)

    def keep(self, kept: Bools) -> None:
        """End the other networks. One without finite numbers has not converged."""
        from sklearn.exceptions import ConvergenceWarning

        is_finite = np.isfinite(self.parameters).all(axis=1) & np.isfinite(self.square).all(axis=1)
        for _ in np.flatnonzero(~kept & ~is_finite):
            warnings.warn("a parameter is not finite", ConvergenceWarning, stacklevel=2)
        self.penalties = self.penalties[kept]
        self.parameters = self.parameters[kept]
        self.mean = self.mean[kept]
        self.square = self.square[kept]
        self._make_views()


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
    """Views of the parameters (..., n) as the weights and the biases of each layer."""
    networks = parameters.shape[:-1]
    layers = []
    begin = 0
    for inputs, outputs in pairwise(widths):
        middle = begin + inputs * outputs
        end = middle + outputs
        weights = parameters[..., begin:middle].reshape(*networks, inputs, outputs)
        biases = parameters[..., middle:end].reshape(*networks, 1, outputs)
        layers.append((weights, biases))
        begin = end
    return layers


def forward(layers: Layers, features: Floats) -> list[Floats]:
    """The input of each layer, and then the scores (..., b, classes)."""
    values = [features]
    for weights, biases in layers:
        if len(values) > 1:
            values[-1] = sigmoid(values[-1])
        values.append(values[-1] @ weights + biases)
    return values


def sigmoid(values: Floats) -> Floats:
    return 0.5 * (np.tanh(0.5 * values) + 1)  # does not overflow


def predict(layers: Layers, features: Floats) -> Indices:
    return forward(layers, features)[-1].argmax(axis=-1)


def write_gradient(gradient: Layers, layers: Layers, features: Floats, codes: Indices) -> None:
    """Set `gradient` to the gradient of the mean cross-entropy."""
    *layer_inputs, scores = forward(layers, features)

    # The gradient of the scores: softmax minus the true class.
    scores -= scores.max(axis=-1, keepdims=True)
    error = np.exp(scores)
    error /= error.sum(axis=-1, keepdims=True)
    error[..., np.arange(len(codes)), codes] -= 1
    error /= len(codes)

    # From the last layer to the first.
    for i in reversed(range(len(layers))):
        weights, _ = layers[i]
        weight_gradient, bias_gradient = gradient[i]
        np.matmul(layer_inputs[i].swapaxes(-1, -2), error, out=weight_gradient)
        error.sum(axis=-2, keepdims=True, out=bias_gradient)
        if i > 0:
            sigmoids = layer_inputs[i]
            error = error @ weights.swapaxes(-1, -2) * (sigmoids * (1 - sigmoids))
