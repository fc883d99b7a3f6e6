"""The operations on words: delete, move, repeat and replace words (CLEAR, arXiv:2012.15466), change case."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from unicodedata import category

from sentkit.augment.draw import Draw

Note = dict[str, Any]  # JSON values
Changed = tuple[Sequence[str], Note]
Operation = Callable[[Sequence[str], Draw], Changed]


@dataclass(frozen=True, slots=True)
class AppliedOperation:
    name: str
    work: Operation | None  # None: another text replaces the sentence
    note: Mapping[str, Any] = field(default_factory=dict)  # the fields that are equal for all texts


SHARE = re.compile(r"(\d{1,9}(\.\d{0,30})?|\.\d{1,30})", re.ASCII)
SPANS = re.compile(r"(\d{1,9})x(.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the words, as an exact fraction: 0.29 of 100 words is 29, which a float misses."""

    part: int
    whole: int

    def of(self, n: int) -> int:
        """The number of words, rounded down; at least one if there are two words or more."""
        count = self.part * n // self.whole
        return 1 if not count and self.part and n > 1 else count

    @property
    def note(self) -> Mapping[str, Any]:
        return {"rate": self.part / self.whole}


@dataclass(frozen=True, slots=True)
class Spans:
    """A number of spans, each of this share of the words."""

    count: int
    share: Share

    def fit(self, n: int, room: int, *, each: int = 1) -> tuple[int, int]:
        """The number and the length of the spans that fit in `room` words, in groups of `each`."""
        length = min(self.share.of(n), room // each)
        return (min(self.count, room // (each * length)), length) if length else (0, 0)

    @property
    def note(self) -> Mapping[str, Any]:
        return {"count": self.count, **self.share.note}


def parse_share(text: str) -> Share:
    """Parse "0.3" as 3/10; raise ValueError unless the text is a number from 0 to 1."""
    share = Fraction(text) if SHARE.fullmatch(text) else None
    if share is None or share > 1:
        raise ValueError("expected a share from 0 to 1")
    return Share(share.numerator, share.denominator)


def parse_spans(text: str) -> Spans:
    """Parse "5x0.05" as five spans, each of one word in twenty."""
    match = SPANS.fullmatch(text)
    if match is None:
        raise ValueError("expected COUNTxSHARE")
    if int(match[1]) == 0:
        raise ValueError("expected a count of 1 or more")
    return Spans(int(match[1]), parse_share(match[2]))


CURLY = chr(0x2019)  # the typographic apostrophe
SPOKEN = frozenset("#%&@")  # Unicode calls these punctuation, but they are read aloud as words


def bare(word: str) -> tuple[str, str, str]:
    """Split `("don't),` into the punctuation before the word, the word, and the punctuation after it."""
    if word.isalnum():
        return "", word, ""
    start, end = 0, len(word)
    while start < end and is_punctuation(word[start]):
        start += 1
    while start < end and is_punctuation(word[end - 1]):
        end -= 1
    return word[:start], word[start:end], word[end:]


def is_punctuation(letter: str) -> bool:
    return category(letter)[0] == "P" and letter not in SPOKEN


def capitalised(word: str) -> str:
    """Capitalise the first letter only; `str.capitalize` also lowers the others."""
    return word[:1].upper() + word[1:]


def plain(word: str) -> str:
    """In lower case, with a plain apostrophe."""
    return word.lower().replace(CURLY, "'")


def written_like(model: str, word: str) -> str:
    """The word with the capitalisation of `model`."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return capitalised(word) if model[:1].isupper() else word


def no_punctuation(words: Sequence[str], draw: Draw) -> Changed:
    """Remove the punctuation around each word; a text of punctuation only is unchanged."""
    left = [core for _, core, _ in map(bare, words) if core]
    return left or words, {}


def lower(words: Sequence[str], draw: Draw) -> Changed:
    return [word.lower() for word in words], {}


def delete(words: Sequence[str], draw: Draw, share: Share, mark: str | None = None) -> Changed:
    """Delete this share of the words; replace each run of deleted words by one mark."""
    count = min(share.of(len(words)), len(words) - 1)
    if count < 1:
        return words, {"at": []}
    at = draw.sorted(len(words), count)
    gone = set(at)
    runs = {place for place in at if place - 1 not in gone}
    return without(words, gone, runs, mark), {"at": at}


def span_delete(words: Sequence[str], draw: Draw, spans: Spans, mark: str | None = None) -> Changed:
    """Delete disjoint spans, as many as leave at least one word; replace each by one mark."""
    count, length = spans.fit(len(words), max(len(words) - 1, 0))
    if not count:
        return words, {"length": length, "at": []}
    at = draw.spans(len(words), count, length)
    gone = {start + place for start in at for place in range(length)}
    return without(words, gone, set(at), mark), {"length": length, "at": at}


def without(words: Sequence[str], gone: set[int], marked: set[int], mark: str | None) -> list[str]:
    """The words without the places in `gone`, with the mark, if any, at the places in `marked`."""
    left = []
    for place, word in enumerate(words):
        if place not in gone:
            left.append(word)
        elif mark is not None and place in marked:
            left.append(mark)
    return left


def reorder(words: Sequence[str], draw: Draw, spans: Spans) -> Changed:
    """Swap pairs of disjoint spans; the order within a span is kept."""
    pairs, length = spans.fit(len(words), len(words), each=2)
    if not pairs:
        return words, {"length": length, "at": []}
    starts = draw.spans(len(words), 2 * pairs, length)
    drawn = draw.some(2 * pairs, 2 * pairs)
    at = [sorted((starts[i], starts[j])) for i, j in zip(drawn[::2], drawn[1::2], strict=True)]
    moved = list(words)
    for a, b in at:
        moved[a : a + length], moved[b : b + length] = words[b : b + length], words[a : a + length]
    return moved, {"length": length, "at": at}


def swap(words: Sequence[str], draw: Draw, share: Share | None) -> Changed:
    """Swap neighbours: once, or for this share of the words as far as disjoint pairs fit."""
    count = min(1 if share is None else share.of(len(words)), len(words) // 2)
    if not count:
        return words, {"at": []}
    at = draw.spans(len(words), count, 2)
    moved = list(words)
    for place in at:
        moved[place], moved[place + 1] = words[place + 1], words[place]
    return moved, {"at": at}


def repeat(words: Sequence[str], draw: Draw, share: Share) -> Changed:
    """Duplicate this share of the words, each next to itself."""
    count = share.of(len(words))
    if not count:
        return words, {"at": []}
    at = draw.sorted(len(words), count)
    doubled = set(at)
    said = [word for place, word in enumerate(words) for _ in range(1 + (place in doubled))]
    return said, {"at": at}


Synonyms = Mapping[str, Sequence[str]]  # keys: words in lower case, with plain apostrophes


def synonym(words: Sequence[str], draw: Draw, share: Share, synonyms: Synonyms) -> Changed:
    """Replace this share of the words, or all words with a synonym if there are fewer.

    If a word has several synonyms, one is drawn.
    """
    parts = [parts_of(word, synonyms) for word in words]
    able = [place for place, (_, core, _) in enumerate(parts) if plain(core) in synonyms]
    count = min(share.of(len(words)), len(able))
    if not count:
        return words, {"at": [], "words": []}
    at = [able[i] for i in draw.sorted(len(able), count)]
    changed, chosen = list(words), []
    for place in at:
        before, core, after = parts[place]
        choices = synonyms[plain(core)]
        model = core if plain(core).replace("'", "").isalpha() else core[:1]  # not for U.S.
        new = written_like(model, choices[draw.below(len(choices))])
        changed[place] = f"{before}{new}{after}"
        chosen.append(new)
    return " ".join(changed).split(), {"at": at, "words": chosen}  # a synonym may have several words


def parts_of(word: str, synonyms: Synonyms) -> tuple[str, str, str]:
    """Split a word; a word that contains punctuation, such as U.S., is looked up whole first."""
    return ("", word, "") if plain(word) in synonyms else bare(word)
