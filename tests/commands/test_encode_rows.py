"""What `encode` does with rows: every byte of them kept, vectors added, kinds, formats, several files."""

import json

import pytest


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, **given):
        return sentkit("encode", "-q", "-m", tiny, *arguments, **given)

    return run


@pytest.mark.parametrize(
    ("name", "output"),
    [("in.jsonl", "out.jsonl"), ("in.safetensors", "out/"), ("in/", "out.safetensors"), ("in/", "out/")],
)
def test_rows_of_chunks_become_rows_of_texts(encode, sentkit, name, output):
    """Their vectors are those of whole texts, so they have no place in the text."""
    text = "a cat and a dog and a bird and a fish"
    flags = ("--window", 8, "--on-truncate", "chunks")
    assert encode(*flags, "-o", name, stdin=f'{{"text":"{text}","id":1}}').code == 0
    chunks = sentkit("cat", name.rstrip("/")).rows
    assert len(chunks) > 1
    assert {"chunk", "start", "end"} < set(chunks[0])

    assert encode(name.rstrip("/"), "--replace", "-o", output).code == 0
    rows = sentkit("cat", output.rstrip("/")).rows
    assert [set(row) for row in rows] == [{"text", "id", "_emb", "embedding"}] * len(chunks)
    assert all(row["embedding"] == rows[0]["embedding"] for row in rows)


def test_rejects_and_good_rows_are_all_there(encode, tmp_path):
    """One row out or one reject for each row in; good rows in their order."""
    lines = [b'{"text":"row %d"}' % n if n % 7 else b'{"text":%d}' % n for n in range(200)]
    done = encode("--rejects", "bad.jsonl", stdin=b"\n".join(lines))
    good = [f"row {n}" for n in range(200) if n % 7]

    assert [row["text"] for row in done.rows] == good
    rejects = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert [reject["row"].encode() for reject in rejects] == lines[::7]
