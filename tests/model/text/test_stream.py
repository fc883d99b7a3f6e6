"""Rows in, rows with vectors out: in order, equal texts once, errors where they happened, full
batches.
"""

import threading
from collections import namedtuple
from itertools import count, islice
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.rows.block import Row, block_of_rows
from sentkit.formats.rows.rows import Rejects
from sentkit.model.encoding import ahead, batch_size, batches_of_indices, encode_groups
from sentkit.model.groups import EncodeStats, RowGroup, grouped, tokenized_groups
from sentkit.model.text.tokens import TokenBlock, Tokens


class Letters:
    """A tokenizer: a token for each letter, at most ten; `?` cannot be read at all."""

    unit = "tokens"
    needs_all_texts = False

    def __call__(self, texts):
        return TokenBlock.of(
            [
                Tokens(
                    [ord(letter) for letter in text[:10]],
                    len(text),
                    problem="it asks" * ("?" in text),
                )
                for text in texts
            ]
        )


class Sums:
    """An encoder of two readouts: (sum, length) and (first)."""

    groups_at_once = 0
    steps = ()
    smallest_batch = None
    refusals = MappingProxyType({})

    def __init__(self):
        self.batches = []

    def encode(self, batches):
        return map(self.sums, batches)

    def sums(self, batch):
        self.batches.append([tokens.ids for tokens in batch])
        sums_and_counts = [[sum(tokens.ids), len(tokens.ids)] for tokens in batch]
        return [
            np.array(sums_and_counts, np.float32),
            np.array([[tokens.ids[0]] for tokens in batch], np.float32),
        ]


def expected_of(text):
    ids = [ord(letter) for letter in text[:10]]
    return [sum(ids), len(ids)], [ids[0]]


# A row with its tokens, and its vectors of each readout.
One = namedtuple("One", "row tokens vectors")


def row(number):
    return Row(b"{}", {}, "a.jsonl", number)


def rows(texts):
    """Blocks of seven rows."""
    for start in range(0, len(texts), 7):
        block_texts = texts[start : start + 7]
        block = block_of_rows(
            row(number) for number in range(start + 1, start + 1 + len(block_texts))
        )
        block.texts = list(block_texts)
        yield block


def encoded(texts, *, budget=100, encode=None, rejects=None, **options):
    groups = tokenized_groups(rows(texts), Letters(), rejects or Rejects(), **options)
    return [
        One(
            row,
            [group.tokens[k] for k in group.text_numbers[number]],
            [vectors[number] for vectors in group.vectors],
        )
        for group in encode_groups(groups, encode or Sums(), budget)
        for number, row in enumerate(group.rows)
    ]


TEXTS = st.text("abcxyz", min_size=1, max_size=14)


@given(
    st.integers(1, 3).flatmap(lambda k: st.lists(st.tuples(*[TEXTS] * k), max_size=200)),
    st.integers(1, 60),
)
def test_rows_keep_their_order_and_get_their_own_vectors(texts, budget):
    encoded_rows = encoded(texts, budget=budget)

    assert [encoded_row.row.number for encoded_row in encoded_rows] == list(
        range(1, len(texts) + 1)
    )
    for encoded_row, texts_of_row in zip(encoded_rows, texts, strict=True):
        assert encoded_row.vectors[0].tolist() == [expected_of(text)[0] for text in texts_of_row]
        assert encoded_row.vectors[1].tolist() == [expected_of(text)[1] for text in texts_of_row]
        assert [tokens.full_length for tokens in encoded_row.tokens] == [
            len(text) for text in texts_of_row
        ]


def test_equal_texts_of_a_group_are_computed_once():
    encode = Sums()

    encoded_rows = encoded([("a", "b"), ("b", "a"), ("a", "a")], encode=encode)

    assert sorted(ids[0] for batch in encode.batches for ids in batch) == [ord("a"), ord("b")]
    assert [encoded_row.vectors[1].tolist() for encoded_row in encoded_rows] == [
        [[97], [98]],
        [[98], [97]],
        [[97], [97]],
    ]


def test_an_unreadable_text_is_an_error_with_its_line_or_its_row_is_skipped_and_counted():
    with pytest.raises(DataError, match=r"^a\.jsonl:2: it asks$"):
        encoded([("a",), ("why?",), ("b",)])
    rejects = Rejects(skip=True)
    encode = Sums()

    encoded_rows = encoded([("a", "d"), ("why?", "b"), ("c", "d")], rejects=rejects, encode=encode)

    assert [encoded_row.row.number for encoded_row in encoded_rows] == [1, 3]
    assert rejects.count == 1
    assert sorted(ids[0] for batch in encode.batches for ids in batch) == [*map(ord, "acd")]


def test_a_truncated_text_can_be_an_error():
    texts = [("a" * 10, "a"), ("b", "c" * 12)]

    assert len(encoded(texts)) == 2
    with pytest.raises(DataError, match=r"^a\.jsonl:2: text too long: 12 tokens, maximum 10$"):
        encoded(texts, on_truncate="error")


class InThreads(Sums):
    """Two threads encode the groups."""

    groups_at_once = 2


@pytest.fixture
def threads_end():
    """Libraries of other tests may have threads; those of this test must end."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("threads_end")
def test_vectors_from_a_thread_are_those_of_the_main_thread():
    texts = [(f"{'x' * (number % 7)}y", "z" * (1 + number % 3)) for number in range(300)]

    in_threads = encoded(texts, encode=InThreads(), budget=20)
    expected = encoded(texts, budget=20)

    assert [encoded_row.row.number for encoded_row in in_threads] == list(range(1, 301))
    for in_thread, in_main_thread in zip(in_threads, expected, strict=True):
        assert all(map(np.array_equal, in_thread.vectors, in_main_thread.vectors))


@pytest.mark.usefixtures("threads_end")
def test_threads_end_if_the_caller_stops_early():
    groups_encoded = encode_groups(
        tokenized_groups(rows([("a",)] * 300), Letters(), Rejects()), InThreads(), 20
    )

    assert len(next(groups_encoded).rows) == 32
    del groups_encoded


@pytest.mark.usefixtures("threads_end")
@pytest.mark.parametrize("encode", [Sums, InThreads])
def test_an_error_of_the_reader_follows_earlier_groups(encode):
    def failing():
        yield from rows([("a",)] * 40)
        raise DataError("broken", source="a.jsonl", line=41)

    groups_encoded = encode_groups(tokenized_groups(failing(), Letters(), Rejects()), encode(), 100)

    assert len(next(groups_encoded).rows) == 32
    with pytest.raises(DataError, match=r"^a\.jsonl:41: broken$"):
        next(groups_encoded)


def test_reading_ahead_is_limited():
    numbers = []
    items = ahead((numbers.append(number) or number for number in count()), 2)

    assert list(islice(items, 5)) == [0, 1, 2, 3, 4]
    items.close()

    assert len(numbers) <= 7


@pytest.mark.parametrize("kind", [Sums, InThreads])
def test_an_error_of_the_encoder_is_not_wrapped(kind):
    class Failing(kind):
        def sums(self, batch):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        encoded([("a",)], encode=Failing())


def test_a_tally_counts_rows_texts_tokens_and_truncated_rows():
    stats = EncodeStats()
    short = Tokens([1, 2], 2)
    long = Tokens([1, 2, 3], 9)

    def group(first, index):
        block = block_of_rows(Row(b"", {}, "t.txt", first + number) for number in range(len(index)))
        return RowGroup(block, np.array(index), TokenBlock.of([short, long]))

    assert stats.add(group(1, [[0, 0], [0, 1]])) == 2 + 2 + 2 + 3
    assert stats.add(group(3, [[1, 1]])) == 3 + 3

    assert (stats.rows, stats.texts, stats.tokens, stats.truncated) == (3, 6, 15, 2)
    assert stats.first == "t.txt:2"


def test_the_next_group_is_submitted_before_the_vectors_of_a_group_are_read():
    """So a GPU has work between two groups."""

    class Waiting(InThreads):
        calls = count()
        second = threading.Event()

        def encode(self, batches):
            submitted = list(batches)
            if next(self.calls) == 0:
                assert self.second.wait(60)
            else:
                self.second.set()
            return map(self.sums, submitted)

    texts = [(f"text {number}",) for number in range(100)]
    groups = tokenized_groups(rows(texts), Letters(), Rejects())

    assert [len(group.rows) for group in encode_groups(groups, Waiting(), 1000)] == [32, 68]


LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@pytest.mark.parametrize(
    ("lengths", "smallest", "budget", "expected"),
    [
        ([10] * 40, None, 4096, 4096),  # a GPU
        ([10] * 40, 64, 4096, 64),  # few tokens
        ([100] * 2560, 64, 4096, 1000),  # 256,000 tokens in 256 batches
        ([100] * 2561, 64, 4096, 1001),  # a share is rounded up
        ([512] * 8192, 64, 4096, 4096),  # many tokens
        ([10] * 40, 64, 50, 50),  # --batch-tokens 50
    ],
)
def test_few_texts_have_small_batches(lengths, smallest, budget, expected):
    encoder = Sums()
    encoder.smallest_batch = smallest
    tokens = TokenBlock.of([Tokens([0] * length, length) for length in lengths])

    assert batch_size(tokens, encoder, budget) == expected


@given(LENGTHS, st.integers(1, 100))
def test_batches_have_every_text_once_the_longest_first_and_fill_the_budget(lengths, budget):
    """Only a single longer text exceeds the budget, and a batch ends only if the next text does not
    fit.
    """
    text_indices = [
        batch.tolist() for batch in batches_of_indices(np.array(lengths, np.int64), budget)
    ]
    order = [index for batch in text_indices for index in batch]
    sums = [sum(lengths[index] for index in batch) for batch in text_indices]

    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    assert all(text_indices)
    for batch, total in zip(text_indices, sums, strict=True):
        assert total <= budget or total == lengths[batch[0]]
    for total, following in zip(sums, text_indices[1:], strict=False):
        assert total + lengths[following[0]] > budget


def block(size, *texts):
    """Rows with these texts, of which a reader returned all at once."""
    rows = block_of_rows(row(number) for number in range(size))
    rows.texts = [texts or ("x",)] * size
    return rows


@pytest.mark.parametrize(
    ("total", "sizes"),
    [
        (0, []),
        (1, [1]),
        (32, [32]),
        (33, [32, 1]),
        (20_000, [32, 128, 512, 1024, 2048, 4096, 8192, 3968]),
    ],
)
def test_groups_grow_fourfold_to_512_rows_and_double_up_to_8192(total, sizes):
    groups = list(grouped([block(total)]))

    assert [len(group) for group in groups] == sizes
    assert [row.number for group in groups for row in group] == list(range(total))


def test_long_texts_end_a_group_early(monkeypatch):
    """All texts of a row count."""
    monkeypatch.setattr("sentkit.model.groups.MAX_GROUP_CHARACTERS", 100)

    groups = list(grouped([block(7, "x" * 40), block(1, "x" * 1000), block(2)]))

    assert [len(group) for group in groups] == [3, 3, 2, 2]
    assert [len(group) for group in grouped([block(5, "x" * 30, "y" * 30)])] == [2, 2, 1]


def test_a_group_is_returned_before_the_next_row_is_read():
    read = []

    next(grouped(read.append(number) or block(1) for number in count()))

    assert len(read) == 32
