"""`encode` with static models: output, counts, and errors, also of other commands."""

import gzip

import numpy as np
import pytest

WORDS = "the 1 0 0\ncat 0 2 0\n. 0 0 3\ndog -1 -1 -1\n"


@pytest.fixture
def words(tmp_path):
    """A file of four words of three numbers, by its name alone."""
    (tmp_path / "words.txt").write_text(WORDS)
    return "words.txt"


@pytest.fixture
def potion(sts):
    folder = sts.parent.parent / "checkpoints/potion-base-4M-int8"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return folder


@pytest.fixture
def scored(sentkit):
    """The report on an STS file, of a pipe of `encode` and `score`."""

    def run(model, path):
        encoded = sentkit("encode", "-m", model, path)
        done = sentkit("score", "--gold", "score", stdin=encoded.out)
        assert (encoded.err, done.err) == ("", "")
        return done.rows[0]

    return run


@pytest.mark.parametrize(
    ("name", "spearman"), [("stsb.test", 74.3), ("stsb.dev", 82.5), ("sickr.test", 63.8)]
)
def test_potion_reaches_its_published_score(scored, sts, potion, name, spearman):
    assert scored(potion, sts / f"{name}.jsonl")["spearman"] == pytest.approx(spearman, abs=0.05)


@pytest.mark.parametrize(
    ("track", "pearson"), [("track5_enen", 72.78), ("track1_arar", 60.45), ("track3_eses", 71.17)]
)
def test_sets_of_words_score_as_the_baseline_of_semeval_2017(scored, sts, track, pearson):
    """Cer et al., 2017 (arXiv 1708.00055), who do not say how they cut a text into words."""
    assert scored("words:binary", sts / f"sts17_{track}.test.jsonl")["pearson"] == pytest.approx(
        pearson, abs=0.15
    )


def test_rows_keep_their_fields(sentkit, words):
    done = sentkit("encode", "-m", words, stdin='{"id":1.0,"text_a":"the cat","text_b":"dog"}\n')

    assert done.err == ""
    assert done.out.startswith(b'{"id":1.0,"text_a":"the cat","text_b":"dog","_emb":"words.txt/mean:')
    assert done.vectors("embedding_a").tolist() == [[0.5, 1, 0]]
    assert done.vectors("embedding_b").tolist() == [[-1, -1, -1]]


def test_a_compressed_table_is_the_same_space(sentkit, words, tmp_path):
    (tmp_path / "words.vec.gz").write_bytes(gzip.compress(b"4 3\n" + WORDS.encode()))
    plain, packed = (sentkit("encode", "-m", name, stdin="a cat") for name in (words, "words.vec.gz"))

    assert plain.vectors().tolist() == packed.vectors().tolist()
    assert plain.rows[0]["_emb"].partition(":")[2] == packed.rows[0]["_emb"].partition(":")[2]


def test_an_array_of_word_vectors_is_the_same_space(sentkit, words, tmp_path):
    """Also one in which a word is repeated; the words are in the text file beside it."""
    rows = np.array([[float(part) for part in line.split()[1:]] for line in WORDS.splitlines()])
    names = [line.split()[0] for line in WORDS.splitlines()]
    np.save(tmp_path / "a.npy", rows)
    (tmp_path / "a.txt").write_text("\n".join(names))
    np.save(tmp_path / "b.npy", np.asfortranarray(np.vstack([rows, rows[:1] + 1])))
    (tmp_path / "b.txt").write_text("\n".join([*names, "the"]))
    encoded = [
        sentkit("encode", "-m", name, "-q", stdin="a cat\nthe Dog.") for name in (words, "a.npy", "b.npy")
    ]
    described = sentkit("inspect", "a.npy").rows[0]

    for done in encoded:  # (the + dog + .) / 3
        assert done.vectors() == pytest.approx(np.array([[0, 2, 0], [0, -1 / 3, 2 / 3]]))
    assert len({done.rows[0]["_emb"].partition(":")[2] for done in encoded}) == 1
    assert (described["kind"], described["words"], described["width"]) == ("word vectors in an array", 4, 3)


@pytest.mark.parametrize("output", ["a.npy", "a.txt"])
def test_an_array_and_its_words_are_not_overwritten(sentkit, tmp_path, output):
    np.save(tmp_path / "a.npy", np.ones((1, 2)))
    (tmp_path / "a.txt").write_text("cat\n")
    before = (tmp_path / output).read_bytes()
    done = sentkit("encode", "-m", "a.npy", "-f", "--rejects", f"./{output}", stdin="cat")

    assert (done.code, done.told[0]) == (
        2,
        f"sentkit encode: --rejects ./{output}: would overwrite the input {output}",
    )
    assert (tmp_path / output).read_bytes() == before


@pytest.mark.parametrize(
    ("rows", "code", "problem"),
    [
        (np.ones((4, 3), int), 65, "a.npy: the array is 4 x 3 of int64, "),
        (np.full((4, 3), np.nan), 65, "a.npy: the array contains NaN or a number too large for float32"),
        (np.ones((3, 3)), 65, "a.txt: 4 words, and a.npy has 3 rows"),
        (np.array([[None]]), 65, "a.npy: not an array of numpy: "),
        (None, 66, "a.npy: no such file"),
    ],
)
def test_an_array_that_cannot_be_read_is_named(sentkit, tmp_path, rows, code, problem):
    if rows is not None:
        np.save(tmp_path / "a.npy", rows)
    (tmp_path / "a.txt").write_text("the\ncat\n.\ndog\n")
    done = sentkit("encode", "-m", "a.npy", stdin="a cat")

    assert (done.code, done.out) == (code, b"")
    assert done.told[0].startswith(f"sentkit encode: {problem}")


def test_unknown_words_and_texts_of_only_unknown_words_are_counted(sentkit, words):
    """Of every row, even where its text has come before."""
    done = sentkit("encode", "-m", words, stdin="the zebra\nzebra\nzebra\n\ncat\n")

    assert done.told == [
        "sentkit encode: warning: 3 of 5 words have no vector",
        "sentkit encode: warning: 3 of 5 texts have no known word: their vectors are zero",
    ]
    assert done.vectors().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 2, 0]]


def test_tokens_of_model2vec_are_counted_likewise(sentkit, model2vec):
    done = sentkit("encode", "-m", model2vec(), stdin="the zebra\nzebra\n")

    assert done.code == 0
    assert done.told == [
        "sentkit encode: warning: 2 of 3 tokens have no vector",
        "sentkit encode: warning: 1 of 2 texts have no known token: their vectors are zero",
    ]


def test_repeated_and_unreadable_words_of_a_table_are_counted(sentkit, tmp_path):
    (tmp_path / "words.txt").write_bytes(b"cat 1 0\ncat 0 1\n\xff 1 1\ncat 5 5\n")
    done = sentkit("encode", "-m", "words.txt", stdin="cat\n")

    assert done.vectors().tolist() == [[1, 0]]
    assert done.told == [
        "sentkit encode: warning: words.txt: 2 repeated words: the first vector of each is used",
        "sentkit encode: warning: words.txt: 1 words that are not UTF-8 are ignored",
    ]


def test_a_cut_is_counted_or_refused(sentkit, words):
    counted = sentkit("encode", "-m", words, "--max-length", 2, "-v", stdin="the cat dog\nzebra the cat\n")
    refused = sentkit(
        "encode", "-m", words, "--max-length", 2, "--on-truncate", "error", stdin="the cat dog\n"
    )

    assert [(row["n_tokens"], row["truncated"]) for row in counted.rows] == [(3, True), (3, False)]
    assert counted.vectors().tolist() == [[0.5, 1, 0], [0.5, 1, 0]]
    assert any("1 of 2 rows were truncated to 2 words" in line for line in counted.told)
    assert (refused.code, refused.told) == (65, ["sentkit encode: -:1: text too long: 3 words, maximum 2"])


def test_flags_of_vectors_work_as_elsewhere(sentkit, words):
    """A prefix, the first numbers, unit length: of (the + cat) / 2 the first two."""
    done = sentkit("encode", "-m", words, "--prompt", "the ", "--dim", 2, "--normalize", stdin="cat\n")

    assert done.vectors()[0] == pytest.approx(np.array([0.5, 1]) / 1.25**0.5)
    assert done.rows[0]["_emb"].startswith("words.txt/mean/2/n:")


@pytest.mark.parametrize("budget", [1, 3, 1000])
def test_batches_change_nothing(sentkit, words, budget):
    texts = "the cat\n.\ncat dog dog\n\nzebra\n"
    batched = sentkit("encode", "-m", words, "--batch-tokens", budget, stdin=texts)

    assert batched.out == sentkit("encode", "-m", words, stdin=texts).out


def test_a_dry_run_counts(sentkit, words):
    """Two texts of two known words, and two batches where each takes two."""
    done = sentkit("encode", "-m", words, "-n", "--batch-tokens", 2, stdin="the cat\nthe dog zebra\n")

    expected = {"rows": 2, "texts": 2, "tokens": 4, "truncated": 0, "batches": 2}
    assert expected.items() <= done.rows[0].items()


def test_several_readouts_come_from_one_pass(sentkit, words, tmp_path):
    done = sentkit("encode", "-m", words, "--readout", "mean,max", "-o", "sweep", stdin="the cat\n")
    rows = [sentkit("cat", f"sweep/{name}.safetensors") for name in ("mean", "max")]

    assert done.code == 0
    assert [each.vectors().tolist() for each in rows] == [[[0.5, 1, 0]], [[1, 2, 0]]]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--readout", "cls"), 'unknown readout "cls" for a static model'),
        (("--readout", "prompt"), 'unknown readout "prompt" for a static model'),
        (("--device", "cuda"), "--device cuda: a static model runs on the CPU"),
        (("--precision", "bf16"), "--precision bf16: a static model computes in fp32"),
        (("--dim", "4"), "--dim 4: the vectors have only 3 numbers"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("-n",)], ids=["run", "dry run"])
def test_flags_that_mean_nothing_here_are_refused(sentkit, words, flags, problem, dry):
    done = sentkit("encode", "-m", words, *flags, *dry, stdin="cat\n")

    assert (done.code, done.out) == (2, b"")
    assert done.told[0] == f"sentkit encode: {problem}"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"text":"a cat"}\n', ": rows of JSON, expected word vectors as text"),
        ("the 1 2\ncat 1\n", ":2: expected a word and 2 numbers"),
        ("the 1 2\ncat 1 x\n", ':2: "x" is not a number'),
        ("", ": an empty file, expected word vectors as text"),
    ],
)
def test_a_file_without_word_vectors_is_bad_data(sentkit, tmp_path, content, told):
    (tmp_path / "other.txt").write_text(content)
    done = sentkit("encode", "-m", "other.txt", stdin="cat\n")

    assert (done.code, done.out) == (65, b"")
    assert done.told == [f"sentkit encode: other.txt{told}"]


def test_sets_are_of_all_rows(sentkit):
    """In the order of the alphabet: a, b, c."""
    done = sentkit("encode", "-m", "words:binary", stdin="B a\na a\nc\n\n")

    assert done.vectors().tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert done.told == ["sentkit encode: warning: 1 of 4 texts have no known word: their vectors are zero"]


def test_sets_of_many_rows_come_out_in_order(sentkit):
    """More rows than are computed at once."""
    texts = [f"w{k % 7} w{k % 5}" for k in range(700)]
    done = sentkit("encode", "-m", "words:binary", stdin="\n".join(texts))
    names = sorted({word for text in texts for word in text.split()})

    assert [row["text"] for row in done.rows] == texts
    assert done.vectors().tolist() == [[float(name in text.split()) for name in names] for text in texts]


def test_sets_of_another_vocabulary_are_not_to_be_mixed(sentkit, tmp_path):
    for name, text in (("one", "a b"), ("two", "b c"), ("three", "b a")):
        (tmp_path / f"{name}.jsonl").write_bytes(sentkit("encode", "-m", "words:binary", stdin=text).out)
    mixed = sentkit("cat", "one.jsonl", "two.jsonl", "-o", "all.safetensors")
    same = sentkit("cat", "one.jsonl", "three.jsonl", "-o", "all.safetensors")

    assert mixed.code == 65
    assert "the vectors of the first row are words-binary/set" in mixed.err
    assert same.code == 0


def test_zero_vectors_are_like_nothing(sentkit, words):
    """`score` gives them 0, and says no more: `encode` has counted them."""
    pairs = '{"text_a":"cat","text_b":"zebra"}\n{"text_a":"zebra","text_b":"zebra"}\n'
    encoded = sentkit("encode", "-q", "-m", words, stdin=pairs)

    assert [row["similarity"] for row in sentkit("score", stdin=encoded.out).rows] == [0, 0]


def test_inspect_describes_a_static_model(sentkit, words, model2vec):
    table, folder = sentkit("inspect", words).rows[0], sentkit("inspect", model2vec(normalize=True)).rows[0]
    sets = sentkit("inspect", "words:binary").rows[0]

    assert (table["kind"], table["words"], table["width"]) == ("word vectors in text", 4, 3)
    assert (table["steps"], table["max_length"]) == ([], None)
    assert (folder["kind"], folder["tokens"], folder["width"]) == ("model2vec", 13, 5)
    assert (folder["steps"], folder["max_length"], folder["stored_as"]) == (["n"], 512, "F32")
    assert sets["readout"] == "set"


@pytest.mark.parametrize(
    "command",
    [
        ("build-entries",),
        ("export", "-o", "out"),
        ("distill-static", "-o", "out"),
    ],
    ids=" ".join,
)
def test_who_needs_layers_refuses_a_static_model(sentkit, words, model2vec, command):
    rows = '{"text":"a","entry":"a","definition":"b"}\n'
    told = [sentkit(*command, "-m", name, stdin=rows) for name in (model2vec(), "words:binary", words)]

    assert [done.code for done in told] == [2, 2, 66]
    assert all(
        "is a static model, which only encode, search, report and inspect support" in done.err
        for done in told[:2]
    )
    assert told[2].told[-1].endswith(": words.txt: is a file, expected a checkpoint folder")


@pytest.mark.parametrize("name", ["nosuch.vec", "glove.6B.300d.txt", "wv/vectors.txt.gz", "vectors.bin"])
def test_missing_word_vectors_are_not_searched_on_the_hub(sentkit, name):
    done = sentkit("encode", "-m", name, stdin="a\n")

    assert (done.code, done.told) == (66, [f"sentkit encode: {name}: no such file"])


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\xef\xbb\xbf2 2\n", b" ", b""])
def test_bytes_before_the_first_word_are_ignored(sentkit, tmp_path, start):
    (tmp_path / "w.txt").write_bytes(start + b"a 1 2\nb  3 4\n")
    done = sentkit("encode", "-m", "w.txt", stdin="a\nb\n")

    assert [row["embedding"] for row in done.rows] == [[1, 2], [3, 4]]
    assert done.err == ""


def test_a_table_with_tabs_is_recognised(sentkit, tmp_path):
    (tmp_path / "w.tsv").write_text("a\t1\t2\nb\t3\t4\n")
    done = sentkit("encode", "-m", "w.tsv", stdin="a\n")

    assert done.code == 65
    assert done.told[0].endswith("w.tsv: a table with tabs, expected word vectors as text")


def test_the_message_names_a_broken_table(sentkit, model2vec):
    broken = np.full((13, 5), np.nan, np.float32)
    done = sentkit("encode", "-m", model2vec({"embeddings": broken}), stdin="a\n")

    assert done.code == 65
    assert done.told[0].endswith(
        'model.safetensors: "embeddings" contains NaN or a number too large for float32'
    )
