"""Encodes a list of texts, and query texts with the reading options that a vector file records."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from sentkit.errors import NoInputError, UsageError
from sentkit.formats.checkpoints.hub import BUNDLED
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.formats.rows.rows import Rejects, Row
from sentkit.formats.vectors.vectors import VectorRow, check_finite
from sentkit.model import Encoder, Model, find_encoder
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.stream import (
    Done,
    RowGroup,
    Tally,
    TextTokenizer,
    encode_groups,
    prepare,
    whole_if_small,
)

T = TypeVar("T")

SOURCE = "TEXT"  # the place of a query in messages
DIM, UNIT = re.compile(r"/(\d+)"), "/n"  # steps as a record names them, without the hash


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of a vector file about its model. The record may be empty."""

    path: str
    spec: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        return self._text("model")

    @property
    def prompt(self) -> str:
        return self._text("prompt") or ""

    def completed(self, options: ReadingOptions) -> ReadingOptions:
        """Return the options of the user, completed from the record."""
        suffixes = [str(step).rpartition(":")[0] for step in self._list("steps")]
        if UNIT in suffixes and any(map(DIM.fullmatch, suffixes[suffixes.index(UNIT) :])):
            suffixes = []  # only a model declares this order
        dims = [int(match[1]) for match in map(DIM.fullmatch, suffixes) if match]
        no_prompt = options.prompt is None and options.prompt_name is None
        filled = replace(
            options,
            prompt=self._text("prompt") if no_prompt else options.prompt,
            max_length=options.max_length or self._number("max_length"),
            normalize=options.normalize or UNIT in suffixes,
            dim=options.dim or (dims[-1] if dims else None),
        )
        # "set" is the only readout of words:binary.
        if options.readout is not None or self._text("readout") == "set":
            return filled
        return replace(
            filled,
            readout=self._text("readout"),
            template=self._text("template") if options.template is None else options.template,
            full_stop=options.full_stop or (self._text("full_stop") if options.template is None else None),
        )

    def _text(self, name: str) -> str | None:
        value = self.spec.get(name)
        return value if isinstance(value, str) else None

    def _number(self, name: str) -> int | None:
        value = self.spec.get(name)
        return value if type(value) is int and value > 0 else None

    def _list(self, name: str) -> list[Any]:
        value = self.spec.get(name)
        return value if isinstance(value, list) else []


def find_query_encoder(
    model: str | None, options: ReadingOptions, recorded: Recorded, *, device: str, precision: str
) -> Model:
    """Return the model for the queries.

    A model that the user names keeps its declared options. Otherwise the record gives the model and the
    options. A recorded model is not downloaded, because a data file must not start a download.
    """
    if model is not None or recorded.model is None:
        return find_encoder(model or BUNDLED, options, device=device, precision=precision)
    completed = recorded.completed(options)
    try:
        return find_encoder(recorded.model, completed, device=device, precision=precision, download=False)
    except NoInputError as error:
        advice = f"{recorded.path} was encoded with this model; give its path with -m"
        raise NoInputError(str(error), advice=advice) from error


class EncodedTexts:
    """Texts as rows with the vectors that `encode` computes. `read` loads the weights."""

    def __init__(self, texts: Sequence[str], model: Model) -> None:
        if len(model.readouts) > 1:
            raise UsageError("a search needs one readout, not several")
        self.texts, self.model, self.tally = texts, model, Tally()
        self.emb: str | None = None
        self.remarks: list[str] = []

    def read(self, then: Callable[[VectorRow], T]) -> Iterator[T]:
        groups, tokens = whole_if_small(prepare_list(self.texts, self.model.tokenizer))
        encoder = self.model.encoder(tokens)
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
        tally.add(done.tokens for done in group)
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
