"""`mine`: negatives, forms of rows, and refusals."""

import numpy as np
import pytest

from support import BY_HAND, make_classifier

FIELDS = ("anchor", "positive")


def loop(pairs, corpus, *, top=3, skip=0, metric="cosine", limit=lambda own: own - 0.05 * abs(own)):
    """For each pair (anchor, vector, positive, vector) the negatives, and the two counts of the
    report.
    """
    lists, own_texts, above = [], 0, 0
    first = {}
    for text, vector in corpus:
        first.setdefault(text, vector)
    for anchor, left, positive, right in pairs:
        most = limit(BY_HAND[metric](left, right))
        own_texts += len({anchor, positive} & first.keys())
        others = [(BY_HAND[metric](left, vector), text) for text, vector in first.items()]
        others = [each for each in others if each[1] not in (anchor, positive)]
        above += sum(value >= most for value, _ in others)
        ranked = sorted((each for each in others if each[0] < most), key=lambda each: -each[0])
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
    names = (*FIELDS, "embedding_anchor", "embedding_positive")
    values = ((a, p, x, y) for a, x, p, y in pairs)
    return jsonl(
        *({"id": n, **dict(zip(names, each, strict=True))} for n, each in enumerate(values))
    )


@pytest.mark.parametrize("metric", BY_HAND)
@pytest.mark.parametrize(("top", "skip"), [(3, 0), (1, 2), (40, 1)])
def test_negatives_equal_those_of_a_loop(sentkit, corpus, rows, pairs, texts, metric, top, skip):
    done = sentkit(
        "mine", "--corpus", corpus, "--metric", metric, "--top", top, "--skip", skip, stdin=rows
    )
    lists, own_texts, above = loop(pairs, texts, metric=metric, top=top, skip=skip)

    assert done.code == 0
    assert [list(row) for row in done.rows] == [["id", "anchor", "positive", "negatives"]] * 10
    assert [row["negatives"] for row in done.rows] == lists
    assert [(row["anchor"], row["positive"]) for row in done.rows] == [
        (a, p) for a, _, p, _ in pairs
    ]
    assert done.told[0] == (
        f"sentkit mine: {sum(map(len, lists))} negatives for 10 pairs;"
        f" not used: {own_texts} texts of the pair itself, {above} above the margin"
    )
    short = sum(0 < len(texts) < top for texts in lists), lists.count([])
    parts = (f"fewer than {top} negatives", "no negatives")
    few = [f"{count} pairs have {what}" for count, what in zip(short, parts, strict=True) if count]
    warnings = ["sentkit mine: warning: " + ", ".join(few)] if few else []
    assert [line.partition(";")[0] for line in done.told[1:]] == warnings


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        (("--margin", 0.5), lambda own: 0.5 * own if own > 0 else 1.5 * own),
        (("--margin", 1), lambda own: own),
        (("--margin", -0.05), lambda own: own - 0.05),
        (("--margin", -0.3), lambda own: own - 0.3),
        (("--margin", 99), lambda own: 99.0 * own if own > 0 else -97.0 * own),
    ],
)
def test_margins(sentkit, corpus, rows, pairs, texts, flags, limit):
    done = sentkit("mine", "--corpus", corpus, *flags, stdin=rows)

    assert [row["negatives"] for row in done.rows] == loop(pairs, texts, limit=limit)[0]


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
            return torch.sigmoid(
                model(**tokenizer(one, other, return_tensors="pt")).logits[0, 0]
            ).item()

    return score


@pytest.mark.parametrize(("top", "skip"), [(1, 0), (2, 1)])
@pytest.mark.parametrize(
    ("margin", "limit"), [(0.95, lambda own: 0.95 * own), (-0.02, lambda own: own - 0.02)]
)
def test_a_judge_drops_candidates_as_a_loop_does(
    sentkit, judge, jsonl, tmp_path, top, skip, margin, limit
):
    """Those of four times the negatives that are nearest to the anchor, after --skip."""
    random = np.random.default_rng(6)
    vectors = dict(zip(WORDS, random.standard_normal((10, 4)).round(2).tolist(), strict=True))
    rows = jsonl(*({"text": word, "embedding": vector} for word, vector in vectors.items()))
    (tmp_path / "c.jsonl").write_bytes(rows)
    given = [(WORDS[n], WORDS[(n + 3) % 10]) for n in range(10)]
    near = [
        [0.9 * x + 0.1 * y for x, y in zip(vectors[a], vectors[b], strict=True)] for a, b in given
    ]
    pairs = jsonl(
        *(
            {"text_a": a, "text_b": b, "embedding_a": vectors[a], "embedding_b": right}
            for (a, b), right in zip(given, near, strict=True)
        )
    )
    flags = ("--top", top, "--skip", skip, "--margin", margin)
    done = sentkit("mine", "--corpus", "c.jsonl", *flags, "--judge", "judge", stdin=pairs)
    ranked, _, above = loop(
        [(a, vectors[a], b, right) for (a, b), right in zip(given, near, strict=True)],
        list(vectors.items()),
        **{"top": 4 * top, "skip": skip, "limit": limit},
    )
    kept = [
        [text for text in own if judge(a, text) < limit(judge(a, b))]
        for (a, b), own in zip(given, ranked, strict=True)
    ]
    dropped = sum(map(len, ranked)) - sum(map(len, kept))

    assert done.code == 0
    assert [row["negatives"] for row in done.rows] == [own[:top] for own in kept]
    assert 0 < dropped < sum(map(len, ranked))
    assert done.told[0].endswith(f", {above} above the margin, {dropped} above it for the judge")


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
        assert (
            sentkit("encode", name, "-q", "-m", tiny, *flags, "-o", f"{stem}.safetensors").code == 0
        )
        assert sentkit("cat", f"{stem}.safetensors", "-o", f"{stem}.v.jsonl").code == 0
    found = [
        sentkit("mine", left, "--corpus", right, "-q", "--margin", 0.999, "--top", 2, *flags)
        for left, flags in [
            ("ab.safetensors", ()),
            ("ap.safetensors", ()),
            ("qd.safetensors", ()),
            ("ap.v.jsonl", ()),
            ("qd.v.jsonl", field),
        ]
        for right in ("texts.safetensors", "texts.v.jsonl", "ab.safetensors")
    ]

    assert {(done.code, done.err) for done in found} == {(0, "")}
    assert any(row["negatives"] for row in found[0].rows)
    assert len({done.out for done in found}) == 1
