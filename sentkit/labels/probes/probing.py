"""Runs a probe: rows with vectors and classes -> features -> classifier -> report (x 100).

The protocols for the choice of a penalty and the test are those of SentEval (arXiv 1803.05449).
"""

import statistics
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from sentkit.arrays import Bools, Float32, Float64, Indices
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.counted import counted
from sentkit.formats.files import shown_path
from sentkit.formats.rows.kinds import Label, class_value
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of
from sentkit.formats.vectors.store import common_metadata
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.probes.classifiers import (
    Data,
    Fit,
    Head,
    VectorClassifier,
    features_of,
    label_of_class,
    logreg,
    quiet_and_single,
    refuse_without_features,
    weights_of,
    write_classifier,
)
from sentkit.labels.probes.network import network
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

    def run(self, fits: Sequence[Fit]) -> Iterator[tuple[Fit, Indices]]:
        """The predictions with each penalty of each fit; the number of jobs does not change them.

        Networks of one fit are faster together, but not if some of the jobs then have no fit.
        """
        if len(fits) < self.jobs:
            fits = [replace(fit, penalties=[penalty]) for fit in fits for penalty in fit.penalties]
        self.watch.begin(sum(len(fit.penalties) for fit in fits))
        with quiet_and_single() as unfinished:
            pool = ThreadPoolExecutor(self.jobs)
            try:
                results = pool.map(partial(self.head, self.data), fits)
                for fit, predictions in zip(fits, results, strict=True):
                    for predicted in predictions:
                        self.watch.done()
                        yield fit, predicted
            finally:
                # after Ctrl-C the others are not needed
                pool.shutdown(wait=False, cancel_futures=True)
                self.unfinished += len(unfinished)

    def correct(self, fits: Sequence[Fit]) -> list[Bools]:
        """For each penalty of each fit, which of its test rows are predicted correctly."""
        return [predicted == self.data.codes[fit.test] for fit, predicted in self.run(fits)]

    def shares(self, fits: Sequence[Fit]) -> list[float]:
        """The share of correct predictions, for each penalty of each fit."""
        return [float(np.mean(correct)) for correct in self.correct(fits)]

    def folds(self, rows: Indices, count: int) -> list[tuple[Indices, Indices]]:
        """Stratified, shuffled folds: pairs of training and test rows."""
        from sklearn.model_selection import StratifiedKFold

        splits = StratifiedKFold(count, shuffle=True, random_state=self.seed)
        with warnings.catch_warnings():
            # scikit-learn warns about a class with fewer rows than folds, as a fold can have.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            no_features = np.zeros(len(rows))
            indices_of_folds = list(splits.split(no_features, self.data.codes[rows]))
        return [(rows[train], rows[test]) for train, test in indices_of_folds]

    def grid(self, rows: Indices, count: int) -> list[Fit]:
        """Every penalty on the same folds; a network also stops early by the test rows."""
        if len(self.penalties) == 1:
            return []
        return [
            Fit(train, test, self.penalties, dev=test) for train, test in self.folds(rows, count)
        ]

    def choose(self, grid: Sequence[Fit]) -> tuple[float, list[float]]:
        """The penalty that is best in these fits, and its accuracies. One penalty needs no fits."""
        if len(self.penalties) == 1:
            return self.penalties[0], []
        shares = np.reshape(self.shares(grid), (len(grid), len(self.penalties)))
        index = best(shares)
        return self.penalties[index], shares[:, index].tolist()

    def nested(self, rows: Indices, count: int) -> list[Fit]:
        """The fits of all folds, with the penalty that folds of the other rows choose."""
        outer_folds = self.folds(rows, count)
        penalties = list(self.penalties) * count  # of the folds, if there is one
        if len(self.penalties) > 1:
            inner_fits = [fit for train, _ in outer_folds for fit in self.grid(train, count)]
            shape = (count, count, len(self.penalties))
            shares_of_folds = np.reshape(self.shares(inner_fits), shape)
            penalties = [self.penalties[best(shares)] for shares in shares_of_folds]
        return [
            Fit(train, test, [penalty])
            for (train, test), penalty in zip(outer_folds, penalties, strict=True)
        ]

    def few_shot(self, rows: Indices, test: Indices | None, shots: int, samples: int) -> list[Fit]:
        """Fits to `shots` rows of each class, drawn `samples` times, with `test` or other rows."""
        fits = []
        for number in range(samples):
            drawn = sample(self.data.codes[rows], shots, np.random.default_rng([self.seed, number]))
            tested = np.delete(rows, drawn) if test is None else test
            fits.append(Fit(rows[drawn], tested, self.penalties))
        return fits


def labels_of(names: Sequence[str], values: Sequence[Any], classes: Sequence[str]) -> list[Label]:
    """The label of each class, from the class and the value of each row."""
    values_of: dict[str, list[Any]] = {name: [] for name in classes}
    for name, value in zip(names, values, strict=True):
        values_of[name].append(value)
    return [label_of_class(name, values_of[name]) for name in classes]


def best(shares: Float64) -> int:
    """The index of the best penalty, from the accuracy in each fold (folds, penalties).

    It has the highest mean accuracy in 0.01 %; the first of equals.
    """
    accuracies = [round(100 * np.mean(shares_of_penalty), 2) for shares_of_penalty in shares.T]
    return int(np.argmax(accuracies))


def sample(codes: Indices, shots: int, random: np.random.Generator) -> Indices:
    """Draw the same number of rows from each class, without replacement."""
    classes = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    drawn = [random.choice(rows, shots, replace=False) for rows in classes]
    return np.sort(np.concatenate(drawn))


def columns(record: Record) -> dict[str, str]:
    """The record as a table row, by column name."""
    cells = {"file": record["file"], "encoder": label_of(record["encoder"]), "n": str(record["n"])}
    if "n_test" in record:
        cells["n test"] = str(record["n_test"])
    cells["classes"] = str(len(record["classes"]))
    cells["accuracy x 100"] = f"{record['accuracy']:.2f}"
    if "sd" in record:
        cells["sd"] = f"{record['sd']:.2f}"
    if "f1" in record:
        cells["F1 x 100"] = f"{record['f1']:.2f}"
    cells["majority"] = f"{record['majority']:.2f}"
    return cells


# The grids of SentEval: C of a regression, and the weight penalty of a network.
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GRID_WITH_TEST = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
GRID_OF_NETWORK = (1e-5, 1e-4, 1e-3, 1e-2)
GRID_OF_FEW_SHOT = (1.0,)
FEWEST_FOLDS = 3
ROWS_OF_FOLD = 2  # rows of the largest class that a fold may remove from the folds within it


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
    # of the folds, if there is no test file; None: `seed`
    seed_of_folds: int | None = None
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
        self.options = options
        self.watch = watch
        self.reader = VectorReader(inputs)
        self.paths = {"train": train}
        if dev is not None:
            self.paths["dev"] = dev
        if test is not None:
            self.paths["test"] = test
        self.grid = self._penalties()

        # TRAIN has the classes.
        features, names, values = self.read(train, inputs)
        classes, counts = np.unique(np.array(names, dtype=object), return_counts=True)
        # rows of each class
        self.counts = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        self.check_train()
        self.labels = labels_of(names, values, list(self.counts))

        # All rows, and which of them are those of a file.
        self.features = list[Float32]()
        self.codes = list[Indices]()
        self.rows_of_split = dict[str, Indices]()
        self._add("train", features, names)
        for split in ("dev", "test"):
            if split in self.paths:
                path = self.paths[split]
                inputs_of_split = inputs.with_paths(path)  # where every bad row is an error
                features, names, _ = self.read(path, inputs_of_split)
                self._add(split, features, names)

    def _add(self, split: str, features: Float32, names: Sequence[str]) -> None:
        """Add the rows of a file, with their classes, after those of the files before."""
        code_of_class = {name: code for code, name in enumerate(self.counts)}
        unknown = sorted(set(names) - code_of_class.keys())
        if unknown:
            problem = f'"{self.options.label}": TRAIN does not contain the class "{unknown[0]}"'
            raise DataError(problem, source=self.paths[split])
        first_row = sum(map(len, self.codes))
        self.rows_of_split[split] = np.arange(first_row, first_row + len(names))
        self.features.append(features)
        self.codes.append(np.array([code_of_class[name] for name in names], dtype=np.intp))

    def _penalties(self) -> Sequence[float]:
        """The penalties to choose from."""
        if self.options.shots is not None:
            return GRID_OF_FEW_SHOT
        if self.options.penalties:
            return self.options.penalties
        if self.options.penalties is None and self.options.head == "senteval":
            return GRID_OF_NETWORK
        return GRID_WITH_TEST if "test" in self.paths and "dev" not in self.paths else GRID

    def read(self, path: str, inputs: Inputs) -> tuple[Float32, list[str], list[Any]]:
        """The features, classes and labels of a file; files must agree in space and shape."""

        def check(block: VectorBlock) -> VectorBlock:
            refuse_without_features(block).rows.parse(
                lambda row: class_value(row, self.options.label)
            )
            return block

        self.reader.inputs = inputs
        blocks = list(self.reader.blocks(check, paths=[path]))
        if not blocks:
            raise NoRowsError([path])
        names = [name for block in blocks for name in block.rows.parsed]
        values = [fields[self.options.label] for block in blocks for fields in block.rows.values]
        return np.concatenate([features_of(block) for block in blocks]), names, values

    def check_train(self) -> None:
        """Refuse a single class, and classes with too few rows for the folds of `grid`, before any
        work.
        """
        path = self.paths["train"]
        name, smallest = min(self.counts.items(), key=lambda item: item[1])
        count = sum(self.counts.values())
        if len(self.counts) < 2:
            problem = f'"{self.options.label}" is "{name}" in all {count} rows'
            raise DataError(f"{problem}, expected 2 classes or more", source=path)

        problem = f'class "{name}" has {counted(smallest, "row")}, fewer than'
        shots = self.options.shots
        folds = self.options.folds
        needs_folds = "dev" not in self.paths and ("test" not in self.paths or len(self.grid) > 1)
        if shots is not None:
            advice = self.advice_about_shots(smallest)
            if smallest < shots:
                raise DataError(f"{problem} --few-shot {shots} draws", source=path, advice=advice)
            if "test" not in self.paths and count == shots * len(self.counts):
                problem = f"--few-shot {shots} uses all {count} rows of TRAIN for training"
                raise DataError(problem, source=path, advice=advice)
        elif needs_folds and folds > self.most_folds(smallest):
            problem = f"{problem} --folds {folds} needs"
            if folds <= smallest:
                need = f"needs a class with {folds + ROWS_OF_FOLD} rows"
                reason = "because folds of the other rows choose the penalty"
                largest = f"the largest class has {max(self.counts.values())}"
                problem = f"--folds {folds} with several penalties {need}, {reason}; {largest}"
            raise DataError(problem, source=path, advice=self.advice_about_folds(smallest))

    def advice_about_folds(self, smallest: int) -> str:
        """Flags that work with these rows, or else the rows that each class needs."""
        most_folds = self.most_folds(smallest)
        if most_folds >= FEWEST_FOLDS:
            return f"use --folds {most_folds}"
        if "test" in self.paths:
            return "use one penalty, such as --penalties 1, or choose it with --dev"
        if smallest >= FEWEST_FOLDS:
            return f"use --folds {smallest} and one penalty, such as --penalties 1"
        flags = []
        if self.options.folds > FEWEST_FOLDS:
            flags.append(f"--folds {FEWEST_FOLDS}")
        if self.most_folds(FEWEST_FOLDS) < FEWEST_FOLDS:
            flags.append("--penalties 1")
        advice = f"give each class {FEWEST_FOLDS} rows or more"
        if flags:
            advice += f", and use {' '.join(flags)}"
        if len(self.counts) > 2:
            advice += ", or leave this class out"
        return advice

    def most_folds(self, smallest: int) -> int:
        """The largest number of folds; `smallest` is the number of rows of the smallest class."""
        is_nested = "test" not in self.paths and len(self.grid) > 1
        if not is_nested:
            return smallest
        return min(smallest, max(self.counts.values()) - ROWS_OF_FOLD)

    def advice_about_shots(self, smallest: int) -> str:
        """The largest number of --few-shot; without --test some rows remain for the test."""
        if "test" in self.paths or sum(self.counts.values()) > smallest * len(self.counts):
            return f"use --few-shot {smallest}"
        if smallest == 1:
            return "give the rows of the test with --test"
        return f"use --few-shot {smallest - 1}, or --test"

    def report(self, file: BinaryIO | None = None) -> "ProbeReport":
        """Test the rows. The classifier of all TRAIN rows is written to `file`."""
        options = self.options
        features = np.concatenate(self.features)
        head: Head = partial(network, hidden=options.hidden, seed=options.seed)
        head_name = f"{options.head}, nhid {options.hidden}"
        if options.head == "logreg":
            head = logreg
            head_name = options.head
            features = features.astype(np.float64)  # rounding does not affect the result
        data = Data(features, np.concatenate(self.codes), len(self.counts))
        seed_of_draws = options.seed
        if options.seed_of_folds is not None and "test" not in self.rows_of_split:
            seed_of_draws = options.seed_of_folds
        bench = Bench(data, head, self.grid, seed_of_draws, options.jobs, watch=self.watch)
        result = self.run(bench)
        if file is not None:
            self.write_classifier(file, result.fields["chosen"], bench)

        truth = data.codes[result.tested_with_repeats]
        counts = list(self.counts.values())
        most_frequent = int(np.argmax(counts))  # class of TRAIN
        record: Record = {"file": shown_path(self.paths["train"])}
        for split in ("dev", "test"):
            if split in self.paths:
                record[split] = shown_path(self.paths[split])
        record |= {
            "encoder": self.reader.space_name,
            "label": options.label,
            "n": len(self.rows_of_split["train"]),
            "classes": self.counts,
            "protocol": result.protocol,
            "head": head_name,
            "penalties": list(self.grid),
            "seed": options.seed,
            **result.fields,
            "majority": 100 * float(np.mean(truth == most_frequent)),
        }
        if "test" in self.rows_of_split:
            record["n_test"] = len(self.rows_of_split["test"])
            if len(self.counts) == 2 and result.predicted is not None:
                record["f1"] = 100 * f1(result.predicted, truth)
                record["f1_of"] = list(self.counts)[1]
        if bench.unfinished:
            record["not_converged"] = bench.unfinished
        return ProbeReport(record, result.values)

    def write_classifier(self, file: BinaryIO, penalty: float, bench: Bench) -> None:
        """Write the regression of all TRAIN rows, with the penalty of the test or of folds."""
        train = self.rows_of_split["train"]
        path = self.paths["train"]
        if "test" not in self.rows_of_split:
            penalty, _ = bench.choose(bench.grid(train, self.options.folds))
        with quiet_and_single() as unfinished:
            weight, bias = weights_of(bench.data, train, penalty)
        bench.unfinished += len(unfinished)
        spec = common_metadata(self.reader.inputs.with_paths(path))
        classifier = VectorClassifier(path, tuple(self.counts), weight, bias, spec, self.labels)
        record = {
            "_emb": self.reader.space_name,
            "label": self.options.label,
            "rows": len(train),
            "penalty": penalty,
        }
        write_classifier(file, classifier, record)

    def run(self, bench: Bench) -> "ProbeResult":
        if self.options.shots is not None:
            return self._few_shot(bench, self.options.shots)
        if "test" in self.rows_of_split:
            return self._test(bench)
        return self._folds(bench)

    def _test(self, bench: Bench) -> "ProbeResult":
        """One fit to TRAIN, tested on TEST, with the best penalty on DEV or in folds of TRAIN."""
        rows = self.rows_of_split["train"]
        test = self.rows_of_split["test"]
        dev = self.rows_of_split.get("dev")
        if dev is None:
            grid = bench.grid(rows, self.options.folds)
            measure = f"{self.options.folds} stratified folds of TRAIN"
        else:  # DEV also controls early stopping of the final fit
            grid = [Fit(rows, dev, self.grid, dev=dev)]
            measure = "accuracy on DEV"
        penalty, shares = bench.choose(grid)
        [(_, predicted)] = bench.run([Fit(rows, test, [penalty], dev=dev)])
        correct = predicted == bench.data.codes[test]
        protocol = "fitted to TRAIN; tested on TEST"
        if dev is not None and self.options.head != "logreg":
            protocol = f"stopped by accuracy on DEV; {protocol}"
        if len(self.grid) > 1:
            protocol = f"penalty by {measure}; {protocol}"
        fields = {
            "accuracy": 100 * float(np.mean(correct)),
            "chosen": penalty,
            "choosing": [100 * share for share in shares],
        }
        return ProbeResult(fields, protocol, predicted, test, 100.0 * correct)

    def _folds(self, bench: Bench) -> "ProbeResult":
        """Folds of TRAIN, the penalty of each by folds of the other rows."""
        rows = self.rows_of_split["train"]
        fits = bench.nested(rows, self.options.folds)
        folds = f"{self.options.folds} stratified folds"
        protocol = (
            f"{folds}, the penalty of each by {folds} of the rest" if len(self.grid) > 1 else folds
        )
        return result_of_fits(fits, bench.correct(fits), protocol)

    def _few_shot(self, bench: Bench, shots: int) -> "ProbeResult":
        """Several fits to few rows of each class, tested on TEST or the other rows."""
        test = self.rows_of_split.get("test")
        samples = self.options.samples
        fits = bench.few_shot(self.rows_of_split["train"], test, shots, samples)
        protocol = f"{shots} rows of each class, drawn {samples} times"
        protocol += f"; tested on {'the other rows' if test is None else 'TEST'}"
        return result_of_fits(fits, bench.correct(fits), protocol)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    record: Record
    # (n,), of each row that is tested: the share of its correct predictions x 100
    values: Float64


@dataclass(frozen=True, slots=True)
class ProbeResult:
    fields: Record  # accuracy and the chosen penalties
    protocol: str  # its description
    predicted: Indices | None  # of a single test
    tested_with_repeats: Indices  # the rows of all tests, in their order
    values: Float64  # of each tested row once, as in the report


def result_of_fits(fits: Sequence[Fit], correct: Sequence[Bools], protocol: str) -> ProbeResult:
    """The mean accuracy of fits with one penalty each, and its deviation if there are several."""
    penalties = [penalty for fit in fits for penalty in fit.penalties]
    shares = [float(np.mean(correct_of_fit)) for correct_of_fit in correct]
    fields: Record = {"accuracy": 100 * statistics.fmean(shares)}
    if len(fits) == 1:
        fields |= {"chosen": penalties[0], "choosing": []}
    else:
        fields["sd"] = 100 * statistics.stdev(shares)
        fields["accuracies"] = [100 * share for share in shares]
        fields["chosen"] = penalties
    tested_with_repeats = np.concatenate([fit.test for fit in fits])
    values = values_of_tested_rows(fits, correct)
    return ProbeResult(fields, protocol, None, tested_with_repeats, values)


def values_of_tested_rows(fits: Sequence[Fit], correct: Sequence[Bools]) -> Float64:
    """For each row that is tested, in ascending order, its correct predictions x 100.

    Their mean is the mean accuracy of the fits, so that predictions of a smaller fold have more
    weight. A row whose predictions have little weight, such as one that few draws test, has the
    mean accuracy for the rest. Without that, rows that are drawn again would change the accuracy
    also by their weights.
    """
    rows = np.unique(np.concatenate([fit.test for fit in fits]))
    # x 100
    mean_accuracy = 100.0 * statistics.fmean(float(np.mean(of_fit)) for of_fit in correct)
    values = np.full(len(rows), mean_accuracy)
    for fit, correct_of_fit in zip(fits, correct, strict=True):
        # With this weight, the mean over the rows is the mean over the fits.
        weight = len(rows) / (len(fits) * len(fit.test))
        indices = np.searchsorted(rows, fit.test)  # all different: a fit tests a row once
        values[indices] += weight * (100.0 * correct_of_fit - mean_accuracy)
    return values
