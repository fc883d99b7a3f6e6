from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from sentkit.formats.vectors.store import StoredVectors
from sentkit.formats.vectors.tensors import STORES, Storage, scales_of
from sentkit.metrics.neighbours import search
from sentkit.metrics.neighbours.search import Nearest, Searcher
from sentkit.metrics.similarity import SIMILARITIES
from support import normal_rows

every_metric = pytest.mark.parametrize("metric", SIMILARITIES)
few_and_many = pytest.mark.parametrize("few", [0, search.FEW_QUERIES])  # both kinds of products
Hits = list[list[tuple[int, float]]]
Points = list[tuple[int, int]]
GRID = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=30)


def by_loop(queries: np.ndarray, corpus: np.ndarray, top: int, metric: str) -> Hits:
    found = []
    for query in queries:
        alike = [(i, float(SIMILARITIES[metric](query[None], row[None])[0])) for i, row in enumerate(corpus)]
        found.append(sorted(alike, key=lambda hit: (-hit[1], hit[0]))[:top])
    return found


def as_lists(found: Nearest) -> Hits:
    lists = zip(found.rows.tolist(), found.similarities.tolist(), strict=True)
    return [list(zip(*each, strict=True)) for each in lists]


def searched(queries: np.ndarray, corpus: np.ndarray, top: int, metric: str) -> Hits:
    return as_lists(Searcher(corpus, metric).nearest(queries, top))


@pytest.mark.usefixtures("small_blocks")
@every_metric
@pytest.mark.parametrize("top", [1, 4, 31, 32, 500])
def test_the_nearest_rows_are_those_of_a_loop(metric: str, top: int) -> None:
    """The best rows, their order and similarities equal those of all rows sorted, which may be fewer."""
    queries, corpus = normal_rows(9, 6, seed=1), normal_rows(32, 6)

    assert searched(queries, corpus, top, metric) == by_loop(queries, corpus, top, metric)


@pytest.mark.usefixtures("small_blocks")
@every_metric
@pytest.mark.parametrize("top", [1, 3, 10])
def test_ties_come_in_the_order_of_the_rows(metric: str, top: int) -> None:
    """Rows with the same similarity keep their order, also across blocks."""
    queries, corpus = normal_rows(4, 77, seed=1), np.tile(normal_rows(3, 77), (15, 1))

    assert searched(queries, corpus, top, metric) == by_loop(queries, corpus, top, metric)


@pytest.mark.usefixtures("small_blocks")
@given(GRID, GRID, st.integers(1, 12), st.sampled_from(sorted(SIMILARITIES)))
@example([], [(1, 2)], 5, "cosine")
@example([(1, 2)], [], 5, "cosine")
def test_any_ties_come_in_the_order_of_the_rows(asked: Points, held: Points, top: int, metric: str) -> None:
    """Points of a small grid, zeros and duplicates among them, or no point; found as the loop finds them."""
    queries, corpus = (np.array(points, np.float32).reshape(-1, 2) for points in (asked, held))

    assert searched(queries, corpus, top, metric) == by_loop(queries, corpus, top, metric)


@few_and_many
@every_metric
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e18, 3e38])
def test_the_length_of_rows_does_not_blind_the_blocks(
    metric: str, scale: float, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near both ends of float32, where products in it would vanish or overflow."""
    monkeypatch.setattr(search, "FEW_QUERIES", few)
    corpus = (normal_rows(40, 6).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    queries = (normal_rows(3, 6, seed=1).clip(-1, 1) * np.float64(scale)).astype(np.float32)

    assert searched(queries, corpus, 5, metric) == by_loop(queries, corpus, 5, metric)


@few_and_many
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("starts", [(0, 40), (0, 7, 40)])
@pytest.mark.usefixtures("small_blocks")
def test_stored_rows_are_searched_like_their_vectors(
    kind: str, queries: int, starts: Sequence[int], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With subnormal numbers, a row of zeros and ties; files of int8 have their own scales."""
    monkeypatch.setattr(search, "FEW_QUERIES", few)
    vectors = np.repeat(normal_rows(20, 6), 2, axis=0)
    vectors[:9] *= np.float32(1e-6)
    vectors[11] = 0.0
    parts = []
    for part in (vectors[start:stop] for start, stop in pairwise(starts)):
        storage = Storage(kind, 6, scales_of(np.abs(part).max(axis=0)) if kind == "int8" else None)
        codes = storage.encode(part)
        parts.append(SimpleNamespace(count=len(part), storage=storage, codes=lambda codes=codes: codes))
    corpus = StoredVectors(parts)

    for metric in ("cosine", "dot"):
        found = searched(normal_rows(queries, 6, seed=1), corpus, 5, metric)

        assert found == by_loop(normal_rows(queries, 6, seed=1), corpus[:], 5, metric)
    assert np.array_equal(corpus.codes(slice(None)), np.concatenate([part.codes() for part in parts]))


@every_metric
def test_distant_rows_with_small_differences(metric: str) -> None:
    """Differences in the fourth digit of long rows, and one row a thousand times as long as the others."""
    corpus = normal_rows(1, 64) * 30 + normal_rows(300, 64, seed=1) * np.float32(1e-3)
    corpus[7] *= 1000
    queries = normal_rows(1, 64) * 30 + normal_rows(5, 64, seed=2) * np.float32(1e-3)

    assert searched(queries, corpus, 20, metric) == by_loop(queries, corpus, 20, metric)


@every_metric
def test_block_sizes_do_not_matter(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-equal rows, which a product of matrices cannot order, come out the same from any blocks."""
    corpus = np.tile(normal_rows(1, 64), (300, 1)) + normal_rows(300, 64, seed=1) * np.float32(1e-4)
    queries = corpus[::40] + normal_rows(8, 64, seed=2) * np.float32(1e-5)
    whole = searched(queries, corpus, 15, metric)

    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 37)

    assert searched(queries, corpus, 15, metric) == whole
    assert searched(queries[3:4], corpus, 15, metric) == whole[3:4]


def test_the_block_of_queries_shrinks_with_top() -> None:
    """The candidates kept are bounded, at one query at least."""
    searcher = Searcher(normal_rows(5000, 2))

    assert searcher.at_once(1) == searcher.at_once(1000) == search.QUERIES_PER_BLOCK
    assert searcher.at_once(10_000) == searcher.at_once(5000) == search.MAX_CANDIDATES // 5000
    assert Searcher(normal_rows(0, 2)).at_once(10) == search.QUERIES_PER_BLOCK


@every_metric
def test_scikit_learn_finds_the_same(metric: str) -> None:
    """Of random rows, where the digits of float32 decide the order of none."""
    queries, corpus = normal_rows(50, 24, seed=1), normal_rows(2000, 24)
    if metric == "dot":  # of rows of length 1, the order of the cosine
        queries, corpus = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, corpus))
    name = "cosine" if metric == "dot" else metric
    theirs = NearestNeighbors(n_neighbors=10, metric=name, algorithm="brute")
    distances, places = theirs.fit(corpus.astype(np.float64)).kneighbors(queries.astype(np.float64))
    found = Searcher(corpus, metric).nearest(queries, 10)

    assert found.rows.tolist() == places.tolist()
    expected = -distances if metric in ("euclidean", "manhattan") else 1 - distances
    np.testing.assert_allclose(found.similarities, expected, atol=1e-6)
