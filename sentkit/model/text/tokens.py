"""The tokens of a text that the model reads, and those of its windows if it is too long.

The windows overlap, and each token counts once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError

Range = tuple[int, int]  # the first index, and the index after the last
Ints = NDArray[np.int64]
# The columns of a `TokenBlock` that can be None, in the order of its fields.
COLUMNS = (
    "readout_token_index",
    "unknown_count",
    "second_segment_start",
    "prompt_length",
    "only_unknown",
    "unknown_ids",
    "language",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text of a `TokenBlock`, or one window."""

    # truncated ids, including special tokens; of the first window if there are several
    ids: list[int]
    full_length: int  # number of tokens before truncation
    readout_token_index: int = 0  # index of the token that the readout `prompt` uses
    problem: str = ""  # the reason if this text cannot be read
    unknown_count: int = 0  # tokens without a static vector; they are not in `ids`
    windows: "Windows | None" = None  # None: the text is read as a whole, or truncated
    # index of the first token of the second segment, if it has another type
    second_segment_start: int = 0
    prompt_length: int = 0  # number of first ids, of the prompt, that readouts exclude
    only_unknown: int = 0  # 1 if each token of the text itself is the unknown token
    unknown_ids: int = 0  # unknown tokens of the text itself, which are in `ids`
    language: int = 0  # PROBABLE or CERTAIN of languages.py, if the tokenizer does not know it

    @property
    def truncated(self) -> bool:
        return self.windows is None and self.full_length > len(self.ids) + self.unknown_count


@dataclass(frozen=True, eq=False)
class TokenBlock(Sequence[Tokens]):  # no slots: cached_property needs __dict__
    """The tokens of n texts: one array for all of them, and a column for each property.

    A column that is None is 0 for each text. Windows and problems are rare, so they are kept by
    the number of the text.
    """

    ids: NDArray[np.int32]  # truncated ids of all texts, one after the other
    lengths: Ints  # (n,), of the truncated ids
    full_lengths: Ints  # (n,), before truncation
    readout_token_index: Ints | None = None
    unknown_count: Ints | None = None
    second_segment_start: Ints | None = None
    prompt_length: Ints | None = None
    only_unknown: Ints | None = None
    unknown_ids: Ints | None = None
    language: Ints | None = None
    problems: Mapping[int, str] = field(default_factory=dict)
    windows: "Mapping[int, Windows]" = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[Tokens]) -> "TokenBlock":
        columns: list[Any] = []
        for name in COLUMNS:
            values = [getattr(text, name) for text in texts]
            columns.append(np.array(values, np.int64) if any(values) else None)
        problems = {number: text.problem for number, text in enumerate(texts) if text.problem}
        windows = {
            number: text.windows for number, text in enumerate(texts) if text.windows is not None
        }
        ids, lengths = concatenated_ids([text.ids for text in texts])
        counts = np.array([text.full_length for text in texts], np.int64)
        named_columns = dict(zip(COLUMNS, columns, strict=True))
        return cls(ids, lengths, counts, **named_columns, problems=problems, windows=windows)

    @property
    def columns(self) -> "tuple[Ints | None, ...]":
        return tuple(getattr(self, name) for name in COLUMNS)

    @property
    def by_text(self) -> tuple[Mapping[int, Any], ...]:
        return self.problems, self.windows

    @cached_property
    def starts(self) -> Ints:
        """(n,), the indices of the first ids."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: Any) -> Any:
        """The tokens of one text, by its number, or a block of several."""
        if isinstance(number, slice):
            return self.take(range(len(self))[number])
        number = range(len(self))[number]
        start = int(self.starts[number])
        length = int(self.lengths[number])
        values = [0 if column is None else int(column[number]) for column in self.columns]
        return Tokens(
            ids=self.ids[start : start + length].tolist(),
            full_length=int(self.full_lengths[number]),
            problem=self.problems.get(number, ""),
            windows=self.windows.get(number),
            **dict(zip(COLUMNS, values, strict=True)),
        )

    def __iter__(self) -> Iterator[Tokens]:
        return (self[number] for number in range(len(self)))

    def take(self, texts: Sequence[int] | range | Ints) -> "TokenBlock":
        """The texts with these numbers."""
        texts = np.asarray(texts, np.int64)
        lengths = self.lengths[texts]
        columns: Any = [None if column is None else column[texts] for column in self.columns]
        by_text: Any = [{}, {}]
        if any(self.by_text):
            old_numbers = texts.tolist()
            by_text = [
                {new: values[old] for new, old in enumerate(old_numbers) if old in values}
                for values in self.by_text
            ]
        ids = self.ids[indices_of_ranges(self.starts[texts], lengths)]
        return TokenBlock(ids, lengths, self.full_lengths[texts], *columns, *by_text)

    def spread(self, texts: Sequence[int], count: int) -> "TokenBlock":
        """These texts at these numbers among `count`; the other texts have no tokens."""
        columns = (self.lengths, self.full_lengths, *self.columns)
        with_empty_text: Any = [
            None if column is None else np.append(column, 0) for column in columns
        ]
        old_numbers = np.full(count, len(self))  # of the empty text, except for these texts
        old_numbers[texts] = np.arange(len(self))
        return TokenBlock(self.ids, *with_empty_text, *self.by_text).take(old_numbers)

    @cached_property
    def vector_counts(self) -> Ints:
        """(n,), the number of vectors of a text: 1, or one for each window."""
        return self.column(np.ones(len(self), np.int64), lambda windows: windows.vector_count - 1)

    @cached_property
    def read_counts(self) -> Ints:
        """(n,), the ids that a model reads, of all windows; 0: the vector is zero."""
        return self.column(
            self.lengths, lambda windows: sum(len(window.ids) for window in windows.later_windows)
        )

    def unknown_beside_others(self) -> tuple[Ints, Ints]:
        """(n,) twice: of a text with known and unknown tokens 1 and the number of unknown ones.

        If each window of a text has a vector, each window counts as a text.
        """
        if self.unknown_ids is None or self.only_unknown is None:
            first_ids = np.zeros(len(self), np.int64)
            all_ids = first_ids
        else:
            first_ids = np.where(self.only_unknown, 0, self.unknown_ids)
            all_ids = self.unknown_ids
        ids_of_windows = self.column(
            first_ids,
            lambda windows: sum(
                window.unknown_ids for window in windows.later_windows if not window.only_unknown
            ),
        )
        count_of_windows = self.column(
            (first_ids > 0).astype(np.int64),
            lambda windows: sum(
                window.unknown_ids > 0 and not window.only_unknown
                for window in windows.later_windows
            ),
        )

        # A text with one vector has other tokens if one of its windows has.
        ids_of_text = self.column(
            all_ids, lambda windows: sum(window.unknown_ids for window in windows.later_windows)
        )
        only_unknown = self.column(
            np.zeros(len(self), np.int64) if self.only_unknown is None else self.only_unknown,
            lambda windows: sum(window.only_unknown for window in windows.later_windows),
        )
        window_count = self.column(
            np.ones(len(self), np.int64), lambda windows: len(windows.later_windows)
        )
        ids_of_text = np.where(only_unknown == window_count, 0, ids_of_text)
        has_one_vector = self.vector_counts == 1
        return (
            np.where(has_one_vector, ids_of_text > 0, count_of_windows),
            np.where(has_one_vector, ids_of_text, ids_of_windows),
        )

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """(n,), whether the model does not read all tokens of a text."""
        read_counts = (
            self.lengths if self.unknown_count is None else self.lengths + self.unknown_count
        )
        is_truncated = self.full_lengths > read_counts
        is_truncated[list(self.windows)] = False
        return is_truncated

    def column(self, of_texts: Ints, of_windows: "Callable[[Windows], int]") -> Ints:
        """(n,): a number of each text, plus what `of_windows` adds for a text with windows."""
        if not self.windows:
            return of_texts
        values = of_texts.copy()
        for number, windows in self.windows.items():
            values[number] += of_windows(windows)
        return values


def concatenated_ids(ids: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], Ints]:
    """The ids of all texts in one array, and their numbers."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


def indices_of_ranges(starts: Ints, lengths: Ints) -> Ints:
    """The indices of all elements of ranges of an array, one range after the other."""
    starts_in_result = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - starts_in_result, lengths)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a text. The `Tokens` of the text are those of the first window."""

    characters: tuple[Range, ...]  # of each window
    later_windows: tuple[Tokens, ...] = ()  # the windows after the first
    weights: tuple[float, ...] = ()  # of the windows in the mean; (): each window keeps its vector

    @property
    def vector_count(self) -> int:
        """The number of vectors of the text."""
        if self.weights:
            return 1
        return len(self.characters)


@dataclass(frozen=True, slots=True)
class LocatedTokens:
    """All tokens of a text, without truncation, and the characters of those that belong to it."""

    ids: list[int]
    # of ids; the others are special tokens and the tokens of the prompt or the template
    text_range: Range
    characters: list[Range] = field(default_factory=list)  # of each token of the text
    unknown: int | None = None  # an id without a static vector

    @property
    def repeated_count(self) -> int:
        """The number of tokens that each window repeats."""
        first, after = self.text_range
        return len(self.ids) - (after - first)


def characters_of_tokens(characters: Sequence[int], ranges: Iterable[Range]) -> list[Range]:
    """Return the characters of each token; `characters`: the index of each tokenized one.

    Tokens can contain characters before or after the text. A token without characters is after the
    token before it.
    """
    tokens: list[Range] = []
    end = 0
    for range_start, range_end in ranges:
        first = max(range_start, 0)
        after = min(range_end, len(characters))
        if first < after:
            end = characters[after - 1] + 1
            tokens.append((characters[first], end))
        else:
            tokens.append((end, end))
    return tokens


def truncate(ids: list[int], max_length: int, text_range: Range, *, at_start: bool) -> Tokens:
    """Truncate the ids of the text, which are this range of all ids, at its end or at its start."""
    excess = len(ids) - max_length
    if excess <= 0:
        return Tokens(ids, len(ids))
    start = text_range[0] if at_start else text_range[1] - excess
    return Tokens(ids[:start] + ids[start + excess :], len(ids))


def check_ids(batch: TokenBlock, weights: int, source: str) -> None:
    """Raise a DataError if a token has no row in the word table of the model."""
    largest = int(batch.ids.max())
    if largest >= weights:
        ids = f"token id {largest}, but the model has {weights} tokens"
        raise DataError(f"the tokenizer and the model do not match: {ids}", source=source)


UNKNOWN = -1  # an id that no token of a vocabulary has
# windows that have a token, by default: each token then has the same part in the mean
OVERLAPPING = 2


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """The windows of long texts. By default the maximum length, half its text tokens as stride."""

    size: int | None = None  # tokens of a window, including special tokens, prompt and template
    stride: int | None = None  # tokens from the start of a window to the start of the next
    # each window keeps its vector; otherwise a text has the mean of its windows
    chunks: bool = False


class TextTokenizer:
    unit = "tokens"  # or "words", for messages
    needs_all_texts = False  # all texts must be read before encoding starts
    outer = False  # calls another tokenizer through `tokenized`
    prompt = ""  # before every text
    unknown_token = ""  # for messages about texts with `only_unknown`
    judges_language = False  # whether the column `language` is computed
    counts_all = False  # whether `full_length` is exact for truncated texts too, which takes time

    def __call__(self, texts: Sequence[Any]) -> TokenBlock:
        """The tokens of each text; of strings, or of items as in Texts."""
        raise NotImplementedError

    def with_prompt(self, prompt: str) -> Self:
        tokenizer = copy(self)
        tokenizer.prompt = prompt
        return tokenizer


def tokenized(tokenizer: TextTokenizer, texts: Sequence[Any]) -> TokenBlock:
    """The tokens of each text: none for a blank string, also with a prompt."""
    none_is_blank = {*map(type, texts)} == {str} and all(map(str.strip, texts))
    if none_is_blank or tokenizer.outer:
        return tokenizer(texts)
    filled = [
        number for number, text in enumerate(texts) if not isinstance(text, str) or text.strip()
    ]
    return tokenizer([texts[number] for number in filled]).spread(filled, len(texts))


class TokenizerByPrompt(TextTokenizer):
    """Tokenizes items of a prompt and a text, for texts with different prompts."""

    outer = True

    def __init__(self, tokenizer: TextTokenizer, prompts: Iterable[str]) -> None:
        self.unit = tokenizer.unit
        self.needs_all_texts = tokenizer.needs_all_texts
        self.unknown_token = tokenizer.unknown_token
        self.judges_language = tokenizer.judges_language
        self.tokenizers = {prompt: tokenizer.with_prompt(prompt) for prompt in prompts}

    def __call__(self, texts: Sequence[tuple[str, str]]) -> TokenBlock:
        tokens: dict[tuple[str, str], Tokens] = {}
        for prompt, tokenizer in self.tokenizers.items():
            items = [item for item in texts if item[0] == prompt]
            if items:
                tokens |= zip(items, tokenized(tokenizer, [text for _, text in items]), strict=True)
        return TokenBlock.of([tokens[item] for item in texts])


class LongTextTokenizer(TextTokenizer):
    """A tokenizer whose texts can be divided into windows."""

    max_length: int | None
    unknown = UNKNOWN  # the id of tokens without a vector

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        """All tokens of each text, with their characters in the text."""
        raise NotImplementedError

    def tokens_of(self, ids: list[int]) -> Tokens:
        """These ids of a text or of a window, without truncation. Those without a vector are
        removed.
        """
        known_ids = [number for number in ids if number != self.unknown]
        return Tokens(known_ids, len(ids), unknown_count=len(ids) - len(known_ids))


class WindowTokenizer(TextTokenizer):
    """Tokenizes texts in windows if they exceed the maximum length, or for chunks a window."""

    outer = True

    def __init__(self, tokenizer: LongTextTokenizer, options: WindowOptions) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.unit = tokenizer.unit
        limit = tokenizer.max_length
        size = options.size or limit
        if size is None or (limit is None and not options.chunks):
            advice = "--max-length N sets one"
            if options.chunks:
                advice += ", --window N a length of the windows"
            raise UsageError("this model has no maximum length, so no text is split", advice=advice)
        if limit is not None and size > limit:
            raise UsageError(f"--window {size}: the maximum length is {limit} {self.unit}")
        self.size = size
        # The tokens of a text that is one window: longer texts are split.
        self.longest_in_one_window = size if options.chunks or limit is None else limit
        [example] = tokenizer.locate(["a"])
        room = size - example.repeated_count
        if room < 1:
            repeated = "the special tokens and the prompt use all of it"
            raise UsageError(f"a window of {size} {self.unit} is too small: {repeated}")
        self.stride = options.stride or max(1, room // OVERLAPPING)
        if self.stride > room:
            has = f"a window of {size} {self.unit} has {room} of the text"
            raise UsageError(f"a stride of {self.stride}: {has}, so that texts would have gaps")

    def with_prompt(self, prompt: str) -> "WindowTokenizer":
        """The same windows with another prompt: its length does not change the stride, unless a
        window with it has less room.
        """
        tokenizer = WindowTokenizer(self.tokenizer.with_prompt(prompt), self.options)
        tokenizer.stride = self.stride
        return tokenizer

    @property
    def record(self) -> dict[str, Any]:
        settings = {"window": self.size, "stride": self.stride, "chunks": self.options.chunks}
        return {"on_truncate": "window", **settings}

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        """The tokens of each text; those of a long text with its windows."""
        # `whole` has the start of a long text, and in `full_lengths` its number of tokens. Without
        # `counts_all`, one above the maximum length can be too small, but it stays above it.
        whole = tokenized(self.tokenizer, texts)
        is_long = whole.full_lengths > self.longest_in_one_window
        is_long[list(whole.problems)] = False
        long_texts = np.flatnonzero(is_long).tolist()  # their numbers
        if not long_texts and not self.options.chunks:
            return whole

        # Long texts again, as windows of all of their tokens.
        tokens = list(whole)
        located_texts = self.tokenizer.locate([texts[number] for number in long_texts])
        for number, located in zip(long_texts, located_texts, strict=True):
            language = tokens[number].language
            tokens[number] = replace(self.split(texts[number], located), language=language)

        # With chunks, the other texts have one window, so that all rows have the same fields.
        # Only a text with a problem can be truncated and not long.
        if self.options.chunks:
            for number, text in enumerate(texts):
                if not is_long[number] and not tokens[number].truncated:
                    one_window = Windows(((0, len(text)),))
                    tokens[number] = replace(tokens[number], windows=one_window)
        return TokenBlock.of(tokens)

    def split(self, text: str, located: LocatedTokens) -> Tokens:
        """Return the tokens of the windows of a text."""
        count = len(located.ids)
        room = self.size - located.repeated_count
        if room < 1:
            problem = (
                f"the prompt leaves no room for this text in a window of {self.size} {self.unit}"
            )
            return Tokens(located.ids, count, problem=problem)

        # The windows of the text's tokens, each between the tokens that all windows repeat.
        first, after = located.text_range
        ids_before = located.ids[:first]
        ids_of_text = located.ids[first:after]
        ids_after = located.ids[after:]
        ranges = window_ranges(len(ids_of_text), room, min(self.stride, room))
        first_window, *other_windows = [
            self.tokenizer.tokens_of(ids_before + ids_of_text[start:end] + ids_after)
            for start, end in ranges
        ]

        # Their weights in the mean; with chunks, each keeps its vector.
        weights: tuple[float, ...] = ()
        if not self.options.chunks:
            has_vector = np.array([number != located.unknown for number in ids_of_text], np.float64)
            weights = shares(ranges, has_vector)
        characters = characters_of_windows(ranges, located.characters, len(text))
        windows = Windows(characters, tuple(other_windows), weights=weights)
        return replace(first_window, full_length=count, windows=windows)


def window_ranges(count: int, room: int, stride: int) -> list[Range]:
    """Return the windows of `room` tokens of `count` tokens; the last one can be shorter."""
    starts = range(0, max(count - room, 0) + stride, stride)
    return [(start, min(start + room, count)) for start in starts]


def shares(ranges: Sequence[Range], has_vector: np.ndarray) -> tuple[float, ...]:
    """Return the number of tokens of each window; a token of k windows counts 1/k in each of them.

    `has_vector` is 1 for each token, or 0 if it has no vector. The result has the same sum.
    """
    windows_of_token = np.zeros(len(has_vector))
    for start, end in ranges:
        windows_of_token[start:end] += 1
    share_of_token = has_vector / windows_of_token
    return tuple(float(share_of_token[start:end].sum()) for start, end in ranges)


def characters_of_windows(
    ranges: Sequence[Range], characters: Sequence[Range], length: int
) -> tuple[Range, ...]:
    """Return the characters of each window, from those of the tokens of a text of this length.

    Between windows are only blanks, or marks without a vector.
    """
    windows = []
    for start, end in ranges:
        tokens = characters[start:end]
        tokens = [(first, after) for first, after in tokens if first < after] or tokens
        windows.append((min(first for first, _ in tokens), max(after for _, after in tokens)))
    windows[0] = (0, windows[0][1])
    windows[-1] = (windows[-1][0], length)
    return tuple(windows)
