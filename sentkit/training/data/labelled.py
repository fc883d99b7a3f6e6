"""The quality of a classifier on labelled rows, for --dev and --test. All scores are x 100."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.metrics.classification import class_scores, number_scores
from sentkit.metrics.sts.intervals import bootstrap
from sentkit.model.encoding import BUDGETS, batches
from sentkit.training.data.batches import Batch, Ids
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Classes, Example, ExampleParser, Reads
from sentkit.training.method import Method, evaluating


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows with labels or scores. `Dev` has the same interface for pairs with scores."""

    texts: tuple[Sequence[Ids], ...]
    gold: NDArray[np.float64]
    metric: str

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def digest(self) -> str:
        hash = hashlib.blake2b(self.gold.tobytes(), digest_size=16)
        for text in (text for column in self.texts for text in column):
            hash.update(len(text).to_bytes(4, "little") + text.tobytes())
        return hash.hexdigest()

    def seen_in(self, corpus: Corpus) -> int:
        """Return the number of rows with the same tokens as a training row. Labels are not compared."""
        own = Counter(tuple(text.tobytes() for text in row) for row in zip(*self.texts, strict=True))
        columns = range(corpus.columns)
        trained = (
            tuple(corpus.text(row, column).tobytes() for column in columns) for row in range(len(corpus))
        )
        return sum(own.pop(row, 0) for row in trained)

    def score(self, method: Method, poll: Callable[[], None]) -> float:
        """Return the chosen metric. NaN if undefined."""
        return self.measures(method, poll)[self.metric]

    def scores(self, method: Method, poll: Callable[[], None]) -> list[float]:
        return [self.score(method, poll)]

    def score_as(self, readout: str, method: Method, poll: Callable[[], None]) -> float:
        return self.score(method, poll)

    def score_base(self, declared: Readout, method: Method, poll: Callable[[], None]) -> float:
        """Return the score of the untrained head."""
        return self.score(method, poll)

    def measures(self, method: Method, poll: Callable[[], None]) -> dict[str, float]:
        """Return each metric by name."""
        return self.measures_of(self.logits(method, poll), slice(None))

    def intervals(self, method: Method, poll: Callable[[], None]) -> dict[str, list[float]]:
        """Return the 95 % interval of each metric."""
        logits = self.logits(method, poll)
        return bootstrap(lambda rows: self.measures_of(logits, rows), len(self))

    def interval(self, method: Method, readout: str | None, poll: Callable[[], None]) -> list[float]:
        return self.intervals(method, poll)[self.metric]

    def measures_of(self, logits: NDArray[np.float32], rows: NDArray[np.intp] | slice) -> dict[str, float]:
        if logits.shape[1] == 1:
            scores = number_scores(logits[rows, 0], self.gold[rows])
        else:
            truth = self.gold[rows].astype(np.intp)
            scores = class_scores(logits[rows].argmax(1), truth, logits.shape[1])
        return {name: 100.0 * value for name, value in scores.items()}

    def logits(self, method: Method, poll: Callable[[], None]) -> NDArray[np.float32]:
        """Return the outputs of the method in evaluation mode, (n, k)."""
        parts, order = [], list[int]()
        lengths = np.array([sum(map(len, own)) for own in zip(*self.texts, strict=True)])
        with evaluating(method):
            for places in batches(lengths, BUDGETS[method.device.type]):
                poll()
                batch = Batch(tuple([column[place] for place in places] for column in self.texts))
                parts.append(method.encode(batch)["logits"].float().cpu().numpy())
                order += places.tolist()
        return np.concatenate(parts)[np.argsort(order)]


def read_labelled(flag: str, inputs: Inputs, reads: Reads, corpus: Corpus, metric: str) -> LabelledRows:
    """Read the rows of one file, of the kind of the training rows and with their labels."""
    (path,) = inputs.paths
    numbers = {label: number for number, label in enumerate(corpus.labels)}
    target = Classes(numbers, fixed=True) if numbers else reads.target
    kinds = (PAIR if corpus.columns == 2 else SENTENCE,)
    parser = ExampleParser(flag, replace(reads, kinds=kinds, target=target), common_fields(inputs))
    examples = [each for block in inputs.blocks(parser.rows) for (each,) in block.texts if each is not None]
    if not examples:
        raise DataError("no rows to evaluate", source=path)
    gold = np.array([example.target for example in examples], np.float64)
    if not numbers and len(set(gold)) < 2:
        problem = f'"score" is the same in all {len(gold)} rows: the correlation is undefined'
        raise DataError(problem, source=path)
    return LabelledRows(columns_of(examples, parser.reads, inputs), gold, metric)


def columns_of(examples: Sequence[Example], reads: Reads, inputs: Inputs) -> tuple[list[Ids], ...]:
    assert reads.tokenize is not None, "a method that classifies tokenizes its rows"
    columns = reads.tokenize([example.texts for example in examples])
    for example, *own in zip(examples, *columns, strict=True):
        problem = next((each.problem for each in own if each.problem), None)
        if problem:
            raise example.row.error(problem)
    return tuple([np.array(each.ids, np.int32) for each in column] for column in columns)
