"""Lists of tokens: those that readouts leave out, and words that are a single token. No torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path

from sentkit.errors import UsageError
from sentkit.formats.rows.kinds import wrong_field
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.model.encoding import TextRow, groups
from sentkit.model.text.tokenizer import Tokenizer


def read_left_out(path: str | None, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return the ids of the tokens in the file of --leave-out, in ascending order; none without the flag.

    The file has one token per line, or rows with "token", as the figure `words` of ConSERT writes them.
    """
    if path is None:
        return ()
    if path == "-":
        raise UsageError("--leave-out needs a file; standard input has the rows")
    if path.isdecimal() and not Path(path).exists():
        listing = f"python -m sentkit.papers.consert.figures words TEXTS | head -{path}"
        advice = f"{listing} lists the {path} most frequent ones"
        raise UsageError(f"--leave-out {path}: expected a file of tokens", advice=advice)

    def token_id(row: Row) -> int:
        name = "token" if "token" in row.values else "text"
        token = row.values.get(name)
        if not isinstance(token, str):
            raise wrong_field(row, "token", "a string")
        number = token_to_id(token)
        if number is None:
            raise row.error(f'"{token}" is not a token of the model')
        return number

    return tuple(sorted(set(Inputs([path]).read(token_id))))


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
