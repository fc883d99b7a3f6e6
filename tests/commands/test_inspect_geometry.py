"""`inspect` and the geometry of vectors: all forms of input, alignment of pairs, refusals."""

import json
import math

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise

PAIRS = [
    {"embedding_a": [1, 0], "embedding_b": [1, 1], "score": 4.2},
    {"embedding_a": [0, 2], "embedding_b": [0, 1], "score": "5"},
    {"embedding_a": [1, 0], "embedding_b": [-1, 0], "score": 4},
    {"embedding_a": [1, 0], "embedding_b": [0, 1], "score": None},
]


@pytest.fixture
def geometry(sentkit):
    """The member of that name, of a run that ended well and said nothing."""

    def run(*arguments, **given):
        done = sentkit("inspect", *arguments, **given)
        assert (done.code, done.err) == (0, "")
        return done.rows[0]["geometry"]

    return run


def in_rows(vectors):
    return b"".join(b'{"embedding":%b}\n' % json.dumps(vector.tolist()).encode() for vector in vectors)


def test_worked_values(geometry, jsonl):
    """Of (1,0), (0,2), (1,1), (0,1); and align 2 - sqrt(2) and 0, where lengths left as they are make 1."""
    found = geometry("-", "--gold", "score", stdin=jsonl(*PAIRS[:2]))

    assert found["uniformity"] == pytest.approx(-1.115622, abs=1e-6)
    assert found["alignment"] == pytest.approx((2 - math.sqrt(2)) / 2)
    assert found["alignment"] == pytest.approx(0.292893, abs=1e-6)


def test_the_alignment_is_of_scores_above_four(geometry, jsonl):
    """A score of 4 is not above it, and no score is none; all vectors are rows of the space."""
    found = geometry("-", "--gold", "score", stdin=jsonl(*PAIRS))

    assert found["alignment"] == pytest.approx(0.292893, abs=1e-6)
    assert found["alignment_pairs"] == {
        "gold": "score",
        "above": 4,
        "pairs": 2,
        "unscored": 1,
        "left_out": 0,
    }
    assert found["vectors"] == 8


@pytest.mark.parametrize(
    ("above", "alignment", "pairs"), [("3.9", (2 - math.sqrt(2) + 4) / 3, 3), ("5", None, 0)]
)
def test_another_threshold(geometry, jsonl, above, alignment, pairs):
    """The distance of opposite vectors is 2; without a higher score, alignment is null."""
    found = geometry("-", "--gold", "score", "--above", above, stdin=jsonl(*PAIRS))

    assert found["alignment"] == (alignment and pytest.approx(alignment))
    assert found["alignment_pairs"]["above"] == float(above)
    assert found["alignment_pairs"]["pairs"] == pairs


def test_pairs_with_a_zero_or_broken_vector_are_counted(geometry, jsonl):
    odd = [{"embedding_a": [1, 0], "embedding_b": b, "score": 5} for b in ([0, 0], [1e39, 0])]
    found = geometry("-", "--gold", "score", stdin=jsonl(*PAIRS, *odd))

    assert found["alignment"] == pytest.approx(0.292893, abs=1e-6)
    assert (found["alignment_pairs"]["pairs"], found["alignment_pairs"]["left_out"]) == (2, 2)
    assert (found["vectors"], found["left_out"], found["directions"]) == (11, 1, 10)


def test_sentences_and_triplets_are_points_too(geometry, jsonl):
    triplet = {"embedding_anchor": [1, 0], "embedding_positive": [1, 1], "embedding_negative": [0, 1]}
    found = geometry("-", stdin=jsonl(triplet))

    assert found["mean_cosine"] == pytest.approx(0.471405, abs=1e-6)
    assert found == geometry("-", stdin=in_rows(np.array([[1, 0], [1, 1], [0, 1]])))
    assert "alignment" not in found


def test_an_anisotropic_space_is_seen(geometry):
    """A common vector on one axis, as BERT has one: cosines near 1, and one component without centring."""
    vectors = np.random.default_rng(0).standard_normal((200, 8))
    vectors[:, 3] = 30 + vectors[:, 3] ** 2
    found = geometry("-", stdin=in_rows(vectors))

    assert found["mean_cosine"] > 0.98
    assert found["component_share"]["first_uncentred"] > 0.98
    assert found["component_share"]["first"] < 0.4
    assert found["skewness"]["axis"] == found["excess_kurtosis"]["axis"] == 3


@pytest.mark.parametrize(
    "rows",
    [
        b'{"embedding":[1]}\n',
        b'{"embedding":[0,0]}\n' * 3,
        b'{"embedding":[1e39,1]}\n',
        b'{"embedding":[7]}\n' * 9,
    ],
)
def test_degenerate_vectors_end_well(geometry, rows):
    """One, zeros, infinity, equal ones: members that are not defined are null, and nobody is warned."""
    found = geometry("-", stdin=rows)

    assert found["isoscore"] is None
    assert found["skewness"] == {"mean_absolute": None, "largest": None, "axis": None}


def test_it_can_be_left_out(sentkit, jsonl):
    """The other fields are the same."""
    full = sentkit("inspect", "-", stdin=jsonl(*PAIRS)).rows[0]
    bare = sentkit("inspect", "-", "--no-geometry", stdin=jsonl(*PAIRS)).rows[0]
    del full["geometry"]

    assert bare == full


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-", "--gold", "s", "--above", "nan"], "--above nan: expected a finite number"),
        (["nano", "--gold", "s"], "--gold needs pairs of vectors, but nano has none"),
        (["nano", "--no-geometry"], "--no-geometry needs vectors, but nano has none"),
        (["t.safetensors", "--no-geometry"], "--no-geometry needs vectors, but t.safetensors has none"),
    ],
)
def test_flags_that_do_not_go_together(sentkit, flags, problem, jsonl):
    sentkit("whiten", "fit", "-o", "t.safetensors", stdin=jsonl(*PAIRS))
    done = sentkit("inspect", *flags)

    assert done.code == 2
    assert done.told[0] == f"sentkit inspect: {problem}"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"embedding":[1,2],"score":5}', "expected 2 vectors for a gold score, this row has 1"),
        ('{"embedding_a":[1],"embedding_b":[1]}', '"score" is missing'),
        ('{"embedding_a":[1],"embedding_b":[1],"score":"high"}', '"score" is a string, expected a number'),
    ],
)
def test_pairs_without_a_score_are_reported(sentkit, row, problem):
    """With their place, in rows and in a vector file."""
    sentkit("cat", "-o", "v.safetensors", stdin=row)
    for path, given in (("-", row), ("v.safetensors", "")):
        done = sentkit("inspect", path, "--gold", "score", stdin=given)
        assert done.code == 65
        assert done.err == f"sentkit inspect: {path}:1: {problem}\n"


def test_on_a_terminal_members_have_long_names(on_terminal, tmp_path, jsonl):
    (tmp_path / "v.jsonl").write_bytes(jsonl(*PAIRS))
    lines = on_terminal("inspect", "v.jsonl", "--gold", "score", "-v", width=40)
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}

    assert shown["geometry.alignment"] == "0.292893"
    assert shown["geometry.alignment_pairs.pairs"] == "2"
    assert shown["geometry.uniformity_sample"] == "none"
    assert shown["geometry.rank"] == "2"
    assert shown["geometry.component_share.first_3"] == "1"
    assert shown["geometry.skewness.axis"] in ("0", "1")
