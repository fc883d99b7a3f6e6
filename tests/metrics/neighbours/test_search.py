"""Tables of rows; searches of rows and pairs against plain loops, for any metric, ties, lengths and
blocks.

Also with candidates from a device, which is the CPU of torch.
"""

import math
import tracemalloc
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from sentkit.errors import DataError
from sentkit.formats.vectors.arrays import SelectedVectors, StoredVectors
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.tensors import FLOATS, STORES, Storage, scales_of
from sentkit.metrics import device as of_device
from sentkit.metrics import similarity as rounding
from sentkit.metrics.device import Device
from sentkit.metrics.neighbours import corpus, search
from sentkit.metrics.neighbours import pairs as of_pairs
from sentkit.metrics.neighbours.corpus import read_table
from sentkit.metrics.neighbours.pairs import closest_pairs, pairs_reaching
from sentkit.metrics.neighbours.search import Best, Searcher
from sentkit.metrics.similarity import SIMILARITIES, margins
from support import normal_rows

every_metric = pytest.mark.parametrize("metric", SIMILARITIES)
# Both kinds of products.
few_and_many = pytest.mark.parametrize("few_queries", [0, search.FEW_QUERIES])
small_blocks = pytest.mark.usefixtures("few_rows")
GRID = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=30)


@pytest.fixture
def few_rows(monkeypatch):
    """A few dozen rows need many blocks, and their candidates exceed the limit."""
    monkeypatch.setattr(rounding, "CANDIDATES", 4)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 5)
    monkeypatch.setattr(search, "MAX_CANDIDATES", 20)
    monkeypatch.setattr(of_pairs, "ROWS_PER_SEARCH", 7)
    monkeypatch.setattr(of_pairs, "FIRST_ROWS", 3)
    monkeypatch.setattr(of_pairs, "MAX_CANDIDATES", 4)
    monkeypatch.setattr(of_device, "ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(of_device, "GROUP", 2)
    monkeypatch.setattr(of_device, "SPARE", 2)


def table(rows_a, rows_b, metric):
    """All similarities, one pair of rows at a time."""
    similarity = SIMILARITIES[metric]
    similarities = [[similarity(a[None], b[None])[0] for b in rows_b] for a in rows_a]
    return np.array(similarities).reshape(len(rows_a), len(rows_b))


def rows_of(*columns):
    return [*zip(*(column.tolist() for column in columns), strict=True)]


def devices(metric):
    """The CPU, and a device of torch where all blocks stay, none, or some. It compares products
    only.
    """
    rooms = (1 << 40, 0, 700) if metric in ("cosine", "dot") else ()
    torch_devices = [Device(torch.device("cpu")) for _ in rooms]
    for device, room in zip(torch_devices, rooms, strict=True):
        device.free_bytes = room
    return [None, *torch_devices]


def expect(queries, corpus, metric, top, limits, threshold):
    """The nearest rows, those below limits and those that reach a threshold are those of
    the table.
    """
    alike = table(queries, corpus[:], metric)
    ranked = [
        sorted(range(len(similarities)), key=lambda row: (-similarities[row], row))
        for similarities in alike
    ]
    for device in devices(metric):
        searcher = Searcher(corpus, metric, device)
        below = Best(searcher, queries, max(1, top), np.array(limits, np.float64))

        nearest = searcher.nearest(queries, top)
        assert [rows_of(*hits) for hits in zip(*nearest, strict=True)] == [
            [(row, similarities[row]) for row in rows[:top]]
            for rows, similarities in zip(ranked, alike, strict=True)
        ]
        assert [rows_of(*hits) for hits in searcher.reaching(queries, threshold)] == [
            [
                (row, similarities[row])
                for row in range(len(similarities))
                if similarities[row] >= threshold
            ]
            for similarities in alike
        ]
        if len(queries):
            assert [rows.tolist() for rows in below.rows()] == [
                [row for row in rows if similarities[row] < limit][: max(1, top)]
                for rows, similarities, limit in zip(ranked, alike, limits, strict=True)
            ]
        assert below.count_reaching_limit == (alike >= np.array(limits)[:, None]).sum()


def expect_pairs(vectors, metric, top, threshold):
    """The best pairs, best first, and the pairs that reach a threshold, in the order of the
    rows.
    """
    alike = table(vectors, vectors, metric)
    n = len(vectors)
    every = [(i, j, alike[i, j]) for i in range(n) for j in range(i + 1, n)]
    best = sorted(every, key=lambda pair: (-pair[2], pair))[:top]

    assert rows_of(*closest_pairs(vectors, top, metric)) == best
    for device in devices(metric):
        blocks = pairs_reaching(vectors, threshold, metric, device)
        assert [pair for block in blocks for pair in rows_of(*block)] == [
            pair for pair in every if pair[2] >= threshold
        ]


@small_blocks
@every_metric
@pytest.mark.parametrize("top", [0, 1, 4, 31, 500])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98, 1.0])
def test_random_rows(metric, top, share):
    """With thresholds that no row, some rows and all rows reach."""
    queries = normal_rows(9, 6, seed=1)
    corpus = normal_rows(32, 6)
    alike = table(queries, corpus, metric)

    limits = np.quantile(alike, share, axis=1) + 1e-9
    expect(queries, corpus, metric, top, limits.tolist(), float(np.quantile(alike, share)))
    expect_pairs(corpus, metric, top, float(np.quantile(alike, share)))


@small_blocks
@given(GRID, GRID, st.integers(1, 12), st.sampled_from(sorted(SIMILARITIES)), st.data())
def test_limits_and_thresholds_are_exact(query_points, corpus_points, top, metric, data):
    """Points of a small grid, zeros and duplicates among them, or no point. Each limit is a
    similarity.
    """
    queries, corpus = (
        np.array(points, np.float32).reshape(-1, 2) for points in (query_points, corpus_points)
    )
    alike = table(queries, corpus, metric)
    limits = [
        data.draw(st.sampled_from(similarities)) if similarities else 0.0
        for similarities in alike.tolist()
    ]
    thresholds = [0.5, *alike.ravel().tolist()]
    threshold = data.draw(st.sampled_from(thresholds))

    expect(queries, corpus, metric, top, limits, threshold)
    expect_pairs(corpus, metric, top, threshold)


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
def test_the_threshold_itself_is_reached_and_the_next_number_is_not(metric, vector, other, value):
    """Similarities that float64 holds exactly, or rounds as the literal is rounded."""
    both = np.array([vector, other], np.float32)

    assert [rows_of(*block) for block in pairs_reaching(both, value, metric)] == [[(0, 1, value)]]
    assert [
        rows_of(*block) for block in pairs_reaching(both, math.nextafter(value, 9), metric)
    ] == [[]]


@few_and_many
@every_metric
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e18, 3e38])
def test_rows_of_any_length(metric, scale, few_queries, monkeypatch):
    """Near both ends of float32, where products in it would vanish or overflow."""
    monkeypatch.setattr(search, "FEW_QUERIES", few_queries)
    corpus = (normal_rows(40, 6).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    queries = (normal_rows(3, 6, seed=1).clip(-1, 1) * np.float64(scale)).astype(np.float32)
    limits = SIMILARITIES[metric](queries, corpus[:3])

    expect(queries, corpus, metric, 5, limits.tolist(), float(limits[0]))
    expect_pairs(corpus, metric, 5, float(limits[0]))


@every_metric
@pytest.mark.parametrize("sizes", [(1024, 1024), (37, 17)])
def test_near_equal_rows(metric, sizes, monkeypatch):
    """A product of matrices cannot order them. They are the same from blocks of any size."""
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", sizes[0])
    monkeypatch.setattr(of_pairs, "ROWS_PER_SEARCH", sizes[1])
    corpus = np.tile(normal_rows(1, 64), (120, 1)) + normal_rows(120, 64, seed=1) * np.float32(1e-4)
    corpus[7] *= 1000
    queries = corpus[::40] + normal_rows(3, 64, seed=2) * np.float32(1e-5)
    limits = SIMILARITIES[metric](queries, corpus[5:8])

    expect(queries, corpus, metric, 15, limits.tolist(), float(limits[0]))
    expect_pairs(corpus, metric, 15, float(limits[0]))


@few_and_many
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("starts", [(0, 40), (0, 7, 21, 40)])
@pytest.mark.parametrize("selected", [False, True])
@small_blocks
def test_stored_rows_are_searched_like_their_vectors(
    kind, queries, starts, selected, few_queries, monkeypatch
):
    """With subnormal numbers, a row of zeros and ties; files of int8 have their own scales."""
    monkeypatch.setattr(search, "FEW_QUERIES", few_queries)
    vectors = np.repeat(normal_rows(20, 6), 2, axis=0)
    vectors[:9] *= np.float32(1e-6)
    vectors[11] = 0.0
    files = []
    for start, stop in pairwise(starts):
        vectors_of_file = vectors[start:stop]
        largest = np.abs(vectors_of_file).max(axis=0)
        storage = Storage(kind, 6, scales_of(largest) if kind == "int8" else None)
        codes = storage.encode(vectors_of_file)
        files.append(
            SimpleNamespace(
                count=len(vectors_of_file), storage=storage, codes=lambda codes=codes: codes
            )
        )
    corpus = StoredVectors(files)
    assert np.array_equal(
        corpus.codes(slice(None)), np.concatenate([file.codes() for file in files])
    )
    if selected:
        corpus = SelectedVectors(corpus, np.delete(np.arange(40), [3, 11, 12, 30]))
    query_vectors = normal_rows(queries, 6, seed=1)

    for metric in ("cosine", "dot"):
        limits = SIMILARITIES[metric](query_vectors, corpus[:queries])
        expect(query_vectors, corpus, metric, 5, limits.tolist(), float(limits[0]))


@every_metric
def test_scikit_learn_finds_the_same(metric):
    """Of random rows, where the digits of float32 decide the order of none."""
    queries = normal_rows(50, 24, seed=1)
    corpus = normal_rows(2000, 24)
    if metric == "dot":  # of rows of length 1, the order of the cosine
        queries, corpus = (
            rows_of_vectors / np.linalg.norm(rows_of_vectors, axis=1, keepdims=True)
            for rows_of_vectors in (queries, corpus)
        )
    name = "cosine" if metric == "dot" else metric
    reference = NearestNeighbors(n_neighbors=10, metric=name, algorithm="brute")
    distances, expected_rows = reference.fit(corpus.astype(np.float64)).kneighbors(
        queries.astype(np.float64)
    )
    rows, similarities = Searcher(corpus, metric).nearest(queries, 10)

    assert rows.tolist() == expected_rows.tolist()
    expected = -distances if metric in ("euclidean", "manhattan") else 1 - distances
    np.testing.assert_allclose(similarities, expected, atol=1e-6)


def test_the_block_of_queries_shrinks_with_top():
    """The candidates kept are bounded, at one query at least."""
    searcher = Searcher(normal_rows(5000, 2))

    assert searcher.queries_at_once(1) == searcher.queries_at_once(1000) == search.QUERIES_PER_BLOCK
    assert (
        searcher.queries_at_once(10_000)
        == searcher.queries_at_once(5000)
        == search.MAX_CANDIDATES // 5000
    )
    assert Searcher(normal_rows(0, 2)).queries_at_once(10) == search.QUERIES_PER_BLOCK


def test_memory_does_not_grow_with_the_pairs(monkeypatch):
    """All 319,600 pairs of 800 rows reach the threshold: they come in small parts."""
    monkeypatch.setattr(search, "MAX_CANDIDATES", 1 << 12)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 128)
    monkeypatch.setattr(of_pairs, "ROWS_PER_SEARCH", 128)
    vectors = normal_rows(800, 4)
    tracemalloc.start()
    count = sum(len(block.rows_a) for block in pairs_reaching(vectors, -1.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 800 * 799 // 2
    assert peak < 2_000_000  # the pairs themselves are 8 MB


def test_the_search_ends_when_nothing_can_enter(monkeypatch):
    """Once every place is taken by equal rows further up, the rows below are not looked at."""
    monkeypatch.setattr(of_pairs, "FIRST_ROWS", 1)
    monkeypatch.setattr(of_pairs, "ROWS_PER_SEARCH", 8)
    vectors = normal_rows(80, 4)
    vectors[11] = vectors[10]
    vectors[60] = vectors[50]
    seen: list[int] = []
    pairs_of = of_pairs.later_pairs
    monkeypatch.setattr(
        of_pairs,
        "later_pairs",
        lambda searcher, start, threshold: (
            seen.append(start) or pairs_of(searcher, start, threshold)
        ),
    )

    pairs = closest_pairs(vectors, 1)

    assert rows_of(*pairs) == [(10, 11, 1.0)]
    assert seen == [1, 9]


@pytest.fixture
def bounded(monkeypatch):
    """Bounds for a few rows, in blocks of 25. The list gets the number of axes of each search."""
    axes = []

    real = search.find_bounds

    def find(*arguments):
        bounds = real(*arguments)
        axes.append(0 if bounds is None else bounds[0].shape[1])
        return bounds

    monkeypatch.setattr(search, "COMPARED_ROWS", 10)
    monkeypatch.setattr(search, "TIME_OF_CANDIDATE", 0.0)  # bounds that exclude few pairs are used
    monkeypatch.setattr(search, "find_bounds", find)
    monkeypatch.setattr(search, "MANY_QUERIES", 1)
    monkeypatch.setattr(search, "MANY_ROWS", 1)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 25)
    return axes


def uneven_rows(count, width, seed):
    """Rows with most of their length in few directions, of lengths from 0 to 1e4; every third is
    repeated.
    """
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.standard_normal((width, width)))[0]
    rows = random.standard_normal((count, width)) * 0.7 ** np.arange(width) @ rotation
    rows[::3] = rows[1] + 0.03 * random.standard_normal((len(rows[::3]), width))
    return (
        rows * 10.0 ** random.integers(-4, 5, (count, 1)) * (np.arange(count) != 4)[:, None]
    ).astype("<f4")


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("threshold", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("top", [1, 3000])
def test_bounds_lose_no_pair(bounded, metric, threshold, top, monkeypatch):
    """They serve all limits of the closest pairs, too."""
    monkeypatch.setattr(of_pairs, "FIRST_ROWS", 5)
    monkeypatch.setattr(of_pairs, "ROWS_PER_SEARCH", 30)
    corpus = uneven_rows(100, 64, seed=1)
    queries = uneven_rows(40, 64, seed=2)

    expect(queries, corpus, metric, 5, [threshold] * 40, threshold)
    expect_pairs(corpus, metric, top, threshold)
    assert len(bounded) == 3
    assert all(bounded)


def test_a_bound_is_at_least_the_product():
    rows = uneven_rows(200, 48, seed=3).astype(np.float64)
    unit = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)).astype(
        np.float32
    )
    axes = np.linalg.eigh(unit.T.astype(float) @ unit)[1][:, :-8:-1].astype(np.float32)
    reduced = search.reduced(unit, axes).astype(np.float64)

    over = reduced @ reduced.T - unit.astype(np.float64) @ unit.astype(np.float64).T

    assert over.min() >= 0
    assert np.diag(over).max() < 1e-4  # of a row with itself the bound is exact


def test_rows_without_main_directions_have_no_bounds(bounded, monkeypatch):
    monkeypatch.setattr(search, "TIME_OF_CANDIDATE", 15_000.0)

    expect_pairs(normal_rows(150, 64), "cosine", 0, 0.3)
    assert bounded == [0]


def test_a_dense_block_is_computed_in_full(bounded, monkeypatch):
    """Candidates by bounds are more than the pairs, and are not all verified."""
    monkeypatch.setattr(search, "DENSE", 0.01)
    verified = []
    check = search.exact_similarities
    monkeypatch.setattr(
        search, "exact_similarities", lambda *args: verified.append(len(args[3][0])) or check(*args)
    )
    corpus = uneven_rows(150, 64, seed=5)
    count = sum(len(block.rows_a) for block in pairs_reaching(corpus, 0.9))
    alike = table(corpus, corpus, "cosine")

    assert count == np.count_nonzero(np.triu(alike, 1) >= 0.9)
    assert all(bounded)
    assert sum(verified) == np.count_nonzero(alike >= 0.9)


LINES = [orjson.dumps({"text": "é" * number, "id": number}) for number in range(5)]


def write_store(path, vectors, lines, kind="float32"):
    width = vectors.shape[1]
    with create_vector_file(
        str(path), {}, ["embedding"], width=width, force=True, kind=kind
    ) as writer:
        for line, vector in zip(lines, vectors, strict=True):
            writer.write([line], vector[None, None])
    return str(path)


def read(path):
    return read_table(open_inputs([path]))


def test_a_vector_file_and_its_rows_are_the_same_table(tmp_path):
    """Blank lines between rows count for the line number only."""
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with (tmp_path / "a.jsonl").open("wb") as file:
        for line, vector in zip(LINES, vectors.tolist(), strict=True):
            file.write(b'%b,"embedding":%b}\n\n' % (line[:-1], orjson.dumps(vector)))
    tables = [
        read(write_store(tmp_path / "a.safetensors", vectors, LINES)),
        read(str(tmp_path / "a.jsonl")),
    ]

    for table in tables:
        np.testing.assert_array_equal(table.vectors, vectors[:, None])
        assert [table.row(index).line for index in (4, 0, 2, 1, 3)] == [
            LINES[i] for i in (4, 0, 2, 1, 3)
        ]
    assert [[table.row(index).number for index in range(5)] for table in tables] == [
        [1, 2, 3, 4, 5],
        [1, 3, 5, 7, 9],
    ]


@pytest.mark.parametrize("kind", FLOATS)
def test_a_vector_with_nan_is_refused_with_its_row(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("sentkit.metrics.neighbours.corpus.CHECKED", 2)
    vectors = np.ones((5, 3), np.float32)
    vectors[3, 1] = np.nan

    with pytest.raises(DataError, match=r"a\.safetensors:4: a vector contains NaN or infinity"):
        read(write_store(tmp_path / "a.safetensors", vectors, LINES, kind))


@pytest.mark.parametrize("line", [b"[1]", b'{"text":', b'{"text":"a"}\n{"text":"b"}', b""])
def test_a_damaged_row_is_an_error_when_it_is_read(tmp_path, line):
    table = read(
        write_store(tmp_path / "a.safetensors", np.ones((2, 1), np.float32), [LINES[0], line])
    )

    assert table.row(0).line == LINES[0]
    with pytest.raises(DataError, match=r"a\.safetensors:2: "):
        table.row(1)


def test_offsets_that_do_not_agree_are_refused(tmp_path):
    path = write_store(tmp_path / "a.safetensors", np.ones((5, 1), np.float32), LINES)
    table = read(path)
    content = bytearray(Path(path).read_bytes())
    lengths = [len(line) + 1 for line in LINES]
    offsets = np.cumsum([0, *lengths]).astype("<i8").tobytes()
    assert content.count(offsets) == 1
    start = content.index(offsets)
    content[start + 16 : start + 24] = (1 << 40).to_bytes(8, "little")
    Path(path).write_bytes(content)

    assert table.row(4).line == LINES[4]
    with pytest.raises(DataError, match=r"a\.safetensors:2: row_offsets and rows do not agree"):
        read(path).row(1)


def test_no_rows_are_an_error(tmp_path):
    with pytest.raises(DataError, match=r"^no rows in .*a\.safetensors$"):
        read(write_store(tmp_path / "a.safetensors", np.ones((0, 2), np.float32), []))


@pytest.mark.parametrize("width", [1, 64, 400])
def test_the_margin_of_manhattan_is_that_of_the_largest_sum(width):
    """The magnitudes of a row add up to at most the root of the width times its length."""
    rows = np.concatenate([np.ones((1, width), np.float32), normal_rows(5, width)])
    sums = np.abs(rows.astype(np.float64)).sum(axis=1)

    bounds = Searcher(rows, "manhattan").margins_of(rows)
    assert (bounds >= 0.999 * margins(sums)).all()
    ones = Searcher(rows[:1], "manhattan").margins_of(rows[:1])
    assert ones == pytest.approx(margins(sums[:1]), rel=1e-6)


def test_long_fields_of_rows_are_not_kept_without_a_limit(monkeypatch):
    monkeypatch.setattr(corpus, "CACHED_BYTES", 3000)
    reads = []

    def read(index):
        reads.append(index)
        return {"text": b"x" * (2000 if index == 1 else 100)}

    fields = corpus.FieldCache(read)
    for index in (0, 2, 0, 1, 0, 2):
        assert len(fields(index)["text"]) == (2000 if index == 1 else 100)

    assert reads == [0, 2, 1, 0, 2]  # with the long one, no other fits
