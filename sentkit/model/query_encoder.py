"""Encodes a list of texts, query texts with the options that a vector file records, and rows in
memory.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from shlex import join
from typing import Any, TypeVar

import orjson

from sentkit.errors import DataError, NoInputError, SentkitError, UsageError
from sentkit.formats.checkpoints.folders import NANO, is_endpoint
from sentkit.formats.rows.block import RowBlock, block_of_values
from sentkit.formats.rows.kinds import SENTENCE, TextParser
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, refuse_not_finite
from sentkit.model import Model, find_encoder
from sentkit.model.encoding import Report, TokenEncoder, encode_groups
from sentkit.model.groups import LAST_GROUP, EncodeStats, RowGroup, tokenized_groups, whole_if_small
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokens import TextTokenizer, TokenizerByPrompt, WindowOptions

Value = TypeVar("Value")

ROWS_PER_BLOCK = 8192
SOURCE = "TEXT"  # the place of a query in messages
# Steps as a record names them, without the hash.
DIM = re.compile(r"/(\d+)")
UNIT = "/n"
QUERY = "query"  # the name of a declared prompt


def is_string(value: object) -> bool:
    return isinstance(value, str)


def is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def is_prompt(value: object) -> bool:
    """Whether this is a prompt, or a prompt for each side."""
    if isinstance(value, dict):
        return all(map(is_string, value.values()))
    return is_string(value)


def are_strings(value: object) -> bool:
    return isinstance(value, list) and all(map(is_string, value))


# The fields of a record that say how texts are read, and their values. Null counts as missing.
RECORDED_VALUES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "model": ("a string", is_string),
    "readout": ("a string", is_string),
    "template": ("a string", is_string),
    "full_stop": ("a string", is_string),
    "prompt": ("a string, or one for each side", is_prompt),
    "max_length": ("a positive number", is_positive),
    "dimensions": ("a positive number", is_positive),
    "steps": ("a list of strings", are_strings),
    "transform": ("a string", is_string),
    "precision": ("a string", is_string),
    "chunks": ("true or false", lambda value: isinstance(value, bool)),
}


def recorded(spec: Mapping[str, Any], name: str, value_type: type[Value]) -> Value | None:
    """A field of the record of a space, or None if it has another type."""
    value = spec.get(name)
    if type(value) is value_type:
        return value
    return None


def check_recorded(spec: Mapping[str, Any], source: str) -> None:
    """Raise a DataError for a field with an impossible value, which `recorded` would ignore.

    `source` is the file of the record.
    """
    for name, (expected, is_possible) in RECORDED_VALUES.items():
        value = spec.get(name)
        if value is not None and not is_possible(value):
            shown = orjson.dumps(value).decode()
            raise DataError(f'"{name}" is {shown:.40}, expected {expected}', source=source)


def recorded_options(spec: Mapping[str, Any]) -> ReadingOptions:
    """The reading options that give vectors of the recorded space."""
    suffixes = [str(step).rpartition(":")[0] for step in recorded(spec, "steps", list) or []]
    if UNIT in suffixes and any(map(DIM.fullmatch, suffixes[suffixes.index(UNIT) :])):
        suffixes = []  # only a model declares this order
    dims = [int(match[1]) for match in map(DIM.fullmatch, suffixes) if match]
    dimensions = recorded(spec, "dimensions", int)  # requested of an API
    if dimensions is not None and dimensions > 0:
        dims.append(dimensions)
    max_length = recorded(spec, "max_length", int)
    options = ReadingOptions(
        prompt=recorded(spec, "prompt", str),
        max_length=max_length if max_length and max_length > 0 else None,
        normalize=UNIT in suffixes,
        dim=dims[-1] if dims else None,
        transform=recorded(spec, "transform", str),
    )
    readout = recorded(spec, "readout", str)
    if readout == "set":  # the only readout of words:binary, which has no flag
        return options
    template = recorded(spec, "template", str)
    full_stop = recorded(spec, "full_stop", str)
    return replace(options, readout=readout, template=template, full_stop=full_stop)


def recorded_prompts(spec: Mapping[str, Any]) -> dict[str, str]:
    """The prompts by side of the recorded vectors; {} if all texts have the same prompt."""
    prompts = recorded(spec, "prompt", dict) or {}
    return {side: prompt for side, prompt in prompts.items() if isinstance(prompt, str)}


def recorded_tokenizer(model: Model, spec: Mapping[str, Any], source: str) -> TextTokenizer:
    """The tokenizer of the model, with the windows and prompts by side that are recorded in the
    file `source`.

    Chunks are not windows of a text: each of them is a row.
    """
    tokenizer: TextTokenizer = model.tokenizer
    size = spec.get("window")
    stride = spec.get("stride")
    if size is not None and spec.get("chunks") is not True:
        problem = f"{model.name} has no windows of the recorded size and stride"
        if type(size) is not int or type(stride) is not int or min(size, stride) < 1:
            raise DataError(problem, source=source)
        try:
            tokenizer = model.window_tokenizer(WindowOptions(size, stride))
        except (UsageError, DataError) as error:
            raise DataError(problem, source=source) from error
    prompts = recorded_prompts(spec)
    if not prompts:
        return tokenizer
    return TokenizerByPrompt(tokenizer, prompts.values())


def find_query_encoder(
    model: str | None, corpus: str, spec: Mapping[str, Any], *, device: str
) -> "tuple[Model, Model | None]":
    """Return the model for the queries, read as the record says, and the same model as it declares.

    `spec` is the record of the corpus.
    The second one replaces the first if its weights are not the recorded ones. A recorded model is
    not downloaded, because a data file must not start a download.
    """
    find = partial(find_encoder, device=device, compares_vectors=True)
    options = recorded_options(spec)
    prompt = recorded(spec, "prompt", str) or ""
    recorded_model = recorded(spec, "model", str)
    if recorded_model is None:
        return find(model or NANO, ReadingOptions()), None
    if model is not None:
        declared = find(model, ReadingOptions())
        try:
            return with_query_prompt(find, model, options, prompt), declared
        except SentkitError:  # such as a readout or a width that this model does not have
            return declared, None
    try:
        return with_query_prompt(
            partial(find, download=False), recorded_model, options, prompt
        ), None
    except NoInputError as error:
        advice = f"{corpus} was encoded with this model; give its path with -m"
        if is_endpoint(recorded_model):
            advice = f"{corpus} was encoded with this model; add {join(['-m', recorded_model])}"
        if str(error).startswith(f"{options.transform}:"):
            advice = f"{corpus} was encoded with this transform; run the command where it is"
        raise NoInputError(str(error), advice=advice) from error


def with_query_prompt(
    find: Callable[[str, ReadingOptions], Model], name: str, options: ReadingOptions, prompt: str
) -> Model:
    """The model with its declared prompt for queries, if it has one; `prompt` is that of the
    corpus.
    """
    model = find(name, options)
    if QUERY not in model.prompts or model.prompts[QUERY] == prompt:
        return model
    return find(name, replace(options, prompt=model.prompts[QUERY]))


class EncodedRows:
    """Rows of one text with the vectors that `encode` computes. `blocks` loads the weights."""

    names = SENTENCE.vector_names

    def __init__(
        self,
        rows: Callable[[], Iterable[RowBlock]],
        model: Model,
        declared: Model | None = None,
        weights: object = None,
        label: str | None = None,
        report: Report = lambda rows, tokens: None,
    ) -> None:
        """`declared` replaces the model if it has neither the hash `weights` nor the space
        `label`.
        """
        self.rows = rows
        self.model = model
        self.declared = declared
        self.weights = weights
        self.label = label
        self.report = report
        self.stats = EncodeStats()
        self.space_name: str | None = None
        self.record: Mapping[str, Any] = {}  # of the space, as a vector file has it
        self.warnings: list[str] = []

    def groups_for(self, model: Model) -> tuple[Iterator[RowGroup], TokenEncoder]:
        """Tokenize the rows, and load the weights as their number needs it."""
        groups, tokens = whole_if_small(tokenized_groups(self.rows(), model.tokenizer, Rejects()))
        return groups, model.encoder(tokens)

    def blocks(
        self, check: Callable[[VectorBlock], VectorBlock] = lambda block: block
    ) -> Iterator[VectorBlock]:
        """Yield the rows with their vectors. `check` can mark rows as bad."""
        is_recorded = False
        try:
            groups, encoder = self.groups_for(self.model)
            [space, *_] = encoder.spaces
            is_recorded = space.metadata.get("weights") == self.weights or space.name == self.label
        except DataError:  # such as a recorded transform that was fitted to another model
            if self.declared is None:
                raise
        if self.declared is not None and not is_recorded:
            groups, encoder = self.groups_for(self.declared)
            [space, *_] = encoder.spaces
        self.space_name = space.name
        self.record = space.metadata
        for group in encode_list(groups, encoder, self.stats, self.report):
            block = check(VectorBlock(group.rows, group.vectors[0], self.names))
            for indices in Rejects().good_indices(block.rows):
                yield block.take(indices)
        self.warnings = [*encoder.notes, *encoder.warnings(self.stats)]


class EncodedInputs(VectorReader):
    """Reads rows of any kind with the vectors that a model computes of their texts, also NaN.

    Rows with a text that a server refuses are left out, and their errors are in `refused`; an input
    with no other rows is an error.
    """

    def __init__(self, inputs: Inputs, model: Model) -> None:
        super().__init__(inputs, finite=False)
        self.model = model
        self.refused: list[DataError] = []

    def read(self, path: str) -> Iterator[RowBlock | VectorBlock]:
        encoder = self.model.encoder()
        emb = encoder.spaces[0].name
        parser = TextParser(self.inputs.fields)
        rows = self.inputs.blocks(parser)
        groups = tokenized_groups(rows, self.model.tokenizer, Rejects())
        has_rows = False
        for group in encode_groups(groups, encoder, encoder.tokens_per_batch):
            errors = group.rows.error_of_row
            self.refused += [errors[index] for index in sorted(errors)]
            accepted = group.take([i for i in range(len(group.rows)) if i not in errors])
            if not len(accepted.rows):
                continue
            has_rows = True
            vectors = accepted.vectors[0]
            yield VectorBlock(accepted.rows, vectors, parser.vector_names, emb, separate=True)
        if self.refused and not has_rows:
            raise self.refused[0]


def encoded_texts(texts: Sequence[str], model: Model, **arguments: Any) -> EncodedRows:
    """Texts as rows; the arguments are those of EncodedRows."""
    return EncodedRows(lambda: text_rows(texts), model, **arguments)


def encoded_files(inputs: Inputs, model: Model, report: Report) -> EncodedRows:
    """The rows of files that are not blank."""
    texts = TextParser(inputs.fields, one_text="a corpus")

    def rows() -> Iterator[RowBlock]:
        for block in inputs.blocks(texts):
            yield block.take([index for index, [text] in enumerate(block.texts) if text.strip()])

    return EncodedRows(rows, model, report=report)


def has_surrogate(text: str) -> bool:
    """Whether the text has a single surrogate, the only character that UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def text_rows(texts: Sequence[str]) -> Iterator[RowBlock]:
    for start in range(0, len(texts), ROWS_PER_BLOCK):
        texts_of_block = texts[start : start + ROWS_PER_BLOCK]
        values = [{"text": text} for text in texts_of_block]
        numbers = [*range(start + 1, start + len(texts_of_block) + 1)]
        try:
            block = block_of_values(values, SOURCE, numbers, [b""] * len(texts_of_block))
        except TypeError as error:
            have_surrogates = [has_surrogate(text) for text in texts_of_block]
            line = numbers[have_surrogates.index(True)]
            raise UsageError(f"{SOURCE}:{line}: not UTF-8") from error
        block.texts = [(text,) for text in texts_of_block]
        yield block


def prepare_list(texts: Sequence[str], tokenizer: TextTokenizer) -> Iterator[RowGroup]:
    """Tokenize texts whose vectors are needed all at once: the first group is a large one."""
    return tokenized_groups(text_rows(texts), tokenizer, Rejects(), first=LAST_GROUP)


def encode_list(
    groups: Iterator[RowGroup],
    encoder: TokenEncoder,
    stats: EncodeStats,
    report: Report = lambda rows, tokens: None,
) -> Iterator[RowGroup]:
    """Yield groups of rows with their vectors, as the command `encode` computes them."""
    for group in encode_groups(groups, encoder, encoder.tokens_per_batch):
        report(len(group.rows), stats.add(group))
        for vectors in group.vectors:
            refuse_not_finite(group.rows, vectors)
        for _ in Rejects().good_indices(group.rows):  # raises the error of the first bad row
            yield group
