"""`search TEXT`: queries encoded in the same step, with the same hits as through a pipe."""

import json
import os
import subprocess
import sys

import pytest

from sentkit.formats.vectors.vector_file import VectorFile
from support import in_jsonl

CORPUS = "a dog\nthe sea\na cat sat\nan animal that barks\nships\n"


@pytest.fixture
def encode(sentkit):

    def run(model, *flags, name="c.safetensors", texts=CORPUS):
        result = sentkit("encode", "-q", "-m", model, "-o", name, *flags, stdin=texts)
        assert result.code == 0
        return name

    return run


@pytest.fixture
def piped(sentkit):

    def run(texts, flags, *search, corpus="c.safetensors"):
        lines = "".join(f"{text}\n" for text in texts)
        rows = sentkit("cat", "--from", "text", stdin=lines).out
        encoded = sentkit("encode", "-q", *flags, stdin=rows)
        return sentkit("search", "--corpus", corpus, *search, stdin=encoded.out)

    return run


def test_a_recorded_static_model_is_used(sentkit, encode, piped, model2vec):
    folder = model2vec()
    encode(folder, "--readout", "max", texts="a cat\nthe dog\n")
    result = sentkit("search", "cats", "--corpus", "c.safetensors")

    assert (result.code, result.out) == (0, piped(["cats"], ("-m", folder, "--readout", "max")).out)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "-"])
@pytest.mark.parametrize(
    "flags", [("-m", "static"), ("-m", "nano", "--readout", "cls", "--dim", 8, "--normalize")]
)
def test_the_model_of_rows_is_that_of_their_label(sentkit, encode, piped, tmp_path, name, flags):
    """Rows have no record: the label of the first one names the model, the readout and the
    steps.
    """
    encode(*flags[1:], name="rows.jsonl")
    sentkit("cat", "rows.jsonl", "-o", "rows.parquet")
    rows = (tmp_path / "rows.jsonl").read_bytes()
    expected = piped(["a cat"], flags, corpus="rows.jsonl")

    for model in ((), flags[:2]):
        result = sentkit("search", "a cat", "--corpus", name, *model, stdin=rows)
        assert (result.code, result.err, result.out) == (0, "", expected.out)


def test_a_label_of_a_model_that_is_not_here_asks_for_its_path(sentkit, encode, tiny):
    encode(tiny, name="rows.jsonl")
    result = sentkit("search", "a cat", "--corpus", "rows.jsonl")
    with_model = sentkit("search", "a cat", "--corpus", "rows.jsonl", "-m", tiny)

    assert (result.code, result.told[0]) == (
        66,
        f"sentkit search: {tiny.name}: no such folder, and not in the cache of the hub",
    )
    assert result.told[1:] == ["  rows.jsonl was encoded with this model; give its path with -m"]
    assert (with_model.code, with_model.err) == (0, "")


def test_a_text_that_is_not_utf8_is_named(sentkit, encode):
    encode("static")
    result = sentkit("search", "a cat", "\udcff", "--corpus", "c.safetensors")

    assert (result.code, result.told) == (2, ["sentkit search: TEXT:2: not UTF-8"])


def test_rows_of_another_space_name_no_flag_that_changes_nothing(sentkit, encode):
    """A transform is only a step of the label, so the text needs the pipe."""
    encode("nano", name="rows.jsonl")
    sentkit("whiten", "fit", "rows.jsonl", "-o", "T.safetensors")
    rows = sentkit("whiten", "apply", "rows.jsonl", "-t", "T.safetensors").out
    result = sentkit("search", "a cat", "--corpus", "-", stdin=rows)

    assert result.code == 65
    assert "the vectors of the query are nano/mean" in result.told[0]
    advice = (
        "use the model and the transform of -: ... | sentkit encode ... | sentkit search --corpus -"
    )
    assert result.told[1:] == [f"  {advice}"]


def test_a_wrong_model_for_rows_of_an_included_one_may_be_left_out(sentkit, encode):
    encode("static", name="rows.jsonl")
    result = sentkit("search", "a cat", "--corpus", "rows.jsonl", "-m", "nano")

    assert (result.code, result.told[1:]) == (
        65,
        ["  leave out -m, or name the model of rows.jsonl: -m static"],
    )


def test_a_wrong_model_for_rows_of_one_that_is_not_here(sentkit, encode, tiny):
    encode(tiny, "--readout", "cls", name="rows.jsonl")
    result = sentkit("search", "a cat", "--corpus", "rows.jsonl", "-m", "nano")

    advice = "name the model of rows.jsonl with -m, or use: ... | "
    advice += f"sentkit encode -m {tiny.name} --readout cls | sentkit search --corpus rows.jsonl"
    assert (result.code, result.told[1:]) == (65, [f"  {advice}"])


def test_a_declared_prompt_for_queries_is_used(sentkit, encode, piped, tiny, copy_of):
    """As encode_query of sentence-transformers does; the corpus has the prompt for documents."""
    folder = copy_of(tiny, "prompts")
    declared = {"readout": "cls", "prompts": {"query": "query: ", "document": "passage: "}}
    (folder / "sentkit.json").write_text(json.dumps(declared))
    encode(folder, "--prompt-name", "document")
    result = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert (result.code, result.err) == (0, "")
    assert result.out == piped(["a cat"], ("-m", folder, "--prompt", "query: ")).out
    assert sentkit("inspect", "c.safetensors").rows[0]["spec"]["prompt"] == "passage: "


def test_a_prompt_for_queries_of_a_static_model_is_used(
    sentkit, encode, piped, static_with_prompts
):
    encode(static_with_prompts, "--prompt-name", "document")
    result = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert (result.code, result.err) == (0, "")
    assert result.out == piped(["a cat"], ("-m", static_with_prompts, "--prompt", "dog sat: ")).out


@pytest.mark.parametrize(
    "declared", [{}, {"prompts": {"query": "query: ", "document": "passage: "}}]
)
def test_files_are_encoded_and_searched(
    sentkit, encode, tmp_path, tiny, copy_of, declared, on_terminal
):
    """With the hits of encode and search; a hit has its file and its line."""
    folder = copy_of(tiny, "own")
    (folder / "sentkit.json").write_text(json.dumps({"readout": "cls", **declared}))
    (tmp_path / "more").mkdir()
    (tmp_path / "notes.txt").write_text("a dog\n\nthe sea\n \na cat sat\n")
    (tmp_path / "more/a.md").write_text("# An animal that barks\n")
    (tmp_path / "more/b.jsonl").write_text('{"text":"ships","id":7}\n')
    notes = ["notes.txt", "more/*"]
    rows = [("notes.txt", 1, "a dog"), ("notes.txt", 3, "the sea"), ("notes.txt", 5, "a cat sat")]
    rows += [("more/a.md", 1, "# An animal that barks"), ("more/b.jsonl", 1, "ships")]
    encode(folder, texts="".join(f"{text}\n" for *_, text in rows))
    result = sentkit("search", "a cat", *notes, "-m", folder, "--top", 5)
    flat = sentkit("search", "a cat", *notes, "-m", folder, "--top", 5, "--flat").rows
    (expected,) = sentkit("search", "a cat", "--corpus", "c.safetensors").rows
    hits = []
    for hit in expected["hits"]:
        file, row, text = rows[hit["row"] - 1]
        hits.append({"file": file, "row": row, "text": text, "similarity": hit["similarity"]})
    lines = on_terminal("search", "a cat", *notes, "-m", folder, "--top", 5)

    assert (result.code, result.err) == (0, "")
    assert [{name: hit[name] for name in hits[0]} for hit in result.rows[0]["hits"]] == hits
    assert [(row["file_b"], row["row_b"]) for row in flat] == [
        (hit["file"], hit["row"]) for hit in hits
    ]
    for line, hit in zip(lines[-5:], hits, strict=True):
        columns = [f"{hit['similarity']:.4f}", f"{hit['file']}:{hit['row']}", hit["text"]]
        assert line.strip().split(maxsplit=2) == columns


@pytest.mark.parametrize("first", ["sentkit.cli", "huggingface_hub"])
def test_a_recorded_hub_model_is_not_fetched(encode, tiny, tmp_path, first):
    """In any order of imports. The name is looked up only in the cache; nothing listens at this
    address.
    """
    encode(tiny)
    raw = (tmp_path / "c.safetensors").read_bytes()
    name = VectorFile("c.safetensors").metadata["model"].encode()
    (tmp_path / "c.safetensors").write_bytes(raw.replace(name, b"o/" + b"m" * (len(name) - 2)))
    network = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    code = f"import {first}; from sentkit.cli import main; main()"
    words = [sys.executable, "-c", code, "search", "a cat", "--corpus", "c.safetensors"]
    completed = subprocess.run(words, env=network, capture_output=True, text=True)

    assert completed.returncode == 66
    problem = completed.stderr.splitlines()[0]
    assert problem.endswith(": no such folder, and not in the cache of the hub")


def test_two_editions_of_a_model_have_advice(sentkit, encode, tiny, other, copy_of, tmp_path):
    encode(tiny)
    (tmp_path / "new").mkdir()
    edition = copy_of(other, f"new/{tiny.name}")
    rows = sentkit("encode", "-m", edition, stdin="a cat\n").out
    (tmp_path / "rows.jsonl").write_bytes(rows)
    for command in (
        ("search", "--corpus", "c.safetensors"),
        ("cat", "c.safetensors", "rows.jsonl"),
    ):
        result = sentkit(*command, stdin=rows)
        assert result.code == 65
        assert result.told[-1].startswith(
            f"  these are two editions of {tiny.name}: encode all rows with one"
        )


def test_paragraphs_of_text_files_come_from_cat(sentkit, tmp_path):
    """Each is one row, with its file; without cat, each line is a row."""
    (tmp_path / "a.txt").write_text("the night train\nto Rome\n\nan espresso\n")
    (tmp_path / "b.txt").write_text("a cat\nsleeps\n")
    rows = sentkit("cat", "a.txt", "b.txt", "--from", "paragraphs", "--name-field", "file").out
    hits = sentkit("search", "rain", "-", "--flat", stdin=rows).rows
    lines = sentkit("search", "rain", "a.txt", "b.txt").rows[0]["hits"]

    paragraphs = {
        ("a.txt", "the night train to Rome"),
        ("a.txt", "an espresso"),
        ("b.txt", "a cat sleeps"),
    }
    assert {(hit["file_b"], hit["text_b"]) for hit in hits} == paragraphs
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("queries", "flags", "note"),
    [
        ([[1, 0]], ["--threshold", 0.9], "no hits: the best similarity is 0.8, below --threshold"),
        (
            [[1, 0]],
            ["--threshold", 0.9, "--top", 2],
            "no hits: the best similarity is 0.8, below --threshold",
        ),
        (
            [[0, 1], [1, 0]],
            ["--threshold", 0.95],
            "no hits: the best similarity is 0.8, below --threshold",
        ),
        (
            [[1, 0]],
            ["--threshold", -0.1, "--metric", "euclidean"],
            "no hits: the best similarity is -0.632",
        ),
        ([[0, 0]], [], "no hits: the vectors of all queries are zero, as those of empty texts are"),
        ([[1, 0]], ["--threshold", 0.7], ""),
        ([[1, 0], [0, 1]], ["--threshold", 0.7], ""),
    ],
)
@pytest.mark.parametrize("as_table", [True, False])
def test_a_search_without_hits_says_so_on_a_terminal(
    sentkit, tmp_path, monkeypatch, queries, flags, note, as_table
):
    """The corpus has the vectors (0.8, 0.6) and (-1, 0), whose distances to (1, 0) are sqrt(0.4)
    and 2.
    """
    (tmp_path / "c.jsonl").write_text(in_jsonl({"embedding": [0.8, 0.6]}, {"embedding": [-1, 0]}))
    (tmp_path / "q.jsonl").write_text(in_jsonl(*({"embedding": query} for query in queries)))
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: True)
    monkeypatch.setattr("sentkit.flags.outputs.Output.on_terminal", as_table)
    result = sentkit("search", "--queries", "q.jsonl", "--corpus", "c.jsonl", *flags)

    told = [line for line in result.err.splitlines() if "no hits" in line]
    assert result.code == 0
    assert [note in line for line in told] == [True] * bool(note and as_table)
    assert (result.out == b"") == bool(note and as_table)


@pytest.mark.parametrize(
    ("queries", "corpus", "note"),
    [
        ([[1, 0]], [[0, 0], [0, 0]], "no hits: the vectors of all rows of the corpus are zero"),
        ([[0, 0]], [[0, 0]], "no hits: the vectors of all rows of the corpus are zero"),
        (None, [[1, 0]], "no hits: the corpus has no row other than the query"),
        (None, [[0, 0], [1, 0]], "no hits: the corpus has no row other than the query"),
        (None, [[0, 0]], "no hits: the vectors of all rows of the corpus are zero"),
        (
            [[0, 0]],
            [[1, 0]],
            "no hits: the vectors of all queries are zero, as those of empty texts are",
        ),
    ],
)
def test_the_reason_for_no_hits_is_the_true_one(
    sentkit, tmp_path, monkeypatch, queries, corpus, note
):
    """Without `queries`, they are the rows of the corpus."""
    (tmp_path / "c.jsonl").write_text(in_jsonl(*({"embedding": vector} for vector in corpus)))
    path = "c.jsonl"
    if queries is not None:
        path = "q.jsonl"
        (tmp_path / path).write_text(in_jsonl(*({"embedding": vector} for vector in queries)))
    monkeypatch.setattr("sentkit.console.on_terminal", lambda: True)
    monkeypatch.setattr("sentkit.flags.outputs.Output.on_terminal", True)
    result = sentkit("search", "--queries", path, "--corpus", "c.jsonl")

    [line] = [line for line in result.err.splitlines() if "no hits" in line]
    assert result.code == 0
    assert line.endswith(f"sentkit search: {note}")
