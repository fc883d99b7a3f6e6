"""Which texts are probably in a language that the tokenizer does not know.

Such a tokenizer divides most words into short tokens, or it has no tokens for their script. Names
and technical terms are divided too, but fewer words of a text are, and into longer tokens. The
limits come from texts in 23 languages and 15 sets in English (man sentkit-encode).
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.model.forks import without_fork
from sentkit.model.text.tokens import Ints, indices_of_ranges

PROBABLE = 1  # the words are divided into many tokens
CERTAIN = 2  # nearly each token is a letter, or many are unknown

MIN_WORDS = 4  # of a text that is judged
MAX_MARKS = 0.5  # numbers, marks and symbols for each word; URLs and code have more
LETTERS_OF_WHOLE = 1.75  # letters of a token, if no word of a text is divided ...
LETTERS_OF_DIVIDED = 2.0  # ... and how many more if all are
LETTERS_OF_SPELLED = 1.5  # a text with fewer letters in a token is spelled letter by letter
UNKNOWN_SHARE = 0.25  # of the words
# Characters for each token, blanks included. No text with more is PROBABLE, except a few with many
# blanks or marks; this is known without a look at the tokens.
MAX_CHARACTERS = 3.5
BYTES_OF_CHARACTER = 3  # of an emoji or of an East Asian character
# Letters that a syllable or an ideogram counts: they are as long as a short token of letters.
SYLLABLE = 2

# Kinds of tokens
UNSEEN = -1
MARK = 0
START = 1  # begins a word
INSIDE = 2  # continues the word of the token before it, if there is one
UNKNOWN = 3
BYTES = 4  # of a character that the vocabulary does not have
SPECIAL = 5  # of the model, such as [CLS]

ALPHABETS_END = 0x2E80  # East Asian scripts begin here
SYLLABLES = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))  # Thai, Lao, Burmese, Khmer
NO_CHARACTER = "\ufffd"


class LanguageCheck:
    """Judges texts by their tokens. It looks at each token of the vocabulary once."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        unknown_id: int | None,
        token_of: Callable[[int], str | None],
    ) -> None:
        """`rules`: the content of tokenizer.json; `token_of`: the token with an id."""
        self.kind_of = kinds_of_tokens(rules)
        self.unknown_id = unknown_id
        self.lock = Lock()
        self.token_of = token_of
        self.kinds = np.empty(0, np.int8)  # of each id, or UNSEEN
        self.letters = np.empty(0, np.int16)  # of each id

    def __call__(
        self,
        texts: Sequence[str],
        ids: NDArray[np.int32],
        lengths: Ints,
        counts: Ints,
        tokens_before: int = 0,
    ) -> Ints | None:
        """(n,): PROBABLE, CERTAIN or 0 for each text; None if all are 0.

        ids: of all texts, perhaps truncated; lengths (n,): of each text; counts (n,): before
        truncation; tokens_before: of each text, in front of it.
        """
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        is_candidate = (characters < MAX_CHARACTERS * counts) & (counts >= MIN_WORDS)
        if self.unknown_id is not None and len(ids):
            positions = np.flatnonzero(ids == self.unknown_id)
            is_candidate[np.searchsorted(np.cumsum(lengths), positions, side="right")] = True
        candidates = np.flatnonzero(is_candidate & (lengths > tokens_before))
        if not len(candidates):
            return None
        starts = (np.cumsum(lengths) - lengths + tokens_before)[candidates]
        lengths_of_candidates = lengths[candidates] - tokens_before
        ids_of_candidates = ids[indices_of_ranges(starts, lengths_of_candidates)]
        languages = np.zeros(len(texts), np.int64)
        languages[candidates] = self._judge(ids_of_candidates, lengths_of_candidates)
        return languages if languages.any() else None

    def _judge(self, ids: NDArray[np.int32], lengths: Ints) -> Ints:
        """(n,) for texts with tokens."""
        with without_fork(), self.lock:
            self._learn(ids)
        kinds = self.kinds[ids]

        # A token continues a word if it is marked so, and after a token with letters of its text.
        firsts = np.cumsum(lengths) - lengths
        has_letters = (kinds == START) | (kinds == INSIDE)
        is_after_letters = np.append(False, has_letters[:-1])
        is_after_letters[firsts] = False
        continues = is_after_letters & (kinds == INSIDE)
        begins = has_letters & ~continues
        is_divided = begins & np.append(continues[1:], False)

        # Numbers of each text, (n,).
        def sums(values: NDArray[Any]) -> Ints:
            return np.add.reduceat(values, firsts, dtype=np.int64)

        tokens = np.maximum(sums(has_letters), 1)
        words = sums(begins)
        divided_share = sums(is_divided) / np.maximum(words, 1)
        letters = sums(self.letters[ids]) / tokens
        marks = sums(kinds == MARK)
        unknown = sums(kinds == UNKNOWN) + sums(kinds == BYTES) // BYTES_OF_CHARACTER

        is_text = (words >= MIN_WORDS) & (marks <= MAX_MARKS * words)
        limit = LETTERS_OF_WHOLE + LETTERS_OF_DIVIDED * divided_share
        is_probable = is_text & (letters < limit)
        is_spelled = is_probable & (letters < LETTERS_OF_SPELLED)
        all_words = words + unknown
        has_unknown = (all_words >= MIN_WORDS) & (unknown >= UNKNOWN_SHARE * all_words)
        return np.where(is_spelled | has_unknown, CERTAIN, is_probable.astype(np.int64))

    def _learn(self, ids: NDArray[np.int32]) -> None:
        """Add the tokens that earlier texts did not have."""
        size = int(ids.max()) + 1
        if size > len(self.kinds):
            new_kinds = np.full(size - len(self.kinds), UNSEEN, np.int8)
            self.kinds = np.append(self.kinds, new_kinds)
            self.letters = np.append(self.letters, np.zeros(len(new_kinds), np.int16))
        new_ids = np.unique(ids[self.kinds[ids] == UNSEEN])
        if not len(new_ids):
            return
        tokens = [self.token_of(number) or "" for number in new_ids.tolist()]
        kinds, letters = zip(*map(self.kind_of, tokens), strict=True)
        self.letters[new_ids] = letters
        self.kinds[new_ids] = kinds
        if self.unknown_id is not None:
            self.kinds[new_ids[new_ids == self.unknown_id]] = UNKNOWN


def kinds_of_tokens(rules: Mapping[str, Any]) -> Callable[[str], tuple[int, int]]:
    """Return the function from a token to its kind and its number of letters."""
    model = rules["model"]
    special = {
        token["content"] for token in rules.get("added_tokens") or () if token.get("special")
    }
    is_word_piece = model.get("type") == "WordPiece"
    prefix = str(model.get("continuing_subword_prefix") or "##")
    byte_of_character = bytes_of_characters() if has_byte_level(rules) else None

    def kind_of(token: str) -> tuple[int, int]:
        if token in special:
            return SPECIAL, 0
        # How the vocabulary marks a token that begins a word, or one that continues it.
        if is_word_piece:  # "word", "##piece"
            begins_word = not token.startswith(prefix)
            text = token.removeprefix(prefix)
        elif byte_of_character is not None:  # " word", "piece", in the characters of GPT-2
            content = bytes(byte_of_character.get(character, 0) for character in token)
            begins_word = content.startswith(b" ")
            text = content.decode(errors="replace").strip()
        else:  # "\u2581word", "piece", of SentencePiece, with bytes such as "<0x0A>"
            begins_word = token.startswith("\u2581")
            text = token.strip("\u2581")
            if text.startswith("<0x"):
                text = NO_CHARACTER
        if NO_CHARACTER in text:
            return BYTES, 0
        letters = letters_of(text)
        if not letters:
            return MARK, 0
        return (START if begins_word else INSIDE), letters

    return kind_of


def letters_of(text: str) -> int:
    """The letters of a token, or 0 if it has another character."""
    if text.isascii():
        return len(text) if text.isalpha() else 0
    letters = 0
    for character in text:
        category = unicodedata.category(character)[0]
        if category == "M":  # an accent or a vowel sign
            continue
        if category != "L":
            return 0
        code = ord(character)
        is_syllable = code >= ALPHABETS_END or any(
            first <= code <= last for first, last in SYLLABLES
        )
        letters += SYLLABLE if is_syllable else 1
    return letters


def has_byte_level(rules: Mapping[str, Any]) -> bool:
    """Whether the tokens consist of characters for bytes, as in GPT-2."""
    step = rules.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    return any(inner.get("type") == "ByteLevel" for inner in steps)


def bytes_of_characters() -> dict[str, int]:
    """The byte of each character that GPT-2 writes for it: printable ones are unchanged."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    characters |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return characters
