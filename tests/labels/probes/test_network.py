"""SentEval's network against finite differences and torch; its protocols against scikit-learn."""

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from sentkit.labels.probes.classifiers import (
    Adam,
    Data,
    Fit,
    Network,
    held_out,
    layers_of,
    learn,
    logreg,
    sigmoid,
    start,
    write_gradient,
)
from sentkit.labels.probes.probing import Bench, best, sample

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
        layer.weight.data, layer.bias.data = torch.tensor(weights.T.copy()), torch.tensor(biases.copy())
        layers += [layer, nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def loss(widths, parameters, features, codes):
    """The mean cross-entropy, row by row."""
    total = 0.0
    for row, code in zip(features, codes, strict=True):
        for place, (weights, biases) in enumerate(layers_of(parameters, widths)):
            row = 1 / (1 + np.exp(-row)) if place else row
            row = row @ weights + biases
        total += np.log(np.exp(row).sum()) - row[code]
    return total / len(codes)


@both
def test_the_gradient_equals_finite_differences(widths):
    parameters = start(widths, np.random.default_rng(1))
    features, codes = drawn(7, 2)
    found = np.full_like(parameters, np.nan)
    write_gradient(layers_of(found, widths), layers_of(parameters, widths), features, codes)
    steps = 1e-6 * np.eye(len(parameters))
    differences = [
        (loss(widths, parameters + h, features, codes) - loss(widths, parameters - h, features, codes)) / 2e-6
        for h in steps
    ]

    assert found == pytest.approx(np.array(differences), abs=1e-8)


def test_adam_equals_torch():
    """A hundred steps with an L2 penalty, which torch calls weight decay, in float64."""
    random = np.random.default_rng(3)
    ours = random.standard_normal(6)
    theirs = torch.tensor(ours.copy(), requires_grad=True)
    adam, reference = Adam(ours), torch.optim.Adam([theirs], lr=1e-3, weight_decay=0.1)
    for _ in range(100):
        given = random.standard_normal(6)
        theirs.grad = torch.tensor(given)
        adam.step(given + 0.1 * ours)
        reference.step()

    assert ours == pytest.approx(theirs.detach().numpy(), abs=1e-12)


def learnt_by_torch(widths, train, dev, penalty, random, patience):
    """The same in torch; it ends after some evaluations without a new best, which need not be consecutive."""
    (features, codes), (dev_features, dev_codes) = [tuple(map(torch.tensor, part)) for part in (train, dev)]
    net = as_torch(widths, start(widths, random))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=penalty)
    best, kept, idle, looks = -1, None, 0, 0
    while idle < patience and looks < 50:
        for _ in range(4):
            for batch in torch.tensor(random.permutation(len(codes))).split(64):
                adam.zero_grad()
                nn.functional.cross_entropy(net(features[batch]), codes[batch]).backward()
                adam.step()
        right = (net(dev_features).argmax(1) == dev_codes).double().mean()
        looks += 1
        if right > best:
            best, kept = right, copy.deepcopy(net)
        else:
            idle += 1
    return kept


@both
@pytest.mark.parametrize(("seed", "patience"), [(4, 5), (5, 5), (4, 1000)])
@pytest.mark.filterwarnings("error")  # of a fit that does not converge
def test_learning_equals_torch(widths, seed, patience, monkeypatch):
    """The same start and order give the same best parameters on the dev rows, after as many epochs."""
    if patience > 5:  # then it ends after 200 epochs
        monkeypatch.setattr("sentkit.labels.probes.classifiers.PATIENCE", patience)
    train, dev = drawn(150, seed), drawn(40, seed + 10)
    random, other = np.random.default_rng(7), np.random.default_rng(7)
    layers = learn(widths, train, dev, 1e-3, random)
    found = np.concatenate([part.ravel() for layer in layers for part in layer])
    reference = learnt_by_torch(widths, train, dev, 1e-3, other, patience)
    theirs = [p.detach().numpy().T.ravel() for p in reference.parameters()]

    assert found == pytest.approx(np.concatenate(theirs), abs=1e-9)
    assert random.random() == other.random()


def test_the_sigmoid_does_not_overflow():
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(("count", "most"), [(100, 5), (7, 1)])
def test_one_row_in_twenty_is_held_out(count, most):
    """At least one."""
    left, held = held_out(np.arange(100, 100 + count), np.random.default_rng(0))

    assert len(held) == most
    assert sorted([*left, *held]) == list(range(100, 100 + count))


@pytest.mark.parametrize("hidden", [0, 5])
def test_distant_classes_are_learned(hidden):
    """Equal seeds give equal results."""
    random = np.random.default_rng(8)
    features = np.concatenate([random.normal(place, 1, (1200, 20)) for place in (-1, 1)])
    data = Data(features.astype(np.float32), np.repeat([0, 1], 1200), 2)
    fit = Fit(np.arange(0, 2400, 2), np.arange(1, 2400, 2), 1e-5)
    found = Network(hidden, 1111)(data, fit)

    assert np.mean(found == data.codes[fit.test]) > 0.99
    assert Network(hidden, 1111)(data, fit).tolist() == found.tolist()


PENALTIES = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.fixture
def data():
    """Ninety rows of three overlapping classes."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 3, 90)
    return Data(0.3 * (random.standard_normal((90, 4)) + np.eye(3, 4)[codes]), codes, 3)


@pytest.fixture
def bench(data):
    return Bench(data, logreg, PENALTIES, 1111)


def share(data, train, test, penalty):
    model = LogisticRegression(C=penalty, max_iter=1000).fit(data.features[train], data.codes[train])
    return model.score(data.features[test], data.codes[test])


def test_few_shot_tests_on_the_other_rows(bench, data):
    bench.penalties = [1.0]
    seen = bench.few_shot(np.arange(90), None, 5, 3)

    assert [np.bincount(data.codes[fit.train]).tolist() for fit in seen] == [[5, 5, 5]] * 3
    assert all(sorted([*fit.train, *fit.test]) == list(range(90)) for fit in seen)
    assert len({tuple(fit.train) for fit in seen}) == 3
    assert bench.shares(seen) == [share(data, fit.train, fit.test, 1.0) for fit in seen]


def test_few_shot_with_test_rows(bench, data):
    bench.penalties = [1.0]
    test = np.arange(60, 90)
    drawn = sample(data.codes[:60], 4, np.random.default_rng([1111, 0]))

    assert bench.shares(bench.few_shot(np.arange(60), test, 4, 1)) == [share(data, drawn, test, 1.0)]


def test_the_first_of_equal_penalties_is_chosen():
    """It is the strongest; a difference below 0.01 % counts as equal."""
    assert best([[0.5, 0.7], [0.6, 0.6], [0.60004, 0.6]]) == 0
    assert best([[0.5], [0.6], [0.5]]) == 1


@pytest.mark.parametrize("head", [logreg, Network(3, 1111)], ids=["logreg", "senteval"])
def test_the_number_of_jobs_does_not_change_results(data, head):
    results = [Bench(data, head, [0.01, 1.0], 1111, jobs).nested(np.arange(90), 3) for jobs in (1, 3)]

    assert results[0] == results[1]


def test_fits_that_do_not_converge_are_counted(bench, monkeypatch):
    monkeypatch.setattr("sentkit.labels.probes.classifiers.ITERATIONS", 1)
    bench.choose(bench.grid(np.arange(60), 3))

    assert bench.unfinished == 6 * 3


def test_remaining_fits_are_cancelled(data):
    """As after Ctrl-C: only fits that already run are completed."""
    made = []

    def work(data, fit):
        made.append(fit)
        return logreg(data, fit)

    found = Bench(data, work, [1.0], 1111, 2).run([Fit(np.arange(60), np.arange(60, 90), 1.0)] * 500)
    next(found)
    found.close()

    assert len(made) < 500
