"""Converts texts to word indexes, with a fixed vocabulary from a file or a vocabulary from the texts."""

import hashlib
import re
import string
from collections.abc import Iterable, Mapping, Sequence

from sentkit.errors import UsageError
from sentkit.model.text.tokenizer import Tokens

# Punctuation and symbols: ASCII, Latin-1, Arabic, Indic, East Asian, typographic and full-width characters.
# Accents are not included, even as separate characters.
MARKS = re.escape(string.punctuation) + (
    r"\u00a1-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7"
    r"\u060c\u061b\u061f\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e"
    r"\u3001-\u3003\u3008-\u3011\u301c\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
WORD, MARK = re.compile(rf"[^\s{MARKS}]+|[{MARKS}]+"), re.compile(f"[{MARKS}]")
UNKNOWN = -1
MOST_WORDS = 32_768  # limit for words:binary: 128 KB for each vector


def words_of(text: str) -> list[str]:
    """Split into words and runs of marks: `"Well," he said...` gives `"`, Well, `,"`, he, said, `...`"""
    return WORD.findall(text)


def without_unknown(ids: list[int], most: int | None, unknown: int) -> Tokens:
    """Truncate, then remove unknown words: unknown words count towards the limit."""
    within = ids if most is None else ids[:most]
    known = [number for number in within if number != unknown] if unknown in within else within
    return Tokens(known, len(ids), unknown=len(within) - len(known))


class Lookup:
    """Looks up the words of a text in a table, as written and then in lower case.

    Strings between spaces are looked up first, because `U.S.` and `:-)` are words of some tables. If a string
    is missing, its words and marks are looked up. Missing marks do not count as unknown words.
    """

    unit, whole = "words", False

    def __init__(self, places: Mapping[str, int], *, max_length: int | None, prompt: str) -> None:
        self.places, self.max_length, self.prompt = places, max_length, prompt

    @property
    def hash(self) -> str:
        return words_hash(self.places)

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        found = (self._ids((self.prompt + text).split()) for text in texts)
        return [without_unknown(ids, self.max_length, UNKNOWN) for ids in found]

    def _ids(self, pieces: Iterable[str]) -> list[int]:
        found: list[int] = []
        for piece in pieces:
            place = self._place(piece)
            if place is not None:
                found.append(place)
                continue
            for word in words_of(piece):
                place = self._place(word)
                if place is not None:
                    found.append(place)
                elif not MARK.match(word):
                    found.append(UNKNOWN)
        return found

    def _place(self, word: str) -> int | None:
        place = self.places.get(word)
        return self.places.get(word.lower()) if place is None else place


class Gathering:
    """Converts each text to its set of lower-case words. The vocabulary grows with each text."""

    unit, whole = "words", True

    def __init__(self, *, max_length: int | None, prompt: str) -> None:
        self.places: dict[str, int] = {}
        self.max_length, self.prompt = max_length, prompt

    @property
    def hash(self) -> str:
        return words_hash(sorted(self.places))

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._one((self.prompt + text).lower()) for text in texts]

    def _one(self, text: str) -> Tokens:
        words = list(dict.fromkeys(words_of(text)))
        ids = [self.places.setdefault(word, len(self.places)) for word in words[: self.max_length]]
        if len(self.places) > MOST_WORDS:
            problem = f"words:binary is for up to {MOST_WORDS:,} different words, and the rows have more"
            kilobytes = MOST_WORDS * 4 // 1024
            raise UsageError(problem, advice=f"each text would get a vector of over {kilobytes} KB")
        return Tokens(ids, len(words))


def words_hash(words: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()
