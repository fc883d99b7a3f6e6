"""The code points of a text as its tokens, for a model behind an API; and rows with texts that a
server refuses.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sentkit.errors import UnavailableError
from sentkit.formats.rows.block import RowBlock
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock


class CharacterTokenizer(TextTokenizer):
    """The code points of the prompt and the text."""

    unit = "characters"
    max_length = None

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        encoded = [(self.prompt + text).encode("utf-32-le") for text in texts]
        lengths = np.array([len(raw) // 4 for raw in encoded], np.int64)
        return TokenBlock(np.frombuffer(b"".join(encoded), np.int32), lengths, lengths)


def texts_of(tokens: TokenBlock) -> list[str]:
    """The texts whose code points are the tokens."""
    ids = tokens.ids.astype("<i4", copy=False)
    texts = []
    start = 0
    for end in np.cumsum(tokens.lengths).tolist():
        texts.append(ids[start:end].tobytes().decode("utf-32-le"))
        start = end
    return texts


class BatchError(UnavailableError):
    """A server does not give the vectors of a batch; `text` is one of its texts."""

    def __init__(self, problem: str, text: str, *, advice: str | None = None) -> None:
        super().__init__(problem, advice=advice)
        self.text = text

    def in_row(self, rows: RowBlock, index: Ints, tokens: TokenBlock) -> UnavailableError:
        """The error with file and line of the row that has the text. `index` (n, k) has the numbers
        of the texts of each row in `tokens`.
        """
        texts = texts_of(tokens)
        for row, numbers in zip(rows, index.tolist(), strict=True):
            if any(texts[number] == self.text for number in numbers):
                return UnavailableError(f"{row.source}:{row.number}: {self}", advice=self.advice)
        return self


def refuse_texts(
    refusals: Mapping[str, str], rows: RowBlock, index: Ints, tokens: TokenBlock
) -> None:
    """Mark the rows with texts that a server refuses. `refusals` has the reason for each text,
    `index` (n, k) the numbers of the texts of each row in `tokens`.
    """
    texts = texts_of(tokens)
    for row, numbers in enumerate(index.tolist()):
        for number in numbers:
            reason = refusals.get(texts[number])
            if reason is not None:
                rows.refuse(row, reason)
