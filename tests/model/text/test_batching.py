"""Groups and batches: every row once, in order, and no batch over its budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.rows.block import Row, block_of
from sentkit.model import encoding
from sentkit.model.encoding import batches, default_budget, grouped

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100))
def test_batches_have_every_text_once_the_longest_first_and_fill_the_budget(lengths, budget):
    """Only a single longer text exceeds the budget, and a batch ends only if the next text does not fit."""
    found = [batch.tolist() for batch in batches(np.array(lengths, np.int64), budget)]
    order = [place for batch in found for place in batch]
    sums = [sum(lengths[place] for place in batch) for batch in found]

    assert order == sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    assert all(found)
    for batch, total in zip(found, sums, strict=True):
        assert total <= budget or total == lengths[batch[0]]
    for total, following in zip(sums, found[1:], strict=False):
        assert total + lengths[following[0]] > budget


def rows(count, *texts):
    """Rows with these texts, of which a reader returned all at once."""
    block = block_of(Row(b"{}", {}, "a", number) for number in range(count))
    block.texts = [texts or ("x",)] * count
    return block


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(0, []), (1, [1]), (32, [32]), (33, [32, 1]), (20_000, [32, 128, 512, 2048, 8192, 8192, 896])],
)
def test_groups_grow_fourfold_up_to_8192_rows(count, sizes):
    found = list(grouped([rows(count)]))

    assert [len(group) for group in found] == sizes
    assert [row.number for group in found for row in group] == list(range(count))


def test_long_texts_end_a_group_early(monkeypatch):
    """All texts of a row count."""
    monkeypatch.setattr(encoding, "MAX_GROUP_CHARACTERS", 100)

    found = list(grouped([rows(7, "x" * 40), rows(1, "x" * 1000), rows(2)]))

    assert [len(group) for group in found] == [3, 3, 2, 2]
    assert [len(group) for group in grouped([rows(5, "x" * 30, "y" * 30)])] == [2, 2, 1]


def test_a_group_is_returned_before_the_next_row_is_read():
    read = []

    def endless():
        number = 0
        while True:
            read.append(number)
            yield rows(1)
            number += 1

    next(grouped(endless()))  # type: ignore[arg-type]

    assert len(read) == 32


def test_the_budget_depends_on_the_device():
    """The numbers are measured, and may be measured again."""
    budgets = {device: default_budget(device) for device in ("cpu", "auto", "cuda", "cuda:1")}

    assert budgets["cpu"] == budgets["auto"] < budgets["cuda"] == budgets["cuda:1"]
