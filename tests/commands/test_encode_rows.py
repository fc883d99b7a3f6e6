"""What `encode` does with rows: every byte of them kept, vectors added, kinds, formats, several files."""

import json

import numpy as np
import pytest

KEPT = [
    b'{"id":12345678901234567890,"text":"a cat"}',
    b'{ "text" : "a cat" , "price" : 1.10, "tiny":1e-400, "big":1E+2 }',
    b'{"text":"a cat","nested":{"text":"not this","list":[1,[2,{"a":"]}"}]]},"null":null}',
    '{"text":"one\u2028line\u2029still","é":"naïve","emoji":"👩‍👩‍👧"}'.encode(),
    b'{"text":"esc\\u0061ped \\"quote\\" \\\\ \\/","t":true}',
    b'{"text":""}',
    b'{"text":"a cat", "text ":"with a blank", "":"no name"}',
]


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, **given):
        return sentkit("encode", "-q", "-m", tiny, *arguments, **given)

    return run


def test_every_byte_of_a_row_passes_through(encode):
    """Long ids, 1.10, nested fields, U+2028, escapes: new fields are added before the last brace."""
    done = encode(stdin=b"\n".join(KEPT))

    assert done.code == 0
    for line, kept in zip(done.out.split(b"\n")[:-1], KEPT, strict=True):
        assert line.startswith(kept[:-1])
        assert line[len(kept) - 1 :].startswith(b',"_emb":"tiny/mean:')


@pytest.mark.parametrize(
    "row",
    [
        {"text_a": "a", "text_b": "b"},
        {"anchor": "a", "positive": "b"},
        {"anchor": "a", "positive": "b", "negative": "c"},
    ],
    ids=["pair", "anchor and positive", "triplet"],
)
def test_each_text_of_a_row_gets_its_vector(encode, jsonl, row):
    """Named after the text; the same vector as a row of that text alone."""
    names = [f"embedding_{name.removeprefix('text_')}" for name in row]
    done = encode(stdin=jsonl(row))
    alone = encode(stdin="\n".join(row.values())).vectors()

    assert list(done.rows[0]) == [*row, "_emb", *names]
    for name, expected in zip(names, alone, strict=True):
        assert np.abs(done.vectors(name)[0] - expected).max() < 1e-5


def test_vectors_of_other_texts_never_get_the_new_name(encode, sentkit):
    """`_emb` describes all vectors of a row: those of a pair do not stay when one text is encoded."""
    pair = b'{"text_a":"a cat","text_b":"a dog","embedding_a":[1,0],"embedding_b":[1,0],"id":7}'
    one_text = ("--field", "text=text_a")

    refused = encode(*one_text, stdin=pair)
    replaced = encode(*one_text, "--replace", stdin=pair)
    stored = encode(*one_text, "--replace", "-o", "x.safetensors", stdin=pair)

    assert refused.code == 65
    assert 'field "embedding_a" already exists' in refused.err
    assert list(replaced.rows[0]) == ["text_a", "text_b", "id", "_emb", "embedding"]
    assert stored.code == 0
    assert set(sentkit("cat", "x.safetensors").rows[0]) == set(replaced.rows[0])


def test_token_counts_of_another_encoder_do_not_stay(encode, sentkit):
    """`n_tokens` and `truncated` describe the tokens of the model that made the vectors.

    `start` and `end` of a row without `chunk`, and all fields of a row without vectors, are not from encode.
    """
    fields = '"text":"a cat","start":0,"end":1,"n_tokens":99,"truncated":true'
    row = f'{{"_emb":"old:100000000000","embedding":[1,2],{fields}}}'
    own = f'{{"chunk":0,{fields}}}'
    kept = ["_emb", "embedding", "text", "start", "end"]

    assert list(encode("--replace", stdin=row).rows[0]) == kept
    assert encode("--replace", "--on-truncate", "mark", stdin=row).rows[0]["n_tokens"] == 4
    assert {"chunk": 0, "start": 0, "end": 1, "n_tokens": 99}.items() <= encode(stdin=own).rows[0].items()
    assert encode("--replace", "-o", "x.safetensors", stdin=row).code == 0
    assert set(sentkit("cat", "x.safetensors").rows[0]) == {*kept}


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


def test_a_missing_file_among_others_ends_it_before_any_work(encode, tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    done = encode("a.txt", "b.txt")

    assert (done.code, done.out) == (66, b"")


@pytest.mark.parametrize("rows", ["a cat\na dog\n", '{"text_a":"a","text_b":"b"}'], ids=["texts", "pair"])
def test_a_vector_file_is_encoded_anew(encode, sentkit, other, rows):
    """Its rows are read, and its vectors are left behind. A pipe of the same run has the same rows."""
    encode("-o", "old.safetensors", stdin=rows)
    done = sentkit("encode", "-q", "-m", other, "old.safetensors", "-o", "new.safetensors")

    assert done.code == 0
    assert sentkit("cat", "new.safetensors").out == sentkit("encode", "-q", "-m", other, stdin=rows).out


def test_rejects_and_good_rows_are_all_there(encode, tmp_path):
    """One row out or one reject for each row in; good rows in their order."""
    lines = [b'{"text":"row %d"}' % n if n % 7 else b'{"text":%d}' % n for n in range(200)]
    done = encode("--rejects", "bad.jsonl", stdin=b"\n".join(lines))
    good = [f"row {n}" for n in range(200) if n % 7]

    assert [row["text"] for row in done.rows] == good
    rejects = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert [reject["row"].encode() for reject in rejects] == lines[::7]


def test_another_delimiter_of_csv_is_reported_with_v(sentkit, tiny, tmp_path):
    (tmp_path / "a.csv").write_text('id;text\n1;a cat\n2;"a; dog"\n')
    done = sentkit("encode", "a.csv", "-m", tiny, "-v")

    assert [row["text"] for row in done.rows] == ["a cat", "a; dog"]
    assert "sentkit encode: a.csv: the delimiter is a semicolon" in done.told
    assert "delimiter" not in sentkit("encode", "a.csv", "-m", tiny).err
