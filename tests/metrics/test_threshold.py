"""All rows, or all pairs of rows, that reach a threshold: compared with plain loops."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.neighbours import pairs as module
from sentkit.metrics.neighbours import search
from sentkit.metrics.neighbours.pairs import closest_pairs, pairs_reaching
from sentkit.metrics.neighbours.search import Searcher
from support import normal_rows

BY_HAND = {
    "cosine": lambda a, b: a @ b / math.sqrt((a @ a) * (b @ b)),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -math.sqrt((a - b) @ (a - b)),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}
every_metric = pytest.mark.parametrize("metric", BY_HAND)
Pair = tuple[int, int, float]


def table(left: np.ndarray, right: np.ndarray, metric: str) -> np.ndarray:
    """All similarities, one at a time in float64."""
    rows, columns = left.astype(np.float64), right.astype(np.float64)
    found = np.array([[BY_HAND[metric](a, b) for b in columns] for a in rows])
    return found.reshape(len(left), len(right))


def pairs(vectors: np.ndarray, threshold: float, metric: str) -> list[Pair]:
    found: list[Pair] = []
    for part in pairs_reaching(vectors, threshold, metric):
        found += zip(part.left.tolist(), part.right.tolist(), part.similarities.tolist(), strict=True)
    return found


def hits(queries: np.ndarray, corpus: np.ndarray, threshold: float, metric: str) -> list[Pair]:
    found = Searcher(corpus, metric).reaching(queries, threshold)
    return [
        (place, *hit)
        for place, one in enumerate(found)
        for hit in zip(one.rows.tolist(), one.similarities.tolist(), strict=True)
    ]


def agree(found: list[Pair], alike: np.ndarray, threshold: float, *, upper: bool) -> None:
    """The places are those of the loop, in the order of rows and columns, with its values."""
    places = [
        (i, j)
        for i in range(alike.shape[0])
        for j in range(i + 1 if upper else 0, alike.shape[1])
        if alike[i, j] >= threshold
    ]

    assert [pair[:2] for pair in found] == places
    np.testing.assert_allclose(
        [pair[2] for pair in found], [alike[place] for place in places], rtol=1e-12, atol=1e-12
    )


@pytest.mark.usefixtures("small_blocks")
@every_metric
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_pairs_and_hits_are_those_of_a_loop(metric: str, share: float) -> None:
    """From a threshold that no pair reaches to one that all reach; none lies within 1e-9 of a value."""
    queries, corpus = normal_rows(9, 6, seed=1), normal_rows(32, 6)
    for left, upper in ((corpus, True), (queries, False)):
        alike = table(left, corpus, metric)
        values = np.sort(alike[np.triu_indices(32, 1)] if upper else alike.ravel())
        cut = round(len(values) * (1 - share))
        below, above = [-1e3, *values, 1e3][cut : cut + 2]
        threshold = (below + above) / 2
        found = pairs(corpus, threshold, metric) if upper else hits(left, corpus, threshold, metric)

        assert above - below > 2e-9
        assert len(found) == len(values) - cut
        agree(found, alike, threshold, upper=upper)


@pytest.mark.usefixtures("small_blocks")
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=20),
    st.integers(-9, 9),
    st.sampled_from(["dot", "manhattan"]),
)
def test_a_similarity_equal_to_the_threshold_is_found(
    points: list[tuple[int, int]], threshold: int, metric: str
) -> None:
    """Points of a small grid, with similarities that are whole numbers: many are equal to the threshold."""
    vectors = np.array(points, np.float32).reshape(-1, 2)
    alike = table(vectors, vectors, metric)

    agree(pairs(vectors, threshold, metric), alike, threshold, upper=True)
    agree(hits(vectors, vectors, threshold, metric), alike, threshold, upper=False)


@pytest.mark.parametrize(
    ("metric", "vector", "other", "value"),
    [
        ("cosine", [3, 4], [6, 8], 1.0),
        ("cosine", [1, 0], [3, 4], 0.6),
        ("cosine", [0, 0], [3, 4], 0.0),
        ("cosine", [1, 2], [-2, -4], -1.0),
        ("euclidean", [0, 0], [3, 4], -5.0),
        ("euclidean", [7, 7], [7, 7], 0.0),
    ],
)
def test_the_threshold_itself_is_reached_and_the_next_number_is_not(
    metric: str, vector: list[int], other: list[int], value: float
) -> None:
    """Similarities that float64 holds exactly, or rounds as the literal is rounded."""
    both = np.array([vector, other], np.float32)

    assert pairs(both, value, metric) == [(0, 1, value)]
    assert pairs(both, math.nextafter(value, math.inf), metric) == []


@every_metric
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 3e38])
def test_thresholds_hold_for_rows_of_any_length(metric: str, scale: float) -> None:
    """Near both ends of float32, where products in it vanish or overflow."""
    vectors = (normal_rows(40, 6).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    if metric == "cosine" and scale < 1e-8:  # a shorter row counts as this long
        alike = vectors.astype(np.float64) @ vectors.T.astype(np.float64) / 1e-16
    else:
        alike = table(vectors, vectors, metric)
    values = np.sort(alike[np.triu_indices(40, 1)])
    threshold = float(values[400] + values[401]) / 2

    agree(pairs(vectors, threshold, metric), alike, threshold, upper=True)


@every_metric
@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_rows_have_few_pairs(metric: str, n: int) -> None:
    """An empty corpus gives each query an empty list; no query gives no list."""
    vectors = normal_rows(n, 3)
    of_nothing = Searcher(normal_rows(0, 3), metric).reaching(vectors, -100.0)

    assert len(pairs(vectors, -100.0, metric)) == n * (n - 1) // 2
    assert len(hits(vectors, vectors, -100.0, metric)) == n * n
    assert [len(found.rows) for found in of_nothing] == [0] * n


def test_block_sizes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-equal rows at a threshold between them, which a product of matrices cannot order."""
    vectors = np.tile(normal_rows(1, 64), (300, 1)) + normal_rows(300, 64, seed=1) * np.float32(1e-4)
    alike = np.sort(table(vectors, vectors, "cosine")[np.triu_indices(300, 1)])
    threshold = float(alike[20_000])
    whole = pairs(vectors, threshold, "cosine")

    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 37)
    monkeypatch.setattr(module, "ROWS_PER_SEARCH", 50)

    assert pairs(vectors, threshold, "cosine") == whole
    assert len(whole) == pytest.approx(len(alike) - 20_000, abs=3)  # equal but for the last bit of float64


def test_memory_does_not_grow_with_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 319,600 pairs of 800 rows reach the threshold: they come in small parts."""
    monkeypatch.setattr(search, "MAX_CANDIDATES", 1 << 12)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 128)
    monkeypatch.setattr(module, "ROWS_PER_SEARCH", 128)
    vectors = normal_rows(800, 4)
    tracemalloc.start()
    count = sum(len(part.left) for part in pairs_reaching(vectors, -1.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 800 * 799 // 2
    assert peak < 2_000_000  # the pairs themselves are 8 MB


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bounds for a few rows, in blocks of 25. The list gets the number of axes of each search."""
    made: list[int] = []

    real = search.find_bounds

    def find(*arguments: Any) -> search.Bounds | None:
        found = real(*arguments)
        made.append(0 if found is None else found[0].shape[1])
        return found

    monkeypatch.setattr(search, "COMPARED", 10)
    monkeypatch.setattr(search, "VERIFY", 0.0)  # bounds are used although they exclude few pairs
    monkeypatch.setattr(search, "find_bounds", find)
    monkeypatch.setattr(search, "MANY_QUERIES", 1)
    monkeypatch.setattr(search, "MANY_ROWS", 1)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 25)
    return made


def uneven_rows(count: int, width: int, seed: int) -> np.ndarray:
    """Rows with most of their length in few directions, of lengths from 0 to 1e4; every third is repeated."""
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.standard_normal((width, width)))[0]
    rows = random.standard_normal((count, width)) * 0.7 ** np.arange(width) @ rotation
    rows[::3] = rows[1] + 0.03 * random.standard_normal((len(rows[::3]), width))
    return (rows * 10.0 ** random.integers(-4, 5, (count, 1)) * (np.arange(count) != 4)[:, None]).astype(
        "<f4"
    )


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("threshold", [0.5, 0.95, 0.999])
def test_bounds_lose_no_pair(bounded: list[int], metric: str, threshold: float) -> None:
    corpus, queries = uneven_rows(120, 64, seed=1), uneven_rows(40, 64, seed=2)
    for left, upper in ((corpus, True), (queries, False)):
        alike = table(left, corpus, metric) if metric == "dot" else cosines(left, corpus)
        found = pairs(corpus, threshold, metric) if upper else hits(left, corpus, threshold, metric)

        agree(found, alike, threshold, upper=upper)
    assert all(bounded)


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """As `table`; a row of zeros has the cosine 0."""
    lengths = [[max(np.linalg.norm(row.astype(float)), 1e-30) for row in side] for side in (left, right)]
    return table(left, right, "dot") / np.outer(*lengths)


@pytest.mark.parametrize("top", [1, 40, 3000])
def test_bounds_serve_all_limits_of_closest_pairs(bounded: list[int], top: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "FIRST_ROWS", 5)
    monkeypatch.setattr(module, "ROWS_PER_SEARCH", 30)
    corpus = uneven_rows(150, 64, seed=5)
    alike = cosines(corpus, corpus)
    best = sorted((-alike[i, j], i, j) for i in range(150) for j in range(i + 1, 150))[:top]
    found = closest_pairs(corpus, top)

    assert [*zip(found.left.tolist(), found.right.tolist(), strict=True)] == [pair[1:] for pair in best]
    assert [count > 0 for count in bounded] == [True]


def test_a_bound_is_at_least_the_product() -> None:
    rows = uneven_rows(200, 48, seed=3).astype(np.float64)
    unit = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)).astype(np.float32)
    axes = np.linalg.eigh(unit.T.astype(float) @ unit)[1][:, :-8:-1].astype(np.float32)
    parts = search.reduced(unit, axes).astype(np.float64)

    over = parts @ parts.T - unit.astype(np.float64) @ unit.astype(np.float64).T

    assert over.min() >= 0
    assert np.diag(over).max() < 1e-4  # of a row with itself the bound is exact


def test_rows_without_main_directions_have_no_bounds(
    bounded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "VERIFY", 15_000.0)
    corpus = normal_rows(300, 64)

    assert len(pairs(corpus, 0.3, "cosine")) == np.count_nonzero(np.triu(cosines(corpus, corpus), 1) >= 0.3)
    assert bounded == [0]


def test_a_dense_block_is_computed_in_full(bounded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates by bounds are more than the pairs, and are not all verified."""
    monkeypatch.setattr(search, "DENSE", 0.01)
    verified = []
    check = search.exact
    monkeypatch.setattr(search, "exact", lambda *args: verified.append(len(args[3][0])) or check(*args))
    corpus = uneven_rows(150, 64, seed=5)
    alike = cosines(corpus, corpus)

    agree(pairs(corpus, 0.9, "cosine"), alike, 0.9, upper=True)

    assert all(bounded)
    assert sum(verified) == np.count_nonzero(alike >= 0.9)
