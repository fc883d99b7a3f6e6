"""Words that a tokenizer maps to a single token, and a filter for rows with such words. No torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from sentkit.formats.rows.rows import Row
from sentkit.model.text.stream import TextRow, groups
from sentkit.model.text.tokenizer import Tokenizer


def single_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[int | None]:
    """Return the token id of each word, or None if the word is not exactly one token.

    Words are tokenised without a leading space, because a byte-level BPE has other tokens for words after a
    space. The unknown token and special tokens give None.
    """
    ids_of_words = tokenizer.alone([word.strip() for word in words])
    return [ids[0] if len(ids) == 1 and ids[0] not in tokenizer.wordless else None for ids in ids_of_words]


class OneToken:
    """Keeps the rows with a single-token word and counts the others."""

    def __init__(self, tokenizer: Tokenizer, word_of: Callable[[Row], str]) -> None:
        self.tokenizer, self.word_of = tokenizer, word_of
        self.rows = self.left_out = 0

    def among(self, rows: Iterable[TextRow]) -> Iterator[TextRow]:
        for group in groups(rows):
            tokens = single_tokens(self.tokenizer, [self.word_of(row) for row, _ in group])
            kept = [token is not None for token in tokens]
            self.rows += len(kept)
            self.left_out += kept.count(False)
            yield from compress(group, kept)
