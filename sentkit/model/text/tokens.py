"""The tokens of a text: those that the model reads, and those of its windows if the text is long."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sentkit.errors import DataError

Range = tuple[int, int]  # the first index, and the index after the last


@dataclass(frozen=True, slots=True)
class Tokens:
    ids: list[int]  # truncated ids, including special tokens; of the first window if there are several
    count: int  # number of tokens before truncation
    at: int = 0  # index of the token that the readout `prompt` uses
    problem: str = ""  # the reason if this text cannot be read
    unknown: int = 0  # tokens without a static vector; they are not in `ids`
    windows: "Windows | None" = None  # None: the text is read as a whole, or truncated
    second: int | None = None  # index of the first token of the second segment, if it has another type

    @property
    def truncated(self) -> bool:
        return self.windows is None and self.count > len(self.ids) + self.unknown

    @property
    def parts(self) -> "list[Tokens]":
        """The sequences that the model reads: one for each window, or one for the text."""
        return [self] if self.windows is None else [self, *self.windows.others]

    @property
    def results(self) -> int:
        return 1 if self.windows is None else max(1, len(self.windows.pooled))

    @property
    def vectors(self) -> int:
        """The number of vectors of the text: 1, or one for each window."""
        return 1 if self.windows is None or self.windows.weights else len(self.windows.places)

    @property
    def empty(self) -> int:
        without = [not part.ids for part in self.parts]
        return sum(without) if self.vectors > 1 else int(all(without))


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a text. Either `others` has their tokens, or `pooled` their tokens in the whole text."""

    places: tuple[Range, ...]  # the characters of each window
    others: tuple[Tokens, ...] = ()  # the windows after the first
    pooled: tuple[Range, ...] = ()  # the model reads the whole text; each window is a range of its ids
    weights: tuple[float, ...] = ()  # of the windows in the mean; (): each window keeps its vector

    def counts(self, first: Tokens) -> list[int]:
        """The number of tokens of each window; `first` has these windows."""
        if self.pooled:
            return [end - start for start, end in self.pooled]
        return [len(each.ids) + each.unknown for each in (first, *self.others)]


@dataclass(frozen=True, slots=True)
class LocatedTokens:
    """All tokens of a text, without truncation, and the characters of those that belong to it."""

    ids: list[int]
    own: Range  # of ids; the others are special tokens and the tokens of the prompt or the template
    places: list[Range] = field(default_factory=list)  # the characters of each own token
    skip: int = 0  # number of first ids that the readout does not use
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


def check_ids(batch: Sequence[Tokens], weights: int, source: str) -> None:
    """Raise a DataError if a token has no row in the word table of the model."""
    largest = max(max(tokens.ids) for tokens in batch)
    if largest >= weights:
        ids = f"token id {largest}, but the model has {weights} tokens"
        raise DataError(f"the tokenizer and the model do not match: {ids}", source=source)
