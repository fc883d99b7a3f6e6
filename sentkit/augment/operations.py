"""The operations on words: delete, move, repeat, replace (CLEAR, arXiv:2012.15466), change case, negate.

A `Draw` makes the random choices of one operation on one text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from struct import Struct
from typing import Any
from unicodedata import category

NUMBERS = Struct("<16I")  # in a digest of 64 bytes


def numbers(key: bytes) -> Iterator[int]:
    """Endless numbers of 32 bits: from the digest of the key, the digest of that digest, and so on."""
    digest = blake2b(key).digest()
    while True:
        yield from NUMBERS.unpack(digest)
        digest = blake2b(digest).digest()


class Draw:
    """Random choices by integers only: equal keys give equal draws on every machine and Python version."""

    __slots__ = ("_next",)

    def __init__(self, key: bytes) -> None:
        self._next = numbers(key).__next__

    def below(self, n: int) -> int:
        return self._next() * n >> 32

    def some(self, n: int, k: int) -> list[int]:
        """Draw k different numbers of 0 .. n - 1 in random order."""
        return self._parted(n, k)[0]

    def sorted(self, n: int, k: int) -> list[int]:
        """Draw k different numbers of 0 .. n - 1 in ascending order; if 2 k > n, draw the excluded ones."""
        if 2 * k > n:
            return sorted(self._parted(n, n - k)[1])
        return sorted(self._parted(n, k)[0])

    def _parted(self, n: int, k: int) -> tuple[list[int], list[int]]:
        """The numbers drawn by k steps of a Fisher-Yates shuffle, and the others."""
        places, drawn, number = list(range(n)), [], self._next
        for left in range(n, n - k, -1):
            place = number() * left >> 32
            drawn.append(places[place])
            places[place] = places[left - 1]
        return drawn, places[: n - k]

    def spans(self, n: int, k: int, length: int) -> list[int]:
        """The starts of k disjoint spans in n places, all equally likely: drawn in a shorter row."""
        slots = self.sorted(n - k * (length - 1), k)
        return [slot + i * (length - 1) for i, slot in enumerate(slots)]


Note = dict[str, Any]  # JSON values
Changed = tuple[Sequence[str], Note]
Operation = Callable[[Sequence[str], Draw], Changed]


SHARE = re.compile(r"(\d{1,9}(\.\d{0,30})?|\.\d{1,30})", re.ASCII)
SPANS = re.compile(r"(\d{1,9})x(.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Amount:
    """A share of the words, or a number of spans that have this share each."""

    share: Fraction  # exact: 0.29 of 100 words is 29, which a float misses
    spans: int | None = None

    def of(self, n: int) -> int:
        """The number of words, rounded down; at least one if there are two words or more."""
        count = self.share.numerator * n // self.share.denominator
        return 1 if not count and self.share and n > 1 else count

    def fit(self, n: int, room: int, *, each: int = 1) -> tuple[int, int]:
        """The number and the length of the spans that fit in `room` words, in groups of `each`."""
        length = min(self.of(n), room // each)
        return (min(self.spans or 0, room // (each * length)), length) if length else (0, 0)

    @property
    def note(self) -> Note:
        rate = {"rate": float(self.share)}
        return rate if self.spans is None else {"count": self.spans, **rate}


def parse_share(text: str) -> Amount:
    """Parse "0.3" as 3/10; raise ValueError unless the text is a number from 0 to 1."""
    share = Fraction(text) if SHARE.fullmatch(text) else None
    if share is None or share > 1:
        raise ValueError("expected a share from 0 to 1")
    return Amount(share)


def parse_spans(text: str) -> Amount:
    """Parse "5x0.05" as five spans, each of one word in twenty."""
    match = SPANS.fullmatch(text)
    if match is None:
        raise ValueError("expected COUNTxSHARE")
    if int(match[1]) == 0:
        raise ValueError("expected a count of 1 or more")
    return Amount(parse_share(match[2]).share, int(match[1]))


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
    return word.lower().replace(CURLY, "'")


def written_like(model: str, word: str) -> str:
    if len(model) > 1 and model.isupper():
        return word.upper()
    return capitalised(word) if model[:1].isupper() else word


def no_punctuation(words: Sequence[str], draw: Draw) -> Changed:
    """Remove the punctuation around each word; a text of punctuation only is unchanged."""
    left = [core for _, core, _ in map(bare, words) if core]
    return left or words, {}


def lower(words: Sequence[str], draw: Draw) -> Changed:
    return [word.lower() for word in words], {}


def delete(words: Sequence[str], draw: Draw, amount: Amount, mark: str | None = None) -> Changed:
    """Delete this share of the words; replace each run of deleted words by one mark."""
    at = draw.sorted(len(words), max(min(amount.of(len(words)), len(words) - 1), 0))
    gone = set(at)
    runs = {place for place in at if place - 1 not in gone}
    return without(words, gone, runs, mark), {"at": at}


def span_delete(words: Sequence[str], draw: Draw, amount: Amount, mark: str | None = None) -> Changed:
    """Delete disjoint spans, as many as leave at least one word; replace each by one mark."""
    count, length = amount.fit(len(words), max(len(words) - 1, 0))
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


def reorder(words: Sequence[str], draw: Draw, amount: Amount) -> Changed:
    """Swap pairs of disjoint spans; the order within a span is kept."""
    pairs, length = amount.fit(len(words), len(words), each=2)
    starts = draw.spans(len(words), 2 * pairs, length)
    drawn = draw.some(2 * pairs, 2 * pairs)
    at = [sorted((starts[i], starts[j])) for i, j in zip(drawn[::2], drawn[1::2], strict=True)]
    moved = list(words)
    for a, b in at:
        moved[a : a + length], moved[b : b + length] = words[b : b + length], words[a : a + length]
    return moved, {"length": length, "at": at}


def swap(words: Sequence[str], draw: Draw, amount: Amount | None = None) -> Changed:
    """Swap neighbours: once, or for this share of the words as far as disjoint pairs fit."""
    count = min(1 if amount is None else amount.of(len(words)), len(words) // 2)
    at = draw.spans(len(words), count, 2)
    moved = list(words)
    for place in at:
        moved[place], moved[place + 1] = words[place + 1], words[place]
    return moved, {"at": at}


def repeat(words: Sequence[str], draw: Draw, amount: Amount) -> Changed:
    """Duplicate this share of the words, each next to itself."""
    at = draw.sorted(len(words), amount.of(len(words)))
    doubled = set(at)
    said = [word for place, word in enumerate(words) for _ in range(1 + (place in doubled))]
    return said, {"at": at}


Synonyms = Mapping[str, Sequence[str]]  # keys: words in lower case, with plain apostrophes


def synonym(words: Sequence[str], draw: Draw, amount: Amount, synonyms: Synonyms) -> Changed:
    """Replace this share of the words, or all that have a synonym if there are fewer."""
    # A word that contains punctuation, such as U.S., is looked up whole first.
    parts = [("", word, "") if plain(word) in synonyms else bare(word) for word in words]
    able = [place for place, (_, core, _) in enumerate(parts) if plain(core) in synonyms]
    at = [able[i] for i in draw.sorted(len(able), min(amount.of(len(words)), len(able)))]
    changed, chosen = list(words), []
    for place in at:
        before, core, after = parts[place]
        choices = synonyms[plain(core)]
        model = core if plain(core).replace("'", "").isalpha() else core[:1]  # not for U.S.
        new = written_like(model, choices[draw.below(len(choices))])
        changed[place] = f"{before}{new}{after}"
        chosen.append(new)
    return " ".join(changed).split(), {"at": at, "words": chosen}  # a synonym may have several words


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


AUXILIARIES = listed("""
    am is are was were do does did have has had can could may might must shall should will would ought
""")
NAMES_TOO = listed("may will")  # with a capital usually names (May, Will), except in a question
ASKED = listed("i you he she it we they this that these those there the a an my your his her our their")
CONTRACTED = ("'m", "'re", "'ll", "'ve", "'d")
WITH_IS = listed("""
    he's she's it's that's this's there's here's what's who's where's how's let's
""")  # after other words, 's is often a genitive
WITH_NOT = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
CUT = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}  # from "ca n't", the spelling of treebanks

# These words are capitalised only at the beginning of a sentence.
SMALL = listed("""
    a an the this that these those some any all each every no another both many most several few
    he she it we you they my your his her its our their there here one two three
    in on at by for from of to with after before during since until when while as if because
    although though and but or so then now
""")
NT = "n't"


def negate(words: Sequence[str], draw: Draw) -> Changed:
    """Remove a "not"; else insert one after an auxiliary; else put "Not" before the sentence.

    These are the rules of SNCSE (arXiv:2201.05979) by word lists, without a parser: "like" never becomes
    "does not like", and "has" and "did" always count as auxiliaries.
    """
    changed = without_not(words) or with_not(words)
    if changed is None and words:
        before, core, after = bare(words[0])
        first = core.lower() if core.lower() in SMALL else core
        changed = ["Not", f"{before}{first}{after}", *words[1:]], {"rule": "prefix"}
    return changed or (words, {"rule": "none"})


def without_not(words: Sequence[str]) -> Changed | None:
    text = plain(" ".join(words))
    if "not" not in text and NT not in text:  # every word below contains one of them
        return None
    for place, word in enumerate(words):
        before, core, after = bare(word)
        small = plain(core)
        note = {"rule": "drop", "at": place}
        if small in ("not", NT) and len(words) > 1:
            return without_word(words, place), note
        stem, contracted, more = small.rpartition(NT)
        if small in WITH_NOT or (contracted and stem and more in ("", "'ve")):
            positive = written_like(core, WITH_NOT.get(small, WITH_NOT.get(stem + NT, stem) + more))
            return [*words[:place], f"{before}{positive}{after}", *words[place + 1 :]], note
    return None


def without_word(words: Sequence[str], place: int) -> list[str]:
    """Remove one word; its punctuation and its capital move to its neighbours."""
    before, core, after = bare(words[place])
    if before and after:  # the word has brackets or quotes around it
        before = after = ""
    left, right = list(words[:place]), list(words[place + 1 :])
    if left and plain(core) == NT:
        left[-1] = written_like(left[-1], CUT.get(left[-1].lower(), left[-1]))
    if left:
        left[-1] += after
    if right:
        right[0] = before + (capitalised(right[0]) if core[:1].isupper() and not core.isupper() else right[0])
    return left + right


def with_not(words: Sequence[str]) -> Changed | None:
    for place, word in enumerate(words):
        before, core, after = bare(word)
        small = plain(core)
        if small in AUXILIARIES:
            asks = len(words) > 1 and plain(words[1]) in ASKED  # a pronoun or determiner after the first word
            as_first = place == 0 and (asks or small not in NAMES_TOO)
            found = core == small or core.isupper() or as_first
        else:
            found = small in WITH_IS or plain(before + core).endswith(CONTRACTED)
        if found:
            new = "NOT" if len(core) > 1 and core.isupper() else "not"
            changed = [*words[:place], before + core, f"{new}{after}", *words[place + 1 :]]
            return changed, {"rule": "insert", "at": place + 1}
    return None
