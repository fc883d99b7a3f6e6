"""Vector files record what their rows call their texts."""

import json

import pytest

from support import in_jsonl

PAIRS = [("a cat", "a dog"), ("the cat", "a cat sat"), ("a dog", "the dog")]
TITLES = b"id,title\n1,a cat\n2,a dog\n3,a cat sat\n"
NEWS = b'{"headline":"the dog"}\n{"headline":"the cat"}\n'


@pytest.fixture
def files(sentkit, tmp_path):
    """t.safetensors and n.safetensors, each with another field mapping, and p.safetensors without one."""
    (tmp_path / "words.txt").write_text("a 1 0 0\ncat 0 2 0\ndog 0 0 3\nsat 1 1 1\nthe 1 2 3\n")
    for name, field, rows, form in (
        ("t", "title", TITLES, "csv"),
        ("n", "headline", NEWS, "jsonl"),
        ("p", "text", b"a plain text\n", "txt"),
    ):
        (tmp_path / f"{name}.{form}").write_bytes(rows)
        flags = ("-m", "words.txt", "--field", f"text={field}", "-o", f"{name}.safetensors", "-q")
        done = sentkit("encode", f"{name}.{form}", *flags)
        assert done.code == 0, done.err


def spec(sentkit, path):
    return json.loads(sentkit("inspect", path, "--json", "--no-geometry").out)["spec"]


@pytest.mark.parametrize(
    ("flags", "texts"), [((), {"a cat", "a dog", "a cat sat"}), (("--field", "text=id"), {"1", "2", "3"})]
)
def test_pairs_and_hits_show_the_recorded_field_or_that_of_the_flag(sentkit, files, flags, texts):
    (pair,) = sentkit("score", "t.safetensors", "--top", "1", *flags).rows
    hits = sentkit("search", "--corpus", "t.safetensors", "--queries", "n.safetensors", "--top", "1", *flags)

    assert {pair["text_a"], pair["text_b"]} <= texts
    assert [hit["text"] in texts for row in hits.rows for hit in row["hits"]] == [True, True]


def test_other_names_are_recorded_and_kept(sentkit, files):
    """By every command that writes the vectors of one file."""
    sentkit("cat", "t.safetensors", "-o", "c.safetensors")
    sentkit("encode", "t.safetensors", "-m", "words.txt", "-o", "e.safetensors")
    sentkit("whiten", "fit", "t.safetensors", "--kind", "center", "-o", "w.safetensors")
    sentkit("whiten", "apply", "t.safetensors", "-t", "w.safetensors", "-o", "a.safetensors")
    sentkit("cluster", "t.safetensors", "-k", "1", "-o", "k.safetensors")

    assert "fields" not in spec(sentkit, "p.safetensors")
    for name in "tceak":
        assert spec(sentkit, f"{name}.safetensors")["fields"] == {"text": "title"}


@pytest.mark.parametrize("other", ["n.safetensors", "p.safetensors", "p.jsonl"])
def test_files_of_other_names_are_not_joined_into_one(sentkit, files, other):
    sentkit("cat", "p.safetensors", "-o", "p.jsonl")
    done = sentkit("cat", "t.safetensors", other, "-o", "all.safetensors")
    name = "headline" if other.startswith("n") else "text"

    problem = f'{other}: "text" is read from the field "{name}", but in t.safetensors from the field "title"'
    assert (done.code, problem in done.err) == (65, True)


def test_they_are_joined_after_a_new_name_or_as_jsonl(sentkit, files):
    for name, field in (("t", "title"), ("n", "headline")):
        new = ("-o", f"{name}2.safetensors", "--field", f"text={field}")
        assert sentkit("cat", f"{name}.safetensors", *new).code == 0
    joined = sentkit("cat", "t2.safetensors", "n2.safetensors", "-o", "all.safetensors")
    rows = sentkit("cat", "t.safetensors", "n.safetensors")

    assert joined.code == 0, joined.err
    assert "fields" not in spec(sentkit, "all.safetensors")
    assert [row["text"] for row in sentkit("cat", "all.safetensors").rows][-2:] == ["the dog", "the cat"]
    names = [set(row) & {"title", "headline", "text"} for row in rows.rows]
    assert names == [{"title"}] * 3 + [{"headline"}] * 2


def test_training_reads_the_recorded_fields(sentkit, tiny):
    """Rows, --dev and --test of `train` can be vector files, as for other commands."""
    for name, texts in (("rows", ("one", "two")), ("dev", ("left", "right"))):
        rows = [
            {texts[0]: one, texts[1]: other, "score": score} for score, (one, other) in enumerate(PAIRS * 2)
        ]
        fields = [f"--field=text_{side}={text}" for side, text in zip("ab", texts, strict=True)]
        done = sentkit("encode", *fields, "-o", f"{name}.safetensors", "-q", stdin=in_jsonl(*rows))
        assert done.code == 0, done.err
    quick = ("--batch", "3", "--epochs", "1", "--threads", "1", "-q", "-m", tiny, "--dev", "dev.safetensors")

    for method, test in (("simcse", ()), ("classify", ("--preset", "stsb", "--test", "dev.safetensors"))):
        done = sentkit("train", method, "rows.safetensors", "-o", method, *quick, *test)
        assert done.code == 0, done.err


def test_paraphrases_are_found_by_the_recorded_field(sentkit, files, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"text":"a cat","paraphrase":"one cat"}\n')
    done = sentkit("augment", "--op", "paraphrase", "--paraphrases", "p.jsonl", "t.safetensors", "-q")

    assert [row["text_b"] for row in done.rows] == ["one cat", "a dog", "a cat sat"]
