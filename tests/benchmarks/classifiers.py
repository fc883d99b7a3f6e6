"""SentEval's network against its loop in torch, and against MLPClassifier of scikit-learn.

python tests/benchmarks/classifiers.py

Four penalties, as in the grid of SentEval, on random vectors of three classes that overlap. The
loop in torch has the batches and stops of SentEval. MLPClassifier stops by a share of the training
rows. Seconds are CPU time of one thread; the accuracy is that on other rows, the mean of the
penalties.
"""

import copy
import time
import warnings
from functools import partial

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits
from timing import print_table, ratios, rounds_of
from usage import check_arguments

from sentkit.labels.probes.classifiers import Data, Fit
from sentkit.labels.probes.network import network

PENALTIES = [1e-5, 1e-4, 1e-3, 1e-2]
WIDTH = 384
CLASSES = 3
TRAIN = np.arange(3600)
DEV = np.arange(3600, 4000)
TEST = np.arange(4000, 5000)
SEED = 1111


def drawn():
    random = np.random.default_rng(0)
    features = random.standard_normal((len(TRAIN) + len(DEV) + len(TEST), WIDTH), np.float32)
    scores = features[:, :CLASSES] + 0.8 * random.standard_normal((len(features), CLASSES))
    return Data(features, scores.argmax(axis=1), CLASSES)


def loop_in_torch(data, hidden, penalty):
    """The predictions of one network, as in SentEval: epoch size 4, tenacity 5, batches of 64."""
    torch.manual_seed(SEED)
    random = np.random.default_rng(SEED)
    features = torch.from_numpy(data.features)
    codes = torch.from_numpy(data.codes)
    net = torch.nn.Linear(WIDTH, CLASSES)
    if hidden:
        layers = torch.nn.Linear(WIDTH, hidden), torch.nn.Sigmoid()
        net = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, CLASSES))
    adam = torch.optim.Adam(net.parameters(), weight_decay=penalty)
    best_net = net
    best_accuracy = -1.0
    without_gain = 0
    epochs = 0
    while epochs <= 200:
        epochs += 4
        for _ in range(4):
            for batch in torch.from_numpy(random.permutation(TRAIN)).split(64):
                adam.zero_grad()
                torch.nn.functional.cross_entropy(net(features[batch]), codes[batch]).backward()
                adam.step()
        with torch.no_grad():
            accuracy = float((net(features[DEV]).argmax(1) == codes[DEV]).float().mean())
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_net = copy.deepcopy(net)
        elif without_gain == 5:
            break
        else:
            without_gain += 1
    with torch.no_grad():
        return best_net(features[TEST]).argmax(1).numpy()


def scikit_learn(data, hidden, penalty):
    rows = np.concatenate([TRAIN, DEV])
    model = MLPClassifier(
        (hidden,) if hidden else (),
        activation="logistic",
        alpha=penalty,
        batch_size=64,
        early_stopping=True,
        random_state=SEED,
    )
    return model.fit(data.features[rows], data.codes[rows]).predict(data.features[TEST])


def network_alone(data, hidden, penalty):
    [predicted] = network(data, Fit(TRAIN, TEST, [penalty], DEV), hidden=hidden, seed=SEED)
    return predicted


def alone(way, data, hidden):
    """The predictions of one fit for each penalty, one after the other."""
    return [way(data, hidden, penalty) for penalty in PENALTIES]


def main():
    check_arguments(__doc__, most=0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    data = drawn()
    rows = []
    for hidden in (0, 50):
        fit_of_grid = Fit(TRAIN, TEST, PENALTIES, DEV)
        ways = {
            "sentkit": partial(network, data, fit_of_grid, hidden=hidden, seed=SEED),
            "sentkit, one network at a time": partial(alone, network_alone, data, hidden),
            "torch": partial(alone, loop_in_torch, data, hidden),
            "MLPClassifier": partial(alone, scikit_learn, data, hidden),
        }
        with threadpool_limits(1):
            seconds = rounds_of(ways, 3, time.process_time)
            for name, way in ways.items():
                least = f"{min(seconds[name]):.2f} s"
                relative = [f"{ratio:.2f}" for ratio in ratios(seconds[name], seconds["torch"])]
                accuracy = 100 * np.mean(np.array(way()) == data.codes[TEST])
                rows.append([hidden, name, least, *relative, f"{accuracy:.1f}"])
    columns = "hidden units | four fits | CPU time | relative to torch: least | median | accuracy"
    print_table(columns, rows)


if __name__ == "__main__":
    main()
