"""`score`, `search` and `duplicates` beside loops over all pairs of vectors, for every metric."""

import itertools

import numpy as np
import pytest

from support import BY_HAND, in_jsonl

metrics = pytest.mark.parametrize("metric", BY_HAND)
THRESHOLDS = {"cosine": 0.9, "dot": 25.0, "euclidean": -3.0, "manhattan": -5.0}  # of duplicates


def numbers(count, width, seed):
    return (np.random.default_rng(seed).integers(-40, 40, (count, width)) / 8).tolist()


def texts_with(vectors):
    return in_jsonl(*({"id": n, "text": f"t{n}", "embedding": v} for n, v in enumerate(vectors, 1)))


def ranked(values):
    """(number from 1, similarity), the most similar first, ties in the order of the rows."""
    return sorted(
        ((n, round(x, 9)) for n, x in enumerate(values, 1)), key=lambda hit: (-hit[1], hit[0])
    )


@metrics
def test_pairs_get_their_similarity(sentkit, metric):
    vectors = numbers(12, 7, 5)
    pairs = [*zip(vectors[::2], vectors[1::2], strict=True)]
    rows = in_jsonl(
        *({"id": n, "embedding_a": a, "embedding_b": b} for n, (a, b) in enumerate(pairs))
    )
    result = sentkit("score", "--metric", metric, stdin=rows)

    assert (result.code, [list(row) for row in result.rows]) == (0, [["id", "similarity"]] * 6)
    expected = [BY_HAND[metric](a, b) for a, b in pairs]
    assert [row["similarity"] for row in result.rows] == pytest.approx(expected, rel=5e-7)


def test_pairs_without_other_fields_can_keep_their_vectors(sentkit):
    """The rows of a vector file can be empty objects."""
    sentkit("cat", "-o", "pairs.safetensors", stdin='{"embedding_a":[3,4],"embedding_b":[4,3]}\n')
    result = sentkit("score", "pairs.safetensors", "--keep-vectors")

    row = {"embedding_a": [3, 4], "embedding_b": [4, 3], "similarity": 0.96}
    assert (result.code, result.rows) == (0, [row])


@metrics
def test_the_closest_sentences_those_above_a_threshold_and_the_matrix(sentkit, metric, monkeypatch):
    """Of all pairs, each once; ten pairs are the default. Above a threshold, they have the order of
    rows.
    """
    monkeypatch.setattr("sentkit.metrics.neighbours.pairs.MATRIX_ELEMENTS", 60)
    vectors = numbers(12, 7, 5)
    every = [
        (BY_HAND[metric](vectors[i], vectors[j]), i + 1, j + 1)
        for i, j in itertools.combinations(range(12), 2)
    ]
    best = sorted(every, key=lambda pair: -pair[0])
    threshold = (best[19][0] + best[20][0]) / 2

    def score(*flags):
        return sentkit("score", "--metric", metric, *flags, stdin=texts_with(vectors)).rows

    closest = score("--top", 4)
    assert [(row["row_a"], row["row_b"]) for row in closest] == [pair[1:] for pair in best[:4]]
    assert [row["similarity"] for row in closest] == pytest.approx(
        [pair[0] for pair in best[:4]], abs=1e-5
    )
    assert [row["text_a"] for row in closest] == [f"t{i}" for _, i, _ in best[:4]]
    assert len(score()) == 10
    assert best[19][0] - best[20][0] > 1e-9
    for flags, expected in (
        ((), sorted(pair[1:] for pair in best[:20])),
        (("--top", 5), [pair[1:] for pair in best[:5]]),
        (("--top", 50), [pair[1:] for pair in best[:20]]),
    ):
        rows = score("--threshold", threshold, *flags)
        assert [(row["row_a"], row["row_b"]) for row in rows] == expected
    matrix = np.array([row["similarities"] for row in score("--matrix")])
    expected = [[BY_HAND[metric](a, b) for b in vectors] for a in vectors]
    assert np.abs(matrix - expected).max() < 1e-5


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_the_digits_of_the_matrix_are_those_of_float64(sentkit, metric):
    """As for pairs. The sum of 300 products in float32 loses two digits."""
    vectors = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32) + 2
    result = sentkit("score", "--matrix", "--metric", metric, stdin=texts_with(vectors.tolist()))
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    if metric == "cosine":
        lengths = np.sqrt(np.diagonal(products))
        products /= np.outer(lengths, lengths)
    matrix = np.array([row["similarities"] for row in result.rows])

    np.testing.assert_array_equal(matrix.astype(np.float32), products.astype(np.float32))


def test_the_matrix_has_short_distances_between_long_rows(sentkit):
    """|a|^2 + |b|^2 - 2ab has lost their digits."""
    random = np.random.default_rng(0)
    long = (random.standard_normal(300) * 1000).astype(np.float32)
    vectors = [long + np.float32(offset) for offset in (0, 1e-3, 1e-2, 0.1, 1, 10, 0)]
    rows = texts_with([vector.tolist() for vector in vectors])
    result = sentkit("score", "--matrix", "--metric", "euclidean", stdin=rows)
    wide = np.array(vectors, np.float64)
    expected = -np.sqrt(((wide[:, None] - wide) ** 2).sum(axis=2))
    matrix = np.array([row["similarities"] for row in result.rows])

    np.testing.assert_allclose(matrix, expected, rtol=1.2e-7)
    assert (np.diagonal(matrix) == 0).all()


@metrics
def test_similarities_beyond_float32_are_in_the_matrix(sentkit, metric):
    """Vectors are float32, but their products and distances can be larger."""
    vectors = [[2.0**67, 2.0**67], [2.0**127, -(2.0**127)], [1.0, 0.0]]
    result = sentkit("score", "--matrix", "--metric", metric, stdin=texts_with(vectors))
    similarities = [row["similarities"] for row in result.rows]

    assert result.code == 0
    for a, of_row in zip(vectors, similarities, strict=True):
        expected = [BY_HAND[metric](a, b) for b in vectors]
        assert of_row == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_matrix_of_too_many_is_wrong_usage(sentkit, monkeypatch):
    monkeypatch.setattr("sentkit.metrics.neighbours.pairs.LARGEST_MATRIX", 11)
    result = sentkit("score", "--matrix", stdin=texts_with(numbers(12, 2, 0)))

    problem = "sentkit score: --matrix accepts up to 11 rows; the input has more\n"
    assert (result.code, result.err) == (2, problem)


@metrics
def test_hits_equal_those_of_loops(sentkit, tmp_path, metric):
    """Also those that reach a threshold, of which there may be more than ten."""
    corpus = numbers(30, 5, 5)
    queries = numbers(7, 5, 6)
    (tmp_path / "corpus.jsonl").write_text(texts_with(corpus))
    stdin = in_jsonl(*({"id": n, "embedding": v} for n, v in enumerate(queries)))
    ranks = [ranked(BY_HAND[metric](query, row) for row in corpus) for query in queries]
    values = sorted({value for hits in ranks for _, value in hits})
    below, above = values[len(values) // 2 :][:2]

    def search(*flags):
        return sentkit(
            "search", "--corpus", "corpus.jsonl", "--metric", metric, *flags, stdin=stdin
        )

    for top in (1, 3, 1000):
        result = search("--top", top)
        assert (result.code, [list(row) for row in result.rows]) == (0, [["id", "hits"]] * 7)
        for row, hits in zip(result.rows, ranks, strict=True):
            assert [hit["row"] for hit in row["hits"]] == [number for number, _ in hits[:top]]
            similarities = [value for _, value in hits[:top]]
            assert [hit["similarity"] for hit in row["hits"]] == pytest.approx(
                similarities, rel=1e-6
            )
            assert [hit["text"] for hit in row["hits"]] == [f"t{n}" for n, _ in hits[:top]]
    assert above - below > 1e-8
    reached = [[row for row, value in hits if value >= (below + above) / 2] for hits in ranks]
    assert max(map(len, reached)) > 10
    for flags, top in (((), None), (("--top", 4), 4)):
        rows = search("--threshold", (below + above) / 2, *flags).rows
        hits = [[hit["row"] for hit in row["hits"]] for row in rows]
        assert hits == [numbers_of_rows[:top] for numbers_of_rows in reached]


@pytest.fixture
def repeated():
    """Forty vectors of three numbers; the last ten repeat earlier ones."""
    vectors = numbers(30, 3, 3)
    return vectors + [vectors[n] for n in np.random.default_rng(3).integers(0, 30, 10)]


def near_pairs(vectors, metric):
    pairs = itertools.combinations(enumerate(vectors, 1), 2)
    return [(i, j) for (i, a), (j, b) in pairs if BY_HAND[metric](a, b) >= THRESHOLDS[metric]]


def groups_of(vectors, metric):
    first = list(range(1, len(vectors) + 1))
    for _ in vectors:
        for i, j in near_pairs(vectors, metric):
            first[i - 1] = first[j - 1] = min(first[i - 1], first[j - 1])
    return first


@metrics
def test_duplicates_groups_and_first_rows_equal_those_of_a_loop(
    sentkit, repeated, metric, monkeypatch
):
    """The pairs of seven rows at a time join groups."""
    monkeypatch.setattr("sentkit.metrics.neighbours.pairs.ROWS_PER_SEARCH", 7)
    monkeypatch.setattr("sentkit.metrics.neighbours.duplicates.ROWS_PER_BLOCK", 7)
    rows = texts_with(repeated)
    flags = ("duplicates", "--metric", metric, "--threshold", THRESHOLDS[metric])
    result = sentkit(*flags, stdin=rows)
    groups = sentkit(*flags, "--groups", stdin=rows)
    unique = sentkit(*flags, "--unique", stdin=rows)
    expected = near_pairs(repeated, metric)
    first = groups_of(repeated, metric)
    texts = [{"id": n, "text": f"t{n}"} for n in range(1, 41)]

    assert 10 < len(expected) < 300
    assert 1 < len(set(first)) < 30
    assert result.rows == [
        {
            "text_a": f"t{i}",
            "text_b": f"t{j}",
            "row_a": i,
            "row_b": j,
            "similarity": pytest.approx(value),
        }
        for i, j in expected
        for value in [BY_HAND[metric](repeated[i - 1], repeated[j - 1])]
    ]
    assert groups.rows == [{**row, "group": n} for row, n in zip(texts, first, strict=True)]
    assert unique.rows == [texts[n - 1] for n in sorted(set(first))]


@pytest.mark.parametrize("store", [None, "float32", "float16"])
@pytest.mark.parametrize("against", [False, True])
def test_a_vector_file_of_unique_rows_has_their_vectors(
    sentkit, repeated, tmp_path, store, against
):
    """From JSONL and from vector files; the numbers are exact in float16."""
    (tmp_path / "rows.jsonl").write_text(texts_with(repeated))
    (tmp_path / "other.jsonl").write_text(texts_with(repeated[:10]))
    name = "rows.safetensors" if store else "rows.jsonl"
    if store:
        sentkit("cat", "rows.jsonl", "--store", store, "-o", name)
    flags = ("--threshold", 0.9, *(("--against", "other.jsonl") if against else ()))
    result = sentkit("duplicates", name, *flags, "--unique", "-o", "few.safetensors")
    near = [any(BY_HAND["cosine"](a, b) >= 0.9 for b in repeated[:10]) for a in repeated]
    first = groups_of(repeated, "cosine")
    if against:
        unique = [n for n in range(40) if not near[n]]
    else:
        unique = [n for n in range(40) if first[n] == n + 1]

    assert (result.code, result.out) == (0, b"")
    stored = sentkit("cat", "few.safetensors")
    assert [row["id"] - 1 for row in stored.rows] == unique
    assert stored.vectors().tolist() == [repeated[n] for n in unique]
    assert 5 < len(unique) < 35


def test_a_vector_file_of_rows_with_other_names_has_the_standard_name(sentkit, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"title":"x","vec":[1,0]}\n{"title":"y","vec":[0,1]}\n')
    (tmp_path / "other.jsonl").write_text('{"title":"x","vec":[2,0]}\n')
    names = ("--field", "embedding=vec", "--field", "text=title")
    for flags, titles in (((), "xy"), (("--against", "other.jsonl"), "y")):
        result = sentkit(
            *("duplicates", "rows.jsonl", "--threshold", 0.9, *names, *flags, "--unique"),
            *("-o", "few.safetensors", "-f"),
        )
        stored = sentkit("cat", "few.safetensors")

        assert (result.code, stored.code) == (0, 0), stored.err
        assert [row["title"] for row in stored.rows] == [*titles]
        assert stored.vectors().tolist() == [[1, 0], [0, 1]][-len(titles) :]


def test_a_pair_has_the_texts_of_both_files_by_their_own_names(sentkit, tmp_path):
    """A vector file records the names of its fields, which rows of the other file do not have."""
    rows = in_jsonl({"title": "x"}, {"title": "y"})
    sentkit("encode", "-m", "nano", "--field", "text=title", "-o", "rows.safetensors", stdin=rows)
    sentkit("encode", "-m", "nano", "-o", "other.safetensors", stdin=in_jsonl({"text": "y"}))
    pair = {"text_a": "y", "text_b": "y", "row_a": 2, "row_b": 1, "similarity": 1}
    swapped = pair | {"row_a": 1, "row_b": 2}

    for a, b, expected in (("rows", "other", pair), ("other", "rows", swapped)):
        files = (f"{a}.safetensors", "--against", f"{b}.safetensors")
        result = sentkit("duplicates", *files, "--threshold", 0.99)
        assert (result.code, result.rows) == (0, [expected])


@pytest.mark.parametrize(
    "command", ["cluster -k 1", "duplicates --threshold 0.5 --unique", "duplicates {} --unique"]
)
def test_a_field_with_the_name_of_the_vectors_is_not_lost(sentkit, tmp_path, command):
    """A vector file has no place for it; in JSONL, it stays."""
    rows = in_jsonl(*({"vec": [n, 1], "embedding": f"note {n}"} for n in (0, 9)))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "other.jsonl").write_text(in_jsonl({"vec": [-1, 0]}))
    command = command.format("--threshold 0.5 --against other.jsonl").split()
    flags = (command[0], "rows.jsonl", *command[1:], "--field", "embedding=vec")
    kept = sentkit(*flags)
    refused = sentkit(*flags, "-o", "few.safetensors")

    assert (kept.code, [row["embedding"] for row in kept.rows]) == (0, ["note 0", "note 9"])
    problem = 'rows.jsonl:1: "embedding" is the name of the vectors in a vector file\n'
    advice = "  remove it, or write JSONL\n"
    assert (refused.code, refused.err) == (65, f"sentkit {command[0]}: {problem}{advice}")
    assert not (tmp_path / "few.safetensors").exists()


@metrics
@pytest.mark.parametrize("files", [1, 2])
def test_rows_near_rows_of_others_equal_those_of_a_loop(sentkit, repeated, tmp_path, metric, files):
    vectors = repeated[:15]
    against = [repeated[15:]] if files == 1 else [repeated[15:20], repeated[20:]]
    flags = ["--metric", metric, "--threshold", THRESHOLDS[metric]]
    for number, vectors_of_file in enumerate(against):
        (tmp_path / f"{number}.jsonl").write_text(texts_with(vectors_of_file))
        flags += ["--against", f"{number}.jsonl"]
    pairs = sentkit("duplicates", *flags, stdin=texts_with(vectors))
    new = sentkit("duplicates", *flags, "--unique", stdin=texts_with(vectors))
    expected = [
        (f"t{i}", f"{number}.jsonl", row)
        for i, vector in enumerate(vectors, 1)
        for number, vectors_of_file in enumerate(against)
        for row, other in enumerate(vectors_of_file, 1)
        if BY_HAND[metric](vector, other) >= THRESHOLDS[metric]
    ]

    assert 5 < len(expected) < 150
    assert [
        (row["text_a"], row.get("file_b", "0.jsonl"), row["row_b"]) for row in pairs.rows
    ] == expected
    near = {text for text, *_ in expected}
    assert [row["text"] for row in new.rows] == [
        f"t{n}" for n in range(1, 16) if f"t{n}" not in near
    ]
    assert all("embedding" not in row for row in new.rows)


def test_a_shown_field_that_no_row_has_is_an_error_or_a_warning(sentkit, tmp_path):
    """With --against, the rows of the file are not known before; some of the files can have the
    field.
    """
    vectors = numbers(3, 4, 5)
    (tmp_path / "a.jsonl").write_text(texts_with(vectors))
    rows = in_jsonl(*({"title": "x", "embedding": vector} for vector in vectors))
    (tmp_path / "b.jsonl").write_text(rows)
    duplicates = ("duplicates", "a.jsonl", "--threshold", 0.9)
    alone = sentkit(*duplicates, "--show", "titel")
    wrong = sentkit(*duplicates, "--against", "b.jsonl", "--show", "titel", "--show", "id")
    of_other = sentkit(*duplicates, "--against", "b.jsonl", "--show", "title")

    told = ['sentkit duplicates: a.jsonl: no row has "titel"', "  the rows have: id, text"]
    assert (alone.code, alone.told) == (65, told)
    warning = "sentkit duplicates: warning: --show titel: no row of a pair has this field"
    assert (wrong.code, wrong.told) == (0, [warning])
    assert [row["id_a"] for row in wrong.rows] == [1, 2, 3]
    assert (of_other.told, {row["title_b"] for row in of_other.rows}) == ([], {"x"})


def test_the_file_of_several_others_is_a_field_of_each_pair(sentkit, tmp_path):
    vectors = numbers(3, 4, 5)
    rows = in_jsonl(*({"file": "x", "embedding": vector} for vector in vectors))
    (tmp_path / "a.jsonl").write_text(rows)
    shown = ("duplicates", "a.jsonl", "--threshold", 0.9, "--show", "file")
    one = sentkit(*shown, "--against", "a.jsonl")
    several = sentkit(*shown, "--against", "a.jsonl", "--against", "a.jsonl")

    assert {row["file_b"] for row in one.rows} == {"x"}
    assert several.code == 2
    assert several.told[0] == "sentkit duplicates: --show file: every pair has this field"
