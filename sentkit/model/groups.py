"""Rows -> groups of rows with the tokens of their distinct texts, and the counts of these groups.

Blocks of rows are joined to groups. The texts of a group are tokenized, each distinct text once.
The first groups are small, so that output starts early; later groups are large, so that they batch
efficiently. Groups depend only on the texts, not on the reads of a pipe, time or threads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.model.text.languages import CERTAIN
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock, tokenized

Arrays = list[NDArray[np.float32]]  # one for each readout

FIRST_GROUP = 32  # rows
LAST_GROUP = 8192
# After a smaller group, the next one has four times its rows; after others, twice. The tokenizer
# needs more time for four times the rows of a large group than 64 threads for the group itself.
LARGE_GROUP = 512
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long
# Of the rows: the largest share of false alarms in 15 sets of English texts is 3.3 %, and 0.05 % of
# certain ones.
NOTABLE_LANGUAGE = 0.05
NOTABLE_CERTAIN = 0.01
FEWEST_LANGUAGE = 5  # rows; fewer are often short English texts with names
NOTABLE_UNKNOWN = 0.01  # of all tokens; a symbol in some texts of a collection is below it


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows, the tokens of their distinct texts, and then their vectors."""

    rows: RowBlock
    text_numbers: Ints  # (n, k), for each row the numbers of its texts in `tokens`
    tokens: TokenBlock  # of the distinct texts
    # --reuse: for the number of each text with stored vectors, the numbers of these vectors
    stored_vectors: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    # (m, k, d): a vector for each text; [] before encoding
    vectors: Arrays = field(default_factory=list)
    # (m,), with chunks: the rows of the windows, each of which has a vector
    row_of_vector: Ints | None = None
    seconds: float = 0.0  # in which the model encoded the group

    @property
    def accepted_texts(self) -> Ints:
        """The numbers of the texts in accepted rows, without duplicates."""
        return np.unique(self.text_numbers)

    def take(self, indices: Sequence[int] | slice) -> "RowGroup":
        """The rows with these indices, and their vectors."""
        if isinstance(indices, slice) and indices == slice(None):
            return self
        vector_indices: Any = indices
        owners = None
        if self.row_of_vector is not None:
            new_indices = np.full(len(self.rows), -1)  # of each row; -1: it is not taken
            new_indices[indices] = np.arange(len(new_indices[indices]))
            new_owners = new_indices[self.row_of_vector]
            vector_indices = new_owners >= 0
            owners = new_owners[vector_indices]
        return replace(
            self,
            rows=self.rows.take(indices),
            text_numbers=self.text_numbers[indices],
            vectors=[array[vector_indices] for array in self.vectors],
            row_of_vector=owners,
        )


def tokenized_groups(
    blocks: Iterable[RowBlock],
    tokenizer: TextTokenizer,
    rejects: Rejects,
    *,
    on_truncate: str = "warn",
    first: int = FIRST_GROUP,
    largest: int = LAST_GROUP,
) -> Iterator[RowGroup]:
    """Return groups of rows with the tokens of their distinct texts. Bad rows go to `rejects`.

    The first group has `first` rows, the next ones up to `largest`. A caller that waits for all
    vectors starts with a large group.
    """
    if tokenizer.needs_all_texts:  # a set of words has a wide vector
        first = FIRST_GROUP
        largest = WIDE_GROUP
    groups = chain.from_iterable(
        tokenize_group(rows, tokenizer, rejects, on_truncate)
        for rows in grouped(blocks, first, largest)
    )
    if tokenizer.needs_all_texts:
        return iter(list(groups))  # reads all texts before the first group is encoded
    return groups


def whole_if_small(groups: Iterator[RowGroup]) -> tuple[Iterator[RowGroup], int | None]:
    """Return the same groups, and the number of tokens of the whole input, or None.

    None: the first group is full, so the input may have more rows.
    """
    first_groups = list(islice(groups, 1))
    if first_groups and len(first_groups[0].rows) >= FIRST_GROUP:
        return chain(first_groups, groups), None
    # waits for input only if the first group had bad or very long rows
    first_groups += islice(groups, 1)
    if len(first_groups) > 1:
        return chain(first_groups, groups), None
    tokens_of_groups = [group.tokens.take(group.accepted_texts) for group in first_groups]
    return iter(first_groups), sum(int(tokens.read_counts.sum()) for tokens in tokens_of_groups)


def grouped(
    blocks: Iterable[RowBlock], first: int = FIRST_GROUP, largest: int = LAST_GROUP
) -> Iterator[RowBlock]:
    """Group rows into blocks of 32, 128, 512, 1024, 2048, 4096, 8192, 8192 ... rows, fewer of long
    texts.
    """
    size = first
    characters_left = MAX_GROUP_CHARACTERS
    group = empty_block()
    for block in blocks:
        start = 0
        while start < len(block):
            # The rows that the group has room for.
            rows = block.take(slice(start, start + size - len(group)))
            ends = np.cumsum(characters_of_rows(rows))
            count = min(int(np.searchsorted(ends, characters_left)) + 1, len(rows))
            if count < len(rows):
                rows = rows.take(slice(0, count))
            group.extend(rows)
            start += count
            characters_left -= int(ends[count - 1])

            if len(group) >= size or characters_left <= 0:
                yield group
                group = empty_block()
                characters_left = MAX_GROUP_CHARACTERS
                growth = 4 if size < LARGE_GROUP else 2
                size = min(growth * size, largest)
    if len(group):
        yield group


def characters_of_rows(rows: RowBlock) -> Ints:
    """Return the characters of all texts of each row, (n,). A text can be (prompt, text)."""
    texts: Iterable[Any] = chain.from_iterable(rows.texts)
    if not isinstance(rows.texts[0][0], str):
        texts = map("".join, texts)
    characters = np.array([*map(len, texts)]).reshape(len(rows), -1)
    return characters.sum(axis=1)


def tokenize_group(
    rows: RowBlock, tokenizer: TextTokenizer, rejects: Rejects, on_truncate: str
) -> Iterator[RowGroup]:
    """Tokenize the distinct texts of some rows. Rows before one that is an error come first."""
    numbers: dict[Any, int] = {}  # of the distinct texts
    number_of_text = [
        numbers.setdefault(text, len(numbers)) for texts in rows.texts for text in texts
    ]
    index = np.array(number_of_text, np.int64).reshape(len(rows), -1)
    tokens = tokenized(tokenizer, list(numbers))

    # Rows with texts that cannot be encoded.
    problems = dict(tokens.problems)  # by the number of the text
    if on_truncate == "error":
        for number in np.flatnonzero(tokens.truncated).tolist():
            count = tokens.full_lengths[number]
            maximum = tokens.lengths[number]
            problems.setdefault(
                number, f"text too long: {count} {tokenizer.unit}, maximum {maximum}"
            )
    if problems:
        for row, numbers_of_row in enumerate(index.tolist()):
            problems_of_row = [problems[number] for number in numbers_of_row if number in problems]
            if problems_of_row:
                rows.refuse(row, problems_of_row[0])
    group = RowGroup(rows, index, tokens)
    for indices in rejects.good_indices(rows):
        yield group.take(indices)


ENCODE_ADVICE = "encode --on-truncate mark marks each in its row, error refuses them"


@dataclass(slots=True)
class EncodeStats:
    """Counts of rows, texts and tokens for final messages, progress and dry runs."""

    rows: int = 0
    texts: int = 0  # or windows, if each has its vector
    tokens: int = 0
    truncated: int = 0  # rows with a truncated text
    split: int = 0  # rows with a text of several windows
    windows: int = 0  # windows of these texts
    unknown: int = 0  # words or tokens without a vector
    empty: int = 0  # texts or windows without tokens
    only_unknown: int = 0  # texts or windows that have only unknown tokens
    some_unknown: int = 0  # texts or windows that have unknown tokens and other ones
    unknown_tokens: int = 0  # of these
    reused: int = 0  # rows with only stored vectors
    encoded: int = 0  # tokens of texts without a stored vector
    seconds: float = 0.0  # in which the model encoded groups
    unknown_language: int = 0  # rows with a text in a language that the tokenizer does not know
    certain_language: int = 0  # of these, those that are surely so
    truncation_advice: str = ENCODE_ADVICE  # for the message about truncated rows
    first: str = ""  # the first truncated row, as FILE:LINE
    first_language: str = ""  # the first row of `unknown_language`
    first_certain: str = ""  # the first row of `certain_language`

    def add(self, group: RowGroup) -> int:
        """Add the rows of a group to the counts; return their number of tokens."""
        tokens = group.tokens
        index = group.text_numbers

        # Columns (number of texts,): windows, unknown words, vectors without tokens or words.
        zeros = np.zeros(len(tokens), np.int64)
        windows = tokens.column(zeros, lambda windows: len(windows.characters))
        unknown = tokens.column(
            zeros if tokens.unknown_count is None else tokens.unknown_count,
            lambda windows: sum(window.unknown_count for window in windows.later_windows),
        )
        empty_windows = tokens.column(
            (tokens.lengths == 0).astype(np.int64),
            lambda windows: sum(not window.ids for window in windows.later_windows),
        )
        # A mean is empty if all windows are.
        empty = np.where(tokens.vector_counts == 1, tokens.read_counts == 0, empty_windows)
        unknown_windows = tokens.column(
            zeros if tokens.only_unknown is None else tokens.only_unknown,
            lambda windows: sum(window.only_unknown for window in windows.later_windows),
        )
        window_count = tokens.column(
            np.ones_like(zeros), lambda windows: len(windows.later_windows)
        )
        only_unknown = np.where(
            tokens.vector_counts == 1, unknown_windows == window_count, unknown_windows
        )

        some_unknown, unknown_tokens = tokens.unknown_beside_others()

        # Sums over the texts of all rows, (n, k).
        sizes = tokens.read_counts[index]
        is_new = ~np.isin(index, list(group.stored_vectors))
        added = int(sizes.sum())
        self.rows += len(group.rows)
        self.texts += int(tokens.vector_counts[index].sum())
        self.tokens += added
        self.encoded += int(sizes[is_new].sum())
        self.reused += int((~is_new).all(axis=1).sum())
        truncated = np.flatnonzero(tokens.truncated[index].any(axis=1))
        if len(truncated):
            self.truncated += len(truncated)
            self.first = self.first or position_of(group.rows, truncated[0])
        if tokens.language is not None:
            language_of_rows = tokens.language[index].max(axis=1)
            unknown_rows = np.flatnonzero(language_of_rows)
            certain_rows = np.flatnonzero(language_of_rows == CERTAIN)
            self.unknown_language += len(unknown_rows)
            self.certain_language += len(certain_rows)
            if len(unknown_rows):
                self.first_language = self.first_language or position_of(
                    group.rows, unknown_rows[0]
                )
            if len(certain_rows):
                self.first_certain = self.first_certain or position_of(group.rows, certain_rows[0])
        windows_of_rows = windows[index]
        self.split += int((windows_of_rows > 1).any(axis=1).sum())
        self.windows += int(windows_of_rows[windows_of_rows > 1].sum())
        self.unknown += int(unknown[index].sum())
        self.empty += int(empty[index].sum())
        self.only_unknown += int(only_unknown[index].sum())
        self.some_unknown += int(some_unknown[index].sum())
        self.unknown_tokens += int(unknown_tokens[index].sum())
        self.seconds += group.seconds
        return added

    def truncation(self, limit: int | None, unit: str) -> list[str]:
        """Return the message about truncated rows, if there are any."""
        if not self.truncated:
            return []
        count = f"{self.truncated} of {self.rows} rows were truncated to {limit} {unit}"
        return [f"{count}, the first is {self.first} ({self.truncation_advice})"]

    def without_tokens(self, problem: str = "are empty") -> list[str]:
        """Return the message about texts whose vectors are zero, if there are any."""
        if not self.empty:
            return []
        return [f"{self.empty:,} of {self.texts:,} texts {problem}: their vectors are zero"]

    def languages(self) -> list[str]:
        """Return the message about rows in languages that the tokenizer does not know, if they are
        more than the false alarms among rows in English.
        """
        certain_share = self.certain_language / max(self.rows, 1)
        share = self.unknown_language / max(self.rows, 1)
        are_many = share >= NOTABLE_LANGUAGE and self.unknown_language >= FEWEST_LANGUAGE
        if certain_share < NOTABLE_CERTAIN and not are_many:
            return []
        count = f"{self.unknown_language:,} of {self.rows:,} rows are probably in a language"
        example = self.first_certain or self.first_language
        problem = f"{count} that the tokenizer does not know, for example {example}"
        advice = "encode --on-truncate mark marks them; see LANGUAGES in man sentkit-encode"
        return [f"{problem} ({advice})"]

    def without_words(self, unknown_token: str) -> list[str]:
        """Return the messages about texts whose words the tokenizer does not know, if there are
        any, and about those with some such words, if they are many and not counted as rows in
        another language.
        """
        messages: list[str] = []
        if self.only_unknown:
            count = f"{self.only_unknown:,} of {self.texts:,} texts have only unknown tokens"
            effect = "their vectors do not depend on the words"
            messages.append(f"{count} ({unknown_token}): {effect}; use a model of their language")
        is_notable = self.unknown_tokens >= NOTABLE_UNKNOWN * max(self.tokens, 1)
        if is_notable and not self.languages():
            count = f"{self.some_unknown:,} of {self.texts:,} texts have unknown tokens"
            share = f"{100 * self.unknown_tokens / self.tokens:.1f} % of all tokens"
            problem = f"{count} ({unknown_token}) beside others, {share}"
            effect = "their vectors do not depend on these words"
            advice = "encode --on-truncate mark counts them in each row (n_unknown)"
            messages.append(f"{problem}: {effect}; {advice}")
        return messages

    def scale(self, factor: float) -> None:
        """Multiply all counts."""
        for count in fields(self):
            value = getattr(self, count.name)
            if not isinstance(value, str):
                setattr(self, count.name, round(factor * value))

    def join(self, other: "EncodeStats") -> None:
        for count in fields(self):
            value = getattr(self, count.name)
            other_value = getattr(other, count.name)
            if isinstance(value, str):
                setattr(self, count.name, value or other_value)
            else:
                setattr(self, count.name, value + other_value)


def position_of(rows: RowBlock, index: int) -> str:
    """FILE:LINE of a row, for messages."""
    row = rows.row(int(index))
    return f"{row.source}:{row.number}"
