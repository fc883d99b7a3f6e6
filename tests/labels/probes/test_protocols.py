"""The protocols of SentEval against plain scikit-learn, fold by fold."""

from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from sentkit.errors import UsageError
from sentkit.flag_values import classifier_protocol
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.labels.probes.classifiers import (
    Data,
    Fit,
    VectorClassifier,
    logreg,
    read_classifier,
    write_classifier,
)
from sentkit.labels.probes.network import network
from sentkit.labels.probes.probing import Bench, best, sample
from support import in_jsonl

PENALTIES = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.fixture
def data():
    random = np.random.default_rng(1)
    codes = random.integers(0, 3, 90)
    return Data(0.3 * (random.standard_normal((90, 4)) + np.eye(3, 4)[codes]), codes, 3)


@pytest.fixture
def bench(data):
    return Bench(data, logreg, PENALTIES, 1111)


def share(data, train, test, penalty):
    model = LogisticRegression(C=penalty, max_iter=1000).fit(
        data.features[train], data.codes[train]
    )
    return model.score(data.features[test], data.codes[test])


def test_few_shot_tests_on_the_other_rows(bench, data):
    bench.penalties = [1.0]
    seen = bench.few_shot(np.arange(90), None, 5, 3)

    assert [np.bincount(data.codes[fit.train]).tolist() for fit in seen] == [[5, 5, 5]] * 3
    assert all(sorted([*fit.train, *fit.test]) == list(range(90)) for fit in seen)
    assert len({tuple(fit.train) for fit in seen}) == 3
    assert bench.shares(seen) == [share(data, fit.train, fit.test, 1.0) for fit in seen]


def test_the_folds_of_a_grid_stop_by_their_test_rows(bench):
    """Each penalty has the same folds: every row is tested once, and never trained in its fold."""
    bench.penalties = [0.25, 4.0]
    fits = bench.grid(np.arange(90), 3)

    assert [fit.penalties for fit in fits] == [[0.25, 4.0]] * 3
    assert [fit.dev.tolist() for fit in fits] == [fit.test.tolist() for fit in fits]
    tested = np.concatenate([fit.test for fit in fits])
    assert sorted(tested.tolist()) == list(range(90))
    assert all(set(fit.train) | set(fit.test) == set(range(90)) for fit in fits)
    assert all(len(fit.train) + len(fit.test) == 90 for fit in fits)


def test_few_shot_with_test_rows(bench, data):
    bench.penalties = [1.0]
    test = np.arange(60, 90)
    drawn = sample(data.codes[:60], 4, np.random.default_rng([1111, 0]))

    assert bench.shares(bench.few_shot(np.arange(60), test, 4, 1)) == [
        share(data, drawn, test, 1.0)
    ]


def test_the_first_of_equal_penalties_is_chosen():
    """It is the strongest; a difference below 0.01 % counts as equal."""
    assert best(np.array([[0.5, 0.6, 0.60004], [0.7, 0.6, 0.6]])) == 0
    assert best(np.array([[0.5, 0.6, 0.5]])) == 1


@pytest.mark.parametrize(
    "head", [logreg, partial(network, hidden=3, seed=1111)], ids=["logreg", "senteval"]
)
def test_the_number_of_jobs_does_not_change_results(data, head):
    results = []
    for jobs in (1, 3, 12):  # the grid has 9 fits
        bench = Bench(data, head, [0.01, 1.0], 1111, jobs)
        fits = bench.nested(np.arange(90), 3)
        choice = bench.choose(bench.grid(np.arange(90), 3))
        results.append(([fit.penalties for fit in fits], bench.shares(fits), choice))

    assert results[0] == results[1] == results[2]


def test_remaining_fits_are_cancelled(data):
    """As after Ctrl-C: only fits that already run are completed."""
    fits = []

    def work(data, fit):
        fits.append(fit)
        return logreg(data, fit)

    results = Bench(data, work, [1.0], 1111, 2).run(
        [Fit(np.arange(60), np.arange(60, 90), [1.0])] * 500
    )
    next(results)
    results.close()

    assert len(fits) < 500


@pytest.mark.parametrize(
    ("head", "protocol"),
    [
        ("senteval", ("senteval", 0, 5)),  # the defaults of SentEval
        ("senteval:50:10", ("senteval", 50, 10)),  # as SG-BERT
        ("senteval:50", ("senteval", 50, 5)),
        ("logreg", ("logreg", 0, 10)),
    ],
)
def test_the_head_of_a_report_has_hidden_units_and_folds(head, protocol):
    assert classifier_protocol(head) == protocol


HUGE = f"senteval:0:{'9' * 5000}"  # folds


@pytest.mark.parametrize(
    "head", ["senteval:", "senteval:0:2", "senteval:0:x", "logreg:0:5", "mlp", HUGE]
)
def test_other_heads_are_refused(head):
    with pytest.raises(UsageError, match="--head"):
        classifier_protocol(head)


@pytest.mark.parametrize("hidden", ["100001", "9" * 9, "9" * 5000])
@pytest.mark.parametrize("folds", ["", ":10"])
def test_the_head_has_up_to_100_000_hidden_units(hidden, folds):
    """Python reads no number of 5,000 digits."""
    assert classifier_protocol(f"senteval:100000{folds}")[1] == 100_000
    with pytest.raises(UsageError, match="--head"):
        classifier_protocol(f"senteval:{hidden}{folds}")


def test_a_slow_pipe_has_its_first_answers_after_a_few_rows(tmp_path):
    """As those of `search` and `whiten apply`; later blocks are larger."""
    path = tmp_path / "classifier.safetensors"
    with path.open("wb") as file:
        write_classifier(file, VectorClassifier("", ("a", "b"), np.eye(2), np.zeros(2)), {})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"embedding": [n, 1]} for n in range(100))))
    blocks = [block for block, _ in read_classifier(str(path)).outputs(Inputs([str(rows)]))]

    assert [len(block) for block in blocks] == [FIRST_BLOCK, 4 * FIRST_BLOCK, 100 - 5 * FIRST_BLOCK]
