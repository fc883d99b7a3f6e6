"""`search TEXT`: queries encoded in the same step, with the same hits as through a pipe."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentkit.formats.vectors.store import Store

TEXTS = ["a cat", "the sea and the ships", "Übergröße 猫", 'a "quoted" word']
CORPUS = "a dog\nthe sea\na cat sat\nan animal that barks\nships\n"


@pytest.fixture
def encode(sentkit):
    """A file of vectors of five texts."""

    def run(model, *flags, name="c.safetensors", texts=CORPUS):
        done = sentkit("encode", "-q", "-m", model, "-o", name, *flags, stdin=texts)
        assert done.code == 0
        return name

    return run


@pytest.fixture
def piped(sentkit):
    """The texts as lines through `encode` into `search`."""

    def run(texts, flags, *search, corpus="c.safetensors"):
        lines = "".join(f"{text}\n" for text in texts)
        rows = sentkit("cat", "--from", "text", stdin=lines).out
        encoded = sentkit("encode", "-q", *flags, stdin=rows)
        return sentkit("search", "--corpus", corpus, *search, stdin=encoded.out)

    return run


@pytest.mark.parametrize(
    ("flags", "search"),
    [
        ((), ("--top", 2)),
        (("--readout", "cls"), ("--threshold", 0.5)),
        (("--readout", "mean-last2", "--normalize", "--dim", "8"), ()),
        (("--readout", "L2:max", "--max-length", "9"), ()),
        (("--prompt", "query: ", "--max-length", "12"), ()),
    ],
)
def test_texts_have_the_hits_of_the_pipe(sentkit, encode, piped, tiny, copy_of, flags, search):
    """Byte for byte: the record has the model, readout, prompt, length and steps; -m names the same model."""
    encode(tiny, *flags)
    done = sentkit("search", *TEXTS, "--corpus", "c.safetensors", *search)
    moved = sentkit("search", *TEXTS, "--corpus", "c.safetensors", *search, "-m", copy_of(tiny))

    assert (done.code, moved.code) == (0, 0)
    assert done.out == moved.out == piped(TEXTS, ("-m", tiny, *flags), *search).out
    assert [row["text"] for row in done.rows] == TEXTS


def test_a_recorded_transform_is_applied(sentkit, encode, piped, tiny):
    encode(tiny, "--normalize", name="plain.safetensors")
    sentkit("whiten", "fit", "plain.safetensors", "--kind", "center", "-o", "T.safetensors")
    sentkit("whiten", "apply", "plain.safetensors", "-t", "T.safetensors", "-o", "c.safetensors")
    query = sentkit("encode", "-m", tiny, "--normalize", "-q", stdin="a cat").out
    query = sentkit("whiten", "apply", "-t", "T.safetensors", stdin=query).out
    done = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert (done.code, done.err) == (0, "")
    assert done.out == sentkit("search", "--corpus", "c.safetensors", stdin=query).out
    Path("T.safetensors").rename("U.safetensors")
    assert sentkit("search", "a cat", "--corpus", "c.safetensors").told == [
        "sentkit search: T.safetensors: no such file",
        "  c.safetensors was encoded with this transform; run the command where it is",
    ]


def test_a_recorded_static_model_is_used(sentkit, encode, piped, model2vec):
    folder = model2vec()
    encode(folder, "--readout", "max", texts="a cat\nthe dog\n")
    done = sentkit("search", "cats", "--corpus", "c.safetensors")

    assert (done.code, done.out) == (0, piped(["cats"], ("-m", folder, "--readout", "max")).out)


def test_a_declared_prompt_for_queries_is_used(sentkit, encode, piped, tiny, copy_of):
    """As encode_query of sentence-transformers does; the corpus has the prompt for documents."""
    folder = copy_of(tiny, "prompts")
    own = {"readout": "cls", "prompts": {"query": "query: ", "document": "passage: "}}
    (folder / "sentkit.json").write_text(json.dumps(own))
    encode(folder, "--prompt-name", "document")
    done = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert (done.code, done.err) == (0, "")
    assert done.out == piped(["a cat"], ("-m", folder, "--prompt", "query: ")).out
    assert sentkit("inspect", "c.safetensors").rows[0]["spec"]["prompt"] == "passage: "


@pytest.fixture
def notes(tmp_path):
    """Two files of text with blank lines, and one of rows."""
    (tmp_path / "more").mkdir()
    (tmp_path / "notes.txt").write_text("a dog\n\nthe sea\n \na cat sat\n")
    (tmp_path / "more/a.md").write_text("# An animal that barks\n")
    (tmp_path / "more/b.jsonl").write_text('{"text":"ships","id":7}\n')
    return ["notes.txt", "more/*"]


@pytest.mark.parametrize("own", [{}, {"prompts": {"query": "query: ", "document": "passage: "}}])
def test_files_are_encoded_and_searched(sentkit, encode, notes, tiny, copy_of, own, on_terminal):
    """With the hits of encode and search; a hit has its file and its line."""
    folder = copy_of(tiny, "own")
    (folder / "sentkit.json").write_text(json.dumps({"readout": "cls", **own}))
    rows = [("notes.txt", 1, "a dog"), ("notes.txt", 3, "the sea"), ("notes.txt", 5, "a cat sat")]
    rows += [("more/a.md", 1, "# An animal that barks"), ("more/b.jsonl", 1, "ships")]
    encode(folder, texts="".join(f"{text}\n" for *_, text in rows))
    done = sentkit("search", "a cat", *notes, "-m", folder, "--top", 5)
    flat = sentkit("search", "a cat", *notes, "-m", folder, "--top", 5, "--flat").rows
    (expected,) = sentkit("search", "a cat", "--corpus", "c.safetensors").rows
    names = ("file", "row", "text", "similarity")
    hits = [
        dict(zip(names, (*rows[hit["row"] - 1], hit["similarity"]), strict=True)) for hit in expected["hits"]
    ]
    lines = on_terminal("search", "a cat", *notes, "-m", folder, "--top", 5)

    assert (done.code, done.err) == (0, "")
    assert [{name: hit[name] for name in hits[0]} for hit in done.rows[0]["hits"]] == hits
    assert [(row["file_b"], row["row_b"]) for row in flat] == [(hit["file"], hit["row"]) for hit in hits]
    for line, hit in zip(lines[-5:], hits, strict=True):
        place = f"{hit['file']}:{hit['row']}"
        assert line.strip().split(maxsplit=2) == [f"{hit['similarity']:.4f}", place, hit["text"]]


def test_files_are_encoded_with_static(sentkit, tmp_path):
    (tmp_path / "notes.txt").write_text("a dog\nthe sea\n")
    done, expected = (sentkit("search", "a cat", "notes.txt", *flags) for flags in ((), ("-m", "static")))

    assert (done.code, done.err) == (0, "")
    assert done.out == expected.out


def test_the_prompt_of_the_corpus_is_used_with_a_warning(sentkit, encode, piped, tiny):
    encode(tiny, "--readout", "cls", "--prompt", "passage: ")
    done = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert done.out == piped(["a cat"], ("-m", tiny, "--readout", "cls", "--prompt", "passage: ")).out
    assert done.told == [
        'sentkit search: warning: the prompt of the corpus, "passage: ", is added to TEXT;'
        " for another one, pipe: sentkit encode --prompt ... | sentkit search"
    ]


def test_a_corpus_without_a_record_is_searched_with_nano(sentkit, encode, piped, tmp_path):
    """A file, or the pipe."""
    encode("nano")
    rows = sentkit("cat", "c.safetensors").out
    (tmp_path / "c.jsonl").write_bytes(rows)
    done = sentkit("search", "a cat", "--corpus", "c.jsonl")

    assert done.code == 0
    assert done.out == piped(["a cat"], ("-m", "nano")).out
    assert done.out == sentkit("search", "a cat", "--corpus", "-", stdin=rows).out
    assert done.rows[0]["hits"][0]["text"] == "a cat sat"


def test_a_missing_recorded_model_is_66(sentkit, encode, copy_of, tiny):
    encode(copy_of(tiny))
    shutil.rmtree("copy")
    done = sentkit("search", "a cat", "--corpus", "c.safetensors")

    assert done.code == 66
    assert done.told[0].endswith("/copy: no such checkpoint folder")
    assert done.told[1] == "  c.safetensors was encoded with this model; give its path with -m"


@pytest.mark.parametrize("first", ["sentkit.cli", "huggingface_hub"])
def test_a_recorded_hub_model_is_not_fetched(encode, tiny, tmp_path, first):
    """In any order of imports. The name is looked up only in the cache; nothing listens at this address."""
    encode(tiny)
    raw = (tmp_path / "c.safetensors").read_bytes()
    name = Store("c.safetensors").spec["model"].encode()
    (tmp_path / "c.safetensors").write_bytes(raw.replace(name, b"o/" + b"m" * (len(name) - 2)))
    network = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    code = f"import {first}; from sentkit.cli import main; main()"
    words = [sys.executable, "-c", code, "search", "a cat", "--corpus", "c.safetensors"]
    done = subprocess.run(words, env=network, capture_output=True, text=True)

    assert done.returncode == 66
    assert done.stderr.splitlines()[0].endswith(": no such folder, and not in the cache of the hub")


def test_two_editions_of_a_model_have_advice(sentkit, encode, tiny, other, copy_of, tmp_path):
    """The same name and other weights."""
    encode(tiny)
    (tmp_path / "new").mkdir()
    edition = copy_of(other, f"new/{tiny.name}")
    rows = sentkit("encode", "-m", edition, stdin="a cat\n").out
    (tmp_path / "rows.jsonl").write_bytes(rows)
    for command in (("search", "--corpus", "c.safetensors"), ("cat", "c.safetensors", "rows.jsonl")):
        done = sentkit(*command, stdin=rows)
        assert done.code == 65
        assert done.told[-1].startswith(f"  these are two editions of {tiny.name}: encode all rows with one")
