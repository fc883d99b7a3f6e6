"""The operations on words: delete, move, repeat, replace (CLEAR, arXiv:2012.15466), change case,
negate.

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
    """Endless numbers of 32 bits: from the digest of the key, the digest of that digest,
    and so on.
    """
    digest = blake2b(key).digest()
    while True:
        yield from NUMBERS.unpack(digest)
        digest = blake2b(digest).digest()


class Draw:
    """Random choices by integers only: equal keys give equal draws on every machine and Python
    version.
    """

    __slots__ = ("_next",)

    def __init__(self, key: bytes) -> None:
        self._next = numbers(key).__next__

    def below(self, n: int) -> int:
        return self._next() * n >> 32

    def shuffled(self, n: int) -> list[int]:
        """The numbers 0 .. n - 1 in random order."""
        return self._drawn_and_remaining(n, n)[0]

    def sorted(self, n: int, k: int) -> list[int]:
        """Draw k different numbers of 0 .. n - 1 in ascending order; if 2 k > n, draw the excluded
        ones.
        """
        if 2 * k > n:
            return sorted(self._drawn_and_remaining(n, n - k)[1])
        return sorted(self._drawn_and_remaining(n, k)[0])

    def _drawn_and_remaining(self, n: int, k: int) -> tuple[list[int], list[int]]:
        """The numbers drawn by k steps of a Fisher-Yates shuffle, and the remaining ones."""
        numbers = list(range(n))
        drawn = []
        for count in range(n, n - k, -1):
            index = self.below(count)
            drawn.append(numbers[index])
            numbers[index] = numbers[count - 1]
        return drawn, numbers[: n - k]

    def spans(self, n: int, k: int, length: int) -> list[int]:
        """The starts of k disjoint spans of n words, all equally likely: drawn in a shorter row."""
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
        if count == 0 and self.share and n > 1:
            return 1
        return count

    def fit(self, n: int, room: int, *, spans_together: int = 1) -> tuple[int, int]:
        """The number and the length of the groups of spans that fit in `room` words."""
        length = min(self.of(n), room // spans_together)
        if length == 0:
            return 0, 0
        count = min(self.spans or 0, room // (spans_together * length))
        return count, length

    @property
    def note(self) -> Note:
        rate = float(self.share)
        if self.spans is None:
            return {"rate": rate}
        return {"count": self.spans, "rate": rate}


def parse_share(text: str) -> Amount:
    """Parse "0.3" as 3/10; raise ValueError unless the text is a number from 0 to 1."""
    if SHARE.fullmatch(text):
        share = Fraction(text)
        if share <= 1:
            return Amount(share)
    raise ValueError("expected a share from 0 to 1")


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
    """Split `("don't),` into the punctuation before the word, the word, and the punctuation after
    it.
    """
    if word.isalnum():
        return "", word, ""
    start = 0
    end = len(word)
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


def written_like(example: str, word: str) -> str:
    """The word with capitals where the example has them: in all letters, or in the first one."""
    if len(example) > 1 and example.isupper():
        return word.upper()
    if example[:1].isupper():
        return capitalised(word)
    return word


def no_punctuation(words: Sequence[str], draw: Draw) -> Changed:
    """Remove the punctuation around each word; a text of punctuation only is unchanged."""
    cores = [core for _, core, _ in map(bare, words) if core]
    return cores or words, {}


def lower(words: Sequence[str], draw: Draw) -> Changed:
    return [word.lower() for word in words], {}


def delete(words: Sequence[str], draw: Draw, amount: Amount, mark: str | None = None) -> Changed:
    """Delete this share of the words; replace each run of deleted words by one mark."""
    most_deleted = max(len(words) - 1, 0)  # one word stays
    count = min(amount.of(len(words)), most_deleted)
    indices = draw.sorted(len(words), count)
    deleted = set(indices)
    starts_of_runs = {index for index in indices if index - 1 not in deleted}
    return without(words, deleted, starts_of_runs, mark), {"at": indices}


def span_delete(
    words: Sequence[str], draw: Draw, amount: Amount, mark: str | None = None
) -> Changed:
    """Delete disjoint spans, as many as leave at least one word; replace each by one mark."""
    count, length = amount.fit(len(words), max(len(words) - 1, 0))
    starts = draw.spans(len(words), count, length)
    deleted = {start + offset for start in starts for offset in range(length)}
    return without(words, deleted, set(starts), mark), {"length": length, "at": starts}


def without(
    words: Sequence[str], deleted: set[int], marked: set[int], mark: str | None
) -> list[str]:
    """The words without those at the indices `deleted`, with the mark, if any, at those of
    `marked`.
    """
    remaining = []
    for index, word in enumerate(words):
        if index not in deleted:
            remaining.append(word)
        elif mark is not None and index in marked:
            remaining.append(mark)
    return remaining


def reorder(words: Sequence[str], draw: Draw, amount: Amount) -> Changed:
    """Swap pairs of disjoint spans; the order within a span is kept."""
    pairs, length = amount.fit(len(words), len(words), spans_together=2)
    starts = draw.spans(len(words), 2 * pairs, length)
    order = draw.shuffled(2 * pairs)
    swaps = [sorted((starts[i], starts[j])) for i, j in zip(order[::2], order[1::2], strict=True)]
    moved = list(words)
    for a, b in swaps:
        moved[a : a + length] = words[b : b + length]
        moved[b : b + length] = words[a : a + length]
    return moved, {"length": length, "at": swaps}


def swap(words: Sequence[str], draw: Draw, amount: Amount | None = None) -> Changed:
    """Swap neighbours: once, or for this share of the words as far as disjoint pairs fit."""
    count = 1
    if amount is not None:
        count = amount.of(len(words))
    starts = draw.spans(len(words), min(count, len(words) // 2), 2)
    moved = list(words)
    for i in starts:
        moved[i], moved[i + 1] = words[i + 1], words[i]
    return moved, {"at": starts}


def repeat(words: Sequence[str], draw: Draw, amount: Amount) -> Changed:
    """Duplicate this share of the words, each next to itself."""
    indices = draw.sorted(len(words), amount.of(len(words)))
    doubled = set(indices)
    longer = []
    for index, word in enumerate(words):
        longer.append(word)
        if index in doubled:
            longer.append(word)
    return longer, {"at": indices}


Synonyms = Mapping[str, Sequence[str]]  # keys: words in lower case, with plain apostrophes


def synonym(words: Sequence[str], draw: Draw, amount: Amount, synonyms: Synonyms) -> Changed:
    """Replace this share of the words, or all that have a synonym if there are fewer."""
    # A word that contains punctuation, such as U.S., is looked up whole first.
    split_words = [("", word, "") if plain(word) in synonyms else bare(word) for word in words]
    replaceable = [
        index for index, (_, core, _) in enumerate(split_words) if plain(core) in synonyms
    ]
    count = min(amount.of(len(words)), len(replaceable))
    indices = [replaceable[i] for i in draw.sorted(len(replaceable), count)]

    changed = list(words)
    replacements = []
    for index in indices:
        before, core, after = split_words[index]
        choices = synonyms[plain(core)]
        example_of_capitals = core
        # A word such as U.S. is in capitals, but its synonyms are not.
        if not plain(core).replace("'", "").isalpha():
            example_of_capitals = core[:1]
        replacement = written_like(example_of_capitals, choices[draw.below(len(choices))])
        changed[index] = f"{before}{replacement}{after}"
        replacements.append(replacement)
    # A synonym may have several words.
    return " ".join(changed).split(), {"at": indices, "words": replacements}


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


AUXILIARIES = listed("""
    am is are was were do does did have has had can could may might must shall should will would
    ought
""")
NAMES_TOO = listed("may will")  # with a capital usually names (May, Will), except in a question
ASKED = listed(
    "i you he she it we they this that these those there the a an my your his her our their"
)
CONTRACTED = ("'m", "'re", "'ll", "'ve", "'d")
WITH_IS = listed("""
    he's she's it's that's this's there's here's what's who's where's how's let's
""")  # after other words, 's is often a genitive
WITH_NOT = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
# from "ca n't", the spelling of treebanks
CUT = {
    "ca": "can",
    "wo": "will",
    "sha": "shall",
    "ai": "is",
}

# These words are capitalised only at the beginning of a sentence.
SMALL = listed("""
    a an the this that these those some any all each every no another both many most several few
    he she it we you they my your his her its our their there here one two three
    in on at by for from of to with after before during since until when while as if because
    although though and but or so then now not
""")
NT = "n't"


def negate(words: Sequence[str], draw: Draw) -> Changed:
    """Remove a "not"; else insert one after an auxiliary; else put "Not" before the sentence.

    These are the rules of SNCSE (arXiv:2201.05979) by word lists, without a parser: "like" never
    becomes "does not like", and "has" and "did" always count as auxiliaries.
    """
    changed = without_not(words) or with_not(words)
    if changed is None and words:
        before, core, after = bare(words[0])
        if core.lower() in SMALL:
            core = core.lower()
        changed = ["Not", f"{before}{core}{after}", *words[1:]], {"rule": "prefix"}
    return changed or (words, {"rule": "none"})


def without_not(words: Sequence[str]) -> Changed | None:
    """The words with their first negation undone: without a "not", or with the positive form of a
    contraction such as "can't"; None if there is none.
    """
    text = plain(" ".join(words))
    if "not" not in text and NT not in text:  # every word below contains one of them
        return None
    for index, word in enumerate(words):
        before, core, after = bare(word)
        lowered = plain(core)
        note = {"rule": "drop", "at": index}
        if lowered in ("not", NT) and len(words) > 1:
            return without_word(words, index), note
        stem, contracted, more = lowered.rpartition(NT)  # "wouldn't've": "would", "n't", "'ve"
        is_contraction = stem and contracted and more in ("", "'ve")
        if lowered in WITH_NOT or is_contraction:
            positive = WITH_NOT.get(lowered)
            if positive is None:
                positive = WITH_NOT.get(stem + NT, stem) + more
            positive = written_like(core, positive)
            return [*words[:index], f"{before}{positive}{after}", *words[index + 1 :]], note
    return None


def without_word(words: Sequence[str], index: int) -> list[str]:
    """Remove one word; its punctuation and its capital move to its neighbours."""
    before, core, after = bare(words[index])
    if before and after:  # the word has brackets or quotes around it
        before = ""
        after = ""
    words_before = list(words[:index])
    words_after = list(words[index + 1 :])
    if words_before:
        previous = words_before[-1]
        if plain(core) == NT:
            previous = written_like(previous, CUT.get(previous.lower(), previous))
        words_before[-1] = previous + after
    if words_after:
        following = words_after[0]
        if core[:1].isupper() and not core.isupper():
            following = capitalised(following)
        words_after[0] = before + following
    return words_before + words_after


def with_not(words: Sequence[str]) -> Changed | None:
    """The words with a "not" after the first auxiliary; None if there is none."""
    for index, word in enumerate(words):
        before, core, after = bare(word)
        lowered = plain(core)
        if lowered in AUXILIARIES:
            # A question has a pronoun or a determiner after the first word.
            is_question = len(words) > 1 and plain(words[1]) in ASKED
            begins_sentence = index == 0 and (is_question or lowered not in NAMES_TOO)
            is_auxiliary = core == lowered or core.isupper() or begins_sentence
        else:
            is_auxiliary = lowered in WITH_IS or plain(before + core).endswith(CONTRACTED)
        if is_auxiliary:
            negation = "not"
            if len(core) > 1 and core.isupper():
                negation = "NOT"
            changed = [*words[:index], before + core, f"{negation}{after}", *words[index + 1 :]]
            return changed, {"rule": "insert", "at": index + 1}
    return None
