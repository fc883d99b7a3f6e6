"""`search` in a corpus of sign bits: Hamming distance, then exact similarities."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.tensors import Storage, sign_bits
from sentkit.metrics.neighbours import sign_search
from sentkit.metrics.neighbours.search import MAX_CANDIDATES, QUERIES_PER_BLOCK
from support import BY_HAND

SPACE = "m/mean:0a0000000000"
CLS = "m/cls:0b0000000000"


def stored_signs(*arrays, width):
    storage = Storage("binary", width)
    files = [
        SimpleNamespace(count=len(codes), storage=storage, codes=partial(np.asarray, codes))
        for codes in arrays
    ]
    return StoredVectors(files)


def lines(jsonl, vectors, emb=SPACE, name="text"):
    return jsonl(
        *({name: f"t{n}", "_emb": emb, "embedding": v} for n, v in enumerate(vectors.tolist(), 1))
    )


@pytest.fixture
def vectors():
    """Sixty rows of nine numbers, exact in float32; many have the same signs."""
    return (np.random.default_rng(9).integers(-40, 40, (60, 9)) / 8).astype(np.float32)


@pytest.fixture
def queries(jsonl):
    vectors = (np.random.default_rng(10).integers(-40, 40, (5, 9)) / 8).astype(np.float32)
    return vectors, lines(jsonl, vectors, name="id")


@pytest.fixture
def corpus(sentkit, jsonl, vectors):
    Path("exact.jsonl").write_bytes(lines(jsonl, vectors))
    assert sentkit("cat", "exact.jsonl", "-o", "signs.safetensors", "--store", "binary").code == 0
    return "signs.safetensors"


def expected(query, corpus, second, metric, candidates):
    """Loops: the rows with the fewest different signs, then the best of them; ties in row order."""
    different = [sum((a > 0) != (b > 0) for a, b in zip(query, row, strict=True)) for row in corpus]
    near = sorted(range(len(corpus)), key=lambda n: (different[n], n))[:candidates]
    alike = {n: round(BY_HAND[metric](query.tolist(), second[n].tolist()), 9) for n in near}
    return [(n + 1, alike[n]) for n in sorted(near, key=lambda n: (-alike[n], n))]


@pytest.mark.parametrize("metric", BY_HAND)
@pytest.mark.parametrize("rescore", [None, "exact.jsonl"])
@pytest.mark.parametrize("candidates", [None, 3, 20, 1000])
def test_hits_equal_those_of_loops(
    sentkit, monkeypatch, corpus, vectors, queries, metric, rescore, candidates
):
    monkeypatch.setattr(sign_search, "CANDIDATES_PER_HIT", 4)
    flags = ["--candidates", candidates] if candidates else []
    flags += ["--rescore", rescore] if rescore else []
    result = sentkit(
        "search", "--corpus", corpus, "--top", 3, "--metric", metric, *flags, stdin=queries[1]
    )
    second = vectors if rescore else np.where(vectors > 0, 1.0, -1.0)

    assert (result.code, result.err) == (0, "")
    for query, row in zip(queries[0], result.rows, strict=True):
        hits = expected(query, vectors, second, metric, candidates or 12)[:3]
        assert [hit["row"] for hit in row["hits"]] == [number for number, _ in hits]
        assert [hit["similarity"] for hit in row["hits"]] == pytest.approx(
            [x for _, x in hits], rel=1e-6
        )
        assert [hit["text"] for hit in row["hits"]] == [f"t{number}" for number, _ in hits]


def test_a_threshold_without_top_compares_every_row(sentkit, corpus, vectors, queries):
    result = sentkit("search", "--corpus", corpus, "--threshold", 0.3, stdin=queries[1])
    signs = np.where(vectors > 0, 1.0, -1.0)

    for query, row in zip(queries[0], result.rows, strict=True):
        hits = expected(query, vectors, signs, "cosine", len(vectors))
        assert [hit["row"] for hit in row["hits"]] == [number for number, x in hits if x >= 0.3]


@pytest.mark.parametrize("width", [1, 8, 63, 64, 65, 300])
def test_distances_equal_those_of_loops(monkeypatch, width):
    """For any width and block size, and with unused bits that another program has set."""
    monkeypatch.setattr(sign_search, "SIGN_ROWS_PER_BLOCK", 7)
    generator = np.random.default_rng(width)
    corpus, queries = (generator.normal(size=(n, width)).astype(np.float32) for n in (20, 4))
    codes = sign_bits(corpus)
    codes[::2, -1] |= (1 << (-width % 8)) - 1
    signs = stored_signs(codes[:11], codes[11:], width=width)
    distances = sign_search.SignSearcher(signs, signs, "cosine", None).distances(queries)

    assert distances.tolist() == [
        [sum((a > 0) != (b > 0) for a, b in zip(q, row, strict=True)) for row in corpus.tolist()]
        for q in queries.tolist()
    ]


def test_the_block_of_queries_is_limited_for_any_corpus():

    def at_once(rows, top, candidates=None):
        signs = stored_signs(np.zeros((rows, 1), np.uint8), width=8)
        return sign_search.SignSearcher(signs, signs, "cosine", candidates).queries_at_once(top)

    assert at_once(10, 5) == at_once(1000, 1) == QUERIES_PER_BLOCK
    assert at_once(200_000, 1) == sign_search.MAX_DISTANCES // 200_000
    assert at_once(5000, 100) == MAX_CANDIDATES // (100 * sign_search.CANDIDATES_PER_HIT)
    assert at_once(5000, 1, 3000) == MAX_CANDIDATES // 3000


def test_texts_are_encoded_as_recorded(sentkit, tiny):
    """The vectors of a text are compared with the signs, and with the vectors."""
    texts = "a cat\na dog\nthe sea\n"
    for name, flags in (("signs", ["--store", "binary"]), ("exact", [])):
        output = ("-o", f"{name}.safetensors", *flags)
        sentkit("encode", "-q", "-m", tiny, "--normalize", *output, stdin=texts)
    search = ("search", "the sea", "--corpus", "signs.safetensors", "-q")
    rescored = sentkit(*search, "--rescore", "exact.safetensors")
    alone = sentkit(*search)

    assert rescored.rows[0]["hits"][0] == {"row": 3, "similarity": 1, "text": "the sea"}
    assert sorted(hit["row"] for hit in alone.rows[0]["hits"]) == [1, 2, 3]


def test_exact_vectors_of_other_rows_are_refused(sentkit, corpus, vectors, queries, jsonl):
    differs = r":(\d+): this row differs from row \1 of signs.safetensors"
    not_exact = ": not the exact vectors of the rows of signs.safetensors"
    for name, content, problem in (
        ("short", lines(jsonl, vectors[:59]), not_exact),
        ("other", lines(jsonl, vectors).replace(b'"t', b'"u'), differs),
        ("space", lines(jsonl, vectors, CLS), not_exact),
    ):
        Path(f"{name}.jsonl").write_bytes(content)
        result = sentkit(
            "search", "--corpus", corpus, "--rescore", f"{name}.jsonl", stdin=queries[1]
        )
        assert result.code == 65
        assert re.fullmatch(f"sentkit search: {name}.jsonl{problem}", result.told[0])
    assert (
        sentkit("search", "--corpus", corpus, "--rescore", "none.jsonl", stdin=queries[1]).code
        == 66
    )
