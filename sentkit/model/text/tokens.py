"""The tokens of a text: those that the model reads, and those of its windows if the text is too long.

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


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text of a `TokenBlock`, or one window."""

    ids: list[int]  # truncated ids, including special tokens; of the first window if there are several
    count: int  # number of tokens before truncation
    at: int = 0  # index of the token that the readout `prompt` uses
    problem: str = ""  # the reason if this text cannot be read
    unknown: int = 0  # tokens without a static vector; they are not in `ids`
    windows: "Windows | None" = None  # None: the text is read as a whole, or truncated
    second: int = 0  # index of the first token of the second segment, if it has another type
    skip: int = 0  # number of first ids, of the prompt, that readouts exclude

    @property
    def truncated(self) -> bool:
        return self.windows is None and self.count > len(self.ids) + self.unknown


@dataclass(frozen=True, eq=False)
class TokenBlock(Sequence[Tokens]):  # no slots: cached_property needs __dict__
    """The tokens of n texts: one array for all of them, and a column for each property that a text has.

    A column that is None is 0 for each text. Windows and problems are rare, so they are kept by
    the number of the text.
    """

    ids: NDArray[np.int32]  # truncated ids of all texts, one after the other
    lengths: Ints  # (n,), of the truncated ids
    counts: Ints  # (n,), before truncation
    at: Ints | None = None
    unknown: Ints | None = None
    second: Ints | None = None
    skip: Ints | None = None
    problems: Mapping[int, str] = field(default_factory=dict)
    windows: "Mapping[int, Windows]" = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[Tokens]) -> "TokenBlock":
        columns: list[Any] = []
        for name in ("at", "unknown", "second", "skip"):
            values = [getattr(each, name) for each in texts]
            columns.append(np.array(values, np.int64) if any(values) else None)
        columns.append({place: each.problem for place, each in enumerate(texts) if each.problem})
        columns.append({place: each.windows for place, each in enumerate(texts) if each.windows is not None})
        counts = np.array([each.count for each in texts], np.int64)
        return cls(*flat([each.ids for each in texts]), counts, *columns)

    @property
    def columns(self) -> "tuple[Ints | None, ...]":
        return self.at, self.unknown, self.second, self.skip

    @property
    def by_text(self) -> tuple[Mapping[int, Any], ...]:
        return self.problems, self.windows

    @cached_property
    def starts(self) -> Ints:
        """(n,), the places of the first ids."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: Any) -> Any:
        """The tokens of one text, by its number, or a block of several."""
        if isinstance(place, slice):
            return self.take(range(len(self))[place])
        place = range(len(self))[place]
        start, length = int(self.starts[place]), int(self.lengths[place])
        at, unknown, second, skip = (0 if column is None else int(column[place]) for column in self.columns)
        ids, count = self.ids[start : start + length].tolist(), int(self.counts[place])
        problem, windows = self.problems.get(place, ""), self.windows.get(place)
        return Tokens(ids, count, at, problem, unknown, windows, second, skip)

    def __iter__(self) -> Iterator[Tokens]:
        return (self[place] for place in range(len(self)))

    def take(self, places: Sequence[int] | range | Ints) -> "TokenBlock":
        """The texts with these numbers."""
        places = np.asarray(places, np.int64)
        lengths = self.lengths[places]
        columns: Any = [None if column is None else column[places] for column in self.columns]
        numbers = places.tolist() if any(self.by_text) else []
        by_text: Any = [
            {place: each[number] for place, number in enumerate(numbers) if number in each}
            for each in self.by_text
        ]
        ids = self.ids[places_of_parts(self.starts[places], lengths)]
        return TokenBlock(ids, lengths, self.counts[places], *columns, *by_text)

    def spread(self, places: Sequence[int], count: int) -> "TokenBlock":
        """The same texts with these numbers among `count` texts, of which the others have no tokens."""

        own = self.lengths, self.counts, *self.columns
        padded: Any = [None if column is None else np.append(column, 0) for column in own]
        numbers = np.full(count, len(self))  # of the text without tokens, except at these places
        numbers[places] = np.arange(len(self))
        return TokenBlock(self.ids, *padded, *self.by_text).take(numbers)

    @cached_property
    def vectors(self) -> Ints:
        """(n,), the number of vectors of a text: 1, or one for each window."""
        return self.column(np.ones(len(self), np.int64), lambda each: each.vectors - 1)

    @cached_property
    def sizes(self) -> Ints:
        """(n,), the number of ids that a model reads, of all windows; without ids, the vector is zero."""
        return self.column(self.lengths, lambda each: sum(len(part.ids) for part in each.others))

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """(n,), whether the model does not read all tokens of a text."""
        known = self.lengths if self.unknown is None else self.lengths + self.unknown
        cut = self.counts > known
        cut[list(self.windows)] = False
        return cut

    def column(self, plain: Ints, more: "Callable[[Windows], int]") -> Ints:
        """(n,), a number of each text, and `more` of the windows of a text."""
        if not self.windows:
            return plain
        values = plain.copy()
        for place, windows in self.windows.items():
            values[place] += more(windows)
        return values


def flat(ids: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], Ints]:
    """The ids of all texts in one array, and their numbers."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


def places_of_parts(starts: Ints, lengths: Ints) -> Ints:
    """The places of parts of an array, one part after the other."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a text. The `Tokens` of the text are those of the first window."""

    places: tuple[Range, ...]  # the characters of each window
    others: tuple[Tokens, ...] = ()  # the windows after the first
    weights: tuple[float, ...] = ()  # of the windows in the mean; (): each window keeps its vector

    @property
    def vectors(self) -> int:
        """The number of vectors of the text."""
        return 1 if self.weights else len(self.places)


@dataclass(frozen=True, slots=True)
class LocatedTokens:
    """All tokens of a text, without truncation, and the characters of those that belong to it."""

    ids: list[int]
    own: Range  # of ids; the others are special tokens and the tokens of the prompt or the template
    places: list[Range] = field(default_factory=list)  # the characters of each own token
    unknown: int | None = None  # an id without a static vector

    @property
    def around(self) -> int:
        """The number of tokens that each window repeats."""
        return len(self.ids) - (self.own[1] - self.own[0])


def places_in(characters: Sequence[int], ranges: Iterable[Range]) -> list[Range]:
    """Return ranges of characters of a text. `characters` has the index of each character that was tokenized.

    Tokens can contain characters before or after the text. A token without characters is after the token
    before it.
    """
    places: list[Range] = []
    end = 0
    for start, after in ranges:
        start, after = max(start, 0), min(after, len(characters))
        if start < after:
            end = characters[after - 1] + 1
            places.append((characters[start], end))
        else:
            places.append((end, end))
    return places


def truncate(ids: list[int], max_length: int, own: Range, *, at_start: bool) -> Tokens:
    """Truncate the ids of the text, which are the range `own`, at its end or at its start."""
    excess = len(ids) - max_length
    if excess <= 0:
        return Tokens(ids, len(ids))
    start = own[0] if at_start else own[1] - excess
    return Tokens(ids[:start] + ids[start + excess :], len(ids))


def check_ids(batch: TokenBlock, weights: int, source: str) -> None:
    """Raise a DataError if a token has no row in the word table of the model."""
    largest = int(batch.ids.max())
    if largest >= weights:
        ids = f"token id {largest}, but the model has {weights} tokens"
        raise DataError(f"the tokenizer and the model do not match: {ids}", source=source)


OVERLAPPING = 2  # windows that have a token, by default: each token then has the same part in the mean


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """The windows of long texts. None selects the maximum length, and half of its text tokens as stride."""

    size: int | None = None  # tokens of a window, including special tokens, prompt and template
    stride: int | None = None  # tokens from the start of a window to the start of the next
    chunks: bool = False  # each window keeps its vector; otherwise a text has the mean of its windows


class TextTokenizer:
    unit = "tokens"  # or "words", for messages
    whole = False  # all texts must be read before encoding starts
    outer = False  # calls another tokenizer through `tokenized`
    prompt = ""  # before every text
    counts_all = False  # whether `count` is exact for truncated texts too, which takes time

    def __call__(self, texts: Sequence[Any]) -> TokenBlock:
        """The tokens of each text; of strings, or of items as in Texts."""
        raise NotImplementedError

    def with_prompt(self, prompt: str) -> Self:
        other = copy(self)
        other.prompt = prompt
        return other


def tokenized(tokenizer: TextTokenizer, texts: Sequence[Any]) -> TokenBlock:
    """The tokens of each text: none for a blank one, also with a prompt. A classifier's pair is not blank."""
    if ({*map(type, texts)} == {str} and all(map(str.strip, texts))) or tokenizer.outer:
        return tokenizer(texts)
    filled = [place for place, text in enumerate(texts) if not isinstance(text, str) or text.strip()]
    return tokenizer([texts[place] for place in filled]).spread(filled, len(texts))


class TokenizerByPrompt(TextTokenizer):
    """Tokenizes items of a prompt and a text, for texts with different prompts."""

    outer = True

    def __init__(self, tokenizer: TextTokenizer, prompts: Iterable[str]) -> None:
        self.unit, self.whole = tokenizer.unit, tokenizer.whole
        self.tokenizers = {prompt: tokenizer.with_prompt(prompt) for prompt in prompts}

    def __call__(self, texts: Sequence[tuple[str, str]]) -> TokenBlock:
        tokens: dict[tuple[str, str], Tokens] = {}
        for prompt, tokenizer in self.tokenizers.items():
            own = [each for each in texts if each[0] == prompt]
            found = tokenized(tokenizer, [text for _, text in own]) if own else ()
            tokens |= zip(own, found, strict=True)
        return TokenBlock.of([tokens[each] for each in texts])


class LongTextTokenizer(TextTokenizer):
    max_length: int | None

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        """All tokens of each text, with their places in the text."""
        raise NotImplementedError

    def tokens_of(self, ids: list[int]) -> Tokens:
        """These ids of a text or of a window, without truncation."""
        raise NotImplementedError


class WindowTokenizer(TextTokenizer):
    """Tokenizes texts in windows, if they are longer than the maximum length, or for chunks than a window."""

    outer = True

    def __init__(self, tokenizer: LongTextTokenizer, options: WindowOptions) -> None:
        self.tokenizer, self.options, self.unit = tokenizer, options, tokenizer.unit
        limit = tokenizer.max_length
        size = options.size or limit
        if size is None or (limit is None and not options.chunks):
            advice = "--max-length N sets one" + (", --window N a length of the windows" * options.chunks)
            raise UsageError("this model has no maximum length, so no text is split", advice=advice)
        if limit is not None and size > limit:
            raise UsageError(f"--window {size}: the maximum length is {limit} {self.unit}")
        self.size = size
        self.longest = size if options.chunks or limit is None else limit  # tokens of a text in one window
        [example] = tokenizer.locate(["a"])
        room = size - example.around
        if room < 1:
            repeated = "the special tokens and the prompt use all of it"
            raise UsageError(f"a window of {size} {self.unit} is too small: {repeated}")
        self.stride = options.stride or max(1, room // OVERLAPPING)
        if self.stride > room:
            has = f"a window of {size} {self.unit} has {room} of the text"
            raise UsageError(f"a stride of {self.stride}: {has}, so that texts would have gaps")

    def with_prompt(self, prompt: str) -> "WindowTokenizer":
        """The same windows with another prompt: its length does not change the stride."""
        return WindowTokenizer(self.tokenizer.with_prompt(prompt), replace(self.options, stride=self.stride))

    @property
    def record(self) -> dict[str, Any]:
        settings = {"window": self.size, "stride": self.stride, "chunks": self.options.chunks}
        return {"on_truncate": "window", **settings}

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        whole = tokenized(self.tokenizer, texts)
        is_long = whole.counts > self.longest
        is_long[list(whole.problems)] = False
        long = np.flatnonzero(is_long).tolist()
        if not long and not self.options.chunks:
            return whole
        tokens = list(whole)
        for place, located in zip(long, self.tokenizer.locate([texts[k] for k in long]), strict=True):
            tokens[place] = self.split(texts[place], located)
        if self.options.chunks:
            for place, (each, text) in enumerate(zip(tokens, texts, strict=True)):
                if not is_long[place] and not each.truncated:
                    tokens[place] = replace(each, windows=Windows(((0, len(text)),)))
        return TokenBlock.of(tokens)

    def split(self, text: str, located: LocatedTokens) -> Tokens:
        count, room = len(located.ids), self.size - located.around
        if room < 1:
            problem = f"the prompt leaves no room for this text in a window of {self.size} {self.unit}"
            return Tokens(located.ids, count, problem=problem)
        first, last = located.own
        ranges = window_ranges(last - first, room, min(self.stride, room))
        places = places_of(ranges, located.places, len(text))
        before, own, after = located.ids[:first], located.ids[first:last], located.ids[last:]
        parts = [self.tokenizer.tokens_of(before + own[start:end] + after) for start, end in ranges]
        counted = np.array([number != located.unknown for number in own], np.float64)
        weights = () if self.options.chunks else shares(ranges, counted)
        return replace(parts[0], count=count, windows=Windows(places, tuple(parts[1:]), weights=weights))


def window_ranges(count: int, room: int, stride: int) -> list[Range]:
    """Return the windows of `room` tokens of a text of `count` tokens; the last window can be shorter."""
    starts = range(0, max(count - room, 0) + stride, stride)
    return [(start, min(start + room, count)) for start in starts]


def shares(ranges: Sequence[Range], counted: np.ndarray) -> tuple[float, ...]:
    """Return the number of tokens of each window; a token of k windows counts 1/k in each of them.

    `counted` is 1 for each token, or 0 if it has no vector. The sum of the result is the sum of `counted`.
    """
    covered = np.zeros(len(counted))
    for start, end in ranges:
        covered[start:end] += 1
    once = counted / covered
    return tuple(float(once[start:end].sum()) for start, end in ranges)


def places_of(ranges: Sequence[Range], places: Sequence[Range], length: int) -> tuple[Range, ...]:
    """Return the characters of each window. Between windows are only blanks, or marks without a vector."""
    found = []
    for start, end in ranges:
        inside = [place for place in places[start:end] if place[0] < place[1]] or places[start:end]
        found.append((min(each[0] for each in inside), max(each[1] for each in inside)))
    found[0] = 0, found[0][1]
    found[-1] = found[-1][0], length
    return tuple(found)
