"""Words that are one token of a model: which token each is, and rows of such words. No torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from sentkit.formats.rows.rows import Row
from sentkit.model.text.batching import windows
from sentkit.model.text.stream import TextRow
from sentkit.model.text.tokenizer import Tokenizer


def single_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[int | None]:
    """The number of the token that each word is, taken alone; None for a word of several tokens, or of none.

    A word has no space before it, since a byte-level BPE has other tokens for words behind one. The unknown
    token is no word, and neither are special ones.
    """
    found = tokenizer.alone([word.strip() for word in words])
    return [ids[0] if len(ids) == 1 and ids[0] not in tokenizer.wordless else None for ids in found]


class OneToken:
    """Of rows with a word each, those whose word is one token; the others are counted."""

    def __init__(self, tokenizer: Tokenizer, word_of: Callable[[Row], str]) -> None:
        self.tokenizer, self.word_of = tokenizer, word_of
        self.rows = self.left_out = 0

    def among(self, rows: Iterable[TextRow]) -> Iterator[TextRow]:
        for window in windows(rows):
            tokens = single_tokens(self.tokenizer, [self.word_of(row) for row, _ in window])
            kept = [token is not None for token in tokens]
            self.rows += len(kept)
            self.left_out += kept.count(False)
            yield from compress(window, kept)
