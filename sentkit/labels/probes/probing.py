"""Runs a probe: a classifier on the frozen vectors of files -> a report. Values x 100.

The protocols for the choice of a penalty and the test are those of SentEval (arXiv 1803.05449).
"""

import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sentkit.arrays import Indices
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.probes.classifiers import Data, Fit, Head, Network, Outcome, in_order, logreg
from sentkit.labels.probes.examples import (
    Examples,
    check_members,
    check_nested,
    classes_of,
    codes_of,
    read_examples,
)
from sentkit.metrics.classification import f1


@dataclass(slots=True)
class Bench:
    """Runs fits, and counts those that did not converge."""

    data: Data
    head: Head
    penalties: Sequence[float]
    seed: int
    jobs: int = 1
    unfinished: int = 0
    watch: Watch = UNWATCHED

    def run(self, fits: Iterable[Fit]) -> Iterator[Outcome]:
        fits = list(fits)
        self.watch.begin(len(fits))
        for outcome in in_order(lambda fit: self.head(self.data, fit), fits, self.jobs):
            self.unfinished += not outcome.finished
            self.watch.done()
            yield outcome

    def shares(self, fits: Iterable[Fit]) -> list[float]:
        return [outcome.right for outcome in self.run(fits)]

    def folds(self, rows: Indices, count: int) -> list[tuple[Indices, Indices]]:
        """Stratified, shuffled folds: pairs of training and test rows."""
        from sklearn.model_selection import StratifiedKFold

        splits = StratifiedKFold(count, shuffle=True, random_state=self.seed)
        with warnings.catch_warnings():
            # scikit-learn warns about a class with one row fewer than folds, which can occur within a fold.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            return [(rows[a], rows[b]) for a, b in splits.split(np.zeros(len(rows)), self.data.codes[rows])]

    def grid(self, rows: Indices, count: int) -> list[Fit]:
        """Every penalty on the same folds; the test rows also control early stopping of a network."""
        folds = self.folds(rows, count)
        return [Fit(a, b, penalty, dev=b) for penalty in self.penalties for a, b in folds]

    def best(self, shares: Sequence[Sequence[float]]) -> int:
        """The index of the penalty with the highest mean accuracy; the first of those equal to 0.01 %."""
        return int(np.argmax([round(100 * np.mean(each), 2) for each in shares]))


@dataclass(frozen=True, slots=True)
class Result:
    accuracies: list[float]  # of each fold or sample; a single value for one test set
    penalties: list[float]  # the chosen penalties
    folds: list[float] = field(default_factory=list)  # accuracies of the chosen penalty in its selection
    predicted: Indices | None = None  # only for a single test set
    drawn: Indices | None = None  # tested rows, if they differ between samples

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def nested(bench: Bench, rows: Indices, count: int) -> Result:
    """Test each fold with the penalty that is best in folds of the other rows."""
    outer = bench.folds(rows, count)
    penalties = chosen_within(bench, outer)
    last = (Fit(*fold, penalty) for fold, penalty in zip(outer, penalties, strict=True))
    return Result(bench.shares(last), penalties)


def chosen_within(bench: Bench, outer: Sequence[tuple[Indices, Indices]]) -> list[float]:
    """For each fold, the penalty that is best in folds of its training rows."""
    count = len(outer)
    if len(bench.penalties) == 1:
        return list(bench.penalties) * count
    inner = [fit for train, _ in outer for fit in bench.grid(train, count)]
    shares = np.reshape(bench.shares(inner), (count, len(bench.penalties), count))
    return [bench.penalties[bench.best(each)] for each in shares.tolist()]


def by_folds(bench: Bench, rows: Indices, test: Indices, count: int) -> Result:
    """Choose the penalty in folds of the rows; then fit to all rows and test."""
    if len(bench.penalties) == 1:
        return tested(bench, Fit(rows, test, bench.penalties[0]), [])
    shares = np.reshape(bench.shares(bench.grid(rows, count)), (len(bench.penalties), count)).tolist()
    place = bench.best(shares)
    return tested(bench, Fit(rows, test, bench.penalties[place]), shares[place])


def by_dev(bench: Bench, rows: Indices, dev: Indices, test: Indices) -> Result:
    """Choose the penalty on the dev rows, which also control early stopping of the final fit."""
    if len(bench.penalties) == 1:
        return tested(bench, Fit(rows, test, bench.penalties[0], dev=dev), [])
    shares = bench.shares(Fit(rows, dev, penalty, dev=dev) for penalty in bench.penalties)
    place = bench.best([[share] for share in shares])
    return tested(bench, Fit(rows, test, bench.penalties[place], dev=dev), [shares[place]])


def tested(bench: Bench, fit: Fit, folds: list[float]) -> Result:
    (outcome,) = bench.run([fit])
    return Result([outcome.right], [fit.penalty], folds, outcome.predicted)


def few_shot(bench: Bench, rows: Indices, test: Indices | None, *, shots: int, samples: int) -> Result:
    """Draw `shots` rows of each class, `samples` times; test on `test` or on the other rows."""
    fits = []
    for number in range(samples):
        drawn = sample(bench.data.codes[rows], shots, np.random.default_rng([bench.seed, number]))
        rest = np.delete(rows, drawn) if test is None else test
        fits.append(Fit(rows[drawn], rest, bench.penalties[0]))
    left = np.concatenate([fit.test for fit in fits])
    return Result(bench.shares(fits), [bench.penalties[0]] * samples, drawn=left)


def sample(codes: Indices, shots: int, random: np.random.Generator) -> Indices:
    """Draw the same number of rows from each class, without replacement."""
    classes = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    return np.sort(np.concatenate([random.choice(rows, shots, replace=False) for rows in classes]))


Record = dict[str, Any]


def scores(result: Result) -> Record:
    record: Record = {"accuracy": 100 * result.mean}
    if result.deviation is not None:
        record["sd"] = 100 * result.deviation
        record["accuracies"] = [100 * each for each in result.accuracies]
        record["chosen"] = result.penalties
    else:
        record["chosen"] = result.penalties[0]
        record["choosing"] = [100 * each for each in result.folds]
    return record


def failures(bench: Bench) -> Record:
    return {"not_converged": bench.unfinished} if bench.unfinished else {}


def columns(record: Record) -> dict[str, str]:
    """The record as a table row, by column name."""
    return {
        "file": record["file"],
        "encoder": label_of(record["encoder"]),
        "n": str(record["n"]),
        "classes": str(len(record["classes"])),
        "accuracy x 100": f"{record['accuracy']:.2f}",
        **({"sd": f"{record['sd']:.2f}"} if "sd" in record else {}),
        **({"F1 x 100": f"{record['f1']:.2f}"} if "f1" in record else {}),
        "majority": f"{record['majority']:.2f}",
    }


# The grids of SentEval: C of a regression, and the weight penalty of a network.
GRID, GRID_WITH_TEST = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
GRID_OF_NETWORK = (1e-5, 1e-4, 1e-3, 1e-2)
GRID_OF_FEW_SHOT = (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    label: str
    head: str
    hidden: int
    folds: int
    shots: int | None
    samples: int
    penalties: Sequence[float] | None
    seed: int
    jobs: int

    def grid(self, *, with_test: bool) -> Sequence[float]:
        if self.shots is not None:
            return GRID_OF_FEW_SHOT
        if self.penalties is not None:
            return self.penalties
        if self.head == "senteval":
            return GRID_OF_NETWORK
        return GRID_WITH_TEST if with_test else GRID

    def classifier(self) -> Head:
        return Network(self.hidden, self.seed) if self.head == "senteval" else logreg


@dataclass(frozen=True, slots=True)
class Files:
    train: str
    test: str | None = None
    dev: str | None = None


class Probe:
    """A probe. The rows of TRAIN, DEV and TEST are concatenated in this order."""

    def __init__(self, inputs: Inputs, files: Files, options: ProbeOptions, watch: Watch = UNWATCHED) -> None:
        self.files, self.options, self.watch = files, options, watch
        self.reader = VectorReader(inputs)
        self.train = read_examples(self.reader, files.train, options.label)
        self.counts = classes_of(self.train, options.label)
        self.check()
        self.dev, self.test = (
            None if path is None else read_examples(self.reader, path, options.label)
            for path in (files.dev, files.test)
        )
        self.codes = [codes_of(each, list(self.counts), options.label) for each in self.given]

    @property
    def given(self) -> list[Examples]:
        return [each for each in (self.train, self.dev, self.test) if each is not None]

    @property
    def chooses(self) -> bool:
        """True if there are several penalties."""
        return len(self.grid) > 1

    @property
    def grid(self) -> Sequence[float]:
        return self.options.grid(with_test=self.files.test is not None and self.files.dev is None)

    def check(self) -> None:
        """Refuse classes with too few rows, before any work."""
        shots, path = self.options.shots, self.files.train
        if shots is not None:
            check_members(self.counts, shots, f"--few-shot {shots} draws", path)
            if self.files.test is None and len(self.train) == shots * len(self.counts):
                problem = f"--few-shot {shots} uses all {len(self.train)} rows of TRAIN for training"
                raise DataError(problem, source=path, advice="use a smaller number or --test")
        elif self.files.dev is None and (self.files.test is None or self.chooses):
            check_members(self.counts, self.options.folds, f"--folds {self.options.folds}", path)
            if self.files.test is None and self.chooses:
                check_nested(self.counts, self.options.folds, path)

    def report(self) -> Record:
        bench = self.bench()
        result = self.run(bench)
        return {**self.head_of_record(bench), **scores(result), **self.of_test(result), **failures(bench)}

    def bench(self) -> Bench:
        options = self.options
        features = np.concatenate([each.features for each in self.given])
        if options.head == "logreg":
            features = features.astype(np.float64)  # in float64, so that rounding does not affect the result
        data = Data(features, np.concatenate(self.codes), len(self.counts))
        return Bench(data, options.classifier(), self.grid, options.seed, options.jobs, watch=self.watch)

    def run(self, bench: Bench) -> Result:
        options, total = self.options, len(bench.data.codes)
        begins = np.cumsum([len(self.train), 0 if self.dev is None else len(self.dev)]).tolist()
        rows, dev, test = np.split(np.arange(total), begins)
        if options.shots is not None:
            rest = None if self.test is None else test
            return few_shot(bench, rows, rest, shots=options.shots, samples=options.samples)
        if self.dev is not None:
            return by_dev(bench, rows, dev, test)
        if self.test is not None:
            return by_folds(bench, rows, test, options.folds)
        return nested(bench, rows, options.folds)

    @property
    def protocol(self) -> str:
        """A description of the protocol."""
        options = self.options
        if options.shots is not None:
            where = "the other rows" if self.test is None else "TEST"
            return f"{options.shots} rows of each class, drawn {options.samples} times; tested on {where}"
        folds = f"{options.folds} stratified folds"
        if self.test is None:
            return folds + (f", the penalty of each by {folds} of the rest" if self.chooses else "")
        by = "accuracy on DEV" if self.dev is not None else f"{folds} of TRAIN"
        return (f"penalty by {by}; " if self.chooses else "") + "fitted to TRAIN; tested on TEST"

    def head_of_record(self, bench: Bench) -> Record:
        options = self.options
        head = options.head if options.head == "logreg" else f"{options.head}, nhid {options.hidden}"
        files = {name: readable(path) for name in ("dev", "test") if (path := getattr(self.files, name))}
        return {
            "file": readable(self.files.train),
            **files,
            "encoder": self.reader.emb,
            "label": options.label,
            "n": len(self.train),
            "classes": self.counts,
            "protocol": self.protocol,
            "head": head,
            "penalties": list(bench.penalties),
            "seed": options.seed,
        }

    def of_test(self, result: Result) -> Record:
        """The accuracy of the most frequent class of TRAIN; and, for two classes, F1 of the second."""
        most = int(np.argmax(list(self.counts.values())))
        truth = self.codes[-1]
        tested = truth if result.drawn is None else np.concatenate(self.codes)[result.drawn]
        record: Record = {"majority": 100 * float(np.mean(tested == most))}
        if self.test is None:
            return record
        record["n_test"] = len(self.test)
        if len(self.counts) == 2 and result.predicted is not None:
            record |= {"f1": 100 * f1(result.predicted, truth), "f1_of": list(self.counts)[1]}
        return record
