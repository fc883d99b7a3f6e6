"""Runs a probe: a classifier on the frozen vectors of files -> a report. Values x 100."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.probes import protocols
from sentkit.labels.probes.examples import (
    Examples,
    check_members,
    check_nested,
    classes_of,
    codes_of,
    read_examples,
)
from sentkit.labels.probes.fits import Data, Head
from sentkit.labels.probes.logreg import logreg
from sentkit.labels.probes.network import Network
from sentkit.labels.probes.protocols import Bench, Result
from sentkit.labels.probes.scores import Record, f1, failures, scores
from sentkit.labels.watch import UNWATCHED, Watch

# The grids of SentEval: C of a regression, and the weight penalty of a network.
WITHIN, BEFORE_A_TEST = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
OF_NETWORKS = (1e-5, 1e-4, 1e-3, 1e-2)
OF_FEW = (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parameters of a probe."""

    label: str
    head: str
    hidden: int
    folds: int
    shots: int | None
    samples: int
    penalties: Sequence[float] | None
    seed: int
    jobs: int

    def grid(self, *, before_a_test: bool) -> Sequence[float]:
        if self.shots is not None:
            return OF_FEW
        if self.penalties is not None:
            return self.penalties
        if self.head == "senteval":
            return OF_NETWORKS
        return BEFORE_A_TEST if before_a_test else WITHIN

    def made(self) -> Head:
        return Network(self.hidden, self.seed) if self.head == "senteval" else logreg


@dataclass(frozen=True, slots=True)
class Files:
    train: str
    test: str | None = None
    dev: str | None = None


class Probe:
    """A probe. The rows of TRAIN, DEV and TEST are concatenated in this order."""

    def __init__(self, inputs: Inputs, files: Files, question: Question, watch: Watch = UNWATCHED) -> None:
        self.files, self.question, self.watch = files, question, watch
        self.reader = VectorReader(inputs)
        self.train = read_examples(self.reader, files.train, question.label)
        self.counts = classes_of(self.train, question.label)
        self.check()
        self.dev, self.test = self.read(files.dev), self.read(files.test)
        self.codes = [codes_of(each, list(self.counts), question.label) for each in self.given]

    @property
    def given(self) -> list[Examples]:
        return [each for each in (self.train, self.dev, self.test) if each is not None]

    @property
    def chooses(self) -> bool:
        """True if there are several penalties."""
        return len(self.grid) > 1

    @property
    def grid(self) -> Sequence[float]:
        return self.question.grid(before_a_test=self.files.test is not None and self.files.dev is None)

    def read(self, path: str | None) -> Examples | None:
        return None if path is None else read_examples(self.reader, path, self.question.label)

    def check(self) -> None:
        """Refuse classes with too few rows, before any work."""
        shots, path = self.question.shots, self.files.train
        if shots is not None:
            check_members(self.counts, shots, f"--few-shot {shots} draws", path)
            if self.files.test is None and len(self.train) == shots * len(self.counts):
                raise DataError(f"no row is left to test, of {len(self.train)}", source=path)
        elif self.files.dev is None and (self.files.test is None or self.chooses):
            check_members(self.counts, self.question.folds, f"--folds {self.question.folds}", path)
            if self.files.test is None and self.chooses:
                check_nested(self.counts, self.question.folds, path)

    def answer(self) -> Record:
        bench = self.bench()
        result = self.run(bench)
        return {**self.head_of_record(bench), **scores(result), **self.of_test(result), **failures(bench)}

    def bench(self) -> Bench:
        asked = self.question
        features = np.concatenate([each.features for each in self.given])
        if asked.head == "logreg":
            features = features.astype(np.float64)  # in float64, so that rounding does not affect the result
        data = Data(features, np.concatenate(self.codes), len(self.counts))
        return Bench(data, asked.made(), self.grid, asked.seed, asked.jobs, watch=self.watch)

    def run(self, bench: Bench) -> Result:
        asked, total = self.question, len(bench.data.codes)
        begins = np.cumsum([len(self.train), 0 if self.dev is None else len(self.dev)]).tolist()
        rows, dev, test = np.split(np.arange(total), begins)
        if asked.shots is not None:
            rest = None if self.test is None else test
            return protocols.few_shot(bench, rows, rest, shots=asked.shots, samples=asked.samples)
        if self.dev is not None:
            return protocols.by_dev(bench, rows, dev, test)
        if self.test is not None:
            return protocols.by_folds(bench, rows, test, asked.folds)
        return protocols.nested(bench, rows, asked.folds)

    @property
    def protocol(self) -> str:
        """A description of the protocol."""
        asked = self.question
        if asked.shots is not None:
            where = "the other rows" if self.test is None else "TEST"
            return f"{asked.shots} rows of each class, drawn {asked.samples} times; tested on {where}"
        folds = f"{asked.folds} stratified folds"
        if self.test is None:
            return folds + (f", the penalty of each by {folds} of the rest" if self.chooses else "")
        by = "accuracy on DEV" if self.dev is not None else f"{folds} of TRAIN"
        return (f"penalty by {by}; " if self.chooses else "") + "fitted to TRAIN; tested on TEST"

    def head_of_record(self, bench: Bench) -> Record:
        asked = self.question
        head = asked.head if asked.head == "logreg" else f"{asked.head}, nhid {asked.hidden}"
        files = {name: readable(path) for name in ("dev", "test") if (path := getattr(self.files, name))}
        return {
            "file": readable(self.files.train),
            **files,
            "encoder": self.reader.emb,
            "label": asked.label,
            "n": len(self.train),
            "classes": self.counts,
            "protocol": self.protocol,
            "head": head,
            "penalties": list(bench.penalties),
            "seed": asked.seed,
        }

    def of_test(self, result: Result) -> Record:
        """The accuracy of the most frequent class of TRAIN; and, for two classes, F1 of the second."""
        most = int(np.argmax(list(self.counts.values())))
        truth = self.codes[-1]
        judged = truth if result.drawn is None else np.concatenate(self.codes)[result.drawn]
        found: Record = {"majority": 100 * float(np.mean(judged == most))}
        if self.test is None:
            return found
        found["n_test"] = len(self.test)
        if len(self.counts) == 2 and result.predicted is not None:
            found |= {"f1": 100 * f1(result.predicted, truth), "f1_of": list(self.counts)[1]}
        return found
