"""Rows become vectors, in input order and constant memory.

The texts of a group (groups.py) are encoded in batches of similar length. Batches depend only on
the texts, not on the reads of a pipe, time or threads. A CPU divides a group with few tokens into
small batches, so that many threads have work. The windows of a long text can be in several batches.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64
from sentkit.formats.vectors.fingerprint import Space
from sentkit.model.groups import Arrays, EncodeStats, RowGroup
from sentkit.model.text.characters import BatchError, refuse_texts
from sentkit.model.text.tokens import Ints, TokenBlock, indices_of_ranges
from sentkit.transforms.steps import Step, apply_step

if TYPE_CHECKING:
    from sentkit.model.checkpoint_reading import Reading

Item = TypeVar("Item")
Output = TypeVar("Output")
Report = Callable[[int, int], None]  # rows and tokens since the last report
# --reuse: the vectors (n, d) with n numbers of `RowGroup.stored_vectors`
ReadStored = Callable[[Sequence[int]], NDArray[np.float32]]

BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
# Batches of a group, if they are large enough. 64 threads then have four each, the last of which
# leaves an eighth of them without work at most.
BATCHES_OF_GROUP = 256
AHEAD = 2  # groups


@dataclass(frozen=True)
class FasterPrecision:
    """A precision, and its time as a share of that of the chosen one."""

    name: str
    share_of_time: float

    def __str__(self) -> str:
        return f"{self.name} takes about {self.share_of_time:.2f} x the time on this CPU"


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

    def faster_precision(self) -> FasterPrecision | None:
        """The other precision, if it is measured to be much faster than the chosen one."""
        return None

    def faster_way(self) -> str | None:
        """The sentence for a long run about a precision that is much faster, if there is one."""
        faster = self.faster_precision()
        return None if faster is None else f"--precision {faster}"

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
    # The windows: the first of each text, and then the later ones in the order of `tokens.windows`.
    windows_of_texts = tokens.windows.values()
    later_windows = [*chain.from_iterable(windows.later_windows for windows in windows_of_texts)]
    later_counts = [len(windows.later_windows) for windows in windows_of_texts]
    all_windows = TokenBlock.of([*tokens, *later_windows])
    text_of_window = np.append(np.arange(len(tokens)), np.repeat([*tokens.windows], later_counts))
    first_batches = plan_batches(tokens, budget)
    later_batches = [
        len(tokens) + batch for batch in plan_batches(TokenBlock.of(later_windows), budget)
    ]
    batches_of_windows = first_batches + later_batches

    # The vectors of all windows, before and after the operations.
    before_steps: Arrays = []
    after_steps: Arrays = []
    arrays_of_batches = encoder.encode(map(all_windows.take, batches_of_windows))
    for batch, arrays in zip(batches_of_windows, arrays_of_batches, strict=True):
        write_array_rows(before_steps, batch, arrays, len(all_windows))
        finished = apply_steps(arrays, encoder.steps)
        write_array_rows(after_steps, batch, finished, len(all_windows))

    # All windows of a text, one after the other. The sort is stable, so the first window is first.
    order = np.argsort(text_of_window, kind="stable")
    weights_of_text = {
        text: np.array(windows.weights)
        for text, windows in tokens.windows.items()
        if windows.weights
    }
    keeps_each_window = not weights_of_text  # --on-truncate chunks
    if keeps_each_window:
        return [vectors[order] for vectors in after_steps]

    # The means of windows. A text without windows has the vector of its only one.
    ends = np.cumsum(np.bincount(text_of_window))
    windows_of_text = {
        text: order[ends[text] - len(weights) : ends[text]]
        for text, weights in weights_of_text.items()
    }
    means = [
        means_of_windows(vectors, windows_of_text, weights_of_text) for vectors in before_steps
    ]
    vectors_of_texts = [vectors[: len(tokens)] for vectors in after_steps]
    finished_means = apply_steps(means, encoder.steps)
    for vectors, vectors_of_means in zip(vectors_of_texts, finished_means, strict=True):
        vectors[[*weights_of_text]] = vectors_of_means
    return vectors_of_texts


def means_of_windows(
    vectors: Float32, windows_of_text: Mapping[int, Ints], weights_of_text: Mapping[int, Float64]
) -> Float32:
    """Return the mean of the windows of each text with weights: (w, d) -> (t, d), in float64.

    It is zero if all weights are 0.
    """
    means = []
    for text, weights in weights_of_text.items():
        vectors_of_windows = vectors[windows_of_text[text]]
        means.append(weights @ vectors_of_windows / (weights.sum() or 1.0))
    return np.array(means, np.float32)


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


def batches_of_indices(lengths: Ints, budget: int, *, of_one_length: bool = False) -> list[Ints]:
    """Return batches of indices, longest first, of at most `budget` tokens or of one text.

    `of_one_length`: the texts of a batch have one length, for an encoder that reads padding.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    planned = []
    start = 0
    tokens_before = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, tokens_before + budget, side="right")))
        if of_one_length:
            is_longest = lengths[order[start:stop]] == lengths[order[start]]
            stop = start + int(np.count_nonzero(is_longest))
        planned.append(order[start:stop])
        start = stop
        tokens_before = int(ends[stop - 1])
    return planned
