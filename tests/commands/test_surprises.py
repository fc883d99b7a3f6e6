"""Cases in which a command once silently ignored a part of its command line."""

import os

import pytest

from support import in_jsonl


@pytest.fixture
def pairs(sentkit, tmp_path):
    texts = (("a cat", "a dog", 3), ("a man", "a boat", 0), ("red", "scarlet", 4))
    rows = ({"text_a": a, "text_b": b, "title": "the sea", "score": score} for a, b, score in texts)
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*rows))
    sentkit("encode", "pairs.jsonl", "-o", "pairs.safetensors")
    return "pairs.jsonl"


def test_the_named_field_is_read(sentkit, pairs):
    done = sentkit("encode", pairs, "--field", "text=title")
    title = sentkit("encode", stdin="the sea\n")

    assert done.vectors().tolist() == [title.vectors()[0].tolist()] * 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("score pairs.safetensors --field embedding_a=theirs", "--field embedding_a"),
        ("encode pairs.jsonl --rejects one.jsonl -o one.jsonl", "one.jsonl"),
        ("encode pairs.jsonl -o x.safetensors.gz", "x.safetensors.gz"),
        ("encode pairs.jsonl --readout cls,mean -o x.safetensors", "several readouts need an output folder"),
        ("score pairs.safetensors --gold score --fail-under nan", "nan"),
        ("score pairs.safetensors --gold score --fail-under inf", "inf"),
    ],
)
def test_flags_that_would_be_ignored_are_wrong_usage(sentkit, pairs, tmp_path, words, problem):
    done = sentkit(*words.split())

    assert done.code == 2
    assert problem in done.told[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl", "pairs.safetensors"]


def test_export_leaves_other_folders_and_the_working_folder_alone(sentkit, tmp_path, monkeypatch):
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part/state").write_text("precious")

    assert sentkit("export", "-o", "made").code == 0
    assert (tmp_path / "made.part/state").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "made.part"]
    monkeypatch.chdir(tmp_path / "made")
    assert sentkit("export", "-m", ".", "-o", ".", "-f").code == 73
    assert os.path.exists("model.safetensors")  # noqa: PTH110


def test_two_names_of_one_readout_make_one_file(sentkit, pairs, tmp_path):
    done = sentkit("encode", pairs, "--readout", "L1:mean,L01:mean,cls", "-o", "sweep/")
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir())

    assert (done.code, names) == (0, ["L01-mean.safetensors", "cls.safetensors"])


def test_vectors_are_kept_from_a_vector_file_too(sentkit, pairs):
    kept = sentkit("score", "pairs.safetensors", "--keep-vectors").rows
    plain = sentkit("cat", "pairs.safetensors").rows

    assert [{**row, "similarity": 0} for row in kept] == [{**row, "similarity": 0} for row in plain]


def test_omitted_steps_are_reported(sentkit):
    """A readout for which none were declared."""
    sentkit("export", "--normalize", "-o", "unit")
    done = sentkit("encode", "-m", "unit", "--readout", "cls", stdin="a cat\n")

    assert "are not applied to another readout: normalise" in done.told[0]


def test_an_inch_sign_does_not_begin_a_quoted_field(sentkit):
    """Quotes open where a field begins, and nowhere else."""
    table = 'text,id\none,1\na 5" pipe,2\n"a ""b"",\nc",3\n'
    done = sentkit("cat", "--from", "csv", stdin=table)

    assert done.rows == [
        {"text": "one", "id": "1"},
        {"text": 'a 5" pipe', "id": "2"},
        {"text": 'a "b",\nc', "id": "3"},
    ]


def test_large_vectors_have_their_cosine(sentkit):
    rows = '{"text":"a","embedding":[1e20,0]}\n{"text":"b","embedding":[1e20,1e20]}\n'
    closest = sentkit("score", stdin=rows)
    matrix = sentkit("score", "--matrix", stdin=rows)

    assert closest.rows[0]["similarity"] == pytest.approx(0.5**0.5)
    assert matrix.rows[0]["similarities"] == pytest.approx([1, 0.5**0.5])
    assert closest.err == matrix.err == ""


@pytest.mark.parametrize(("flags", "code"), [(["--dim", "9999"], 2), (["--reuse", "no.safetensors"], 66)])
def test_a_dry_run_has_the_errors_of_the_run(sentkit, flags, code):
    dry, wet = (sentkit("encode", *flags, *more, stdin="a cat\n") for more in (["-n"], []))

    assert (dry.code, wet.code) == (code, code)
    assert dry.told == wet.told
