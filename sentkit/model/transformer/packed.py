"""A batch of concatenated sentences without padding, and its padded forms.

Axes: b sentences, n tokens, t tokens in the longest; c sentences of a group, of at most t tokens; h
heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.device import to_device

SMALLEST_FILLED = 64  # tokens
SENTENCES = 16  # the number of sentences is a multiple of it in `Packed.with_filler_sentences`
# tokens; a GPU gets multiples of it, because it searches kernels for each new number of rows
TILE = 128
LEAST_SAVED = 512  # tokens of padding


@dataclass(frozen=True, eq=False)
class Packed:  # no slots: cached_property needs __dict__
    ids: Tensor  # (n,)
    positions: Tensor  # (n,), from 0 in each sentence; the encoder adds its offset
    lengths: tuple[int, ...]  # (b,), on the host, so that shapes need no device sync
    readout_token_index: Tensor | None = None  # (b,), index of the token for the readout `token`
    prompt_length: int = 0  # prompt tokens at the start of each sentence that readouts exclude
    # tokens that `batch_to_read` removed from the start of each sentence
    removed_prompt_length: int = 0
    causal: bool = False  # a token attends to itself and the tokens before it
    # (n,) of bool: tokens that readouts reduce; None: all after the prompt
    is_read: np.ndarray | None = None
    # (n,), segment of each token, 0 or 1; None: all tokens are in the first
    segment_ids: Tensor | None = None
    # (n,) of bool: padding that other programs read, to which no token attends
    is_hidden: np.ndarray | None = None
    # see `cosines_and_sines`
    rotations: Mapping[float, tuple[Tensor, Tensor]] = field(default_factory=dict)
    bias: Tensor | None = None  # (h, t, t), which attention adds to the scores of a query and a key

    @cached_property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def longest_length(self) -> int:
        return max(self.lengths)

    @cached_property
    def has_equal_lengths(self) -> bool:
        """True if all sentences have the same length; padding is then a view."""
        return min(self.lengths) == self.longest_length

    @cached_property
    def starts(self) -> Tensor:
        """(b,): row of the first token of each sentence."""
        return self.to_device(first_tokens(self.lengths))

    @cached_property
    def token_counts(self) -> Tensor:
        """(b,): number of tokens of each sentence."""
        return self.to_device(np.array(self.lengths))

    @cached_property
    def cumulative_lengths(self) -> Tensor:
        """(b + 1,), int32: row of the first token of each sentence, and the number of tokens."""
        return self.to_device(np.cumsum((0, *self.lengths), dtype=np.int32))

    @cached_property
    def readout_token_rows(self) -> Tensor:
        """(b,): row of the token `readout_token_index` of each sentence."""
        assert self.readout_token_index is not None, "this batch names no token to read"
        return self.starts + self.readout_token_index

    @cached_property
    def batch_to_read(self) -> "Packed":
        """The batch that readouts reduce: of each sentence the tokens `is_read`, or those after
        the prompt.
        """
        if self.rows_to_read is None:
            return self
        if self.is_read is None:
            counts = [length - self.prompt_length for length in self.lengths]
        else:
            counts = np.add.reduceat(
                self.is_read, first_tokens(self.lengths), dtype=np.int64
            ).tolist()
        return Packed(
            self.ids[self.rows_to_read],
            self.positions[self.rows_to_read],
            tuple(counts),
            removed_prompt_length=self.prompt_length,
        )

    @cached_property
    def rows_to_read(self) -> Tensor | None:
        """Rows of the tokens in `batch_to_read`; None: all of them."""
        if self.is_read is not None:
            return self.to_device(np.flatnonzero(self.is_read))
        if not self.prompt_length:
            return None
        positions = np.arange(self.tokens) - np.repeat(first_tokens(self.lengths), self.lengths)
        return self.to_device(np.flatnonzero(positions >= self.prompt_length))

    @cached_property
    def padded(self) -> Tensor:
        """(n,): row of each token in the padded (b * t). Uses lengths, as views can permute
        positions.
        """
        padding_before = np.arange(len(self.lengths)) * self.longest_length - first_tokens(
            self.lengths
        )
        return self.to_device(np.arange(self.tokens) + np.repeat(padding_before, self.lengths))

    @cached_property
    def groups(self) -> "Groups":
        """The padding for attention. A GPU gets one group, because it needs time for each
        operation.
        """
        on_cpu = self.ids.device.type == "cpu"
        return groups_of(
            self.lengths, self.causal, self.ids.device, one=not on_cpu, hidden=self.is_hidden
        )

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Convert (n, ...) to (b, t, ...), with `fill` after the end of each sentence."""
        shape = (len(self.lengths), self.longest_length, *values.shape[1:])
        if self.has_equal_lengths:
            return values.view(shape)
        filled = values.new_full((shape[0] * shape[1], *shape[2:]), fill)
        return filled.index_copy_(0, self.padded, values).view(shape)

    def unpad(self, values: Tensor) -> Tensor:
        """Convert (b, t, ...) to (n, ...), the inverse of `pad`."""
        flat = values.flatten(0, 1)
        if self.has_equal_lengths:
            return flat
        return flat.index_select(0, self.padded)

    def with_filler_sentences(self) -> "Packed":
        """The batch with more sentences, for attention: without ids, up to one of few numbers of
        tokens.

        Empty sentences follow, because dropout of attention depends on the number of sentences.
        """
        lengths = (*self.lengths, *filler(self.lengths, -self.tokens % TILE))
        largest_count = len(self.lengths) + (TILE - 1) // self.longest_length + 1
        count = largest_count + -largest_count % SENTENCES
        empty = (0,) * (count - len(lengths))
        return Packed(self.ids, self.positions, lengths + empty, causal=self.causal)

    def to_device(self, values: np.ndarray) -> Tensor:
        return to_device(values, self.ids.device)


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """The sentences of a batch in groups of similar length, longest first, each padded to its
    longest.

    Attention needs time and memory for the square of the padded length, so one long sentence would
    be expensive for all others. The padding of a sentence is its last token again; the masks
    exclude it.
    """

    shapes: tuple[tuple[int, int], ...]  # sentences and padded tokens of each group, (c, t)
    # (c, 1, 1, t): true for keys that a token may attend to; None: all
    masks: tuple[Tensor | None, ...]
    order: Tensor  # (b,): sentences in the order of the groups
    inverse_order: Tensor  # (b,): the inverse
    rows: Tensor  # (m,): row of each padded token
    padded: Tensor  # (n,): padded token of each row

    def pad(self, values: Tensor) -> list[Tensor]:
        """Convert (n, k) to (c, t, k) of each group. `values` can have more than n rows."""
        sizes = [count * longest for count, longest in self.shapes]
        groups = values.index_select(0, self.rows).split(sizes)
        return [group.view(*shape, -1) for group, shape in zip(groups, self.shapes, strict=True)]

    def unpad(self, groups: Sequence[Tensor]) -> Tensor:
        """Convert (c, t, k) of each group to (n, k), the inverse of `pad`."""
        return torch.cat([group.flatten(0, 1) for group in groups]).index_select(0, self.padded)

    def split(self, vectors: Tensor) -> list[Tensor]:
        """Convert (b, k), one vector for each sentence, to (c, 1, k) of each group."""
        groups = vectors.index_select(0, self.order).split([count for count, _ in self.shapes])
        return [group.unsqueeze(1) for group in groups]

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """Convert (c, 1, k) of each group to (b, k), the inverse of `split`."""
        return torch.cat([group.squeeze(1) for group in groups]).index_select(0, self.inverse_order)


def groups_of(
    lengths: tuple[int, ...],
    causal: bool,
    device: torch.device,
    *,
    one: bool,
    hidden: np.ndarray | None = None,
) -> Groups:
    """Divide sentences into groups; into `one` with all of them in their order. No token attends
    to `hidden` ones, (n,) of bool.
    """
    counts = np.array(lengths)
    starts = first_tokens(lengths)
    if one:
        order = np.arange(len(counts))
        sizes = [len(counts)]
    else:
        order = np.argsort(-counts, kind="stable")
        sizes = sizes_of_groups(counts[order].tolist())
    shapes: list[tuple[int, int]] = []
    masks: list[Tensor | None] = []
    rows_of_groups: list[np.ndarray] = []
    padded = np.empty(counts.sum(), np.int64)
    padded_before = 0  # tokens of the groups before
    for sentences in np.split(order, np.cumsum(sizes)[:-1]):
        token_counts = counts[sentences, None]  # (c, 1)
        longest = int(token_counts.max())
        positions = np.arange(longest)
        is_token = positions < token_counts  # (c, t)
        rows = starts[sentences, None] + np.minimum(positions, token_counts - 1)
        padded[rows[is_token]] = padded_before + np.flatnonzero(is_token)
        padded_before += is_token.size
        rows_of_groups.append(rows.ravel())
        shapes.append((len(sentences), longest))
        # In causal attention, no token attends to the padding, which follows it.
        needs_no_mask = is_token.all() or causal
        if hidden is not None:
            is_token = is_token & ~hidden[rows]
            needs_no_mask = False
        masks.append(None if needs_no_mask else to_device(is_token[:, None, None, :], device))
    return Groups(
        tuple(shapes),
        tuple(masks),
        order=to_device(order, device),
        inverse_order=to_device(np.argsort(order), device),
        rows=to_device(np.concatenate(rows_of_groups), device),
        padded=to_device(padded, device),
    )


def sizes_of_groups(lengths: Sequence[int]) -> list[int]:
    """Return the number of sentences in each group, from lengths in descending order.

    A group ends before a sentence with at most 3/4 of the tokens of its longest, and at least 16
    fewer, if this and the shorter sentences then have LEAST_SAVED fewer tokens of padding. A group
    has a fixed cost. These limits keep the groups few: at most 12 of sentences of up to 512 tokens.
    """
    sizes: list[int] = []
    longest = 0  # tokens of the first sentence of the group
    for index, length in enumerate(lengths):
        padding = longest - length
        saved_tokens = padding * (len(lengths) - index)  # of this and the shorter sentences
        begins_group = padding >= max(16, longest / 4) and saved_tokens >= LEAST_SAVED
        if not sizes or begins_group:
            sizes.append(0)
            longest = length
        sizes[-1] += 1
    return sizes


def pack(
    sequences: Sequence[Sequence[int] | np.ndarray],
    device: torch.device | str = "cpu",
    *,
    readout_token_indices: Sequence[int] | None = None,
    prompt_length: int = 0,
    second_segment_starts: Sequence[int] | None = None,
) -> Packed:
    """Return the batch of these token ids, one sequence for each sentence.

    The index of a token counts from the start of its sentence. `prompt_length`: the first tokens,
    which readouts exclude.
    """
    lengths = np.array([*map(len, sequences)])
    block = TokenBlock(
        ids=np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences]),
        lengths=lengths,
        full_lengths=lengths,
    )
    if readout_token_indices is not None:
        block = replace(block, readout_token_index=np.array(readout_token_indices))
    if second_segment_starts is not None:
        block = replace(block, second_segment_start=np.array(second_segment_starts))
    if prompt_length:
        block = replace(block, prompt_length=np.full(len(lengths), prompt_length))
    return pack_block(block, torch.device(device))


def pack_block(batch: TokenBlock, device: torch.device, spare: Sequence[int] = ()) -> Packed:
    """Return the batch of these texts, and after them sentences of the lengths `spare`.

    Sentences are never empty, because they contain special tokens. All have one `prompt_length`.
    """
    lengths = (*batch.lengths.tolist(), *spare)
    prompt_length = 0 if batch.prompt_length is None else int(batch.prompt_length[0])
    assert lengths, "an empty batch"
    assert min(lengths) > prompt_length, "a sentence without tokens to read"

    # The tokens. Those of the spare sentences are any token, and nobody reads their states.
    ids = np.append(batch.ids, np.full(sum(spare), batch.ids[0])).astype(np.int64)
    positions = np.arange(len(ids)) - np.repeat(first_tokens(lengths), lengths)
    readout_token_index: Tensor | None = None
    if batch.readout_token_index is not None:
        indices = np.append(batch.readout_token_index, np.zeros(len(spare), np.int64))
        readout_token_index = to_device(indices, device)

    # The segments of the tokens, if a text has two.
    segment_ids: Tensor | None = None
    if batch.second_segment_start is not None:  # 0: the text has one segment
        second_starts = np.where(
            batch.second_segment_start > 0, batch.second_segment_start, batch.lengths
        )
        second_starts = np.append(second_starts, np.array(spare, np.int64))
        is_second = positions >= np.repeat(second_starts, lengths)
        segment_ids = to_device(is_second.astype(np.int64), device)
    return Packed(
        to_device(ids, device),
        to_device(positions, device),
        lengths,
        readout_token_index=readout_token_index,
        prompt_length=prompt_length,
        segment_ids=segment_ids,
    )


def spare_tokens(tokens: int) -> int:
    """Return how many rows to add, so that their number has five binary digits: at most 7 % more.

    oneDNN compiles a kernel for each number of rows and keeps it, which takes milliseconds and
    memory.
    """
    if tokens < SMALLEST_FILLED:
        return 0
    return -tokens % (1 << tokens.bit_length() - 5)


def filler(lengths: Sequence[int], spare: int) -> list[int]:
    """Return the lengths of sentences of this number of tokens, none longer than the longest."""
    longest = max(lengths)
    full, remaining = divmod(spare, longest)
    return [longest] * full + ([remaining] if remaining else [])


def rounded(longest: int) -> int:
    """The room for sentences in a kernel for GPUs, which divides them into tiles."""
    return longest + -longest % TILE


def first_tokens(lengths: tuple[int, ...]) -> np.ndarray:
    return np.cumsum((0, *lengths[:-1]))


def ends_of(
    weight: Tensor, bias: Tensor | None, width: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield weight and bias of the first `width` outputs, and of the others."""
    for outputs in (slice(0, width), slice(width, None)):
        yield weight[outputs], None if bias is None else bias[outputs]


def with_rows(values: Tensor, rows: int) -> Tensor:
    """Add rows of zeros to values (n, k), up to this number."""
    if rows <= len(values):
        return values
    return F.pad(values, (0, 0, 0, rows - len(values)))
