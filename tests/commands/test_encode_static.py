"""`encode` with static models: output, counts, and errors, also of other commands."""

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


@pytest.mark.parametrize(
    ("model", "name", "measure", "value"),
    [
        ("potion", "stsb.test", "spearman", pytest.approx(74.3, abs=0.05)),
        ("potion", "stsb.dev", "spearman", pytest.approx(82.5, abs=0.05)),
        ("potion", "sickr.test", "spearman", pytest.approx(63.8, abs=0.05)),
        ("words:binary", "sts17_track5_enen.test", "pearson", pytest.approx(72.78, abs=0.15)),
        ("words:binary", "sts17_track1_arar.test", "pearson", pytest.approx(60.45, abs=0.15)),
        ("words:binary", "sts17_track3_eses.test", "pearson", pytest.approx(71.17, abs=0.15)),
    ],
)
def test_published_scores_are_reached(sentkit, request, sts, model, name, measure, value):
    """The baseline of SemEval 2017 (arXiv 1708.00055) does not say how it cuts a text into words."""
    folder = request.getfixturevalue(model) if model == "potion" else model
    encoded = sentkit("encode", "-m", folder, sts / f"{name}.jsonl")
    done = sentkit("score", "--gold", "score", stdin=encoded.out)

    assert (encoded.err, done.err) == ("", "")
    assert done.rows[0][measure] == value


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
    problem = f"sentkit encode: --rejects ./{output}: would overwrite the input {output}"

    assert (done.code, done.told[0]) == (2, problem)
    assert (tmp_path / output).read_bytes() == before


def test_repeated_and_unreadable_words_of_a_table_are_counted(sentkit, tmp_path):
    (tmp_path / "words.txt").write_bytes(b"cat 1 0\ncat 0 1\n\xff 1 1\ncat 5 5\n")
    done = sentkit("encode", "-m", "words.txt", stdin="cat\n")

    assert done.vectors().tolist() == [[1, 0]]
    assert done.told == [
        "sentkit encode: warning: words.txt: 2 repeated words: the first vector of each is used",
        "sentkit encode: warning: words.txt: 1 words that are not UTF-8 are ignored",
    ]


def test_sets_are_of_all_rows_and_come_out_in_order(sentkit):
    """In the order of the alphabet. More rows than are computed at once; one has no words."""
    texts = ["B a", "", *(f"w{k % 7} W{k % 5}" for k in range(700))]
    done = sentkit("encode", "-m", "words:binary", stdin="\n".join(texts))
    sets = [text.lower().split() for text in texts]
    names = sorted({word for words in sets for word in words})

    assert [row["text"] for row in done.rows] == texts
    assert done.vectors().tolist() == [[float(name in words) for name in names] for words in sets]
    assert done.told == ["sentkit encode: warning: 1 of 702 texts have no known word: their vectors are zero"]


def test_inspect_describes_a_static_model(sentkit, words, model2vec):
    table, folder = sentkit("inspect", words).rows[0], sentkit("inspect", model2vec(normalize=True)).rows[0]
    sets = sentkit("inspect", "words:binary").rows[0]

    assert (table["kind"], table["words"], table["width"]) == ("word vectors in text", 4, 3)
    assert (table["steps"], table["max_length"]) == ([], None)
    assert (folder["kind"], folder["tokens"], folder["width"]) == ("model2vec", 13, 5)
    assert (folder["steps"], folder["max_length"], folder["stored_as"]) == (["n"], 512, "F32")
    assert sets["readout"] == "set"


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\xef\xbb\xbf2 2\n", b" ", b""])
def test_bytes_before_the_first_word_are_ignored(sentkit, tmp_path, start):
    (tmp_path / "w.txt").write_bytes(start + b"a 1 2\nb  3 4\n")
    done = sentkit("encode", "-m", "w.txt", stdin="a\nb\n")

    assert [row["embedding"] for row in done.rows] == [[1, 2], [3, 4]]
    assert done.err == ""
