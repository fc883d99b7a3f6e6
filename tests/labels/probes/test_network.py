"""SentEval's network against finite differences, and against torch."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

from sentkit.labels.probes.classifiers import Data, Fit, quiet_and_single
from sentkit.labels.probes.network import (
    adam_step,
    held_out,
    layers_of,
    learn,
    network,
    predict,
    sigmoid,
    start,
    write_gradient,
)
from sentkit.labels.probes.probing import Bench

both = pytest.mark.parametrize("widths", [(4, 3), (4, 5, 3)])


def drawn(count, seed, classes=3, width=4):
    """Random features, and codes that depend on them partly."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, width))
    scores = features[:, :classes] + 0.8 * random.standard_normal((count, classes))
    return features, scores.argmax(axis=1)


def as_torch(widths, parameters):
    layers = []
    for weights, biases in layers_of(parameters, widths):
        layer = nn.Linear(*weights.shape, dtype=torch.float64)
        layer.weight.data = torch.tensor(weights.T.copy())
        layer.bias.data = torch.tensor(biases[0].copy())
        layers += [layer, nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def loss(widths, parameters, features, codes):
    total = 0.0
    for row, code in zip(features, codes, strict=True):
        for index, (weights, biases) in enumerate(layers_of(parameters, widths)):
            row = 1 / (1 + np.exp(-row)) if index else row
            row = row @ weights + biases[0]
        total += np.log(np.exp(row).sum()) - row[code]
    return total / len(codes)


@both
def test_the_gradient_equals_finite_differences(widths):
    parameters = start(widths, np.random.default_rng(1))
    features, codes = drawn(7, 2)
    gradient = np.full_like(parameters, np.nan)
    write_gradient(layers_of(gradient, widths), layers_of(parameters, widths), features, codes)
    steps = 1e-6 * np.eye(len(parameters))
    differences = [
        (
            loss(widths, parameters + h, features, codes)
            - loss(widths, parameters - h, features, codes)
        )
        / 2e-6
        for h in steps
    ]

    assert gradient == pytest.approx(np.array(differences), abs=1e-8)


def test_adam_equals_torch():
    """A hundred steps with an L2 penalty, which torch calls weight decay, in float64."""
    random = np.random.default_rng(3)
    parameters = random.standard_normal(6)
    torch_parameters = torch.tensor(parameters.copy(), requires_grad=True)
    mean = np.zeros(6)
    square = np.zeros(6)
    reference = torch.optim.Adam([torch_parameters], lr=1e-3, weight_decay=0.1)
    for step in range(1, 101):
        gradient = random.standard_normal(6)
        torch_parameters.grad = torch.tensor(gradient)
        adam_step(parameters, gradient + 0.1 * parameters, mean, square, step)
        reference.step()

    assert parameters == pytest.approx(torch_parameters.detach().numpy(), abs=1e-12)


def learnt_by_torch(widths, train, dev, penalty, random):
    """The loop of SentEval with its defaults: Adam, batches of 64, epoch size 4, tenacity 5."""
    features, codes = map(torch.tensor, train)
    dev_features, dev_codes = map(torch.tensor, dev)
    net = as_torch(widths, start(widths, random))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=penalty)
    best_accuracy = -1
    without_gain = 0
    epochs = 0
    stops = False
    while not stops and epochs <= 200:
        for _ in range(4):
            for batch in torch.tensor(random.permutation(len(codes))).split(64):
                adam.zero_grad()
                nn.functional.cross_entropy(net(features[batch]), codes[batch]).backward()
                adam.step()
        epochs += 4
        accuracy = (net(dev_features).argmax(1) == dev_codes).double().mean()
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_net = copy.deepcopy(net)
        else:
            stops = without_gain >= 5
            without_gain += 1
    return best_net


@both
@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.filterwarnings("error")  # of a fit that does not converge
def test_learning_equals_torch(widths, seed):
    """The same start and order give the same best parameters on the dev rows."""
    train = drawn(150, seed)
    dev = drawn(40, seed + 10)
    [parameters] = learn(widths, train, dev, [1e-3], np.random.default_rng(7))
    reference = learnt_by_torch(widths, train, dev, 1e-3, np.random.default_rng(7))
    torch_parameters = [p.detach().numpy().T.ravel() for p in reference.parameters()]

    assert parameters == pytest.approx(np.concatenate(torch_parameters), abs=1e-9)


@both
@pytest.mark.filterwarnings("error")  # of a fit that does not converge
def test_a_network_does_not_change_those_beside_it(widths):
    """Some stop after 28 epochs, the others after 36."""
    penalties = [1e-5, 0.1, 1.0, 10.0]
    train = drawn(150, 4)
    dev = drawn(40, 14)
    together = learn(widths, train, dev, penalties, np.random.default_rng(7))
    alone = [learn(widths, train, dev, [p], np.random.default_rng(7))[0] for p in penalties]

    assert together.tolist() == [parameters.tolist() for parameters in alone]
    assert len(np.unique(together, axis=0)) == len(penalties)


def test_each_network_without_finite_numbers_is_counted():
    """The squares of their gradients are above the largest float32."""
    features, codes = drawn(150, 4)
    data = Data((1e25 * features).astype(np.float32), codes, 3)
    rows = np.arange(150)
    with quiet_and_single() as unfinished:
        network(data, Fit(rows[:100], rows[100:], [1e-5, 1e-3]), hidden=0, seed=1)

    assert len(unfinished) == 2


def looks_of(monkeypatch, train, dev):
    accuracies = []

    def watched(layers, features):
        labels = predict(layers, features)
        accuracies.append(np.mean(labels == dev[1]))
        return labels

    monkeypatch.setattr("sentkit.labels.probes.network.predict", watched)
    learn((4, 3), train, dev, [1e-3], np.random.default_rng(7))
    return accuracies


def test_learning_ends_at_the_sixth_evaluation_without_a_new_best(monkeypatch):
    """The code of SentEval counts five before it stops. They need not be consecutive."""
    accuracies = looks_of(monkeypatch, drawn(150, 4), drawn(40, 14))
    without_gain = [
        accuracy <= max(accuracies[:n], default=-1) for n, accuracy in enumerate(accuracies)
    ]

    assert sum(without_gain) == 6
    assert without_gain[-1]
    assert not all(without_gain[-6:])


def test_learning_ends_with_the_evaluation_after_two_hundred_epochs(monkeypatch):
    """SentEval goes on while at most 200 epochs are done: 51 times four epochs."""
    monkeypatch.setattr("sentkit.labels.probes.network.PATIENCE", 1000)

    assert len(looks_of(monkeypatch, drawn(20, 4), drawn(5, 14))) == 51


def accuracy_by_torch(data, train, test, penalty, dev=None):
    """A fit of SentEval; without dev rows, one row in twenty of the training rows is held out."""
    random = np.random.default_rng(1111)
    if dev is None:
        mixed = random.permutation(train)
        count = int(0.05 * len(train))
        train = mixed[count:]
        dev = mixed[:count]
    widths = (data.features.shape[1], data.classes)
    net = learnt_by_torch(
        widths,
        (data.features[train], data.codes[train]),
        (data.features[dev], data.codes[dev]),
        penalty,
        random,
    )
    predicted = net(torch.tensor(data.features[test])).argmax(1).numpy()
    return np.mean(predicted == data.codes[test])


def test_the_protocol_of_folds_equals_a_plain_loop():
    """SentEval's inner folds: each outer fold has the penalty that is best in folds of the rest."""
    features, codes = drawn(90, 6)
    data = Data(features, codes, 3)
    penalties = [1e-5, 1e-1]
    accuracies = []
    chosen = []
    outer = StratifiedKFold(3, shuffle=True, random_state=1111)
    inner = StratifiedKFold(3, shuffle=True, random_state=1111)
    for train, test in outer.split(features, codes):
        means = []
        for penalty in penalties:
            of_folds = []
            for inner_train, inner_test in inner.split(train, codes[train]):
                dev = train[inner_test]
                of_folds.append(accuracy_by_torch(data, train[inner_train], dev, penalty, dev))
            means.append(round(100 * np.mean(of_folds), 2))
        penalty = penalties[int(np.argmax(means))]
        chosen.append(penalty)
        accuracies.append(accuracy_by_torch(data, train, test, penalty))

    bench = Bench(data, partial(network, hidden=0, seed=1111), penalties, 1111)
    fits = bench.nested(np.arange(90), 3)
    assert [fit.penalties for fit in fits] == [[penalty] for penalty in chosen]
    assert bench.shares(fits) == pytest.approx(accuracies)


def test_the_sigmoid_does_not_overflow():
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(("count", "held_rows"), [(100, 5), (7, 1)])
def test_one_row_in_twenty_is_held_out(count, held_rows):
    training, dev = held_out(np.arange(100, 100 + count), np.random.default_rng(0))

    assert len(dev) == held_rows
    assert sorted([*training, *dev]) == list(range(100, 100 + count))
