"""Encodes a list of texts, and query texts with the reading options that a vector file records."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import orjson

from sentkit.errors import NoInputError, SentkitError, UsageError
from sentkit.formats.checkpoints.folders import BUNDLED
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.formats.rows.rows import Rejects, Row
from sentkit.formats.vectors.vectors import VectorRow, check_finite
from sentkit.model import Model, find_encoder
from sentkit.model.encoding import (
    Done,
    Encoder,
    RowGroup,
    Tally,
    TextTokenizer,
    encode_groups,
    prepare,
    whole_if_small,
)
from sentkit.model.reading import ReadingOptions

T = TypeVar("T")

SOURCE = "TEXT"  # the place of a query in messages
DIM, UNIT = re.compile(r"/(\d+)"), "/n"  # steps as a record names them, without the hash
QUERY = "query"  # the name of a declared prompt


@dataclass(frozen=True, slots=True)
class Recorded:
    path: str
    spec: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        return self.value("model", str)

    @property
    def prompt(self) -> str:
        return self.value("prompt", str) or ""

    def value(self, name: str, kind: type[T]) -> T | None:
        """Return the value of a field, or None if it has another type."""
        value = self.spec.get(name)
        return value if type(value) is kind else None

    def options(self) -> ReadingOptions:
        """The reading options that give vectors of the space of the file."""
        suffixes = [str(step).rpartition(":")[0] for step in self.value("steps", list) or []]
        if UNIT in suffixes and any(map(DIM.fullmatch, suffixes[suffixes.index(UNIT) :])):
            suffixes = []  # only a model declares this order
        dims = [int(match[1]) for match in map(DIM.fullmatch, suffixes) if match]
        length, readout = self.value("max_length", int), self.value("readout", str)
        known = readout != "set"  # the only readout of words:binary
        return ReadingOptions(
            readout=readout if known else None,
            template=self.value("template", str) if known else None,
            full_stop=self.value("full_stop", str) if known else None,
            prompt=self.value("prompt", str),
            max_length=length if length and length > 0 else None,
            normalize=UNIT in suffixes,
            dim=dims[-1] if dims else None,
            transform=self.value("transform", str),
        )


def find_query_encoder(
    model: str | None, recorded: Recorded, *, device: str, precision: str
) -> "tuple[Model, Model | None]":
    """Return the model for the queries, read as the record says, and the same model as it declares.

    The second one replaces the first if its weights are not the recorded ones. A recorded model is not
    downloaded, because a data file must not start a download.
    """

    def find(name: str, options: ReadingOptions, *, download: bool = True) -> Model:
        return find_encoder(name, options, device=device, precision=precision, download=download)

    if recorded.model is None:
        return find(model or BUNDLED, ReadingOptions()), None
    if model is not None:
        declared = find(model, ReadingOptions())
        try:
            return with_query_prompt(find, model, recorded), declared
        except SentkitError:  # such as a readout or a width that this model does not have
            return declared, None
    try:
        return with_query_prompt(partial(find, download=False), recorded.model, recorded), None
    except NoInputError as error:
        advice = f"{recorded.path} was encoded with this model; give its path with -m"
        if str(error).startswith(f"{recorded.options().transform}:"):
            advice = f"{recorded.path} was encoded with this transform; run the command where it is"
        raise NoInputError(str(error), advice=advice) from error


def with_query_prompt(find: Callable[[str, ReadingOptions], Model], name: str, recorded: Recorded) -> Model:
    """The model with the recorded options, and with its declared prompt for queries if it has one."""
    model = find(name, recorded.options())
    checkpoint = getattr(model, "checkpoint", None)
    prompts = checkpoint.declared.prompts if checkpoint is not None else {}
    if QUERY not in prompts or prompts[QUERY] == recorded.prompt:
        return model
    return find(name, replace(recorded.options(), prompt=prompts[QUERY]))


class EncodedTexts:
    """Texts as rows with the vectors that `encode` computes. `read` loads the weights."""

    def __init__(
        self, texts: Sequence[str], model: Model, declared: Model | None = None, weights: object = None
    ) -> None:
        """`declared` replaces the model if its weights do not have the hash `weights`."""
        self.texts, self.model, self.tally = texts, model, Tally()
        self.declared, self.weights = declared, weights
        self.emb: str | None = None
        self.remarks: list[str] = []

    def read(self, then: Callable[[VectorRow], T]) -> Iterator[T]:
        groups, tokens = whole_if_small(prepare_list(self.texts, self.model.tokenizer))
        encoder = self.model.encoder(tokens)
        if self.declared is not None and encoder.specs[0].record.get("weights") != self.weights:
            groups, tokens = whole_if_small(prepare_list(self.texts, self.declared.tokenizer))
            encoder = self.declared.encoder(tokens)
        self.emb = encoder.specs[0].emb
        for done in encode_list(groups, encoder, self.tally):
            yield then(VectorRow(done.row, done.vectors[0], SENTENCE.vectors))
        self.remarks = [*encoder.notes, *encoder.remarks(self.tally)]


def prepare_list(texts: Sequence[str], tokenizer: TextTokenizer) -> Iterator[RowGroup]:
    rows = ((text_row(number, text), (text,)) for number, text in enumerate(texts, start=1))
    return prepare(rows, tokenizer, Rejects())


def encode_list(groups: Iterator[RowGroup], encoder: Encoder, tally: Tally) -> Iterator[Done]:
    """Yield each text as a row with its vectors, as the command `encode` computes them."""
    for group in encode_groups(groups, encoder, encoder.budget):
        tally.add((done.row, done.tokens) for done in group)
        for done in group:
            for vectors in done.vectors:
                check_finite(done.row, vectors)
            yield done


def text_row(number: int, text: str) -> Row:
    values = {"text": text}
    try:
        return Row(orjson.dumps(values), values, SOURCE, number)
    except TypeError as error:
        raise UsageError(f"{SOURCE} {number} is not UTF-8") from error
