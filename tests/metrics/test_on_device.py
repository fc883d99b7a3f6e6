"""Candidates from a device of torch: bounds of errors, work that is left to the CPU, and clusters.

`neighbours/test_search.py` compares the rows that are found with plain loops.
The device is the CPU of torch, or a GPU in tests with the mark `gpu`.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import UnavailableError
from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.tensors import Storage
from sentkit.labels.clusters import clustering
from sentkit.labels.clusters.clustering import ClusteringOptions, Nearest, kmeans
from sentkit.metrics import device as module
from sentkit.metrics.device import Device, DeviceCorpus, DevicePoints, exact_sums, largest
from sentkit.metrics.neighbours.search import Best, HostSearch, Searcher
from sentkit.metrics.similarity import SIMILARITIES
from support import normal_rows

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # of torch
no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
metrics = pytest.mark.parametrize("metric", ["cosine", "dot"])


@pytest.fixture
def device():
    return Device(torch.device("cpu"))


@pytest.fixture
def gpu():
    return Device(torch.device("cuda"))


@pytest.fixture(params=[1 << 40, 0, 700], ids=["kept", "copied", "some kept"])
def small(request, monkeypatch, device):
    """Blocks of 16 rows, groups of 2, few spare rows; all blocks stay on the device, none,
    or some.
    """
    monkeypatch.setattr(module, "ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(module, "GROUP", 2)
    monkeypatch.setattr(module, "SPARE", 2)
    device.free_bytes = request.param
    return device


def similarities(queries, corpus, metric):
    return np.array([[SIMILARITIES[metric](q[None], r[None])[0] for r in corpus] for q in queries])


def nearest(searcher, queries, top):
    hits = searcher.nearest(queries, top)
    rows_with_similarities = zip(hits.rows.tolist(), hits.similarities.tolist(), strict=True)
    return [
        list(zip(*rows_and_similarities, strict=True))
        for rows_and_similarities in rows_with_similarities
    ]


def refuse(*_, **__):
    raise AssertionError("the CPU searches")


def halfway(rows, width):
    """Numbers that half precision rounds by almost half a unit, always in the same direction."""
    exponents = np.random.default_rng(0).integers(-3, 3, (rows, width))
    return ((1 + (1 - 1e-3) * 2.0**-11) * 2.0**exponents).astype(np.float32)


widths = pytest.mark.parametrize("width", [1, 5, 768, 3000])
numbers = pytest.mark.parametrize("make_rows", [normal_rows, halfway])


@metrics
@widths
@numbers
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 3e37])
def test_errors_of_products_are_within_their_bound(device, metric, width, scale, make_rows):
    """The bound is proved in `device.py`; it is small enough to be of use."""
    rows = (make_rows(60, width).clip(-9, 9) * np.float64(scale)).astype(np.float32)
    rows[7] = 0
    rows[8] = rows[8] * np.float32(1e-3)
    queries = (make_rows(9, width).clip(-9, 9) * np.float64(1 / scale)).astype(np.float32)
    corpus = DeviceCorpus(rows, metric, device)
    halves, errors, factors = corpus._queries(queries)
    with exact_sums():
        (_, (block, factor)), *_ = corpus.blocks()
        products = ((halves @ block.T).double() * factor).cpu().numpy()
    error_of_products = np.abs(
        products - similarities(queries, rows, metric) / factors[:, None]
    ) / float(factor)

    assert (error_of_products <= errors[:, None]).all()
    assert errors.max() < 2.5e-3 + width * 2.5e-7


def test_the_bound_is_needed(device):
    """All numbers of a query and a row, and their product, are rounded down by almost half
    a unit.
    """
    low = 2.0**-4 * (1 + 0.999 * 2.0**-11)
    width = 256
    used = 240
    query = np.full(width, low)
    row = np.full(width, low)
    unit_row = np.eye(width)[-1]
    query[used:] = np.sqrt((1 - used * low**2) / (width - used))  # so its length is 1
    row[used:] = 0
    row[used] = 0.99 * 2.0**-12 / query[used]
    corpus = DeviceCorpus(np.stack([row, unit_row]).astype(np.float32), "dot", device)
    halves, errors, _ = corpus._queries(query[None].astype(np.float32))
    with exact_sums():
        (_, (block, factor)), *_ = corpus.blocks()
        product = float((halves @ block.T)[0, 0] * factor)
    # The error of the query, about as much as of the row and of the product.
    error_of_query = np.sqrt(used) * low * 2.0**-11

    assert errors[0] - 0.9 * error_of_query < query @ row - product < errors[0]


SEEDS = st.integers(0, 9)


@given(
    st.integers(1, 60), st.sampled_from([1, 2, 4, 8]), st.integers(1, 20), st.integers(0, 3), SEEDS
)
def test_the_largest_numbers_are_those_of_a_sort(groups, size, count, different, seed):
    """Also of numbers that are mostly equal, and of those that are minus infinity."""
    columns = groups * size
    numbers = (
        np.random.default_rng(seed).integers(0, 2 + 10**different, (5, columns)).astype(np.float16)
    )
    numbers[numbers == 1] = -np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GROUP", size)
        values, indices = largest(torch.from_numpy(numbers), count)

    assert [sorted(row, reverse=True) for row in values.tolist()] == [
        sorted(row, reverse=True)[:count] for row in numbers.tolist()
    ]
    assert np.array_equal(np.take_along_axis(numbers, indices.numpy(), 1), values.numpy())
    assert all(len({*row}) == min(count, columns) for row in indices.tolist())


@metrics
@pytest.mark.parametrize("top", [10, 1950, 5000])
def test_random_rows_need_no_second_search(device, metric, top, monkeypatch):
    """With rows in clusters and equal rows among them, the spare rows suffice; and for all rows, or
    more.
    """
    corpus = np.repeat(normal_rows(40, 64), 50, axis=0) + normal_rows(
        2000, 64, seed=1
    ) * np.float32(0.3)
    corpus[100:120] = corpus[77]
    queries = np.concatenate([corpus[::100], normal_rows(20, 64, seed=2)])
    expected = nearest(Searcher(corpus, metric), queries, top)
    monkeypatch.setattr(HostSearch, "run", refuse)
    monkeypatch.setattr(DeviceCorpus, "reaching", refuse)

    assert nearest(Searcher(corpus, metric, device), queries, top) == expected


@pytest.mark.parametrize("count", [2, 7, 300])
@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("scale", [1e-36, 1e-18, 1.0, 1e14])
def test_centres_are_those_of_the_cpu(small, count, shift, scale):
    """Far from the origin too, with equal centres and equal rows, and one row that is far away."""
    rows = (normal_rows(300, 24) + np.float64(shift)) * scale
    rows[11] *= 10.0
    rows = rows.astype(np.float32)
    centres = rows[:count].astype(np.float64) * 1.01
    centres[-1] = centres[0]
    rows[200:] = rows[:100]
    on_device = Nearest(rows, small)

    assert on_device.assign(centres).tolist() == Nearest(rows).assign(centres).tolist()
    assert on_device.assign(centres[::-1]).tolist() == Nearest(rows).assign(centres[::-1]).tolist()


def test_few_rows_are_left_to_the_cpu(device, monkeypatch):
    """The centres are compared in parts of a block."""
    monkeypatch.setattr(module, "VALUES_PER_BLOCK", 5000)
    rows = normal_rows(3000, 64)
    centres = normal_rows(30, 64, seed=1).astype(np.float64)
    mean = rows.mean(axis=0, dtype=np.float64)
    labels, undecided = DevicePoints(rows, mean, device).nearest(centres - mean)
    expected = ((rows[:, None].astype(np.float64) - centres) ** 2).sum(axis=2).argmin(axis=1)

    assert len(undecided) < 30
    assert {*np.flatnonzero(labels != expected)} <= {*undecided.tolist()}


@pytest.mark.parametrize("sample", [None, 100])
def test_clusters_are_those_of_the_cpu(small, sample):
    rows = np.repeat(normal_rows(9, 16), 60, axis=0) + normal_rows(540, 16, seed=1) * np.float32(
        0.7
    )
    clusters, expected = (
        kmeans(
            rows,
            ClusteringOptions(9, restarts=3, sample=sample, device=where),
            np.random.RandomState(4),
        )
        for where in (small, None)
    )

    assert clusters.labels.tolist() == expected.labels.tolist()
    assert clusters.centres.tobytes() == expected.centres.tobytes()
    assert (clusters.inertia, clusters.iterations) == (expected.inertia, expected.iterations)
    assert (
        clustering.of_centres(rows, clusters.centres, small).labels.tolist()
        == expected.labels.tolist()
    )


def test_the_room_of_blocks_is_used_again(small):
    before = small.free_bytes
    searcher = Searcher(normal_rows(200, 6), "cosine", small)
    searcher.nearest(normal_rows(3, 6), 2)
    resident = searcher.on_device.blocks.resident
    used = sum(tensor.nbytes for block in resident.values() for tensor in block)

    assert len(resident) == {1 << 40: 13, 0: 0, 700: 3}[before]
    assert small.free_bytes == before - used
    del searcher, resident
    assert small.free_bytes == before


def test_settings_of_torch_are_restored_and_short_memory_is_reported():
    settings = torch.backends.cuda.matmul
    settings.allow_fp16_reduced_precision_reduction = True

    def short():
        with exact_sums():
            assert not settings.allow_fp16_reduced_precision_reduction
            raise torch.cuda.OutOfMemoryError

    with pytest.raises(UnavailableError, match="memory of the device") as error:
        short()

    assert settings.allow_fp16_reduced_precision_reduction
    assert error.value.advice == "use --device cpu"


@pytest.mark.gpu
@no_cuda
@widths
@numbers
def test_errors_of_products_are_within_their_bound_on_a_gpu(gpu, width, make_rows):
    """Of many rows and queries, so that kernels for large products run."""
    rows = make_rows(4096, width)
    queries = make_rows(1024, width)[::-1]
    corpus = DeviceCorpus(rows, "cosine", gpu)
    halves, errors, _ = corpus._queries(queries)
    with exact_sums():
        (_, (block, _)), *_ = corpus.blocks()
        products = (halves @ block.T).double().cpu().numpy()
    units = [
        vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        for vectors in (queries, rows)
    ]

    assert (np.abs(products - units[0] @ units[1].T) <= errors[:, None]).all()


@pytest.mark.gpu
@no_cuda
@metrics
@pytest.mark.parametrize("room", [0, 1 << 40], ids=["copied", "kept"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_and_similarities_are_those_of_the_cpu(gpu, metric, room, dtype, monkeypatch):
    """Rows in clusters, equal rows, rows and queries of zeros; several blocks."""
    monkeypatch.setattr(module, "ROWS_PER_BLOCK", 1 << 13)
    gpu.free_bytes = room
    rows = np.repeat(normal_rows(40, 128), 1000, axis=0)
    rows += normal_rows(40_000, 128, seed=1) * np.float32(0.5)
    rows[5000:5300] = rows[77]
    rows[9] = 0
    storage = Storage(np.dtype(dtype).name, 128)
    files = [SimpleNamespace(count=len(rows), storage=storage, codes=lambda: rows.astype(dtype))]
    corpus = StoredVectors(files)
    queries = np.concatenate(
        [corpus[70:90], normal_rows(100, 128, seed=2), np.zeros((1, 128), np.float32)]
    )
    on_gpu = Searcher(corpus, metric, gpu)
    on_cpu = Searcher(corpus, metric)
    limits = SIMILARITIES[metric](queries, corpus[:121]) * 0.9
    below = [Best(searcher, queries, 5, limits) for searcher in (on_gpu, on_cpu)]
    threshold = 0.6 if metric == "cosine" else 100.0
    reached = [
        [row.rows.tolist() for row in searcher.reaching(queries, threshold)]
        for searcher in (on_gpu, on_cpu)
    ]

    assert nearest(on_gpu, queries, 10) == nearest(on_cpu, queries, 10)
    assert reached[0] == reached[1]
    assert below[0].row_indices.tolist() == below[1].row_indices.tolist()
    assert below[0].certain_count == below[1].certain_count


@pytest.mark.gpu
@no_cuda
def test_clusters_are_those_of_the_cpu_on_a_gpu(gpu):
    rows = np.repeat(normal_rows(50, 96), 400, axis=0) + normal_rows(20_000, 96, seed=1)
    clusterings = [
        kmeans(rows, ClusteringOptions(50, restarts=1, device=where), np.random.RandomState(4))
        for where in (gpu, None)
    ]

    assert clusterings[0].labels.tolist() == clusterings[1].labels.tolist()
    assert clusterings[0].centres.tobytes() == clusterings[1].centres.tobytes()


@pytest.mark.gpu
@no_cuda
def test_the_host_does_not_wait_within_a_block(gpu, monkeypatch):
    """torch raises an error for an operation that waits, from the products of the first block to
    the last.
    """
    monkeypatch.setattr(module, "ROWS_PER_BLOCK", 1024)
    calls = []

    def watched(products, count):
        calls.append(len(calls))
        with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error" if len(calls) < 8 else "default")
        return largest(products, count)

    monkeypatch.setattr(module, "largest", watched)
    queries = normal_rows(50, 64, seed=1)
    corpus = normal_rows(8192, 64)
    gpu.free_bytes = 1024 * 64 * 2 * 3  # bytes: the first blocks stay, the others are copied
    try:
        for metric in ("cosine", "dot"):
            calls.clear()
            best = Best(Searcher(corpus, metric, gpu), queries, 5, np.full(50, 0.3))
            expected = Best(Searcher(corpus, metric), queries, 5, np.full(50, 0.3))

            assert len(calls) == 8
            assert best.row_indices.tolist() == expected.row_indices.tolist()
            assert best.certain_count == expected.certain_count
    finally:
        torch.cuda.set_sync_debug_mode("default")
