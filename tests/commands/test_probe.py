"""`probe`: its reports against plain scikit-learn, and refusals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

LABEL = ("--label", "kind")


@pytest.fixture
def held(tmp_path, jsonl):

    def write(name, seed, count=60, names=("no", "yes"), *, pairs=False):
        random = np.random.default_rng(seed)
        codes = np.arange(count) % len(names)
        vectors = random.standard_normal((count, 2 if pairs else 1, 3)) + 0.8 * codes[:, None, None]
        vectors = vectors.astype(np.float32)
        fields = ("embedding_a", "embedding_b") if pairs else ("embedding",)
        rows = []
        for vectors_of_row, code in zip(vectors, codes, strict=True):
            row = dict(zip(fields, vectors_of_row.tolist(), strict=True))
            rows.append(row | {"kind": names[code], "_emb": "m:100000000000"})
        (tmp_path / name).write_bytes(jsonl(*rows))
        return vectors.astype(float).squeeze(1) if not pairs else vectors, codes

    return write


def model(penalty):
    return LogisticRegression(C=penalty, max_iter=1000)


def folds(features, codes, count, seed=1111):
    return list(StratifiedKFold(count, shuffle=True, random_state=seed).split(features, codes))


def chosen(features, codes, penalties, count, seed=1111):
    accuracies = []
    for penalty in penalties:
        shares = [
            model(penalty).fit(features[a], codes[a]).score(features[b], codes[b])
            for a, b in folds(features, codes, count, seed)
        ]
        accuracies.append(round(100 * np.mean(shares), 2))
    return penalties[accuracies.index(max(accuracies))]


def test_train_alone_uses_nested_folds(sentkit, held):
    """The grid is that of SentEval; each fold equals scikit-learn."""
    features, codes = held("a.jsonl", 1)
    seed = 5
    (report,) = sentkit("probe", "a.jsonl", *LABEL, "--folds", "4", "--seed", seed).rows
    penalties = []
    accuracies = []
    for a, b in folds(features, codes, 4, seed):
        penalties.append(chosen(features[a], codes[a], [0.25, 0.5, 1, 2, 4, 8], 4, seed))
        fitted = model(penalties[-1]).fit(features[a], codes[a])
        accuracies.append(100 * fitted.score(features[b], codes[b]))

    assert report["chosen"] == penalties
    assert report["accuracies"] == pytest.approx(accuracies)
    assert report["accuracy"] == pytest.approx(np.mean(accuracies))
    assert report["sd"] == pytest.approx(np.std(accuracies, ddof=1))
    assert (report["n"], report["classes"], report["majority"]) == (60, {"no": 30, "yes": 30}, 50)
    assert (report["encoder"], report["head"], report["seed"]) == ("m:100000000000", "logreg", seed)


def test_a_test_file(sentkit, held):
    """The features of pairs are (|u - v|, u * v); two classes give F1 of the second."""
    train, codes = held("train.jsonl", 1, pairs=True)
    test, truth = held("test.jsonl", 2, 40, pairs=True)
    command = ("probe", "train.jsonl", "--test", "test.jsonl", *LABEL, "--folds", "3")
    (report,) = sentkit(*command).rows
    train, test = (
        np.hstack([abs(u - v), u * v]).astype(float)
        for u, v in (x.swapaxes(0, 1) for x in (train, test))
    )
    penalty = chosen(train, codes, [0.5, 1, 2, 4, 8, 16, 32], 3)
    predicted = model(penalty).fit(train, codes).predict(test)

    assert report["chosen"] == penalty
    assert report["accuracy"] == pytest.approx(100 * np.mean(predicted == truth))
    assert report["f1"] == pytest.approx(100 * f1_score(truth, predicted))
    assert (report["f1_of"], report["n_test"], len(report["choosing"])) == ("yes", 40, 3)


def test_dev_rows_choose_the_penalty(sentkit, held):
    (train, codes), (dev, of_dev), (test, truth) = [
        held(f"{name}.jsonl", seed, names=("a", "b", "c"))
        for name, seed in (("train", 1), ("dev", 2), ("test", 3))
    ]
    files = ("train.jsonl", "--dev", "dev.jsonl", "--test", "test.jsonl")
    (report,) = sentkit("probe", *files, *LABEL, "--penalties", "0.001,0.1,1").rows
    models = [model(c).fit(train, codes) for c in (0.001, 0.1, 1)]
    shares = [classifier.score(dev, of_dev) for classifier in models]
    best = shares.index(max(shares))

    assert report["penalties"] == [0.001, 0.1, 1]
    assert report["chosen"] == [0.001, 0.1, 1][best]
    assert report["accuracy"] == pytest.approx(100 * models[best].score(test, truth))
    assert "f1" not in report


def test_few_shot(sentkit, held):
    held("a.jsonl", 1)
    command = ("probe", "a.jsonl", *LABEL, "--few-shot", "8")
    (report,) = sentkit(*command, "--samples", "3").rows
    (other,) = sentkit(*command, "--seed", "2").rows

    assert len(report["accuracies"]) == 3
    assert len(other["accuracies"]) == 5
    assert other["accuracies"][:3] != report["accuracies"]
    for accuracy in report["accuracies"]:  # of the other 44
        assert round(accuracy * 44 / 100, 4).is_integer()
    assert (report["penalties"], report["chosen"]) == ([1], [1, 1, 1])


@pytest.mark.parametrize(("head", "hidden"), [("senteval", 0), ("senteval:50", 50)])
def test_the_network_learns(sentkit, held, head, hidden, monkeypatch):
    """It is better than the most frequent class, and deterministic for any number of threads."""
    held("a.jsonl", 1, 300)
    command = ("probe", "a.jsonl", *LABEL, "--head", head, "--folds", "3")
    monkeypatch.setenv("SENTKIT_THREADS", "2")
    result = sentkit(*command, "--penalties", "1e-4")
    monkeypatch.setenv("SENTKIT_THREADS", "1")

    assert result.rows[0]["accuracy"] > result.rows[0]["majority"] + 10
    assert result.rows[0]["head"] == f"senteval, nhid {hidden}"
    assert result.out == sentkit(*command, "--penalties", "1e-4").out


def test_fits_of_a_network_that_diverges_are_a_warning(sentkit, jsonl):
    rows = [{"embedding": [1e30 * (n % 5), -1e30 * (n % 3)], "kind": n % 2} for n in range(60)]
    result = sentkit("probe", *LABEL, "--head", "senteval", "--folds", 3, stdin=jsonl(*rows))
    [report] = result.rows
    assert result.told == [
        f"sentkit probe: warning: -: {report['not_converged']} fits did not converge"
    ]


def test_a_class_with_as_many_rows_as_folds_is_accepted(sentkit):
    """A fold within a fold then lacks the class; scikit-learn's warning is hidden."""
    rows = [f'{{"embedding":[{n}],"kind":"{"rare" if n < 3 else "common"}"}}\n' for n in range(8)]
    result = sentkit("probe", *LABEL, "--folds", "3", stdin="".join(rows))

    assert (result.code, result.err) == (0, "")


WITHIN_FOLDS = (
    "--folds {folds} with several penalties needs a class with {rows} rows, because folds of the "
    "other rows choose the penalty; the largest class has {largest}"
)
ONE_PENALTY_OF_4 = "--folds 4 and one penalty, such as --penalties 1"


@pytest.mark.parametrize(
    ("count", "names", "flags", "problem", "advice"),
    [
        (60, ("yes",), (), '"kind" is "yes" in all 60 rows, expected 2 classes or more', None),
        (19, ("no", "yes"), (), 'class "yes" has 9 rows, fewer than --folds 10 needs', "--folds 8"),
        (
            9,
            ("no", "yes"),
            ("--penalties", 1),
            'class "yes" has 4 rows, fewer than --folds 10 needs',
            "--folds 4",
        ),
        (3, ("no", "yes"), (), 'class "yes" has 1 row, fewer than --folds 10 needs', None),
        (
            6,
            ("no", "yes"),
            ("--folds", 3),
            WITHIN_FOLDS.format(folds=3, rows=5, largest=3),
            "--folds 3 and one penalty, such as --penalties 1",
        ),
        (
            8,
            ("no", "yes"),
            (),
            'class "no" has 4 rows, fewer than --folds 10 needs',
            ONE_PENALTY_OF_4,
        ),
        (
            19,
            ("no", "yes"),
            ("--folds", 9),
            WITHIN_FOLDS.format(folds=9, rows=11, largest=10),
            "--folds 8",
        ),
        (
            19,
            ("no", "yes"),
            ("--few-shot", 12),
            'class "yes" has 9 rows, fewer than --few-shot 12 draws',
            "--few-shot 9",
        ),
        (
            20,
            ("no", "yes"),
            ("--few-shot", 12),
            'class "no" has 10 rows, fewer than --few-shot 12 draws',
            "--few-shot 9, or --test",
        ),
        (
            20,
            ("no", "yes"),
            ("--few-shot", 10),
            "--few-shot 10 uses all 20 rows of TRAIN for training",
            "--few-shot 9, or --test",
        ),
    ],
)
def test_too_few_rows_or_classes_are_refused(
    sentkit, held, count, names, flags, problem, advice, monkeypatch
):
    """The advice names a number that works, and the next one does not."""
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID", (0.5, 2.0))  # several, but few
    held("a.jsonl", 1, count, names)
    result = sentkit("probe", "a.jsonl", *LABEL, *flags)

    assert (result.code, result.told[0]) == (65, f"sentkit probe: a.jsonl: {problem}")
    if advice is None:
        return
    assert result.told[1] == f"  use {advice}"
    flag, number = advice.replace(",", "").split()[:2]
    penalties = ("--penalties", 1) if "penalty" in advice or "--penalties" in flags else ()
    assert sentkit("probe", "a.jsonl", *LABEL, flag, number, *penalties).code == 0
    assert sentkit("probe", "a.jsonl", *LABEL, flag, int(number) + 1, *penalties).code == 65


@pytest.mark.parametrize(
    ("counts", "flags", "advice"),
    [
        ((2, 2), ("--folds", 3), "give each class 3 rows or more, and use --penalties 1"),
        ((2, 2), (), "give each class 3 rows or more, and use --folds 3 --penalties 1"),
        ((2, 5), (), "give each class 3 rows or more, and use --folds 3"),
        ((2, 5), ("--folds", 3), "give each class 3 rows or more"),
        (
            (2, 4),
            ("--folds", 4, "--penalties", 2),
            "give each class 3 rows or more, and use --folds 3",
        ),
        (
            (1, 8, 9),
            (),
            "give each class 3 rows or more, and use --folds 3, or leave this class out",
        ),
    ],
)
def test_the_advice_for_a_class_with_two_rows_works(sentkit, counts, flags, advice):
    """Classes with as many rows as it says, and its flags in place of the others."""

    def rows(counts):
        classes = [kind for kind, count in enumerate(counts) for _ in range(count)]
        return "".join(
            f'{{"embedding":[{n % 5}],"kind":"{kind}"}}\n' for n, kind in enumerate(classes)
        )

    result = sentkit("probe", *LABEL, *flags, stdin=rows(counts))
    assert (result.code, result.told[1:]) == (65, [f"  {advice}"])

    advised = advice.partition("use ")[2].partition(",")[0].split()
    more = [max(3, count) for count in counts]
    # the last value counts
    assert sentkit("probe", *LABEL, *flags, *advised, stdin=rows(more)).code == 0


def test_the_advice_for_few_rows_beside_a_test_file_works(sentkit, held):
    """One penalty needs no folds of TRAIN."""
    held("a.jsonl", 1, 4, ("x", "y"))
    held("b.jsonl", 2, 8, ("x", "y"))
    command = ("probe", "a.jsonl", "--test", "b.jsonl", *LABEL)
    result = sentkit(*command)

    assert result.code == 65
    assert result.told[1:] == ["  use one penalty, such as --penalties 1, or choose it with --dev"]
    assert sentkit(*command, "--penalties", 1).code == 0


def test_the_protocol_of_a_network_names_the_rows_that_stop_it(sentkit, held):
    for number, name in enumerate("abc"):
        held(f"{name}.jsonl", number, 12, ("x", "y"))
    command = ("probe", "a.jsonl", "--dev", "b.jsonl", "--test", "c.jsonl", *LABEL)
    (report,) = sentkit(*command, "--head", "senteval", "--penalties", 1).rows

    assert report["protocol"] == "stopped by accuracy on DEV; fitted to TRAIN; tested on TEST"


def test_ctrl_c_ends_the_command(held, tmp_path):
    """One line of message, although fits are running."""
    held("a.jsonl", 1, 600)
    command = ("probe", "a.jsonl", *LABEL, "--head", "senteval")
    process = subprocess.Popen(
        [sys.executable, "-m", "sentkit", *command],
        cwd=tmp_path,
        env=os.environ | {"SENTKIT_THREADS": "2"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 3:  # until fits have begun
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert (out, err) == (b"", b"sentkit probe: stopped by Ctrl-C\n")


def test_majority_uses_the_tested_rows(sentkit, jsonl):
    """Eight of 20 and eight of 10 rows are drawn; 12 of the other 14 are of the frequent class."""
    rows = [{"embedding": [n % 7, n % 3], "kind": "y" if n % 3 else "x"} for n in range(30)]
    (report,) = sentkit("probe", *LABEL, "--few-shot", "8", stdin=jsonl(*rows)).rows

    assert report["majority"] == pytest.approx(100 * 12 / 14)


@pytest.mark.parametrize("test", [False, True])
def test_a_single_penalty_is_not_chosen(sentkit, held, test, monkeypatch):
    """Then three rows of each class are enough for three folds."""
    features, codes = held("a.jsonl", 1, 6)
    held("b.jsonl", 2)
    more = ("--test", "b.jsonl") if test else ("--folds", 3)
    (report,) = sentkit("probe", "a.jsonl", *LABEL, "--penalties", 2, *more).rows
    expected = [
        100 * model(2).fit(features[a], codes[a]).score(features[b], codes[b])
        for a, b in folds(features, codes, 3)
    ]

    assert "penalty" not in report["protocol"]
    assert report["choosing"] == [] if test else report["accuracies"] == expected


@pytest.mark.parametrize("split", ["test", "dev"])
def test_a_bad_row_of_another_file_is_always_an_error(sentkit, held, tmp_path, split):
    """--rejects is for TRAIN: otherwise, a report would be of a part of the test rows."""
    for name in ("train", "test", "dev"):
        held(f"{name}.jsonl", 1)
    for name in ("train", split):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('{"kind":"yes","_emb":"m:100000000000"}\n')
    flags = (*LABEL, "--test", "test.jsonl", "--dev", "dev.jsonl", "--rejects", "/dev/null")
    result = sentkit("probe", "train.jsonl", *flags)

    assert result.code == 65
    assert f'sentkit probe: {split}.jsonl:61: "embedding" is missing' in result.err
