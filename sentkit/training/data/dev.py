"""The score on --dev and --test, x 100.

That of an encoder is Spearman's correlation, MRR@10 or the accuracy of triplets; that of a classifier is one
of labelled rows.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sentkit.errors import DataError
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import PAIR, POSITIVE, SENTENCE, TRIPLET
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.metrics.retrieval import accuracy_of_triplets, mrr_of_pairs
from sentkit.metrics.seen_pairs import EXCLUDED, SeenPairs
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.statistics import bootstrap, class_scores, number_scores, spearman
from sentkit.model.encoding import BUDGETS, batches
from sentkit.model.text.tokens import TextTokenizer, Tokens
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus, Ids
from sentkit.training.data.examples import SAID_OF_PAIRS, Example, ExampleParser, Labels, Reads, Scores
from sentkit.training.method import Method, dev_vectors, evaluating, template_of, using
from sentkit.training.settings import Recipe

SPEARMAN, MRR, ACCURACY = "Spearman", "MRR@10", "accuracy of triplets"


def digest_of(gold: NDArray[np.float64], texts: Iterable[NDArray], metric: str = "") -> str:
    hash = hashlib.blake2b(gold.tobytes() + metric.encode(), digest_size=16)
    for ids in texts:
        hash.update(len(ids).to_bytes(4, "little") + ids.tobytes())
    return hash.hexdigest()


def computed(
    method: Method,
    lengths: Sequence[int],
    compute: Callable[[NDArray[np.intp]], Tensor],
    poll: Callable[[], None],
) -> NDArray[np.float32]:
    """Return the values of all texts, which have these lengths, computed in batches in evaluation mode."""
    parts, order = [], list[int]()
    with evaluating(method):
        for places in batches(np.array(lengths), BUDGETS[method.device.type]):
            poll()
            parts.append(compute(places).float().cpu().numpy())
            order += places.tolist()
    return np.concatenate(parts)[np.argsort(order)]


@dataclass(frozen=True, slots=True)
class Dev:
    """Rows that are compared by the vectors of their texts."""

    tokens: Sequence[Tokens]  # all first texts of the rows, then all second texts, then the third ones
    gold: NDArray[np.float64]  # empty for rows without scores
    templated: Sequence[Tokens] = ()  # with the template of the readout `prompt`
    declared: Sequence[Tokens] = ()  # with the template that the base declares
    texts: SeenPairs = field(default_factory=SeenPairs)  # the first two of each row
    rows: Sequence[Row] = ()
    metric: str = SPEARMAN
    sides: Sequence[str] = ()  # of the rows

    @property
    def digest(self) -> str:
        tokens = (*self.tokens, *self.templated, *self.declared)
        texts = (np.array(each.ids, np.int64) for each in tokens)
        return digest_of(self.gold, texts, "" if self.metric == SPEARMAN else self.metric)

    def leak(self) -> str | None:
        """Return a warning if pairs occur in the training rows, as a pair or as two texts."""
        levels = list(map(self.texts.level, range(len(self.rows))))
        first = next((pair for pair, level in enumerate(levels) if level >= EXCLUDED), None)
        if first is None:
            return None
        row, place = self.rows[first], self.texts.places(first)[0]
        both, pairs = levels.count(EXCLUDED), levels.count(EXCLUDED + 1)
        problem = f"the training rows contain {pairs} of {len(levels)} pairs, and both texts of {both} others"
        return f"{row.source}: {problem}; the first is line {row.number}, in {place}"

    def score(self, method: Method, poll: Callable[[], None]) -> float:
        """Return the score with the readout for --dev, of the best encoder. NaN if undefined."""
        return max(self.scores(method, poll), key=nan_lowest)

    def scores(self, method: Method, poll: Callable[[], None]) -> list[float]:
        result = []
        for body in method.encoders():
            with using(method, body):
                result.append(self.score_as(None, method, poll))
        return result

    def score_as(self, readout: str | None, method: Method, poll: Callable[[], None]) -> float:
        return self.measures(self.values(method, readout, poll), slice(None))[self.metric]

    def score_base(self, declared: Readout, method: Method, poll: Callable[[], None]) -> float:
        """Return the score of the untrained encoder with the readout that the base declares."""
        return replace(self, templated=self.declared).score_as(declared.name, method, poll)

    def intervals(self, values: NDArray) -> dict[str, list[float]]:
        """Return the 95 % interval of each measure."""
        return bootstrap(lambda rows: self.measures(values, rows), len(self.rows))

    def values(self, method: Method, readout: str | None, poll: Callable[[], None]) -> NDArray:
        """Return the similarity or the score of each row, (n,). None: with the readout for --dev."""
        chosen = parse_readout(readout or method.dev_readout(method.settings))
        tokens = self.templated if chosen.reduction == "token" else self.tokens

        def compute(places: NDArray[np.intp]) -> Tensor:
            ids = [np.array(tokens[place].ids, np.int64) for place in places]
            packed = pack(ids, method.device, at=[tokens[place].at for place in places])
            if readout is None:
                return dev_vectors(method, packed)
            return apply_readouts(method.body, packed, [chosen])[0]

        vectors = computed(method, [len(each.ids) for each in tokens], compute, poll)
        if not np.isfinite(vectors).all():
            return np.full(len(self.rows), np.nan)
        if self.metric == ACCURACY:
            return accuracy_of_triplets(*np.split(vectors, 3))
        left, right = np.split(vectors, 2)
        if self.metric == MRR:
            return mrr_of_pairs(left, right, *np.array(self.texts.pairs).T)
        return SIMILARITIES["cosine"](left, right)

    def measures(self, values: NDArray, rows: NDArray[np.intp] | slice) -> dict[str, float]:
        """Return each measure of these rows, x 100."""
        if self.metric == SPEARMAN:
            return {SPEARMAN: 100.0 * spearman(values[rows], self.gold[rows])}
        return {self.metric: float(values[rows].mean())}


def nan_lowest(score: float) -> float:
    """Return a sort key. A correlation is NaN if all similarities are equal."""
    return -math.inf if math.isnan(score) else score


def read_examples(inputs: Inputs, parser: ExampleParser) -> tuple[str, list[Example], NDArray[np.float64]]:
    """Return the path of one file, its rows and their targets."""
    (path,) = inputs.paths
    examples = [each for block in inputs.blocks(parser.rows) for (each,) in block.texts if each is not None]
    targets = [example.target for example in examples if example.target is not None]
    return path, examples, np.array(targets, np.float64)


def check_varied(gold: NDArray[np.float64], path: str) -> None:
    """Raise a DataError if the scores allow no correlation."""
    if gold.min() == gold.max():
        problem = f'"score" is the same in all {len(gold)} rows: the correlation is undefined'
        raise DataError(problem, source=path)


def read_dev(inputs: Inputs, base: Base, kind: type[Method], settings: Recipe) -> Dev:
    """Read the rows of one file, with the tokenizers of all readouts that can be evaluated.

    Raise a DataError if their scores allow no correlation.
    """
    kinds = Reads((PAIR, TRIPLET, POSITIVE))
    parser = DevParser("--dev", kinds, common_fields(inputs), base.sides, base.sides)
    path, examples, gold = read_examples(inputs, parser)
    if parser.metric == SPEARMAN:
        if len(gold) < 2:
            raise DataError(f"{len(gold)} scored pairs: a correlation needs at least 2", source=path)
        check_varied(gold, path)
    if parser.metric == MRR and len({example.texts[:2] for example in examples}) < 2:
        raise DataError("MRR needs at least 2 different pairs", source=path)
    texts = SeenPairs()
    for example in examples:
        texts.add(*example.texts[:2])
    names = (*kind.readouts(settings), kind.dev_readout(settings))
    tokenizers: list[TextTokenizer | None] = [base.final_tokenizer, None, None]
    if any(parse_readout(name).reduction == "token" for name in names):
        tokenizers[1] = base.final_tokenizer_with(template_of(settings))
    if base.declared is not None and base.declared.reduction == "token":
        tokenizers[2] = base.final_tokenizer_with(None)
    tokens = [() if each is None else tokens_of(examples, each, parser.prompts) for each in tokenizers]
    sides = parser.kind.sides if parser.kind else ()
    rows = [example.row for example in examples]
    return Dev(tokens[0], gold, tokens[1], tokens[2], texts, rows, parser.metric, sides)


class DevParser(ExampleParser):
    """Converts rows to examples. The first row determines whether they are pairs with scores."""

    metric = SPEARMAN
    begun = False

    def __call__(self, row: Row) -> Example | None:
        if self.begun:
            return super().__call__(row)
        related = {self.fields.get(name, name) for name in SAID_OF_PAIRS} & row.values.keys()
        example, self.begun = super().__call__(row), True
        if self.kind is PAIR and related:  # pairs with labels are not all positives
            self.reads, self.kind = Reads((PAIR,), "score", Scores()), None
            return super().__call__(row)
        self.metric = ACCURACY if self.kind is TRIPLET else MRR
        return example


def tokens_of(examples: Sequence[Example], tokenizer: TextTokenizer, prompts: Sequence[str]) -> list[Tokens]:
    tokens = list[Tokens]()
    for side in range(len(examples[0].texts)):
        own = tokenizer.with_prompt(prompts[side]) if prompts else tokenizer
        tokens += own([example.texts[side] for example in examples])
    for place, each in enumerate(tokens):
        if each.problem:
            raise examples[place % len(examples)].row.error(each.problem)
    return tokens


@dataclass(frozen=True, slots=True)
class LabelledRows(Dev):
    """Rows with labels or scores that the method predicts."""

    columns: tuple[Sequence[Ids], ...] = ()

    @property
    def digest(self) -> str:
        return digest_of(self.gold, chain(*self.columns))

    def seen_in(self, corpus: Corpus) -> int:
        """Return the number of rows with the same tokens as a training row. Labels are not compared."""
        own = Counter(tuple(text.tobytes() for text in row) for row in zip(*self.columns, strict=True))
        return sum(
            own.pop(tuple(corpus.text(row, column).tobytes() for column in range(corpus.columns)), 0)
            for row in range(len(corpus))
        )

    def values(self, method: Method, readout: str | None, poll: Callable[[], None]) -> NDArray:
        """Return the outputs of the method, (n, k)."""

        def compute(places: NDArray[np.intp]) -> Tensor:
            batch = Batch(tuple([column[place] for place in places] for column in self.columns))
            return method.encode(batch)["logits"]

        return computed(method, Batch(self.columns).row_tokens, compute, poll)

    def measures(self, values: NDArray, rows: NDArray[np.intp] | slice) -> dict[str, float]:
        if values.shape[1] == 1:
            scores = number_scores(values[rows, 0], self.gold[rows])
        else:
            truth = self.gold[rows].astype(np.intp)
            scores = class_scores(values[rows].argmax(1), truth, values.shape[1])
        return {name: 100.0 * value for name, value in scores.items()}


def read_labelled(flag: str, inputs: Inputs, reads: Reads, corpus: Corpus, metric: str) -> LabelledRows:
    """Read the rows of one file, of the kind of the training rows and with their labels."""
    numbers = {label: number for number, label in enumerate(corpus.labels)}
    target = Labels(numbers) if numbers else reads.target
    kinds = (PAIR if corpus.columns == 2 else SENTENCE,)
    parser = ExampleParser(flag, replace(reads, kinds=kinds, target=target), common_fields(inputs))
    path, examples, gold = read_examples(inputs, parser)
    if not examples:
        raise DataError("no rows to evaluate", source=path)
    if not numbers:
        check_varied(gold, path)
    assert reads.tokenize is not None, "a method that classifies tokenizes its rows"
    columns = reads.tokenize([example.texts for example in examples])
    for example, *own in zip(examples, *columns, strict=True):
        if wrong := next((each.problem for each in own if each.problem), None):
            raise example.row.error(wrong)
    texts = tuple([np.array(each.ids, np.int32) for each in column] for column in columns)
    rows = [example.row for example in examples]
    return LabelledRows((), gold, rows=rows, metric=metric, columns=texts)
