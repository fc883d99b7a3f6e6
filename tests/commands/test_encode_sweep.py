"""A sweep: one pass writes a file for each layer and readout."""

import numpy as np
import pytest

READOUTS = "L*:cls,L*:mean,L*:max"


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, **given):
        return sentkit("encode", "-q", "-m", tiny, "--precision", "fp32", *arguments, **given)

    return run


def test_each_file_equals_a_separate_run(encode, sentkit, tmp_path, sentences):
    """Twelve files of four layers and three readouts: the same rows, numbers and space as one by one."""
    sentences = sentences[::5]
    encode("--readout", READOUTS, "-o", "sweep", stdin="\n".join(sentences))
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir())

    assert names == [f"L0{k}-{how}.safetensors" for k in range(4) for how in ("cls", "max", "mean")]
    for name in names:
        swept = sentkit("cat", f"sweep/{name}")
        readout = f"L{name[2]}:{name[4:].partition('.')[0]}"
        single = encode("--readout", readout, stdin="\n".join(sentences))
        assert [row["text"] for row in swept.rows] == sentences
        assert swept.rows[0]["_emb"] == single.rows[0]["_emb"]
        assert np.abs(swept.vectors() - single.vectors()).max() < 1e-5


def test_steps_belong_to_every_file(encode, sentkit):
    encode("--readout", "cls,max", "--normalize", "--dim", 4, "-o", "sweep", stdin="a cat")
    vectors = sentkit("cat", "sweep/max.safetensors").vectors()

    assert vectors.shape == (1, 4)
    assert abs(np.linalg.norm(vectors[0]) - 1) < 1e-6


def test_wk_and_its_windows_are_different_spaces(sentkit, tmp_path):
    """The bundled encoder has four layers. The order of the layers changes neither label nor vectors."""
    readouts = ["L0+L1+L2+L3+L4:wk", "L4+L3+L2+L1+L0:wk", "L0+L1+L2+L3+L4:wk-clip", "L0+L1+L2+L3+L4:mean"]
    done = [sentkit("encode", "--readout", each, stdin="a cat\nthe dog runs home") for each in readouts]
    labels, hashes = zip(*(each.rows[0]["_emb"].rsplit(":", 1) for each in done), strict=True)

    assert done[0].out == done[1].out
    assert labels[::2] == ("nano/L0+L1+L2+L3+L4:wk", "nano/L0+L1+L2+L3+L4:wk-clip")
    assert len(set(hashes)) == 3
    assert np.abs(done[0].vectors() - done[2].vectors()).max() > 1e-4
