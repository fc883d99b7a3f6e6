"""The score on --dev and --test, x 100.

That of an encoder is Spearman's correlation, MRR@10 or the accuracy of triplets; that of a
classifier is one of labelled rows.
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
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.counted import counted
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import PAIR, POSITIVE, SENTENCE, TRIPLET
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_field_names
from sentkit.metrics.retrieval import accuracy_of_triplets, mrr_of_pairs
from sentkit.metrics.seen_pairs import BOTH_TEXTS, SAME_PAIR, SeenPairs
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.metrics.statistics import bootstrap, class_scores, number_scores, spearman
from sentkit.model.checkpoint_reading import fitting_steps
from sentkit.model.encoding import BUDGETS, batches_of_indices
from sentkit.model.text.tokens import TextTokenizer, Tokens
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus, Ids
from sentkit.training.data.examples import (
    FIELDS_OF_RELATIONS,
    Example,
    ExampleParser,
    Labels,
    Reads,
    Scores,
)
from sentkit.training.method import Method, dev_vectors, evaluating, template_of, using
from sentkit.training.recipe import Recipe
from sentkit.transforms.steps import Step, apply_step

# The measures of scored pairs, of positive pairs, and of triplets.
SPEARMAN = "Spearman"
MRR = "MRR@10"
ACCURACY = "accuracy of triplets"
ALL_ROWS = slice(None)


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
    """Return the values of all texts, which have these lengths, computed in batches in evaluation
    mode.

    `compute` returns the values of the texts with some indices. `poll` raises an error to
    interrupt.
    """
    values: list[NDArray[np.float32]] = []
    order: list[int] = []  # the batches have texts of similar length
    budget = BUDGETS[method.device.type]
    reads_padding = isinstance(method.body, TransformersModel) and method.body.reads_padding
    with evaluating(method):
        for indices in batches_of_indices(np.array(lengths), budget, of_one_length=reads_padding):
            poll()
            values.append(compute(indices).float().cpu().numpy())
            order += indices.tolist()
    return np.concatenate(values)[np.argsort(order)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRows:
    """Rows on which a method is evaluated."""

    gold: NDArray[np.float64]  # empty for rows without scores
    rows: Sequence[Row] = ()
    metric: str = SPEARMAN
    warning_of_skipped: str | None = None  # about rows without a score or a label

    @property
    def digest(self) -> str:
        raise NotImplementedError

    def values(self, method: Method, readout: str | None, poll: Callable[[], None]) -> NDArray:
        """Return what the measures compare with `gold`, (n, ...). None: the readout for --dev."""
        raise NotImplementedError

    def measures(
        self, values: NDArray, rows: NDArray[np.intp] | slice = ALL_ROWS
    ) -> dict[str, float]:
        """Return each measure of these rows, x 100."""
        raise NotImplementedError

    def best_score(self, method: Method, poll: Callable[[], None]) -> float:
        """Return the score with the readout for --dev, of the best encoder. NaN if undefined."""
        return max(self.scores_of_encoders(method, poll), key=nan_lowest)

    def scores_of_encoders(self, method: Method, poll: Callable[[], None]) -> list[float]:
        """Return the score of each encoder, with the readout for --dev."""
        scores: list[float] = []
        for body in method.encoders():
            with using(method, body):
                scores.append(self.score_with_readout(None, method, poll))
        return scores

    def score_with_readout(
        self, readout: str | None, method: Method, poll: Callable[[], None]
    ) -> float:
        values = self.values(method, readout, poll)
        return self.measures(values)[self.metric]

    def intervals(self, values: NDArray) -> dict[str, list[float]]:
        """Return the 95 % interval of each measure."""
        return bootstrap(lambda rows: self.measures(values, rows), len(self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dev(EvaluationRows):
    """Rows that are compared by the vectors of their texts."""

    # all first texts of the rows, then all second texts, then the third ones
    tokens: Sequence[Tokens]
    tokens_in_template: Sequence[Tokens] = ()  # that of the readout `prompt`
    # The texts with the template that the base declares, and its steps after the readout.
    tokens_in_declared_template: Sequence[Tokens] = ()
    steps_of_base: Sequence[Step] = ()
    seen_pairs: SeenPairs = field(default_factory=SeenPairs)  # the first two texts of each row
    sides: Sequence[str] = ()  # of the rows
    # indices in `tokens` of the texts that are empty or blank: their vectors are zero, as those of
    # `encode`
    blank_texts: Sequence[int] = ()

    @property
    def digest(self) -> str:
        texts = [*self.tokens, *self.tokens_in_template, *self.tokens_in_declared_template]
        ids = [np.array(text.ids, np.int64) for text in texts]
        if self.blank_texts:
            ids.append(np.array(self.blank_texts, np.int64))
        metric = ""  # of scored pairs, as in the records of existing runs
        if self.metric != SPEARMAN:
            metric = self.metric
        return digest_of(self.gold, ids, metric)

    def leak(self) -> str | None:
        """Return a warning if pairs occur in the training rows, as a pair or as two texts."""
        levels = [self.seen_pairs.level(pair) for pair in range(len(self.rows))]
        leaked = [pair for pair, level in enumerate(levels) if level >= BOTH_TEXTS]
        if not leaked:
            return None
        as_two_texts = levels.count(BOTH_TEXTS)
        as_pair = levels.count(SAME_PAIR)
        problem = (
            f"the training rows contain {as_pair} of {len(levels)} pairs,"
            f" and both texts of {as_two_texts} others"
        )
        row = self.rows[leaked[0]]
        training_line = self.seen_pairs.places(leaked[0])[0]
        return f"{row.source}: {problem}; the first is line {row.number}, in {training_line}"

    def zero_vectors(self) -> str | None:
        """Return a warning if rows have a blank text."""
        rows = {index % len(self.rows) for index in self.blank_texts}
        if not rows:
            return None
        first = self.rows[min(rows)]
        verb = "has" if len(rows) == 1 else "have"
        counts = f"{len(rows)} of {counted(len(self.rows), 'row')} {verb} an empty text"
        return f"{first.source}: {counts}, whose vector is zero; the first is line {first.number}"

    def score_base(self, base: Base, method: Method, poll: Callable[[], None]) -> float:
        """Return the score of the untrained encoder with the readout that the base declares, and
        with the steps after it.
        """
        assert base.declared is not None, "the caller checks it"
        vectors = self.vectors(method, base.declared.name, poll, self.tokens_in_declared_template)
        for step in fitting_steps(base.checkpoint, self.steps_of_base, vectors.shape[1]):
            vectors = apply_step(step, vectors)
        values = self.similarities(vectors)
        return self.measures(values)[self.metric]

    def values(self, method: Method, readout: str | None, poll: Callable[[], None]) -> NDArray:
        """Return the similarity or the score of each row, (n,). None: with the readout for
        --dev.
        """
        vectors = self.vectors(method, readout, poll, self.tokens_in_template)
        return self.similarities(vectors)

    def vectors(
        self,
        method: Method,
        readout: str | None,
        poll: Callable[[], None],
        tokens_in_template: Sequence[Tokens],
    ) -> NDArray[np.float32]:
        """Return the vectors of all texts, (texts, d). The readout `prompt` reads
        `tokens_in_template`.
        """
        chosen = parse_readout(readout or method.dev_readout(method.settings))
        texts = self.tokens
        if chosen.reduction == "token":
            texts = tokens_in_template
        filled_texts = np.delete(np.arange(len(texts)), self.blank_texts)

        def vectors_of(indices: NDArray[np.intp]) -> Tensor:
            batch = [texts[index] for index in filled_texts[indices].tolist()]
            packed = pack(
                [np.array(text.ids, np.int64) for text in batch],
                method.device,
                readout_token_indices=[text.readout_token_index for text in batch],
            )
            if readout is None:
                return dev_vectors(method, packed)
            return apply_readouts(method.body, packed, [chosen])[0]

        lengths = [len(texts[index].ids) for index in filled_texts.tolist()]
        vectors_of_filled = computed(method, lengths, vectors_of, poll)
        vectors = np.zeros((len(texts), vectors_of_filled.shape[1]), np.float32)
        vectors[filled_texts] = vectors_of_filled
        return vectors

    def similarities(self, vectors: NDArray[np.float32]) -> NDArray:
        """Return the similarity or the score of each row, (n,), from the vectors of all texts."""
        if not np.isfinite(vectors).all():
            return np.full(len(self.rows), np.nan)
        if self.metric == ACCURACY:
            return accuracy_of_triplets(*np.split(vectors, 3))
        first, second = np.split(vectors, 2)
        if self.metric == MRR:
            # equal texts have equal numbers
            first_numbers, second_numbers = np.array(self.seen_pairs.pairs).T
            return mrr_of_pairs(first, second, first_numbers, second_numbers)
        return SIMILARITIES["cosine"](first, second)

    def measures(
        self, values: NDArray, rows: NDArray[np.intp] | slice = ALL_ROWS
    ) -> dict[str, float]:
        if self.metric == SPEARMAN:
            return {SPEARMAN: 100.0 * spearman(values[rows], self.gold[rows])}
        return {self.metric: float(values[rows].mean())}


def nan_lowest(score: float) -> float:
    """Return a sort key. A correlation is NaN if all similarities are equal."""
    if math.isnan(score):
        return -math.inf
    return score


def read_examples(
    inputs: Inputs, parser: ExampleParser
) -> tuple[str, list[Example], NDArray[np.float64], str | None]:
    """Return the path of one file, its rows, their targets, and a warning about those without."""
    (path,) = inputs.paths
    examples: list[Example] = []
    without_target = 0
    for block in inputs.parsed_blocks(parser):
        for example in block.parsed:
            if example is None:
                without_target += 1
            else:
                examples.append(example)
    targets = [example.target for example in examples if example.target is not None]
    warning = None
    if without_target and parser.reads.target is not None:
        skipped = counted(without_target, "row")
        warning = f"{path}: {skipped} skipped: {parser.reads.target.why}"
    return path, examples, np.array(targets, np.float64), warning


def check_varied(gold: NDArray[np.float64], path: str) -> None:
    """Raise a DataError if the scores allow no correlation."""
    if gold.min() == gold.max():
        problem = f'"score" is the same in all {len(gold)} rows: the correlation is undefined'
        raise DataError(problem, source=path)


def read_dev(inputs: Inputs, base: Base, kind: type[Method], settings: Recipe) -> Dev:
    """Read the rows of one file, with the tokenizers of all readouts that can be evaluated.

    Raise a DataError if their scores allow no correlation.
    """
    # The rows. The first of them determines the kind, the metric and the prompts of the parser.
    parser = DevParser(
        method="--dev",
        reads=Reads((PAIR, TRIPLET, POSITIVE)),
        fields=common_field_names(inputs),
        prompts=base.prompt_of_side,
        dev_sides=base.prompt_of_side,
    )
    path, examples, gold, warning_of_skipped = read_examples(inputs, parser)
    if parser.metric == SPEARMAN:
        if len(gold) < 2:
            raise DataError(
                f"a correlation needs at least 2 pairs with a score, not {len(gold)}", source=path
            )
        check_varied(gold, path)
    if parser.metric == MRR and len({example.texts[:2] for example in examples}) < 2:
        raise DataError("MRR needs at least 2 different pairs", source=path)

    # The texts of the rows, to recognise them in the training rows.
    seen_pairs = SeenPairs()
    for example in examples:
        first, second = example.texts[:2]
        seen_pairs.add(first, second)

    # The tokens without a template, and those with the templates of the method and of the base.
    texts_of_sides = zip(*(example.texts for example in examples), strict=True)
    all_texts = [text for texts in texts_of_sides for text in texts]
    blank_texts = [index for index, text in enumerate(all_texts) if not text.strip()]
    if len(blank_texts) == len(all_texts):
        raise DataError("all texts are empty", source=path)
    tokens = tokens_of(examples, base.final_tokenizer, parser.prompts)
    tokens_in_template: list[Tokens] = []
    readouts = [*kind.readouts(settings), kind.dev_readout(settings)]
    if any(parse_readout(name).reduction == "token" for name in readouts):
        tokenizer = base.final_tokenizer_with(template_of(settings))
        tokens_in_template = tokens_of(examples, tokenizer, parser.prompts)
    steps_of_base = base.read_steps()
    tokens_in_declared_template: list[Tokens] = []
    if base.declared is not None and base.declared.reduction == "token":
        tokenizer = base.final_tokenizer_with(None)
        tokens_in_declared_template = tokens_of(examples, tokenizer, parser.prompts)

    sides: Sequence[str] = ()
    if parser.kind is not None:
        sides = parser.kind.sides
    rows = [example.row for example in examples]
    return Dev(
        tokens=tokens,
        gold=gold,
        tokens_in_template=tokens_in_template,
        tokens_in_declared_template=tokens_in_declared_template,
        steps_of_base=steps_of_base,
        seen_pairs=seen_pairs,
        rows=rows,
        metric=parser.metric,
        sides=sides,
        blank_texts=blank_texts,
        warning_of_skipped=warning_of_skipped,
    )


class DevParser(ExampleParser):
    """Converts rows to examples. The first row determines whether they are pairs with scores."""

    metric = SPEARMAN
    has_metric = False  # whether a row has determined it

    def __call__(self, row: Row) -> Example | None:
        example = super().__call__(row)
        if self.has_metric:
            return example

        # This is the first good row. Pairs with a label or a score are not all positive: their
        # score is read, also that of this row.
        self.has_metric = True
        relations = [self.fields.get(field, field) for field in FIELDS_OF_RELATIONS]
        if self.kind is PAIR and any(name in row.values for name in relations):
            self.reads = Reads((PAIR,), "score", Scores())
            self.kind = None
            if "score" not in self.fields and "score" not in row.values:
                [label, _] = relations
                problem = f'--dev cannot be pairs with "{label}" and without "score"'
                advice = f'keep only positive pairs, without "{label}", or give each pair a score'
                raise row.error(problem, advice=advice)
            return super().__call__(row)

        self.metric = MRR
        if self.kind is TRIPLET:
            self.metric = ACCURACY
        return example


def tokens_of(
    examples: Sequence[Example], tokenizer: TextTokenizer, prompts: Sequence[str]
) -> list[Tokens]:
    """Return the tokens of the first texts of all rows, then of the second ones, and so on."""
    tokens: list[Tokens] = []
    for side in range(len(examples[0].texts)):
        side_tokenizer = tokenizer
        if prompts:
            side_tokenizer = tokenizer.with_prompt(prompts[side])
        tokens += side_tokenizer([example.texts[side] for example in examples])
    for index, text in enumerate(tokens):
        side, row = divmod(index, len(examples))
        example = examples[row]
        if text.problem and example.texts[side].strip():  # an empty text has no tokens
            raise example.row.error(text.problem)
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows(EvaluationRows):
    """Rows with labels or scores that the method predicts."""

    columns: tuple[Sequence[Ids], ...]  # the tokens of each text of the rows

    @property
    def digest(self) -> str:
        return digest_of(self.gold, chain(*self.columns))

    def seen_in(self, corpus: Corpus) -> int:
        """Return the number of rows with the same tokens as a training row. Labels are not
        compared.
        """
        counts: Counter[tuple[bytes, ...]] = Counter()  # tokens of a row -> rows that have them
        for texts in zip(*self.columns, strict=True):
            counts[tuple(text.tobytes() for text in texts)] += 1
        seen = 0
        columns = corpus.columns
        for row in range(len(corpus)):
            texts_of_row = [corpus.text(row, column) for column in range(columns)]
            # A row that occurs again in the corpus counts once.
            seen += counts.pop(tuple(text.tobytes() for text in texts_of_row), 0)
        return seen

    def values(self, method: Method, readout: str | None, poll: Callable[[], None]) -> NDArray:
        """Return the outputs of the method, (n, k)."""

        def logits_of(rows: NDArray[np.intp]) -> Tensor:
            batch = Batch(tuple([column[row] for row in rows] for column in self.columns))
            return method.encode(batch)["logits"]

        return computed(method, Batch(self.columns).row_tokens, logits_of, poll)

    def measures(
        self, values: NDArray, rows: NDArray[np.intp] | slice = ALL_ROWS
    ) -> dict[str, float]:
        if values.shape[1] == 1:
            scores = number_scores(values[rows, 0], self.gold[rows])
        else:
            truth = self.gold[rows].astype(np.intp)
            scores = class_scores(values[rows].argmax(1), truth, values.shape[1])
        return {name: 100.0 * value for name, value in scores.items()}


def read_labelled(
    flag: str, inputs: Inputs, reads: Reads, corpus: Corpus, metric: str
) -> LabelledRows:
    """Read the rows of one file, of the kind of the training rows and with their labels."""
    # The target and the kind of the training rows. Labels are numbered as there.
    number_of_label = {label: number for number, label in enumerate(corpus.labels)}
    target = reads.target
    if number_of_label:
        target = Labels(number_of_label)
    kind = SENTENCE
    if corpus.columns == 2:
        kind = PAIR
    reads_like_training = replace(reads, kinds=(kind,), target=target)
    parser = ExampleParser(flag, reads_like_training, common_field_names(inputs))
    path, examples, gold, warning_of_skipped = read_examples(inputs, parser)
    if not examples:
        raise DataError("no rows to evaluate", source=path)
    if not number_of_label:
        check_varied(gold, path)

    # The tokens of each row, by the tokenizer of the method.
    assert reads.tokenize is not None, "a method that classifies tokenizes its rows"
    columns = reads.tokenize([example.texts for example in examples])
    for example, *texts in zip(examples, *columns, strict=True):
        for text in texts:
            if text.problem:
                raise example.row.error(text.problem)
    ids = tuple([np.array(text.ids, np.int32) for text in column] for column in columns)
    rows = [example.row for example in examples]
    return LabelledRows(
        gold=gold,
        rows=rows,
        metric=metric,
        warning_of_skipped=warning_of_skipped,
        columns=ids,
    )
