"""The nearest rows below a limit, against a plain loop."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.neighbours.search import Best, Searcher
from sentkit.metrics.similarity import SIMILARITIES
from support import normal_rows

pytestmark = pytest.mark.usefixtures("small_blocks")
every_metric = pytest.mark.parametrize("metric", SIMILARITIES)


def by_loop(queries: Any, corpus: Any, top: int, limits: Any, metric: str) -> tuple[list[list[int]], int]:
    rows, above = [], 0
    for query, limit in zip(queries, limits, strict=True):
        alike = [(float(SIMILARITIES[metric](query[None], row[None])[0]), i) for i, row in enumerate(corpus)]
        above += sum(value >= limit for value, _ in alike)
        below = sorted((-value, i) for value, i in alike if value < limit)
        rows.append([i for _, i in below[:top]])
    return rows, above


def searched(queries: Any, corpus: Any, top: int, limits: Any, metric: str) -> tuple[list[list[int]], int]:
    found = Best(Searcher(corpus, metric), queries, top, limits)
    return [rows.tolist() for rows in found.rows()], found.above


@every_metric
@pytest.mark.parametrize("top", [1, 4, 40])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_rows_are_those_of_a_loop(metric: str, top: int, share: float) -> None:
    """Limits that no row, some rows and all rows reach."""
    queries, corpus = normal_rows(9, 6, seed=1), normal_rows(32, 6)
    all_pairs = SIMILARITIES[metric](np.repeat(queries, 32, axis=0), np.tile(corpus, (9, 1)))
    limits = np.quantile(all_pairs.reshape(9, 32), share, axis=1) + 1e-9

    assert searched(queries, corpus, top, limits, metric) == by_loop(queries, corpus, top, limits, metric)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30),
    st.integers(1, 12),
    st.sampled_from(sorted(SIMILARITIES)),
    st.data(),
)
def test_rows_with_exactly_the_limit_are_not_below_it(
    left: list[tuple[int, int]], right: list[tuple[int, int]], top: int, metric: str, data: st.DataObject
) -> None:
    """Points of a small grid: many have the same similarity, and each limit is one of these values."""
    queries, corpus = (np.array(points, np.float32) for points in (left, right))
    chosen = [data.draw(st.integers(0, len(corpus) - 1)) for _ in left]
    limits = SIMILARITIES[metric](queries, corpus[chosen])

    assert searched(queries, corpus, top, limits, metric) == by_loop(queries, corpus, top, limits, metric)


@every_metric
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18, 3e38])
def test_limits_are_exact_at_both_ends_of_float32(metric: str, scale: float) -> None:
    corpus = (normal_rows(40, 6).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    queries = (normal_rows(3, 6, seed=1).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    limits = SIMILARITIES[metric](queries, corpus[:3])

    assert searched(queries, corpus, 5, limits, metric) == by_loop(queries, corpus, 5, limits, metric)


def test_near_equal_rows_on_both_sides_of_the_limit() -> None:
    """A product of matrices cannot order them."""
    corpus = np.tile(normal_rows(1, 64), (300, 1)) + normal_rows(300, 64, seed=1) * np.float32(1e-4)
    queries = corpus[::40] + normal_rows(8, 64, seed=2) * np.float32(1e-5)
    limits = SIMILARITIES["cosine"](queries, corpus[5:13])

    assert searched(queries, corpus, 15, limits, "cosine") == by_loop(queries, corpus, 15, limits, "cosine")
