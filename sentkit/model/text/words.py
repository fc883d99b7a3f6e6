"""The token ids of texts from those of their words, for tokenizers that read each word by itself."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.model.text.tokens import Ints, flat, places_of_parts

MOST_CHARACTERS = 1 << 20  # of the words that are kept: about 120,000 words in 20 MB
TEXTS_AT_ONCE = 1024
PARTS = re.compile(
    r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+"
)  # of a word: a mark of ASCII, or what is between marks


class WordIds:
    """Returns the ids of texts. The library tokenizes a word once, as long as it is kept."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], rules: Mapping[str, Any]) -> None:
        """`encode` returns the ids of each text, without special tokens."""
        self.encode, self.lock = encode, Lock()
        added = [re.escape(token["content"]) for token in rules.get("added_tokens") or ()]
        self.whole = re.compile("|".join(added) or r"\Z.")
        self.forget()

    def forget(self) -> None:
        self.numbers: dict[str, int] = {}  # of the words
        self.ids, self.lengths, self.characters = np.empty(0, np.int32), np.empty(0, np.int64), 0

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of all texts in one array, and their numbers (n,)."""
        parts = [flat([])]
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            words = [text.split(" ") for text in texts[start : start + TEXTS_AT_ONCE]]
            with self.lock:
                if self.characters > MOST_CHARACTERS:
                    self.forget()
                self._learn({*chain.from_iterable(words)}.difference(self.numbers))
                parts.append(self._joined(words))
        ids, counts = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(counts)

    def _learn(self, words: Iterable[str]) -> None:
        """Add words: with marks as their parts, unless they have tokens that are found before the parts."""
        parts = {each: [each] if self.whole.search(each) else PARTS.findall(each) or [each] for each in words}
        new = [*{*chain.from_iterable(parts.values())}.difference(self.numbers)]
        self._add(new, *flat(self.encode(new)))
        others = [each for each in parts if each not in self.numbers]
        self._add(others, *self._joined([parts[each] for each in others]))

    def _add(self, words: Sequence[str], ids: NDArray[np.int32], lengths: Ints) -> None:
        self.numbers |= zip(words, range(len(self.numbers), len(self.numbers) + len(words)), strict=True)
        self.ids, self.lengths = np.append(self.ids, ids), np.append(self.lengths, lengths)
        self.characters += sum(map(len, words))

    def _joined(self, lists: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of lists of known words, and their numbers."""
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        words = chain.from_iterable(lists)
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, int(counts.sum()))
        starts, lengths = (np.cumsum(self.lengths) - self.lengths)[numbers], self.lengths[numbers]
        ends = np.cumsum(counts)
        totals = np.append(0, np.cumsum(lengths))
        return self.ids[places_of_parts(starts, lengths)], totals[ends] - totals[ends - counts]


def reads_words_alone(rules: Mapping[str, Any]) -> bool:
    """Whether the ids of a text are surely those of its words between spaces, one after the other.

    Added tokens must be found as they are written, and not in the normalized text.
    """
    kinds = [(rules.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds[0] in (None, "BertNormalizer") and kinds[1:] == ["BertPreTokenizer", "WordPiece"]
    added = rules.get("added_tokens") or ()
    return bert and not any(" " in token["content"] or token.get("normalized", True) for token in added)
