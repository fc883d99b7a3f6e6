"""Runs a probe: rows with vectors and classes -> features -> a classifier -> a report. Values x 100.

The protocols for the choice of a penalty and the test are those of SentEval (arXiv 1803.05449).
"""

import statistics
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
    VectorClassifier,
    features_of,
    logreg,
    quiet_and_single,
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

    def run(self, fits: Sequence[Fit]) -> Iterator[Indices]:
        """The predictions of each fit, in their order; they do not depend on the number of jobs."""
        self.watch.begin(len(fits))
        with quiet_and_single() as unfinished:
            pool = ThreadPoolExecutor(self.jobs)
            try:
                for predicted in pool.map(partial(self.head, self.data), fits):
                    self.watch.done()
                    yield predicted
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C the others are not needed
                self.unfinished += len(unfinished)

    def shares(self, fits: Sequence[Fit]) -> list[float]:
        """The share of correct predictions of each fit."""
        codes = self.data.codes
        return [float(np.mean(p == codes[fit.test])) for fit, p in zip(fits, self.run(fits), strict=True)]

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
        place = best(shares)
        return self.penalties[place], shares[place]

    def nested(self, rows: Indices, count: int) -> tuple[list[float], list[float]]:
        """The accuracies of all folds, each with the penalty that is best in folds of the other rows."""
        outer, several = self.folds(rows, count), len(self.penalties)
        penalties = list(self.penalties) * count
        if several > 1:
            inner = [fit for train, _ in outer for fit in self.grid(train, count)]
            shares = np.reshape(self.shares(inner), (count, several, count)).tolist()
            penalties = [self.penalties[best(each)] for each in shares]
        last = [Fit(*fold, penalty) for fold, penalty in zip(outer, penalties, strict=True)]
        return self.shares(last), penalties

    def few_shot(self, rows: Indices, test: Indices | None, shots: int, samples: int) -> list[Fit]:
        """Fits to `shots` rows of each class, drawn `samples` times, with `test` or the other rows."""
        fits = []
        for number in range(samples):
            drawn = sample(self.data.codes[rows], shots, np.random.default_rng([self.seed, number]))
            rest = np.delete(rows, drawn) if test is None else test
            fits.append(Fit(rows[drawn], rest, self.penalties[0]))
        return fits


def best(shares: Sequence[Sequence[float]]) -> int:
    """The index of the penalty with the highest mean accuracy; the first of those equal to 0.01 %."""
    return int(np.argmax([round(100 * np.mean(each), 2) for each in shares]))


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
        self.grid = options.penalties or (GRID_WITH_TEST if test is not None and dev is None else GRID)
        if options.shots is not None:
            self.grid = GRID_OF_FEW_SHOT
        elif options.penalties is None and options.head == "senteval":
            self.grid = GRID_OF_NETWORK
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
        elif dev is None and (test is None or len(self.grid) > 1):
            # A fold may remove two rows of each class from the folds within it.
            nested = test is None and len(self.grid) > 1
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
        found, protocol, predicted, tested = self.run(bench)
        if file is not None:
            self.write_classifier(file, found["chosen"], bench)
        most = int(np.argmax(list(self.counts.values())))  # the most frequent class of TRAIN
        truth = data.codes[tested]
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
            **found,
            "majority": 100 * float(np.mean(truth == most)),
        }
        if self.test is not None:
            record["n_test"] = len(self.test)
            if len(self.counts) == 2 and predicted is not None:
                record |= {"f1": 100 * f1(predicted, truth), "f1_of": list(self.counts)[1]}
        return record | ({"not_converged": bench.unfinished} if bench.unfinished else {})

    def write_classifier(self, file: BinaryIO, penalty: float, bench: Bench) -> None:
        """Write the regression of all TRAIN rows, with the penalty of the test or of folds."""
        train = np.arange(len(self.train))
        if self.test is None:
            penalty, _ = bench.choose(bench.grid(train, self.options.folds))
        with quiet_and_single() as unfinished:
            weight, bias = weights_of(bench.data, Fit(train, train[:0], penalty))
        bench.unfinished += len(unfinished)
        spec = common_spec(self.reader.inputs.other(self.train.path))
        found = VectorClassifier(self.train.path, tuple(self.counts), weight, bias, spec)
        record = {"_emb": self.reader.emb, "label": self.options.label, "rows": len(train)}
        write_classifier(file, found, record | {"penalty": penalty})

    def run(self, bench: Bench) -> tuple[Record, str, Indices | None, Indices]:
        """The result, a description of the protocol, the predictions of one test, and the tested rows."""
        options, chooses = self.options, len(self.grid) > 1
        begins = np.cumsum([len(self.train), 0 if self.dev is None else len(self.dev)]).tolist()
        rows, dev, test = np.split(np.arange(len(bench.data.codes)), begins)
        folds, penalties = f"{options.folds} stratified folds", [self.grid[0]] * options.samples
        if self.test is not None and options.shots is None:
            grid, by = bench.grid(rows, options.folds), f"{folds} of TRAIN"
            if self.dev is not None:  # they also control early stopping of the final fit
                grid, by = [Fit(rows, dev, each, dev=dev) for each in self.grid], "accuracy on DEV"
            penalty, choosing = bench.choose(grid)
            [predicted] = bench.run([Fit(rows, test, penalty, dev=None if self.dev is None else dev)])
            right = float(np.mean(predicted == bench.data.codes[test]))
            found: Record = {"accuracy": 100 * right, "chosen": penalty}
            found["choosing"] = [100 * each for each in choosing]
            protocol = (f"penalty by {by}; " if chooses else "") + "fitted to TRAIN; tested on TEST"
            return found, protocol, predicted, test
        if options.shots is None:
            shares, penalties = bench.nested(rows, options.folds)
            protocol = f"{folds}, the penalty of each by {folds} of the rest" if chooses else folds
            tested = rows
        else:
            fits = bench.few_shot(rows, None if self.test is None else test, options.shots, options.samples)
            shares, tested = bench.shares(fits), np.concatenate([fit.test for fit in fits])
            drawn = f"{options.shots} rows of each class, drawn {options.samples} times"
            protocol = f"{drawn}; tested on {'the other rows' if self.test is None else 'TEST'}"
        found = {"accuracy": 100 * statistics.fmean(shares)}
        if len(shares) == 1:
            return {**found, "chosen": penalties[0], "choosing": []}, protocol, None, tested
        found |= {"sd": 100 * statistics.stdev(shares), "accuracies": [100 * each for each in shares]}
        return {**found, "chosen": penalties}, protocol, None, tested
