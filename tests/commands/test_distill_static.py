"""`distill-static`: the same vectors as plain loops over transformers' model, and as other
libraries read.
"""

import json
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from support import SMALL, write_small_tokenizer

TEXTS = ["a cat sleeps", "the dog runs in the rain", "a cat and the sea", "rain"]
FREE = 1e-4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A BERT with random weights and few tokens, for each of which a table has a row."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    sizes = SMALL | {"vocab_size": write_small_tokenizer(folder), "initializer_range": 0.5}
    torch.manual_seed(0)
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def several_batches(monkeypatch):
    monkeypatch.setattr("sentkit.model.static.distillation.TOKENS_AT_ONCE", 100)


@pytest.fixture(scope="module")
def token_vectors(tiny):
    """The mean of the states of each token alone, between [CLS] and [SEP], and the ids of a
    text.
    """
    import transformers

    model = transformers.AutoModel.from_pretrained(tiny, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    cls = tokenizer.cls_token_id
    sep = tokenizer.sep_token_id
    with torch.no_grad():
        ids = torch.tensor([[cls, token, sep] for token in range(len(tokenizer))])
        vectors = model(input_ids=ids).last_hidden_state.mean(1).numpy()
    return vectors, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def unit_means(table, ids, factors):
    means = []
    for text in TEXTS:
        tokens = ids(text)
        means.append(sum(factors[token] * table[token] for token in tokens) / len(tokens))
    vectors = np.stack(means)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def encoded(sentkit, folder):
    result = sentkit("encode", "-m", folder, "-q", stdin="\n".join(TEXTS))
    assert result.code == 0
    return result.vectors()


def test_sif_vectors_are_those_of_plain_loops(sentkit, tiny, token_vectors):
    """All components, so that only a rotation remains: the cosines are compared."""
    table, ids = token_vectors
    counts = Counter(number for text in TEXTS for number in ids(text))
    total = sum(counts.values())
    factors = {number: FREE / (FREE + count / total) for number, count in counts.items()}
    flags = ("--weights", "sif", "-m", tiny, "--dim", table.shape[1], "-o", "table")
    result = sentkit("distill-static", *flags, stdin="\n".join(TEXTS))
    expected = unit_means(table - table.mean(0), ids, factors)
    vectors = encoded(sentkit, "table")

    assert result.code == 0
    assert result.rows[0]["rows"] == 4
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, rtol=0, atol=2e-4)


def test_the_record_has_the_files_that_were_read(sentkit, tiny, tmp_path):
    """A pattern in quotes is not a file, and without FILE the texts are those of standard input."""
    (tmp_path / "a.txt").write_text("a cat sleeps\n")
    (tmp_path / "b.txt").write_text("the dog runs\n")
    flags = ("distill-static", "-q", "-m", tiny, "--weights", "sif", "-o")
    sentkit(*flags, "files", "[ab].txt")
    sentkit(*flags, "piped", stdin="a cat sleeps\n")

    inputs = json.loads((tmp_path / "files/sentkit.json").read_text())["inputs"]
    digests = {
        name: sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a.txt", "b.txt")
    }
    assert [record for record in inputs if record["flag"] == "FILE"] == [
        {"flag": "FILE", "path": name, "sha256": digest} for name, digest in digests.items()
    ]
    inputs = json.loads((tmp_path / "piped/sentkit.json").read_text())["inputs"]
    assert inputs[0] == {"flag": "FILE", "path": "-", "sha256": None}


def test_fewer_components_are_those_of_a_decomposition(sentkit, tiny, token_vectors):
    table, ids = token_vectors
    directions, values, _ = np.linalg.svd(table - table.mean(0), full_matrices=False)
    result = sentkit("distill-static", "-m", tiny, "--weights", "none", "--dim", 3, "-o", "table")
    vectors = encoded(sentkit, "table")
    expected = unit_means((directions * values)[:, :3], ids, np.ones(len(table)))
    report = {
        "model": "table",
        "method": "distill-static",
        "weights": "none",
        "tokens": len(table),
        "dim": 3,
    }

    assert result.rows[0] == {**report, "parents": result.rows[0]["parents"]}
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, rtol=0, atol=2e-4)


def test_a_last_normalization_is_left_out(sentkit, tiny, tmp_path):
    """The lengths of token vectors are information; a folder with unit vectors gives the same
    table.
    """
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "--normalize", "-o", "unit")
    of_tiny = sentkit("distill-static", "-m", tiny, "-o", "from_tiny")
    of_unit = sentkit("distill-static", "-m", "unit", "-o", "from_unit")
    tables = [tmp_path / f"from_{name}/model.safetensors" for name in ("tiny", "unit")]

    assert (of_tiny.code, of_unit.code) == (0, 0)
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.parametrize("library", ["sentence_transformers", "model2vec"])
def test_other_libraries_give_the_same_vectors(sentkit, tiny, library):
    imported = pytest.importorskip(library)
    assert sentkit("distill-static", "-m", tiny, "-o", "table", "--dim", 8).code == 0
    if library == "model2vec":
        model = imported.StaticModel.from_pretrained("table")
    else:
        model = imported.SentenceTransformer("table", device="cpu")

    np.testing.assert_allclose(encoded(sentkit, "table"), model.encode(TEXTS), rtol=0, atol=1e-6)


def test_a_checkpoint_in_lower_case_makes_a_tokenizer_in_lower_case(sentkit, tiny, tmp_path):
    """sentence-transformers declares it beside the tokenizer; a model2vec folder has only the
    tokenizer.
    """
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "-o", "small")
    declared = json.loads((tmp_path / "small/sentkit.json").read_text())
    (tmp_path / "small/sentkit.json").write_text(json.dumps(declared | {"lowercase": True}))
    sentkit("distill-static", "-q", "-m", "small", "-o", "table")
    rows = sentkit("encode", "-q", "-m", "table", stdin="The CAT\nthe cat\n").vectors()

    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("is_read", [True, False])
def test_a_declared_prompt_is_read_as_by_the_checkpoint(sentkit, tiny, tmp_path, is_read):
    """The table is a rotation of the vectors that `encode` gives texts of one token."""
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "-o", "small")
    declared = json.loads((tmp_path / "small/sentkit.json").read_text())
    declared |= {"prompt": "the dog ", "prompt_is_read": is_read}
    (tmp_path / "small/sentkit.json").write_text(json.dumps(declared))
    flags = ("-m", "small", "--weights", "none", "--dim", SMALL["hidden_size"], "-o", "table")
    assert sentkit("distill-static", "-q", *flags).code == 0

    words = ["cat", "rain", "sea"]
    expected = sentkit("encode", "-q", "-m", "small", stdin="\n".join(words)).vectors()
    tokenizer = Tokenizer.from_file("table/tokenizer.json")
    rows = [tokenizer.token_to_id(word) for word in words]
    table = load_file("table/model.safetensors")["embeddings"][rows]
    assert None not in rows
    for vectors in (table, expected):
        vectors -= vectors[0].copy()
    np.testing.assert_allclose(table @ table.T, expected @ expected.T, rtol=0, atol=2e-4)
