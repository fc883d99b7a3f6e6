"""`plot axes`: views of vectors, and correlations of their axes."""

import json

import numpy as np
import pytest

random = np.random.default_rng(0)
# Two independent sources with a large skewness, mixed; and a mean far from zero.
SOURCES = random.exponential(size=(400, 2))
VECTORS = (SOURCES @ [[1.0, 0.5], [0.4, 2.0]] + [5, 3]).round(4)


def in_rows(vectors):
    return "".join(json.dumps({"embedding": vector.tolist()}) + "\n" for vector in vectors)


def places_of(records, panel):
    return np.array([[r["x"], r["y"]] for r in records if r.get("panel") == panel])


def test_each_view_is_a_panel(plot):
    records = plot("axes", stdin=in_rows(VECTORS))
    centred = VECTORS - VECTORS.mean(axis=0)
    raw, after = places_of(records, "not centered"), places_of(records, "centered")
    white, independent = places_of(records, "whitened"), places_of(records, "independent components")

    assert raw.T @ raw == pytest.approx(np.diag(np.linalg.svd(VECTORS)[1] ** 2), rel=1e-4, abs=1e-2)
    assert after.T @ after == pytest.approx(np.diag(np.linalg.svd(centred)[1] ** 2), rel=1e-4, abs=1e-2)
    assert np.cov(white.T) == pytest.approx(np.eye(2), abs=1e-5)
    correlations = np.abs(np.corrcoef(independent.T, SOURCES.T)[:2, 2:])
    assert sorted(correlations.max(axis=0)) == pytest.approx([1, 1], abs=0.02)
    assert correlations.argmax(axis=0).tolist() in ([0, 1], [1, 0])


def test_correlations_are_those_of_numpy(plot):
    """Absolute values, for the first 32 of 40 axes."""
    vectors = random.normal(size=(100, 40)) @ random.normal(size=(40, 40))
    records = plot("axes", "--correlation", "--view", "raw", stdin=in_rows(vectors))
    expected = np.abs(np.corrcoef(vectors.T))[:32, :32]
    found = np.array([record["correlation"] for record in records]).reshape(32, 32)

    assert found == pytest.approx(expected, abs=1e-5)
    assert [records[1]["axis_a"], records[1]["axis_b"]] == [2, 1]


def test_the_mean_correlation_is_of_all_axes(svg):
    vectors = random.normal(size=(100, 40)) @ random.normal(size=(40, 40))
    texts, _, _ = svg("axes", "--correlation", "--view", "raw", "--view", "pca", stdin=in_rows(vectors))
    correlations = np.abs(np.corrcoef(vectors.T))

    assert f"mean {(correlations.sum() - 40) / (40 * 39):.3f}" in texts
    assert "mean 0.000" in texts


def test_a_constant_axis_has_no_correlation(plot):
    given = in_rows(np.array([[1.0, 2, 7], [2, 1, 7], [4, 4, 7]]))
    records = plot("axes", "--correlation", "--view", "raw", stdin=given)

    assert {(record["axis_a"], record["axis_b"]) for record in records} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_vectors_on_one_line_have_a_second_axis_of_zeros(plot):
    given = in_rows(np.outer([1.0, 2, 4, 7], [1, 2, 3]))
    records = plot("axes", "--view", "pca", "--view", "whitening", stdin=given)

    assert {round(record["y"], 6) for record in records} == {0}


def test_a_large_file_is_sampled(sentkit):
    done = sentkit("plot", "axes", "--view", "svd", "--sample", 30, stdin=in_rows(VECTORS))

    assert len({record["row"] for record in done.rows}) == 30
    assert done.told == ["sentkit plot axes: warning: -: the picture has a random sample of 30 of 400 rows"]


def test_ica_that_does_not_converge_is_reported(sentkit):
    done = sentkit("plot", "axes", "--view", "ica", "--iterations", 1, stdin=in_rows(VECTORS))

    assert done.told == ["sentkit plot axes: warning: -: ICA did not converge in 1 iterations (--iterations)"]


@pytest.mark.parametrize(
    ("flags", "given", "code", "problem"),
    [
        ([], in_rows(VECTORS[:2]), 65, "-: 2 vectors, expected 3 or more"),
        ([], in_rows(np.ones((4, 2))), 65, "-: all 4 vectors are equal, so there is nothing to draw"),
        ([], in_rows(VECTORS[:, :1]), 65, "-: vectors of 1 number have only one axis"),
        ([], '{"embedding_a":[1,2],"embedding_b":[2,1]}\n', 65,
         "-:1: this row has several vectors; plot axes draws rows with one vector"),
        (["--view", "tsne"], "", 2, '--view "tsne"'),
        (["--view", "pca", "--iterations", "3"], "", 2, "--iterations has no effect without ica"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn(sentkit, flags, given, code, problem):
    done = sentkit("plot", "axes", *flags, stdin=given)

    assert (done.code, done.told[0]) == (code, f"sentkit plot axes: {problem}")
