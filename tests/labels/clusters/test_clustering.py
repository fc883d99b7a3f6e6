"""The nearest centre: as loops find it, for rows that a product in float32 cannot tell
apart too.
"""

import numpy as np
import pytest

from sentkit.labels.clusters import clustering
from sentkit.labels.clusters.clustering import Nearest


def by_loops(rows, centres):
    wide = rows.astype(np.float64)
    return [min(range(len(centres)), key=lambda c: ((row - centres[c]) ** 2).sum()) for row in wide]


@pytest.fixture
def rows():
    return np.random.default_rng(1).standard_normal((300, 24)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_each_row_gets_its_nearest_centre(rows, count, shift):
    """Far from the origin too, where a product keeps fewer digits of a difference."""
    rows = rows + np.float32(shift)
    centres = rows[:count].astype(np.float64) + 0.01

    assert Nearest(rows).assign(centres).tolist() == by_loops(rows, centres)


@pytest.mark.parametrize("scale", [1e-18, 1e-23, 1e-36])
def test_rows_too_short_for_products_in_float32(rows, scale):
    rows = (rows * scale).astype(np.float32)
    centres = rows[:5].astype(np.float64)

    assert Nearest(rows).assign(centres).tolist() == by_loops(rows, centres)


def test_blocks_of_any_size_give_the_same(rows, monkeypatch):
    centres = rows[:20].astype(np.float64)
    whole = Nearest(rows).assign(centres)
    monkeypatch.setattr(clustering, "DISTANCES_PER_BLOCK", 1)
    monkeypatch.setattr(clustering, "PAIRS_PER_BLOCK", 3)

    assert Nearest(rows).assign(centres).tolist() == whole.tolist()


def test_centres_too_close_for_float32():
    """Each row has two centres on a line with it, at 1 and at 1 + 1e-9 of the way from the first
    row.
    """
    direction = np.eye(24)[0]
    row = np.zeros((200, 24), np.float32)
    centres = np.stack([(1 + 1e-9) * direction, direction, (1 + 2e-9) * direction])

    assert Nearest(row).assign(centres).tolist() == [1] * 200


def test_of_equal_centres_the_first_is_taken(rows):
    centres = np.repeat(rows[:3].astype(np.float64), 4, axis=0)

    assert set(Nearest(rows).assign(centres).tolist()) == {0, 4, 8}


def test_equal_rows_get_equal_labels():
    """At any place in a block; each row has the same distance to both centres."""
    rows = np.tile(np.array([[1, 0, 0.3], [0, 1, 0.3]], np.float32).mean(axis=0), (5000, 1))
    centres = np.array([[0.0, 1.0, 0.3], [1.0, 0.0, 0.3]])

    assert set(Nearest(rows).assign(centres).tolist()) == {0}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [1e-23, 1.0, 1e6])
def test_labels_after_movements_are_those_without_limits(rows, scale, seed):
    """With ties, equal rows, equal centres, and centres that stay, move little, jump or change in
    number.
    """
    random = np.random.default_rng(seed)
    rows = (scale * (np.concatenate([rows, rows[:50], np.round(rows)]) + 5.0)).astype(np.float32)
    nearest = Nearest(rows)
    centres = rows[:12].astype(np.float64)
    for step in range(30):
        sizes = random.choice([0.0, 1e-9, 1e-4, 1e-2, 1.0], (12, 1), p=[0.5, 0.2, 0.2, 0.07, 0.03])
        centres = centres + scale * sizes * random.standard_normal(centres.shape)
        if step % 7 == 6:
            centres[step % 5] = centres[5]
        used = centres[: 12 - (step == 20)]

        assert nearest.assign(used).tolist() == Nearest(rows).assign(used).tolist()

    # the others are skipped
    assert scale == 1e-23 or len(nearest._advance_drift(used)) < 0.5 * len(rows)


def test_inertia_is_that_of_loops(rows):
    centres = rows[:5].astype(np.float64)
    labels = np.arange(300) % 5
    wide = rows.astype(np.float64)
    expected = sum(((wide[n] - centres[n % 5]) ** 2).sum() for n in range(300))

    assert Nearest(rows).inertia_of(labels, centres) == pytest.approx(expected, rel=1e-12)
