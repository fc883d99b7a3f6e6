"""`whiten apply`: vectors replaced, their space renamed, everything else as it came."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentkit import Encoder
from sentkit.errors import DataError, UsageError
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.tensors import write_arrays
from support import write_affine

CLOSE = 1e-5
KERNEL, BIAS = np.array([[2.0, 1], [0, 3]]), np.array([-1.0, 1])  # (x + bias) @ kernel: (2, 1) -> (2, 7)


@pytest.fixture
def fit(sentkit, tiny, sentences, tmp_path):
    """A transform of tiny's vectors of fifty sentences."""

    def run(*flags):
        encode = ("encode", "-q", "-m", tiny, "--precision", "fp32", "-o", "all.safetensors")
        sentkit(*encode, stdin="\n".join(sentences))
        done = sentkit("whiten", "fit", "all.safetensors", *flags, "-o", "fitted.safetensors")
        assert (done.code, done.err) == (0, "")
        return tmp_path / "fitted.safetensors"

    return run


@pytest.fixture
def fitted(fit):
    """A whitening, 6 of 16 numbers kept."""
    return fit("--dim", "6")


@pytest.fixture
def flow(fit):
    return fit("--kind", "flow")


@pytest.mark.parametrize(
    "rows",
    [
        '{"text_a":"a cat","text_b":"two dogs"}\n{"text_a":"x","text_b":""}\n',
        '{"anchor":"a cat","positive":"two dogs","negative":"rain"}\n',
        '{"text":"a cat"}\n' * 40,
    ],
    ids=["pairs", "triplets", "sentences"],
)
def test_the_filter_is_an_encoder_with_the_same_transform(sentkit, tiny, fitted, rows):
    """The same space; the same vectors, from JSONL, base64 and vector files."""
    encode = ("encode", "-q", "-m", tiny, "--precision", "fp32")
    encoder = Encoder(str(tiny), precision="fp32", transform=str(fitted))
    plain = sentkit(*encode, stdin=rows)
    sentkit(*encode, "-o", "v.safetensors", stdin=rows)
    packed = sentkit(*encode, "--vectors", "base64", stdin=rows)
    apply = ("whiten", "apply", "-t", fitted)
    found = [sentkit(*apply, stdin=rows) for rows in (plain.out, packed.out)]
    found.append(sentkit(*apply, "v.safetensors"))
    texts = list(json.loads(rows.split("\n")[0]))
    names = [name for name in plain.rows[0] if name.startswith("embedding")]
    kernel = load_file(fitted)["kernel"]

    assert len(names) == len(texts)
    for done in found:
        assert (done.code, done.err) == (0, "")
        assert [list(row) for row in done.rows] == [list(row) for row in plain.rows]
        assert {row["_emb"] for row in done.rows} == {encoder.space}
        for name, text in zip(names, texts, strict=True):
            expected = encoder.encode([row[text] for row in done.rows])
            # In 20 sums of 16 terms, one behind the other, a rounding is at most 2**-24 of the largest one.
            # Independent errors add up as a root of squares, also of a vector times a kernel column: one
            # error times the norm, 26. This is 7e-5; a transform that is wrong by 1e-4 has an error of 2e-3.
            rounding = (20 * 16) ** 0.5 * 2**-24 * np.abs(plain.vectors(name)).max()
            assert (
                np.abs(done.vectors(name) - expected).max() < rounding * np.linalg.norm(kernel, axis=0).max()
            )
    assert found[0].out == found[1].out == found[2].out


def test_a_vector_file_keeps_its_metadata(sentkit, tiny, fitted):
    """All of its record, with this step behind the others: as that of an `Encoder` with the transform."""
    encode = ("encode", "-q", "-m", tiny, "--precision", "fp32", "--prompt", "q: ")
    sentkit(*encode, "-o", "v.safetensors", stdin="a cat\na dog")
    sentkit("whiten", "apply", "-t", fitted, "v.safetensors", "-o", "made.safetensors")
    made = sentkit("inspect", "made.safetensors").rows[0]
    encoder = Encoder(str(tiny), precision="fp32", prompt="q: ", transform=str(fitted))

    assert made["spec"] == encoder.loaded.specs[0].full
    assert made["spec"]["steps"][0].startswith("+whitening:")
    assert made["numbers"] == 6


def test_a_space_without_a_name_gets_one(sentkit, tmp_path):
    """A file without a space gets the space `unnamed`, and transforms of it can be chained."""
    name = "t.safetensors"
    write_affine(tmp_path / name, KERNEL, BIAS, {})
    once = sentkit("whiten", "apply", "-t", name, stdin='{"embedding":[2,1]}')
    twice = sentkit("whiten", "apply", "-t", name, stdin=once.out)
    layer = [np.asarray(part, "<f4").tobytes().hex() for part in (KERNEL.T, BIAS @ KERNEL)]
    step = digest(["linear", 2, 2, *layer, False])
    space = digest([digest("unnamed"), step])

    assert once.rows == [{"embedding": [2.0, 7.0], "_emb": f"unnamed+affine:{space}"}]
    assert twice.rows[0]["_emb"] == f"unnamed+affine+affine:{digest([space, step])}"


@pytest.mark.parametrize(
    ("emb", "space"), [(None, "vectors without _emb"), ("x/cls:111111111111", "x/cls (1")]
)
def test_an_encoder_refuses_a_transform_fitted_on_another_space(tiny, tmp_path, emb, space):
    """As the filter does."""
    write_affine(tmp_path / "t.safetensors", np.eye(16), np.zeros(16), {"_emb": emb})

    with pytest.raises(DataError, match=re.escape(f"fitted on {space}")):
        Encoder(str(tiny), transform="t.safetensors").encode(["a cat"])


def test_a_flow_is_applied_by_the_filter_and_by_an_encoder(sentkit, tiny, flow):
    encode = ("encode", "-q", "-m", tiny, "--precision", "fp32")
    rows = '{"text_a":"a cat","text_b":"two dogs"}\n{"text_a":"x","text_b":""}\n'
    encoder = Encoder(str(tiny), precision="fp32", transform=str(flow))
    done = sentkit("whiten", "apply", "-t", flow, stdin=sentkit(*encode, stdin=rows).out)
    again = sentkit("whiten", "apply", "-t", flow, stdin=done.out)

    assert (done.code, done.err) == (0, "")
    assert done.rows[0]["_emb"] == encoder.space
    assert "+flow:" in encoder.space
    for name in "ab":
        expected = encoder.encode([row[f"text_{name}"] for row in done.rows])
        assert np.abs(done.vectors(f"embedding_{name}") - expected).max() < CLOSE
    assert again.code == 65
    assert "fitted on" in again.err


def test_a_flow_of_another_width_or_in_a_checkpoint_is_refused(sentkit, tiny, flow, tmp_path):
    Path("words.txt").write_text("cat 1 2 3\n")
    applied = sentkit("whiten", "apply", "-t", flow, stdin='{"embedding":[1,2,3]}')
    done = sentkit("export", "-m", tiny, "--transform", flow, "-q", "-o", "out")

    with pytest.raises(UsageError, match="flow takes vectors of 16 numbers, these have 3"):
        Encoder("words.txt", transform=str(flow)).encode(["cat"])
    problem = "sentkit export: a flow cannot be part of a checkpoint"
    assert (applied.code, done.code, (tmp_path / "out").exists()) == (65, 2, False)
    assert done.told == [problem, "  use sentkit whiten apply"]


@pytest.mark.parametrize(
    ("parameters", "width", "problem"),
    [
        (np.zeros(11424), 7, "the parameters and the metadata of the flow do not match"),
        (np.zeros(11424), "6", "the parameters and the metadata of the flow do not match"),
        (np.zeros(11423), 6, "the parameters and the metadata of the flow do not match"),
        (np.full(11424, np.nan), 6, "the parameters hold NaN or infinity"),
        (None, 6, 'no tensor "parameters" of a supported type'),
    ],
)
def test_a_flow_that_is_spoilt_is_bad_data(sentkit, tmp_path, parameters, width, problem):
    arrays = {"other": np.zeros(1)} if parameters is None else {"parameters": parameters}
    note = json.dumps({"kind": "flow", "width": width})
    write_arrays(tmp_path / "f.safetensors", arrays, {"sentkit": note})
    done = sentkit("whiten", "apply", "-t", "f.safetensors", stdin='{"embedding":[1,2,3,4,5,6]}')

    assert (done.code, done.err) == (65, f"sentkit whiten apply: f.safetensors: {problem}\n")
