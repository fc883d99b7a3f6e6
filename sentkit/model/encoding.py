"""Rows become vectors, in input order and constant memory.

Blocks of rows are joined to groups. The texts of a group are tokenized, each distinct text once,
and encoded in batches of similar length. The first groups are small, so that output starts early;
later groups are large, so that they batch efficiently. Groups and batches depend only on the texts,
not on the reads of a pipe, time or threads. A CPU divides a group with few tokens into small
batches, so that many threads have work. The windows of a long text can be in several batches.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.fingerprint import Space
from sentkit.model.text.characters import BatchError, refuse_texts
from sentkit.model.text.languages import CERTAIN
from sentkit.model.text.tokens import Ints, TextTokenizer, TokenBlock, indices_of_ranges, tokenized
from sentkit.transforms.steps import Step, apply_step

if TYPE_CHECKING:
    from sentkit.model.checkpoint_reading import Reading

Item = TypeVar("Item")
Output = TypeVar("Output")
Arrays = list[NDArray[np.float32]]  # one for each readout
Report = Callable[[int, int], None]  # rows and tokens since the last report
# --reuse: the vectors (n, d) with n numbers of `RowGroup.stored_vectors`
ReadStored = Callable[[Sequence[int]], NDArray[np.float32]]

FIRST_GROUP = 32  # rows
LAST_GROUP = 8192
WIDE_GROUP = 128  # rows, for vectors with tens of thousands of numbers
MAX_GROUP_CHARACTERS = 8_000_000  # limits memory if rows are very long
BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
# Batches of a group, if they are large enough. 64 threads then have four each, the last of which
# leaves an eighth of them without work at most.
BATCHES_OF_GROUP = 256
AHEAD = 2  # groups
WORTH_TELLING = 0.8  # of the time of the default precision
# Of the rows: the largest share of false alarms in 15 sets of English texts is 3.3 %, and 0.05 % of
# certain ones.
NOTABLE_LANGUAGE = 0.05
NOTABLE_CERTAIN = 0.01
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

    The first group has `first` rows. A caller that waits for all vectors starts with a large one.
    """
    if tokenizer.whole:
        first = FIRST_GROUP
        largest = WIDE_GROUP
    groups = chain.from_iterable(
        tokenize_group(rows, tokenizer, rejects, on_truncate)
        for rows in grouped(blocks, first, largest)
    )
    if tokenizer.whole:
        return iter(list(groups))
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
    """Group rows into blocks of 32, 128, 512, 2048, 8192, 8192 ... rows, fewer of long texts."""
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
                size = min(4 * size, largest)
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
        advice = "encode --on-truncate mark marks each in its row, error refuses them"
        count = f"{self.truncated} of {self.rows} rows were truncated to {limit} {unit}"
        return [f"{count}, the first is {self.first} ({advice})"]

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
        if certain_share < NOTABLE_CERTAIN and share < NOTABLE_LANGUAGE:
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


class TokenEncoder:
    """Converts batches of tokens to arrays of vectors, and records their origin."""

    spaces: list[Space]  # one for each readout: the origin of its vectors
    width: int
    notes: list[str]  # messages to print after the weights are loaded
    reading: "Reading"
    steps: Sequence[Step]  # the operations after the readout
    device: Any = "cpu"
    precision: str = "fp32"
    tokens_per_batch: int  # number of tokens in a batch; only a batch of one text can exceed it
    smallest_batch: int | None = None  # tokens; None: few texts are large batches, too
    refusals: Mapping[str, str] = {}  # of a server: its reason, for each text without a vector

    @property
    def batches_at_once(self) -> int:
        """The number of batches that threads compute at the same time."""
        return 1

    @property
    def groups_at_once(self) -> int:
        """The number of groups that threads encode while the caller writes; 0: without threads."""
        return 0

    def bf16_share_of_time(self) -> float | None:
        """The time of bf16 as a share of that of fp32; None if there is no choice."""
        return None

    def faster_way(self) -> str | None:
        """The sentence for a long run about a precision that is much faster, if there is one."""
        share = self.bf16_share_of_time()
        if share is None or share > WORTH_TELLING:
            return None
        return f"--precision bf16 takes about {share:.2f} x the time on this CPU"

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        """Yield the vectors (b, d) of each batch, of all windows."""
        raise NotImplementedError

    def warnings(self, stats: EncodeStats) -> list[str]:
        """Return the messages to print after the last row."""
        tokenizer = self.reading.tokenizer
        messages = stats.truncation(tokenizer.max_length, "tokens") + stats.without_tokens()
        return messages + stats.languages() + stats.without_words(tokenizer.unknown_token)


def encode_groups(
    groups: Iterator[RowGroup],
    encoder: TokenEncoder,
    budget: int,
    read_stored: ReadStored | None = None,
) -> Iterator[RowGroup]:
    """Encode groups in batches of at most `budget` tokens; threads may encode the next groups."""
    encode = partial(encode_group, encoder=encoder, budget=budget, read_stored=read_stored)
    return computed_ahead(encode, groups, encoder.groups_at_once)


def computed_ahead(
    function: Callable[[Item], Output], items: Iterator[Item], threads: int
) -> Iterator[Output]:
    """Yield the results of items in order. One thread reads ahead; `threads` others compute."""
    if not threads:
        yield from map(function, ahead(items, AHEAD))
        return
    pool = ThreadPoolExecutor(threads)
    try:
        submitted = (pool.submit(function, item) for item in items)
        for result in ahead(submitted, max(AHEAD, threads)):
            yield result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def encode_group(
    group: RowGroup, encoder: TokenEncoder, budget: int, read_stored: ReadStored | None
) -> RowGroup:
    """The group with the vectors of its rows; they are computed once for equal texts."""
    start = monotonic()
    tokens = group.tokens

    # The vectors of new texts, and then those that are copied.
    texts = group.accepted_texts
    is_stored = np.isin(texts, list(group.stored_vectors))
    new_texts = texts[~is_stored]
    stored_texts = texts[is_stored]
    try:
        vectors = encode_texts(tokens.take(new_texts), encoder, budget)
    except BatchError as error:
        raise error.in_row(group.rows, group.text_numbers, tokens) from error
    if encoder.refusals:
        refuse_texts(encoder.refusals, group.rows, group.text_numbers, tokens)
    if read_stored is not None and len(stored_texts):
        numbers = chain.from_iterable(group.stored_vectors[text] for text in stored_texts.tolist())
        # There is one array: --reuse is for one readout.
        vectors = [np.concatenate([*vectors, read_stored([*numbers])])]

    # The index of the first vector of each text, and of that of each text of each row, (n, k).
    texts = np.concatenate([new_texts, stored_texts])
    first_of_text = np.zeros(len(tokens), np.int64)
    first_of_text[texts] = np.cumsum(tokens.vector_counts[texts]) - tokens.vector_counts[texts]
    indices = first_of_text[group.text_numbers]

    # With chunks, a row has one text, and the vectors of all windows of it, (m, 1).
    owners = None
    if (tokens.vector_counts[texts] != 1).any():
        counts = tokens.vector_counts[group.text_numbers[:, 0]]
        owners = np.repeat(np.arange(len(counts)), counts)
        indices = indices_of_ranges(indices[:, 0], counts)[:, None]

    # The vectors in the order of the rows: views where they are in this order, instead of copies.
    is_in_order = indices.shape[1] == 1 and np.array_equal(
        indices[:, 0], np.arange(len(vectors[0]))
    )
    selection: Any = (slice(None), None) if is_in_order else indices
    vectors = [array[selection] for array in vectors]
    return replace(group, vectors=vectors, row_of_vector=owners, seconds=monotonic() - start)


def ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield the same items. A thread computes up to `depth` items in advance."""
    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next, items, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(pool.submit(next, items, None))
            yield item
    finally:
        # the thread may wait for input that never arrives
        pool.shutdown(wait=False, cancel_futures=True)


def encode_texts(tokens: TokenBlock, encoder: TokenEncoder, budget: int) -> Arrays:
    """Return one (m, d) array for each readout, in the order of the texts and of their windows."""
    # A text without tokens has the vector zero.
    if not tokens.read_counts.all():
        filled_texts = tokens.take(np.flatnonzero(tokens.read_counts))
        vectors_of_filled = encode_texts(filled_texts, encoder, budget)
        has_tokens = np.repeat(tokens.read_counts > 0, tokens.vector_counts)
        zeros = [np.zeros((len(has_tokens), encoder.width), np.float32) for _ in encoder.spaces]
        for array, vectors in zip(zeros, vectors_of_filled, strict=bool(vectors_of_filled)):
            array[has_tokens] = vectors
        return zeros

    # The other texts in batches. The result of a batch goes to the rows of its texts.
    budget = batch_size(tokens, encoder, budget)
    if tokens.windows:
        return encode_windows(tokens, encoder, budget)
    batches_of_texts = plan_batches(tokens, budget)
    arrays: Arrays = []
    arrays_of_batches = encoder.encode(map(tokens.take, batches_of_texts))
    for texts, unfinished in zip(batches_of_texts, arrays_of_batches, strict=True):
        write_array_rows(arrays, texts, apply_steps(unfinished, encoder.steps), len(tokens))
    return arrays


def encode_windows(tokens: TokenBlock, encoder: TokenEncoder, budget: int) -> Arrays:
    """Return the arrays of `encode_texts` for texts of which some have windows.

    The first windows are in the batches that the truncated texts would have. So, if the windows
    have the maximum length, long texts do not change the vectors of other texts, not even by
    rounding. The operations after the readout apply to the mean of windows, so that it has unit
    length if the space requires it.
    """
    windows_of_texts = tokens.windows.values()
    others = [*chain.from_iterable(windows.later_windows for windows in windows_of_texts)]
    all_windows = TokenBlock.of([*tokens, *others])
    first_batches = plan_batches(tokens, budget)
    other_batches = [len(tokens) + batch for batch in plan_batches(TokenBlock.of(others), budget)]
    batches_of_windows = first_batches + other_batches

    # The vectors of all windows, before and after the operations.
    read: Arrays = []
    finished: Arrays = []
    arrays_of_batches = encoder.encode(map(all_windows.take, batches_of_windows))
    for batch, arrays in zip(batches_of_windows, arrays_of_batches, strict=True):
        write_array_rows(read, batch, arrays, len(all_windows))
        write_array_rows(finished, batch, apply_steps(arrays, encoder.steps), len(all_windows))

    # All windows of a text, one after the other.
    texts_of_others = np.repeat(
        [*tokens.windows], [len(windows.later_windows) for windows in windows_of_texts]
    )
    texts = np.append(np.arange(len(tokens)), texts_of_others)
    order = np.argsort(texts, kind="stable")
    weights = {
        text: np.array(windows.weights)
        for text, windows in tokens.windows.items()
        if windows.weights
    }
    if not weights:
        return [vectors[order] for vectors in finished]

    # The means of windows, in float64; zeros if all weights are 0.
    ends = np.cumsum(np.bincount(texts))
    means: Arrays = []
    for vectors in read:
        means_of_texts = []
        for text, shares in weights.items():
            indices = order[ends[text] - len(shares) : ends[text]]
            means_of_texts.append(shares @ vectors[indices] / (shares.sum() or 1.0))
        means.append(np.array(means_of_texts, np.float32))
    vectors_of_texts = [vectors[: len(tokens)] for vectors in finished]
    finished_means = apply_steps(means, encoder.steps)
    for vectors, vectors_of_means in zip(vectors_of_texts, finished_means, strict=True):
        vectors[[*weights]] = vectors_of_means
    return vectors_of_texts


def write_array_rows(arrays: Arrays, rows: Ints, vectors: Arrays, count: int) -> None:
    """Write rows of each array. Empty `arrays` are created first, with `count` rows."""
    if not arrays:
        arrays += [np.empty((count, values.shape[1]), np.float32) for values in vectors]
    for array, values in zip(arrays, vectors, strict=True):
        array[rows] = values


def apply_steps(vectors: Arrays, steps: Sequence[Step]) -> Arrays:
    """Apply the operations after the readout: (b, d) -> (b, width)."""
    for step in steps:
        vectors = [apply_step(step, array) for array in vectors]
    return vectors


def batch_size(tokens: TokenBlock, encoder: TokenEncoder, budget: int) -> int:
    """Return the number of tokens in a batch of these texts, at most `budget`.

    It depends on the texts and the model, not on the number of threads.
    """
    if encoder.smallest_batch is None:
        return budget
    share = -(-int(tokens.read_counts.sum()) // BATCHES_OF_GROUP)
    return min(budget, max(share, encoder.smallest_batch))


def plan_batches(tokens: TokenBlock, budget: int) -> list[Ints]:
    """Return batches of texts, as their numbers. The texts of a batch have one `prompt_length`."""
    if tokens.prompt_length is None:
        return batches_of_indices(tokens.lengths, budget)
    planned = []
    for skip in dict.fromkeys(tokens.prompt_length.tolist()):
        texts = np.flatnonzero(tokens.prompt_length == skip)
        planned += [texts[batch] for batch in batches_of_indices(tokens.lengths[texts], budget)]
    return planned


def batches_of_indices(lengths: Ints, budget: int) -> list[Ints]:
    """Return batches of indices, longest first, of at most `budget` tokens or of one text."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    planned = []
    start = 0
    tokens_before = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, tokens_before + budget, side="right")))
        planned.append(order[start:stop])
        start = stop
        tokens_before = int(ends[stop - 1])
    return planned
