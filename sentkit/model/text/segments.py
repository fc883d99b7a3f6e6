"""Tokenizes a sentence, or a pair as one sequence of two segments, as transformers does."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.text.tokenizer import Tokenizer, library_errors
from sentkit.model.text.tokens import Tokens

if TYPE_CHECKING:
    from tokenizers import Encoding


class SegmentTokenizer:
    """Returns two columns for pairs: `[CLS] a [SEP]` and `b [SEP]`. No prompt is added."""

    def __init__(self, checkpoint: Checkpoint, max_length: int) -> None:
        self.plain = Tokenizer(checkpoint, max_length=max_length)

    @cached_property
    def second_type(self) -> int:
        """The type of the tokens of the second segment: 1, or 0 if the tokenizer has one type."""
        with library_errors(self.plain.source):
            return max(self.plain.backend.encode("a", "a").type_ids)

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> list[list[Tokens]]:
        """Return the tokens of each column; `texts` has one or two texts for each row."""
        columns = list(zip(*texts, strict=True))
        if len(columns) == 1:
            return [self.plain(columns[0])]
        with library_errors(self.plain.source):
            encodings = self.plain.backend.encode_batch(list(zip(*columns, strict=True)))
        return [list(column) for column in zip(*map(self.segments, encodings), strict=True)]

    def segments(self, encoding: "Encoding") -> tuple[Tokens, Tokens]:
        """Truncate both texts to the maximum length and split the sequence before the second text.

        The texts lose their last tokens, or their first tokens if the tokenizer truncates at the start.
        """
        owners = encoding.sequence_ids  # 0 or 1; None for special tokens
        counts = owners.count(0), owners.count(1)
        special = len(owners) - sum(counts)
        if special + 2 > self.plain.max_length:
            raise UsageError(
                f"a maximum length of {self.plain.max_length} tokens leaves no room for two texts"
            )
        kept = longest_first(*counts, self.plain.max_length - special)
        lost = [count - keep for count, keep in zip(counts, kept, strict=True)]
        starts = lost if self.plain.truncates_start else [0, 0]
        second = owners.index(1) if counts[1] else len(owners) - 1
        parts: tuple[list[int], list[int]] = [], []
        used = [0, 0]
        for place, (number, owner) in enumerate(zip(encoding.ids, owners, strict=True)):
            if owner is not None:
                used[owner] += 1
                if not starts[owner] < used[owner] <= starts[owner] + kept[owner]:
                    continue
            parts[place >= second].append(number)
        return Tokens(parts[0], second), Tokens(parts[1], len(owners) - second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the numbers of tokens to keep of two texts: the longer text is truncated first."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)
