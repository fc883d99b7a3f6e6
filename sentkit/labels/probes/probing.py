"""Runs a probe: rows with vectors and classes -> features -> a classifier -> a report. Values x 100.

The protocols for the choice of a penalty and the test are those of SentEval (arXiv 1803.05449).
"""

import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from sentkit.arrays import Float32, Indices
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of
from sentkit.formats.vectors.store import common_spec
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.probes.classifiers import (
    Data,
    Fit,
    Head,
    Network,
    Outcome,
    VectorClassifier,
    features_of,
    in_order,
    logreg,
    refuse_without_features,
    weights_of,
    write_classifier,
)
from sentkit.metrics.statistics import f1

Record = dict[str, Any]  # a JSON object


@dataclass(frozen=True, slots=True)
class Examples:
    """The rows of one file."""

    path: str
    features: Float32  # (n, d), or (n, 2 d) for pairs
    names: tuple[str, ...]  # the class of each row

    def __len__(self) -> int:
        return len(self.names)


def read_examples(reader: VectorReader, path: str, label: str) -> Examples:
    """Read all rows of a file; all files of one reader must have one space and one shape."""

    def check(block: VectorBlock) -> VectorBlock:
        refuse_without_features(block).rows.parse(lambda row: class_of(row, label))
        return block

    blocks = list(reader.blocks(check, paths=[path]))
    if not blocks:
        raise NoRowsError([path])
    names = tuple(name for block in blocks for (name,) in block.rows.texts)
    return Examples(path, np.concatenate([features_of(block) for block in blocks]), names)


def classes_of(examples: Examples, label: str) -> dict[str, int]:
    """The classes in alphabetical order with their numbers of rows; refuse a single class."""
    names, counts = np.unique(np.array(examples.names, dtype=object), return_counts=True)
    if len(names) < 2:
        problem = f'"{label}" is "{names[0]}" in all {len(examples)} rows, expected 2 classes or more'
        raise DataError(problem, source=examples.path)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def codes_of(examples: Examples, classes: Sequence[str], label: str) -> Indices:
    """The index of each row's class; raises DataError for a class that the training rows do not contain."""
    places = {name: place for place, name in enumerate(classes)}
    if unknown := sorted(set(examples.names) - places.keys()):
        problem = f'"{label}": TRAIN does not contain the class "{unknown[0]}"'
        raise DataError(problem, source=examples.path)
    return np.array([places[name] for name in examples.names], dtype=np.intp)


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
        folds = self.folds(rows, count) if len(self.penalties) > 1 else []
        return [Fit(a, b, penalty, dev=b) for penalty in self.penalties for a, b in folds]

    def choose(self, grid: Sequence[Fit]) -> tuple[float, list[float]]:
        """The penalty that is best in these fits, and its accuracies. One penalty needs no fits."""
        if len(self.penalties) == 1:
            return self.penalties[0], []
        shares = np.reshape(self.shares(grid), (len(self.penalties), -1)).tolist()
        place = self.best(shares)
        return self.penalties[place], shares[place]

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

    def record(self) -> Record:
        record: Record = {"accuracy": 100 * statistics.fmean(self.accuracies)}
        if len(self.accuracies) > 1:
            record["sd"] = 100 * statistics.stdev(self.accuracies)
            record["accuracies"] = [100 * each for each in self.accuracies]
            record["chosen"] = self.penalties
        else:
            record["chosen"] = self.penalties[0]
            record["choosing"] = [100 * each for each in self.folds]
        return record


def nested(bench: Bench, rows: Indices, count: int) -> Result:
    """Test each fold with the penalty that is best in folds of the other rows."""
    outer, several = bench.folds(rows, count), len(bench.penalties)
    penalties = list(bench.penalties) * count
    if several > 1:
        inner = [fit for train, _ in outer for fit in bench.grid(train, count)]
        shares = np.reshape(bench.shares(inner), (count, several, count)).tolist()
        penalties = [bench.penalties[bench.best(each)] for each in shares]
    last = (Fit(*fold, penalty) for fold, penalty in zip(outer, penalties, strict=True))
    return Result(bench.shares(last), penalties)


def by_folds(bench: Bench, rows: Indices, test: Indices, count: int) -> Result:
    """Choose the penalty in folds of the rows; then fit to all rows and test."""
    penalty, folds = bench.choose(bench.grid(rows, count))
    [outcome] = bench.run([Fit(rows, test, penalty)])
    return Result([outcome.right], [penalty], folds, outcome.predicted)


def by_dev(bench: Bench, rows: Indices, dev: Indices, test: Indices) -> Result:
    """Choose the penalty on the dev rows, which also control early stopping of the final fit."""
    penalty, shares = bench.choose([Fit(rows, dev, each, dev=dev) for each in bench.penalties])
    [outcome] = bench.run([Fit(rows, test, penalty, dev=dev)])
    return Result([outcome.right], [penalty], shares, outcome.predicted)


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


def columns(record: Record) -> dict[str, str]:
    """The record as a table row, by column name."""
    return {
        "file": record["file"],
        "encoder": label_of(record["encoder"]),
        "n": str(record["n"]),
        **({"n test": str(record["n_test"])} if "n_test" in record else {}),
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


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The defaults are those of SentEval."""

    label: str
    head: str = "logreg"
    hidden: int = 0  # of the network
    folds: int = 10
    shots: int | None = None
    samples: int = 5
    penalties: Sequence[float] | None = None
    seed: int = 1111
    jobs: int = 1

    def grid(self, *, with_test: bool) -> Sequence[float]:
        if self.shots is not None:
            return GRID_OF_FEW_SHOT
        if self.penalties is not None:
            return self.penalties
        if self.head == "senteval":
            return GRID_OF_NETWORK
        return GRID_WITH_TEST if with_test else GRID


class Probe:
    """A probe. The rows of TRAIN, DEV and TEST are concatenated in this order."""

    def __init__(
        self,
        inputs: Inputs,
        train: str,
        options: ProbeOptions,
        *,
        test: str | None = None,
        dev: str | None = None,
        watch: Watch = UNWATCHED,
    ) -> None:
        self.options, self.watch = options, watch
        self.reader = VectorReader(inputs)
        self.train = read_examples(self.reader, train, options.label)
        self.counts = classes_of(self.train, options.label)
        self.grid = options.grid(with_test=test is not None and dev is None)
        self.chooses = len(self.grid) > 1
        self.check(test, dev)
        self.dev, self.test = (
            None if path is None else read_examples(self.reader, path, options.label) for path in (dev, test)
        )
        self.given = [each for each in (self.train, self.dev, self.test) if each is not None]
        self.codes = [codes_of(each, list(self.counts), options.label) for each in self.given]

    def check(self, test: str | None, dev: str | None) -> None:
        """Refuse classes with too few rows, before any work."""
        shots, folds, path = self.options.shots, self.options.folds, self.train.path
        name, fewest = min(self.counts.items(), key=lambda item: item[1])
        problem = f'class "{name}" has {fewest} rows, fewer than'
        if shots is not None:
            if fewest < shots:
                raise DataError(f"{problem} --few-shot {shots} draws", source=path)
            if test is None and len(self.train) == shots * len(self.counts):
                problem = f"--few-shot {shots} uses all {len(self.train)} rows of TRAIN for training"
                raise DataError(problem, source=path, advice="use a smaller number or --test")
        elif dev is None and (test is None or self.chooses):
            # A fold may remove two rows of each class from the folds within it.
            nested = test is None and self.chooses
            if fewest < folds or (nested and max(self.counts.values()) < folds + 2):
                raise DataError(f"{problem} --folds {folds} needs", source=path, advice="use fewer folds")

    def report(self, file: BinaryIO | None = None) -> Record:
        """The record of the test. The classifier of all TRAIN rows is written to `file`."""
        options, others = self.options, {"dev": self.dev, "test": self.test}
        features = np.concatenate([each.features for each in self.given])
        head: Head = Network(options.hidden, options.seed)
        name = f"{options.head}, nhid {options.hidden}"
        if options.head == "logreg":
            head, features = logreg, features.astype(np.float64)  # rounding does not affect the result
            name = options.head
        data = Data(features, np.concatenate(self.codes), len(self.counts))
        bench = Bench(data, head, self.grid, options.seed, options.jobs, watch=self.watch)
        result, protocol = self.run(bench)
        if file is not None:
            self.write_classifier(file, result, bench)
        most = int(np.argmax(list(self.counts.values())))  # the most frequent class of TRAIN
        truth = self.codes[-1] if result.drawn is None else data.codes[result.drawn]
        record = {
            "file": readable(self.train.path),
            **{part: readable(each.path) for part, each in others.items() if each is not None},
            "encoder": self.reader.emb,
            "label": options.label,
            "n": len(self.train),
            "classes": self.counts,
            "protocol": protocol,
            "head": name,
            "penalties": list(self.grid),
            "seed": options.seed,
            **result.record(),
            "majority": 100 * float(np.mean(truth == most)),
        }
        if self.test is not None:
            record["n_test"] = len(self.test)
            if len(self.counts) == 2 and result.predicted is not None:
                record |= {"f1": 100 * f1(result.predicted, truth), "f1_of": list(self.counts)[1]}
        return record | ({"not_converged": bench.unfinished} if bench.unfinished else {})

    def write_classifier(self, file: BinaryIO, result: Result, bench: Bench) -> None:
        """Write the regression of all TRAIN rows, with the penalty of the test or of folds."""
        train, penalty = np.arange(len(self.train)), result.penalties[0]
        if self.test is None:
            penalty, _ = bench.choose(bench.grid(train, self.options.folds))
        weight, bias, finished = weights_of(bench.data, Fit(train, train[:0], penalty))
        bench.unfinished += not finished
        spec = common_spec(self.reader.inputs.other(self.train.path))
        found = VectorClassifier(self.train.path, tuple(self.counts), weight, bias, spec)
        record = {"_emb": self.reader.emb, "label": self.options.label, "rows": len(train)}
        write_classifier(file, found, record | {"penalty": penalty})

    def run(self, bench: Bench) -> tuple[Result, str]:
        """The result, and a description of the protocol."""
        options, chooses = self.options, self.chooses
        begins = np.cumsum([len(self.train), 0 if self.dev is None else len(self.dev)]).tolist()
        rows, dev, test = np.split(np.arange(len(bench.data.codes)), begins)
        if options.shots is not None:
            where, rest = ("the other rows", None) if self.test is None else ("TEST", test)
            drawn = f"{options.shots} rows of each class, drawn {options.samples} times"
            result = few_shot(bench, rows, rest, shots=options.shots, samples=options.samples)
            return result, f"{drawn}; tested on {where}"
        folds = f"{options.folds} stratified folds"
        if self.test is None:
            inner = f", the penalty of each by {folds} of the rest" if chooses else ""
            return nested(bench, rows, options.folds), f"{folds}{inner}"
        if self.dev is not None:
            result, by = by_dev(bench, rows, dev, test), "accuracy on DEV"
        else:
            result, by = by_folds(bench, rows, test, options.folds), f"{folds} of TRAIN"
        return result, (f"penalty by {by}; " if chooses else "") + "fitted to TRAIN; tested on TEST"
