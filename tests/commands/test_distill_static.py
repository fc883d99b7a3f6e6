"""`distill-static`: the same vectors as plain loops over transformers' model, and as other libraries read."""

import json
import math
import shutil
from collections import Counter

import numpy as np
import pytest
import torch

TEXTS = ["a cat sleeps", "the dog runs in the rain", "a cat and the sea", "rain"]
FREE = 1e-4


@pytest.fixture
def token_vectors(tiny):
    """The mean of the states of each token alone, between [CLS] and [SEP], and the ids of a text."""
    import transformers

    model = transformers.AutoModel.from_pretrained(tiny, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    with torch.no_grad():
        ids = torch.tensor([[first, number, last] for number in range(len(tokenizer))])
        vectors = model(input_ids=ids).last_hidden_state.mean(1).numpy()
    return vectors, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def unit_means(table, ids, factors):
    vectors = np.stack([sum(factors[n] * table[n] for n in each) / len(each) for each in map(ids, TEXTS)])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def encoded(sentkit, folder):
    stdin = "".join(text + "\n" for text in TEXTS)
    done = sentkit("encode", "-m", folder, "-q", stdin=stdin)
    assert done.code == 0
    return done.vectors()


def test_sif_vectors_are_those_of_plain_loops(sentkit, tiny, token_vectors):
    """All components, so that only a rotation remains: the cosines are compared."""
    table, ids = token_vectors
    counts = Counter(number for text in TEXTS for number in ids(text))
    total = sum(counts.values())
    factors = {number: FREE / (FREE + count / total) for number, count in counts.items()}
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    flags = ("--weights", "sif", "-m", tiny, "--dim", table.shape[1], "-o", "table")
    done = sentkit("distill-static", *flags, stdin=rows)
    expected, found = unit_means(table - table.mean(0), ids, factors), encoded(sentkit, "table")

    assert done.code == 0
    assert done.rows[0]["rows"] == 4
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=0, atol=2e-4)


def test_fewer_components_are_those_of_a_decomposition(sentkit, tiny, token_vectors):
    table, ids = token_vectors
    left, values, _ = np.linalg.svd(table - table.mean(0), full_matrices=False)
    done = sentkit("distill-static", "-m", tiny, "--weights", "none", "--dim", 3, "-o", "table")
    found = encoded(sentkit, "table")
    expected = unit_means((left * values)[:, :3], ids, np.ones(len(table)))

    assert done.rows[0] | {"parents": None} == {
        **{"model": "table", "method": "distill-static", "parents": None, "weights": "none"},
        **{"tokens": len(table), "dim": 3},
    }
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=0, atol=2e-4)


def test_a_last_normalization_is_left_out(sentkit, tiny, tmp_path):
    """The lengths of token vectors are information; a folder with unit vectors gives the same table."""
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "--normalize", "-o", "unit")
    for name in (tiny, "unit"):
        assert (
            sentkit("distill-static", "-m", name, "-o", f"from_{'unit' if name == 'unit' else 'tiny'}").code
            == 0
        )
    one, other = (tmp_path / f"from_{name}/model.safetensors" for name in ("tiny", "unit"))

    assert one.read_bytes() == other.read_bytes()


def test_zipf_weights_are_in_the_table(sentkit, tiny, tmp_path, token_vectors):
    from safetensors.numpy import load_file

    for weights in ("zipf", "none"):
        sentkit("distill-static", "-m", tiny, "--weights", weights, "-o", weights)
    zipf, plain = (
        load_file(tmp_path / name / "model.safetensors")["embeddings"] for name in ("zipf", "none")
    )
    ratios = np.linalg.norm(zipf, axis=1) / np.linalg.norm(plain, axis=1)

    assert ratios.min() == pytest.approx(math.log(2), rel=1e-5)
    assert ratios.max() > math.log(100)


@pytest.fixture
def made(sentkit, tiny, tmp_path):
    assert sentkit("distill-static", "-m", tiny, "-o", "table", "--dim", 8).code == 0
    return tmp_path / "table"


def test_sentence_transformers_gives_the_same_vectors(sentkit, made):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(made), device="cpu").encode(TEXTS)

    np.testing.assert_allclose(encoded(sentkit, made), theirs, rtol=0, atol=1e-6)


def test_model2vec_gives_the_same_vectors(sentkit, made):
    model2vec = pytest.importorskip("model2vec")

    theirs = model2vec.StaticModel.from_pretrained(str(made)).encode(TEXTS)

    np.testing.assert_allclose(encoded(sentkit, made), theirs, rtol=0, atol=1e-6)


def test_a_checkpoint_in_lower_case_makes_a_tokenizer_in_lower_case(sentkit, tiny, tmp_path):
    """sentence-transformers declares it beside the tokenizer; a model2vec folder has only the tokenizer."""
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "-o", "small")
    declared = json.loads((tmp_path / "small/sentkit.json").read_text())
    (tmp_path / "small/sentkit.json").write_text(json.dumps(declared | {"lowercase": True}))
    sentkit("distill-static", "-q", "-m", "small", "-o", "table")
    rows = sentkit("encode", "-q", "-m", "table", stdin="The CAT\nthe cat\n").vectors()

    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        (("--dim", "99"), 2, "--dim 99: the vectors have only 16 numbers"),
        (("rows.txt",), 2, "FILE and the flags of rows need --weights sif"),
        (("--rejects", "/dev/null"), 2, "FILE and the flags of rows need --weights sif"),
        (("empty.txt", "--weights", "sif"), 65, "no rows in empty.txt"),
        (("blank.jsonl", "--weights", "sif"), 65, "blank.jsonl: the texts have no tokens"),
    ],
)
def test_wrong_input_is_refused(sentkit, tiny, tmp_path, flags, code, problem):
    (tmp_path / "rows.txt").write_text("a cat\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.jsonl").write_text('{"text":" "}\n')
    done = sentkit("distill-static", "-m", tiny, "-o", "table", *flags)

    assert (done.code, done.told[-1]) == (code, f"sentkit distill-static: {problem}")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("readout", "problem"),
    [
        ("prompt", "the readout prompt needs a text in a template, and distill-static encodes single tokens"),
        ("cls,mean", "distill-static accepts only one readout; --readout has several"),
    ],
)
def test_a_readout_that_tokens_do_not_have_is_refused(sentkit, tiny, readout, problem):
    done = sentkit("distill-static", "-m", tiny, "--readout", readout, "-o", "table")

    assert (done.code, done.told[0]) == (2, f"sentkit distill-static: {problem}")


def test_a_tokenizer_with_a_huge_number_is_bad_data(sentkit, tiny, tmp_path):
    """A table with a row for each number would need more than the memory."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["vocab"]["zzz"] = 2**32 - 2
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    done = sentkit("distill-static", "-m", folder, "-o", "table")

    assert (done.code, "a token has the number 4294967294" in done.err) == (65, True)
