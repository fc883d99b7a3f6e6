"""`plot words`: the word vectors of a model by frequency."""

from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from sentkit.plots.kinds.words import WordOptions, Words, words

TEXTS = "the cat sat\nthe dog and the cat\na dog\n"


def test_norms_and_distances_equal_a_plain_loop(plot, tiny):
    """Tokens are in the order of their counts, with the special tokens of each text."""
    records = [r for r in plot("words", "-m", tiny, "-k", 2, stdin=TEXTS) if "series" not in r]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    counts = Counter(token for text in TEXTS.splitlines() for token in tokenizer(text).tokens())
    table = load_file(tiny / "model.safetensors")["embeddings.word_embeddings.weight"].astype(np.float64)
    vectors = {token: table[tokenizer.convert_tokens_to_ids(token)] for token in counts}

    norms, distances = records[: len(counts)], records[len(counts) :]
    assert {record["token"]: record["count"] for record in norms} == counts
    assert [record["count"] for record in norms] == sorted(counts.values(), reverse=True)
    assert [record["rank"] for record in norms] == list(range(1, len(counts) + 1))
    for norm, distance in zip(norms, distances, strict=True):
        own = vectors[norm["token"]]
        others = sorted(np.linalg.norm(own - vectors[t]) for t in vectors if t != norm["token"])
        assert norm["norm"] == pytest.approx(np.linalg.norm(own), rel=1e-5)
        assert distance["distance"] == pytest.approx(np.mean(others[:2]), rel=1e-5)


def test_lines_are_means_of_bins():
    """Of 700 tokens: the ranks 1 to 99, 100 to 499, 500 to 700. All up to 500 are drawn, and 100 others."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(700, 3)).astype(np.float32)
    found = Words(vectors, np.arange(700, 0, -1), [f"w{n}" for n in range(700)])
    points, line = words(found, WordOptions(neighbours=1, most=600)).panels[0].series
    norms = np.linalg.norm(vectors, axis=1)
    ranks = points.x.astype(int)

    assert ranks[:500].tolist() == list(range(1, 501))
    assert len(set(ranks)) == 600
    assert points.y == pytest.approx(norms[ranks - 1], rel=1e-6)
    assert line.y[:2] == pytest.approx([norms[:99].mean(), norms[99:499].mean()], rel=1e-6)
    assert line.y[2] == pytest.approx(norms[ranks[499:] - 1].mean(), rel=1e-6)
    assert line.x == pytest.approx([np.sqrt(99), np.sqrt(100 * 499), np.sqrt(500 * ranks.max())])


def test_a_model_run_by_transformers_has_word_vectors(plot, tmp_path, tiny):
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.AlbertConfig(
        vocab_size=16384, num_hidden_layers=1, max_position_embeddings=32, **sizes
    )
    model = transformers.AlbertModel(config)
    model.save_pretrained(tmp_path / "albert")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "albert")
    records = plot("words", "-m", tmp_path / "albert", stdin=TEXTS)
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    number = AutoTokenizer.from_pretrained(tiny).convert_tokens_to_ids("cat")

    assert next(r["norm"] for r in records if r.get("token") == "cat") == pytest.approx(
        np.linalg.norm(table[number]), rel=1e-5
    )


def test_a_static_model_is_refused(sentkit, model2vec):
    done = sentkit("plot", "words", "-m", model2vec(), stdin=TEXTS)

    assert done.code == 2
    assert "is a static model" in done.told[0]
