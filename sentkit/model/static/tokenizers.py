"""Converts texts to row indexes: of words in a file, of words in the texts, or of word pieces."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from string import punctuation
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import read_object
from sentkit.model.text.languages import LanguageCheck
from sentkit.model.text.rules import backend_of, library_errors, rules_hash, unknown_ids, word_ids
from sentkit.model.text.tokens import (
    UNKNOWN,
    Ints,
    LocatedTokens,
    LongTextTokenizer,
    Range,
    TextTokenizer,
    TokenBlock,
    Tokens,
    characters_of_tokens,
    concatenated_ids,
)

# Punctuation and symbols: ASCII, Latin-1, Arabic, Indic, East Asian, typographic and full-width
# characters. Accents are not included, even as separate characters.
MARKS = re.escape(punctuation) + (
    r"\u00a1-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7"
    r"\u060c\u061b\u061f\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e"
    r"\u3001-\u3003\u3008-\u3011\u301c\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
STRING = re.compile(r"\S+")
WORD = re.compile(rf"[^\s{MARKS}]+|[{MARKS}]+")
MARK = re.compile(f"[{MARKS}]")
NO_TOKENS = "the text has no known tokens"
MAX_WORDS = 32_768  # limit for words:binary: 128 KB for each vector
TEXTS_PER_CALL = 512  # texts: the encodings fit the caches of the CPU


def words_of(text: str) -> list[str]:
    """Split into words and runs of marks: `"Well," he said...` gives `"`, Well, `,"`, he, said,
    `...`
    """
    return WORD.findall(text)


def known_tokens(
    ids: NDArray[np.int32], counts: Ints, max_length: int | None, unknown: int
) -> TokenBlock:
    """Remove unknown words of flat ids, then truncate: only known words count, as in model2vec."""
    is_known = ids != unknown
    lengths = counts
    unknown_counts = None
    if not is_known.all():
        text_of_id = np.repeat(np.arange(len(counts)), counts)
        unknown_counts = np.bincount(text_of_id[~is_known], minlength=len(counts))
        ids = ids[is_known]
        lengths = counts - unknown_counts
    if max_length is not None and len(lengths) and lengths.max() > max_length:
        # in the texts
        positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = ids[positions < max_length]
        lengths = np.minimum(lengths, max_length)
    return TokenBlock(ids, lengths, counts, unknown_count=unknown_counts)


def located(
    ids: list[int], ranges: Sequence[Range], prompt: str, text: str, unknown: int
) -> LocatedTokens:
    """Return the tokens of a prompt and a text; `ranges` are their characters in both."""
    shift = len(prompt)
    first = next((index for index, (_, end) in enumerate(ranges) if end > shift), len(ids))
    ranges_in_text = [(start - shift, end - shift) for start, end in ranges[first:]]
    characters = characters_of_tokens(range(len(text)), ranges_in_text)
    return LocatedTokens(ids, (first, len(ids)), characters, unknown=unknown)


class WordLookup(LongTextTokenizer):
    """Looks up the words of a text in a table, as written and then in lower case.

    Strings between spaces are looked up first, because `U.S.` and `:-)` are words of some tables.
    If a string is missing, its words and marks are looked up. Missing marks do not count as unknown
    words.
    """

    unit = "words"

    def __init__(self, indexes: Mapping[str, int], *, max_length: int | None, prompt: str) -> None:
        self.indexes = indexes
        self.max_length = max_length
        self.prompt = prompt

    @property
    def hash(self) -> str:
        return words_hash(self.indexes)

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        ids, counts = concatenated_ids([self._ids((self.prompt + text).split()) for text in texts])
        return known_tokens(ids, counts, self.max_length, UNKNOWN)

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        return [self._located(text) for text in texts]

    def _located(self, text: str) -> LocatedTokens:
        prompted = self.prompt + text
        ids: list[int] = []
        ranges: list[Range] = []
        for string in STRING.finditer(prompted):
            if self._index(string[0]) is not None:
                words = [string]
            else:
                words = list(WORD.finditer(prompted, *string.span()))
            for word in words:
                ids_of_word = self._ids([word[0]])  # one index, or none for missing marks
                ids += ids_of_word
                ranges += [word.span()] * len(ids_of_word)
        return located(ids, ranges, self.prompt, text, UNKNOWN)

    def _ids(self, strings: Iterable[str]) -> list[int]:
        ids: list[int] = []
        for string in strings:
            index = self._index(string)
            if index is not None:
                ids.append(index)
                continue
            for word in words_of(string):
                index = self._index(word)
                if index is not None:
                    ids.append(index)
                elif not MARK.match(word):
                    ids.append(UNKNOWN)
        return ids

    def _index(self, word: str) -> int | None:
        index = self.indexes.get(word)
        if index is None:
            index = self.indexes.get(word.lower())
        return index


class CollectedWords(TextTokenizer):
    """Converts each text to its set of lower-case words. The vocabulary grows with each text."""

    unit = "words"
    needs_all_texts = True

    def __init__(self, *, max_length: int | None, prompt: str) -> None:
        self.indexes: dict[str, int] = {}
        self.max_length = max_length
        self.prompt = prompt

    @property
    def hash(self) -> str:
        return words_hash(sorted(self.indexes))

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        tokens = []
        for text in texts:
            words = list(dict.fromkeys(words_of((self.prompt + text).lower())))
            ids = [
                self.indexes.setdefault(word, len(self.indexes))
                for word in words[: self.max_length]
            ]
            if len(self.indexes) > MAX_WORDS:
                problem = f"words:binary accepts at most {MAX_WORDS:,} different words"
                problem += ", but the rows have more"
                raise UsageError(problem, advice="use fewer rows or another model")
            tokens.append(Tokens(ids, len(words)))
        return TokenBlock.of(tokens)


class WordPieces(LongTextTokenizer):
    """Tokenizes texts with tokenizer.json.

    model2vec removes unknown tokens before truncation. sentence-transformers (`keep_unknown`) uses
    the vector of the unknown token and takes the length limit from tokenizer.json.
    """

    judges_language = True
    refuses_empty = False  # a text without known tokens is a problem: its vector is always 0

    def __init__(self, folder: Path, *, prompt: str, keep_unknown: bool = False) -> None:
        path = folder / "tokenizer.json"
        self.source = str(path)
        self._rules = read_object(path)
        self.backend = backend_of(self._rules, self.source)

        # The limit of sentence-transformers.
        self.max_length = None
        truncation = self._rules.get("truncation")
        if keep_unknown and isinstance(truncation, dict):
            length = truncation.get("max_length")
            if (
                truncation.get("direction", "Right") != "Right"
                or type(length) is not int
                or length < 1
            ):
                problem = "the tokenizer truncates texts at their start, or to no number of tokens"
                raise DataError(problem, source=self.source)
            self.max_length = length
        self.prompt = prompt
        self.keep_unknown = keep_unknown

        # The rows of the table: one for each token, up to the largest id.
        vocabulary = self.backend.get_vocab()
        if not vocabulary:
            raise DataError("the tokenizer has no tokens", source=self.source)
        self.count = max(vocabulary.values()) + 1
        unknown_id = next(iter(unknown_ids(self._rules["model"], self.backend)), None)
        self.unknown = UNKNOWN
        if not keep_unknown and unknown_id is not None:
            self.unknown = unknown_id
        self.languages = LanguageCheck(self._rules, unknown_id, self.backend.id_to_token)
        self.words = word_ids(self._ids, self._rules)

    @cached_property
    def hash(self) -> str:
        rules = rules_hash(self._rules)
        if self.keep_unknown:
            return f"{rules}+unknown"
        return rules

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        prompted = list(texts)
        if self.prompt:
            prompted = [self.prompt + text for text in texts]
        if self.words is None:
            ids, counts = concatenated_ids(self._ids(prompted))
        else:
            ids, counts = self.words(prompted)
        before = len(self._ids([self.prompt])[0]) if self.prompt else 0
        language = self.languages(prompted, ids, counts, counts, before)
        tokens = known_tokens(ids, counts, self.max_length, self.unknown)
        tokens = replace(tokens, language=language)
        if self.refuses_empty:
            empty_texts = np.flatnonzero(tokens.lengths == 0).tolist()
            tokens = replace(tokens, problems=dict.fromkeys(empty_texts, NO_TOKENS))
        return tokens

    def refusing_empty(self) -> Self:
        """A tokenizer for training."""
        tokenizer = copy(self)
        tokenizer.refuses_empty = True
        return tokenizer

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_PER_CALL):
            texts_of_call = texts[start : start + TEXTS_PER_CALL]
            with library_errors(self.source):
                encodings = self.backend.encode_batch_fast(texts_of_call, add_special_tokens=False)
            ids += [encoding.ids for encoding in encodings]
        return ids

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        prompted = [self.prompt + text for text in texts]
        with library_errors(self.source):
            encodings = self.backend.encode_batch(prompted, add_special_tokens=False)
        return [
            located(encoding.ids, encoding.offsets, self.prompt, text, self.unknown)
            for encoding, text in zip(encodings, texts, strict=True)
        ]


def words_hash(words: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()
