"""`whiten apply`: vectors replaced, their space renamed, everything else as it came."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentkit import Encoder
from sentkit.errors import UsageError
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.tensors import write_arrays
from support import write_affine

# (x + bias) @ kernel: (2, 1) -> (2, 7)
KERNEL = np.array([[2.0, 1], [0, 3]])
BIAS = np.array([-1.0, 1])


@pytest.fixture
def fit(sentkit, tiny, sentences, tmp_path):
    """A transform of tiny's vectors of fifty sentences."""

    def run(*flags):
        encode = ("encode", "-q", "-m", tiny, "--precision", "fp32", "-o", "all.safetensors")
        sentkit(*encode, stdin="\n".join(sentences))
        result = sentkit("whiten", "fit", "all.safetensors", *flags, "-o", "fitted.safetensors")
        assert (result.code, result.err) == (0, "")
        return tmp_path / "fitted.safetensors"

    return run


@pytest.fixture
def fitted(fit):
    """A whitening, 6 of 16 numbers kept."""
    return fit("--dim", "6")


@pytest.fixture
def flow(fit):
    return fit("--kind", "flow")


PAIRS = '{"text_a":"a cat","text_b":"two dogs"}\n{"text_a":"x","text_b":""}\n'


@pytest.mark.parametrize(
    ("rows", "flags"),
    [
        (PAIRS, ["--dim", 6]),
        (PAIRS, ["--kind", "flow"]),
        ('{"anchor":"a cat","positive":"two dogs","negative":"rain"}\n', ["--dim", 6]),
        ('{"text":"a cat"}\n' * 40, ["--dim", 6]),
    ],
    ids=["pairs", "flow", "triplets", "sentences"],
)
def test_the_filter_is_an_encoder_with_the_same_transform(sentkit, tiny, fit, rows, flags):
    """The same space; the same vectors, from JSONL, base64 and vector files."""
    encode = ("encode", "-q", "-m", tiny, "--precision", "fp32")
    fitted = fit(*flags)
    encoder = Encoder(str(tiny), precision="fp32", transform=str(fitted))
    plain = sentkit(*encode, stdin=rows)
    sentkit(*encode, "-o", "v.safetensors", stdin=rows)
    packed = sentkit(*encode, "--vectors", "base64", stdin=rows)
    apply = ("whiten", "apply", "-t", fitted)
    of_jsonl = sentkit(*apply, stdin=plain.out)
    of_base64 = sentkit(*apply, stdin=packed.out)
    of_file = sentkit(*apply, "v.safetensors")
    texts = list(json.loads(rows.split("\n")[0]))
    names = [name for name in plain.rows[0] if name.startswith("embedding")]
    # In 20 sums of 16 terms, one behind the other, a rounding is at most 2**-24 of the largest one.
    # Independent errors add up as a root of squares, also of a vector times a kernel column: one
    # error times the norm, 26. This is 7e-5; a transform that is wrong by 1e-4 has an error of
    # 2e-3.
    largest = np.abs([plain.vectors(name) for name in names]).max()
    kernel = load_file(fitted).get("kernel", np.zeros((1, 1)))
    norm = np.linalg.norm(kernel, axis=0).max()
    close = (20 * 16) ** 0.5 * 2**-24 * largest * norm or 1e-5

    assert len(names) == len(texts)
    for result in (of_jsonl, of_base64, of_file):
        assert (result.code, result.err) == (0, "")
        assert [list(row) for row in result.rows] == [list(row) for row in plain.rows]
        assert {row["_emb"] for row in result.rows} == {encoder.space}
        for name, text in zip(names, texts, strict=True):
            expected = encoder.encode([row[text] for row in result.rows])
            assert np.abs(result.vectors(name) - expected).max() < close
    assert of_jsonl.out == of_base64.out == of_file.out


def test_a_vector_file_keeps_its_metadata(sentkit, tiny, fitted):
    """All of its record, with this step behind the others: as that of an `Encoder` with the
    transform.
    """
    encode = ("encode", "-q", "-m", tiny, "--precision", "fp32", "--prompt", "q: ")
    sentkit(*encode, "-o", "v.safetensors", stdin="a cat\na dog")
    sentkit("whiten", "apply", "-t", fitted, "v.safetensors", "-o", "made.safetensors")
    [record] = sentkit("inspect", "made.safetensors").rows
    encoder = Encoder(str(tiny), precision="fp32", prompt="q: ", transform=str(fitted))

    assert record["spec"] == encoder.loaded.spaces[0].full_metadata
    assert record["spec"]["steps"][0].startswith("+whitening:")
    assert record["numbers"] == 6


def test_a_space_without_a_name_gets_one(sentkit, tmp_path):
    """A file without a space gets the space `unnamed`, and transforms of it can be chained."""
    name = "t.safetensors"
    write_affine(tmp_path / name, KERNEL, BIAS, {})
    once = sentkit("whiten", "apply", "-t", name, stdin='{"embedding":[2,1]}')
    twice = sentkit("whiten", "apply", "-t", name, stdin=once.out)
    weight = np.asarray(KERNEL.T, "<f4").tobytes().hex()
    bias = np.asarray(BIAS @ KERNEL, "<f4").tobytes().hex()
    step = digest(["linear", 2, 2, weight, bias, False])
    space = digest([digest("unnamed"), step])

    assert once.rows == [{"embedding": [2.0, 7.0], "_emb": f"unnamed+affine:{space}"}]
    assert twice.rows[0]["_emb"] == f"unnamed+affine+affine:{digest([space, step])}"


@pytest.mark.parametrize("output", ["-", "out.safetensors"])
def test_a_vector_beside_a_renamed_one_is_refused(sentkit, jsonl, tmp_path, output):
    """Its name is the one that a reader without --field reads, as a vector of the new space."""
    write_affine(tmp_path / "t.safetensors", KERNEL, BIAS, {})
    both = {"embedding": [5, 6], "mine": [2, 1]}
    stdin = jsonl({"mine": [2, 1]}, both)
    flags = ("--field", "embedding=mine", "-o", output)
    result = sentkit("whiten", "apply", "-t", "t.safetensors", *flags, stdin=stdin)
    problem = '"embedding" is another vector, and it is not transformed'

    assert (result.code, result.told[0]) == (65, f"sentkit whiten apply: -:2: {problem}")
    if output == "-":
        assert [row["mine"] for row in result.rows] == [[2, 7]]
        assert "embedding" not in result.rows[0]


def test_a_field_with_the_name_of_the_vectors_is_not_lost_in_a_vector_file(sentkit, tmp_path):
    write_affine(tmp_path / "t.safetensors", KERNEL, BIAS, {})
    command = ("whiten", "apply", "-t", "t.safetensors", "--field", "embedding=mine")
    stdin = '{"mine":[2,1],"embedding":"a word"}\n'
    result = sentkit(*command, "-o", "out.safetensors", stdin=stdin)
    problem = '"embedding" is the name of the new vectors in a vector file'

    assert sentkit(*command, stdin=stdin).rows[0]["embedding"] == "a word"
    assert (result.code, result.told[0]) == (65, f"sentkit whiten apply: -:1: {problem}")


def test_a_flow_of_another_width_or_in_a_checkpoint_is_refused(sentkit, tiny, flow, tmp_path):
    Path("words.txt").write_text("cat 1 2 3\n")
    applied = sentkit("whiten", "apply", "-t", flow, stdin='{"embedding":[1,2,3]}')
    result = sentkit("export", "-m", tiny, "--transform", flow, "-q", "-o", "out")

    with pytest.raises(UsageError, match="flow takes vectors of 16 numbers, these have 3"):
        Encoder("words.txt", transform=str(flow)).encode(["cat"])
    problem = "sentkit export: a flow cannot be part of a checkpoint"
    assert (applied.code, result.code, (tmp_path / "out").exists()) == (65, 2, False)
    assert result.told == [problem, "  use sentkit whiten apply"]


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
    result = sentkit("whiten", "apply", "-t", "f.safetensors", stdin='{"embedding":[1,2,3,4,5,6]}')

    assert (result.code, result.err) == (65, f"sentkit whiten apply: f.safetensors: {problem}\n")
