"""The numbers that people know of these models, through `sentkit encode | sentkit score --gold`."""

import pytest


@pytest.fixture
def scored(sentkit, sts):
    """Spearman and Pearson of a model on an STS file, in fp32, to the two digits that are printed of them."""

    def run(model, name):
        encoded = sentkit(
            "encode", "-m", model, "--precision", "fp32", "--vectors", "base64", sts / f"{name}.jsonl"
        )
        done = sentkit("score", "--gold", "score", stdin=encoded.out)
        assert (encoded.err, done.err) == ("", "")
        return done.rows[0]["spearman"], done.rows[0]["pearson"]

    return run


@pytest.mark.parametrize(
    ("name", "spearman"),
    [
        ("stsb.test", 79.95),
        pytest.param("stsb.dev", 85.85, marks=pytest.mark.slow),
        pytest.param("sickr.test", 75.47, marks=pytest.mark.slow),
    ],
)
def test_nano_reaches_the_score_on_its_card(scored, name, spearman):
    assert scored("nano", name)[0] == pytest.approx(spearman, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figures"), [("stsb.test", (82.03, 82.74)), ("stsb.dev", (86.72,)), ("sickr.test", (77.15,))]
)
def test_minilm_reaches_its_published_scores(scored, minilm, name, figures):
    """Spearman, and Pearson on the test set; other fast tests have its vectors of other programs."""
    assert scored(minilm, name)[: len(figures)] == pytest.approx(figures, abs=0.005)


@pytest.mark.slow
def test_bf16_scores_the_same(sentkit, sts, minilm):
    """Within 0.1 of 82.03; slow where bf16 is emulated."""
    encoded = sentkit("encode", "-m", minilm, "--precision", "bf16", sts / "stsb.test.jsonl")
    done = sentkit("score", "--gold", "score", stdin=encoded.out)

    assert done.rows[0]["spearman"] == pytest.approx(82.03, abs=0.1)
