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
FEWEST_FOLDS = 3


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
        self.options, self.watch, self.reader = options, watch, VectorReader(inputs)
        self.grid = options.penalties or (GRID_WITH_TEST if test is not None and dev is None else GRID)
        if options.shots is not None:
            self.grid = GRID_OF_FEW_SHOT
        elif options.penalties is None and options.head == "senteval":
            self.grid = GRID_OF_NETWORK
        paths = {"train": train, "dev": dev, "test": test}
        self.paths = {part: path for part, path in paths.items() if path is not None}
        self.features, self.codes, self.rows = list[Float32](), list[Indices](), dict[str, Indices]()
        for part, path in self.paths.items():
            features, names = self.read(path)
            if part == "train":
                classes, counts = np.unique(np.array(names, dtype=object), return_counts=True)
                self.counts = dict(zip(classes.tolist(), counts.tolist(), strict=True))
                self.check()
            places = {name: place for place, name in enumerate(self.counts)}
            if unknown := sorted({*names} - places.keys()):
                problem = f'"{options.label}": TRAIN does not contain the class "{unknown[0]}"'
                raise DataError(problem, source=path)
            self.rows[part] = np.arange(len(names)) + sum(map(len, self.codes))
            self.features.append(features)
            self.codes.append(np.array([places[name] for name in names], dtype=np.intp))

    def read(self, path: str) -> tuple[Float32, list[str]]:
        """The features and classes of a file; all files must have one space and one shape."""

        def check(block: VectorBlock) -> VectorBlock:
            refuse_without_features(block).rows.parse(lambda row: class_of(row, self.options.label))
            return block

        blocks = list(self.reader.blocks(check, paths=[path]))
        if not blocks:
            raise NoRowsError([path])
        names = [name for block in blocks for (name,) in block.rows.texts]
        return np.concatenate([features_of(block) for block in blocks]), names

    def check(self) -> None:
        """Refuse a single class, and classes with too few rows, before any work."""
        shots, folds, path = self.options.shots, self.options.folds, self.paths["train"]
        name, fewest = min(self.counts.items(), key=lambda item: item[1])
        count, problem = sum(self.counts.values()), f'class "{name}" has {fewest} rows, fewer than'
        if len(self.counts) < 2:
            problem = f'"{self.options.label}" is "{name}" in all {count} rows, expected 2 classes or more'
            raise DataError(problem, source=path)
        if shots is not None:
            is_all = "test" not in self.paths and count == shots * len(self.counts)
            if fewest < shots or is_all:
                advice = self.advice_about_shots(fewest)
                if fewest < shots:
                    raise DataError(f"{problem} --few-shot {shots} draws", source=path, advice=advice)
                problem = f"--few-shot {shots} uses all {count} rows of TRAIN for training"
                raise DataError(problem, source=path, advice=advice)
        elif "dev" not in self.paths and ("test" not in self.paths or len(self.grid) > 1):
            most_folds = self.most_folds(fewest)
            if folds > most_folds:
                if most_folds >= FEWEST_FOLDS:
                    advice = f"use --folds {most_folds}"
                elif fewest >= FEWEST_FOLDS:
                    advice = f"use --folds {fewest} and one penalty, such as --penalties 1"
                else:
                    advice = f"give each class {FEWEST_FOLDS} rows or more, or leave this class out"
                raise DataError(f"{problem} --folds {folds} needs", source=path, advice=advice)

    def most_folds(self, fewest: int) -> int:
        """The largest number of folds; `fewest` is the number of rows of the smallest class.

        A fold may remove two rows of each class from the folds within it.
        """
        is_nested = "test" not in self.paths and len(self.grid) > 1
        return min(fewest, max(self.counts.values()) - 2) if is_nested else fewest

    def advice_about_shots(self, fewest: int) -> str:
        """The largest number of --few-shot; without --test some rows remain for the test."""
        has_rest = "test" in self.paths or sum(self.counts.values()) > fewest * len(self.counts)
        most_shots = fewest if has_rest else fewest - 1
        if most_shots == 0:
            return "give the rows of the test with --test"
        return f"use --few-shot {most_shots}" + ("" if has_rest else ", or --test")

    def report(self, file: BinaryIO | None = None) -> Record:
        """The record of the test. The classifier of all TRAIN rows is written to `file`."""
        options, features = self.options, np.concatenate(self.features)
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
            "file": readable(self.paths["train"]),
            **{part: readable(path) for part, path in self.paths.items() if part != "train"},
            "encoder": self.reader.emb,
            "label": options.label,
            "n": len(self.rows["train"]),
            "classes": self.counts,
            "protocol": protocol,
            "head": name,
            "penalties": list(self.grid),
            "seed": options.seed,
            **found,
            "majority": 100 * float(np.mean(truth == most)),
        }
        if "test" in self.rows:
            record["n_test"] = len(self.rows["test"])
            if len(self.counts) == 2 and predicted is not None:
                record |= {"f1": 100 * f1(predicted, truth), "f1_of": list(self.counts)[1]}
        return record | ({"not_converged": bench.unfinished} if bench.unfinished else {})

    def write_classifier(self, file: BinaryIO, penalty: float, bench: Bench) -> None:
        """Write the regression of all TRAIN rows, with the penalty of the test or of folds."""
        train, path = self.rows["train"], self.paths["train"]
        if "test" not in self.rows:
            penalty, _ = bench.choose(bench.grid(train, self.options.folds))
        with quiet_and_single() as unfinished:
            weight, bias = weights_of(bench.data, Fit(train, train[:0], penalty))
        bench.unfinished += len(unfinished)
        spec = common_spec(self.reader.inputs.other(path))
        found = VectorClassifier(path, tuple(self.counts), weight, bias, spec)
        record = {"_emb": self.reader.emb, "label": self.options.label, "rows": len(train)}
        write_classifier(file, found, record | {"penalty": penalty})

    def run(self, bench: Bench) -> tuple[Record, str, Indices | None, Indices]:
        """The result, a description of the protocol, the predictions of one test, and the tested rows."""
        options, chooses = self.options, len(self.grid) > 1
        rows, dev, test = self.rows["train"], self.rows.get("dev"), self.rows.get("test")
        folds, penalties = f"{options.folds} stratified folds", [self.grid[0]] * options.samples
        if test is not None and options.shots is None:
            grid, by = bench.grid(rows, options.folds), f"{folds} of TRAIN"
            if dev is not None:  # they also control early stopping of the final fit
                grid, by = [Fit(rows, dev, each, dev=dev) for each in self.grid], "accuracy on DEV"
            penalty, choosing = bench.choose(grid)
            [predicted] = bench.run([Fit(rows, test, penalty, dev=dev)])
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
            fits = bench.few_shot(rows, test, options.shots, options.samples)
            shares, tested = bench.shares(fits), np.concatenate([fit.test for fit in fits])
            drawn = f"{options.shots} rows of each class, drawn {options.samples} times"
            protocol = f"{drawn}; tested on {'the other rows' if test is None else 'TEST'}"
        found = {"accuracy": 100 * statistics.fmean(shares)}
        if len(shares) == 1:
            return {**found, "chosen": penalties[0], "choosing": []}, protocol, None, tested
        found |= {"sd": 100 * statistics.stdev(shares), "accuracies": [100 * each for each in shares]}
        return {**found, "chosen": penalties}, protocol, None, tested
