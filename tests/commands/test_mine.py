"""`mine`: negatives, forms of rows, and refusals."""

import numpy as np
import pytest

from support import BY_HAND, in_jsonl, make_classifier

FIELDS = ("anchor", "positive")


def default_limit(similarity):
    return similarity - 0.05 * abs(similarity)


def loop(pairs, corpus, *, top=3, skip=0, metric="cosine", limit=default_limit):
    """For each pair (anchor, vector, positive, vector) the negatives, and the two counts of the
    report.
    """
    lists = []
    own_texts = 0
    above = 0
    first = {}
    for text, vector in corpus:
        first.setdefault(text, vector)
    for anchor, anchor_vector, positive, positive_vector in pairs:
        highest = limit(BY_HAND[metric](anchor_vector, positive_vector))
        own_texts += len({anchor, positive} & first.keys())
        candidates = []
        for text, vector in first.items():
            if text not in (anchor, positive):
                candidates.append((BY_HAND[metric](anchor_vector, vector), text))
        above += sum(similarity >= highest for similarity, _ in candidates)
        below = [candidate for candidate in candidates if candidate[0] < highest]
        ranked = sorted(below, key=lambda candidate: -candidate[0])
        lists.append([text for _, text in ranked][skip : skip + top])
    return lists, own_texts, above


@pytest.fixture
def texts():
    """Forty rows of thirty texts; equal texts have equal vectors, exact in float32."""
    random = np.random.default_rng(4)
    vectors = (random.integers(-40, 40, (30, 5)) / 8).tolist()
    numbers = [*range(30), *random.integers(0, 30, 10).tolist()]
    return [(f"t{n}", vectors[n]) for n in numbers]


@pytest.fixture
def pairs(texts):
    chosen = [(*texts[n], *texts[n + 9]) for n in range(9)]
    return [*chosen, ("new", [1.0, 2.0, 0.0, 0.5, 1.0], "newer", [1.0, 2.0, 1.0, 0.5, 1.0])]


@pytest.fixture
def corpus(tmp_path, texts, jsonl):
    (tmp_path / "c.jsonl").write_bytes(jsonl(*({"text": t, "embedding": v} for t, v in texts)))
    return "c.jsonl"


@pytest.fixture
def rows(pairs, jsonl):
    lines = []
    for n, (anchor, anchor_vector, positive, positive_vector) in enumerate(pairs):
        texts = {"anchor": anchor, "positive": positive}
        vectors = {"embedding_anchor": anchor_vector, "embedding_positive": positive_vector}
        lines.append({"id": n, **texts, **vectors})
    return jsonl(*lines)


@pytest.mark.parametrize("metric", BY_HAND)
@pytest.mark.parametrize(("top", "skip"), [(3, 0), (1, 2), (40, 1)])
def test_negatives_equal_those_of_a_loop(sentkit, corpus, rows, pairs, texts, metric, top, skip):
    result = sentkit(
        "mine", "--corpus", corpus, "--metric", metric, "--top", top, "--skip", skip, stdin=rows
    )
    lists, own_texts, above = loop(pairs, texts, metric=metric, top=top, skip=skip)

    assert result.code == 0
    assert [list(row) for row in result.rows] == [["id", "anchor", "positive", "negatives"]] * 10
    assert [row["negatives"] for row in result.rows] == lists
    assert [(row["anchor"], row["positive"]) for row in result.rows] == [
        (a, p) for a, _, p, _ in pairs
    ]
    assert result.told[0] == (
        f"sentkit mine: {sum(map(len, lists))} negatives for 10 pairs;"
        f" not used: {own_texts} texts of the pair itself, {above} above the margin"
    )
    fewer = sum(0 < len(texts) < top for texts in lists)
    without = lists.count([])
    counts = []
    if fewer:
        counts.append(f"{fewer} pairs have fewer than {top} negatives")
    if without:
        counts.append(f"{without} pairs have no negatives")
    warnings = ["sentkit mine: warning: " + ", ".join(counts)] if counts else []
    assert [line.partition(";")[0] for line in result.told[1:]] == warnings


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        (("--margin", 0.5), lambda x: 0.5 * x if x > 0 else 1.5 * x),
        (("--margin", 1), lambda x: x),
        (("--margin", -0.05), lambda x: x - 0.05),
        (("--margin", -0.3), lambda x: x - 0.3),
        (("--margin", 99), lambda x: 99.0 * x if x > 0 else -97.0 * x),
    ],
)
def test_margins(sentkit, corpus, rows, pairs, texts, flags, limit):
    result = sentkit("mine", "--corpus", corpus, *flags, stdin=rows)

    assert [row["negatives"] for row in result.rows] == loop(pairs, texts, limit=limit)[0]


WORDS = [
    "a cat",
    "a dog",
    "the sea",
    "a tree",
    "the sun",
    "rain",
    "a red cat",
    "a house",
    "music",
    "a man",
]


@pytest.fixture
def judge(tmp_path):
    """A reranker of transformers with random weights, and its scores of pairs."""
    import torch
    import transformers

    folder = make_classifier("bert", 1, tmp_path / "judge")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def score(one, other):
        with torch.inference_mode():
            tokens = tokenizer(one, other, return_tensors="pt")
            logit = model(**tokens).logits[0, 0]
            return torch.sigmoid(logit).item()

    return score


@pytest.mark.parametrize(("top", "skip"), [(1, 0), (2, 1)])
@pytest.mark.parametrize(
    ("margin", "limit"), [(0.95, lambda x: 0.95 * x), (-0.02, lambda x: x - 0.02)]
)
def test_a_judge_drops_candidates_as_a_loop_does(
    sentkit, judge, jsonl, tmp_path, top, skip, margin, limit
):
    """Those of four times the negatives that are nearest to the anchor, after --skip."""
    random = np.random.default_rng(6)
    numbers = random.standard_normal((10, 4)).round(2).tolist()
    vectors = dict(zip(WORDS, numbers, strict=True))
    rows = jsonl(*({"text": word, "embedding": vector} for word, vector in vectors.items()))
    (tmp_path / "c.jsonl").write_bytes(rows)
    pairs = []
    lines = []
    for n in range(10):
        a = WORDS[n]
        b = WORDS[(n + 3) % 10]
        near_a = [0.9 * x + 0.1 * y for x, y in zip(vectors[a], vectors[b], strict=True)]
        pairs.append((a, vectors[a], b, near_a))
        lines.append({"text_a": a, "text_b": b, "embedding_a": vectors[a], "embedding_b": near_a})
    flags = ("--top", top, "--skip", skip, "--margin", margin, "--judge", "judge")
    result = sentkit("mine", "--corpus", "c.jsonl", *flags, stdin=jsonl(*lines))
    corpus = list(vectors.items())
    candidates, _, above = loop(pairs, corpus, top=4 * top, skip=skip, limit=limit)
    expected = []
    dropped = 0
    for (a, _, b, _), texts in zip(pairs, candidates, strict=True):
        highest = limit(judge(a, b))
        accepted = [text for text in texts if judge(a, text) < highest]
        expected.append(accepted[:top])
        dropped += len(texts) - len(accepted)

    assert result.code == 0
    assert [row["negatives"] for row in result.rows] == expected
    assert 0 < dropped < sum(map(len, candidates))
    assert result.told[0].endswith(f", {above} above the margin, {dropped} above it for the judge")


def test_all_forms_of_inputs_give_the_same_negatives(sentkit, tiny, tmp_path, jsonl):
    """Rows and vector files; pairs with other names; and a corpus of the pairs themselves."""
    words = ["a cat", "a dog", "the sea", "a tree", "the sun", "a dog", "rain", "a red cat"]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    (tmp_path / "texts.txt").write_text("".join(f"{word}\n" for word in words))
    for name, (one, two) in {"ab": ("text_a", "text_b"), "ap": FIELDS, "qd": ("q", "d")}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(*({one: a, two: b} for a, b in pairs)))
    field = ("--field", "anchor=q", "--field", "positive=d")
    for name, flags in {"texts.txt": (), "ab.jsonl": (), "ap.jsonl": (), "qd.jsonl": field}.items():
        stem = name.partition(".")[0]
        file = f"{stem}.safetensors"
        assert sentkit("encode", name, "-q", "-m", tiny, *flags, "-o", file).code == 0
        assert sentkit("cat", file, "-o", f"{stem}.v.jsonl").code == 0
    flags_of = {
        "ab.safetensors": (),
        "ap.safetensors": (),
        "qd.safetensors": (),
        "ap.v.jsonl": (),
        "qd.v.jsonl": field,
    }
    results = []
    for name, flags in flags_of.items():
        mine = ("mine", name, "-q", "--margin", 0.999, "--top", 2, *flags)
        for corpus in ("texts.safetensors", "texts.v.jsonl", "ab.safetensors"):
            results.append(sentkit(*mine, "--corpus", corpus))

    assert {(result.code, result.err) for result in results} == {(0, "")}
    assert any(row["negatives"] for row in results[0].rows)
    assert len({result.out for result in results}) == 1


def test_a_row_without_a_text_has_its_entry(sentkit, tmp_path):
    """Also if it has the field "text" with null, as rows of Parquet have."""
    corpus = [{"text": None, "entry": "x", "embedding": [1, 0]}, {"text": "y", "embedding": [0, 1]}]
    (tmp_path / "corpus.jsonl").write_text(in_jsonl(*corpus))
    pair = {"anchor": "a", "positive": "b"}
    vectors = {"embedding_anchor": [2, 1], "embedding_positive": [2, 1]}
    result = sentkit("mine", "--corpus", "corpus.jsonl", stdin=in_jsonl(pair | vectors))

    assert (result.code, result.rows) == (0, [pair | {"negatives": ["x", "y"]}])


def test_more_negatives_than_any_number_of_texts(sentkit, corpus, rows):
    mine = ("mine", "--corpus", corpus)
    most = sentkit(*mine, "--top", 2**63 - 1, stdin=rows)
    many = sentkit(*mine, "--top", 1000, stdin=rows)
    none = sentkit(*mine, "--skip", 2**63 - 1, stdin=rows)

    assert (most.code, most.rows) == (0, many.rows)
    assert [row["negatives"] for row in none.rows] == [[]] * 10
