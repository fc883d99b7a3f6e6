import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentkit.metrics.neighbours import pairs as nearest
from sentkit.metrics.neighbours.pairs import closest_pairs, connected, matrix_rows
from sentkit.metrics.similarity import SIMILARITIES, pairwise
from support import normal_rows


def by_loop(vectors: np.ndarray, top: int, metric: str) -> list[tuple[int, int, float]]:
    n = len(vectors)
    found = [
        (i, j, float(SIMILARITIES[metric](vectors[i : i + 1], vectors[j : j + 1])[0]))
        for i in range(n)
        for j in range(i + 1, n)
    ]
    return sorted(found, key=lambda pair: (-pair[2], pair[0], pair[1]))[:top]


def as_list(found: nearest.Pairs) -> list[tuple[int, int, float]]:
    return list(zip(*(each.tolist() for each in found), strict=True))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", SIMILARITIES)
@pytest.mark.parametrize("top", [0, 1, 10, 400, 10_000])
def test_closest_pairs_are_those_of_a_loop(metric: str, top: int) -> None:
    """The best pairs, their order and similarities equal those of all pairs sorted, which may be fewer."""
    vectors = normal_rows(31, 5)

    assert as_list(closest_pairs(vectors, top, metric)) == by_loop(vectors, top, metric)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", SIMILARITIES)
@pytest.mark.parametrize("top", [1, 7, 60])
def test_ties_come_in_the_order_of_the_rows(metric: str, top: int) -> None:
    """Pairs with the same similarity keep the order of the rows, also across blocks."""
    vectors = np.tile(normal_rows(6, 77), (7, 1))

    assert as_list(closest_pairs(vectors, top, metric)) == by_loop(vectors, top, metric)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=25),
    st.integers(1, 30),
    st.sampled_from(sorted(SIMILARITIES)),
)
@example([], 5, "cosine")
@example([(1, 2)], 5, "cosine")
def test_any_ties_come_in_the_order_of_the_rows(points: list[tuple[int, int]], top: int, metric: str) -> None:
    """Points of a small grid, many of them equal or equally far, are found as the loop finds them."""
    vectors = np.array(points, dtype=np.float32).reshape(-1, 2)

    assert as_list(closest_pairs(vectors, top, metric)) == by_loop(vectors, top, metric)


def test_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-equal rows, which a product of matrices cannot order, come out the same from any blocks."""
    vectors = np.tile(normal_rows(1, 64), (300, 1)) + normal_rows(300, 64, seed=1) * np.float32(1e-4)
    expected = as_list(closest_pairs(vectors, 20))

    monkeypatch.setattr(nearest, "FIRST_ROWS", 5)
    monkeypatch.setattr(nearest, "ROWS_PER_SEARCH", 17)

    assert as_list(closest_pairs(vectors, 20)) == expected
    assert expected == by_loop(vectors, 20, "cosine")


def test_the_search_ends_when_nothing_can_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once every place is taken by equal rows further up, the rows below are not looked at."""
    monkeypatch.setattr(nearest, "FIRST_ROWS", 1)
    monkeypatch.setattr(nearest, "ROWS_PER_SEARCH", 8)
    vectors = normal_rows(80, 4)
    vectors[11] = vectors[10]
    vectors[60] = vectors[50]
    seen = []
    pairs_of = nearest.later_pairs
    monkeypatch.setattr(
        nearest,
        "later_pairs",
        lambda searcher, start, least: seen.append(start) or pairs_of(searcher, start, least),
    )

    found = closest_pairs(vectors, 1)

    assert as_list(found) == [(10, 11, 1.0)]
    assert seen == [1, 9]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", SIMILARITIES)
@pytest.mark.parametrize("n", [0, 1, 2, 31])
def test_matrix_rows_make_the_matrix(metric: str, n: int) -> None:
    """The blocks one under another are all similarities of all rows."""
    vectors = normal_rows(n, 6)

    blocks = list(matrix_rows(vectors, metric))

    assert [block.shape[1] for block in blocks] == [n] * len(blocks)
    np.testing.assert_allclose(
        np.concatenate([np.empty((0, n), np.float32), *blocks]), pairwise(metric, vectors, vectors), atol=1e-5
    )


@pytest.mark.usefixtures("small_blocks")
def test_matrix_blocks_stay_small() -> None:
    """No block of the matrix has more elements than allowed, unless one row has."""
    assert {block.size for block in matrix_rows(normal_rows(20, 2))} == {40}
    assert {block.size for block in matrix_rows(normal_rows(60, 2))} == {60}


ROWS = 12
EDGES = st.lists(
    st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)), min_size=1, max_size=4),
    max_size=9,
)


@given(EDGES)
@example([[(row, row + 1)] for row in range(ROWS - 2, -1, -1)])
def test_groups_are_the_connected_components(parts: list[list[tuple[int, int]]]) -> None:
    """Compared with a loop that spreads the smallest row until nothing changes."""
    first, found = list(range(ROWS)), np.arange(ROWS)
    for pairs in parts:
        found = connected(found, *np.array(pairs).T)
    for _ in range(ROWS):
        for pair in (pair for pairs in parts for pair in pairs):
            smallest = min(first[each] for each in pair)
            for each in pair:
                first[each] = smallest

    assert found.tolist() == first
