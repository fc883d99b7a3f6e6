"""Vector folders of a static model of three numbers, which needs no torch."""

import json
from pathlib import Path

import pytest

WORDS = "the 1 0 0\ncat 0 2 0\n. 0 0 3\ndog -1 -1 -1\nruns 0.5 0.25 1\n"


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words.txt").write_text(WORDS)
    return "words.txt"


@pytest.fixture
def corpus(tmp_path):
    texts = ["the cat", "a dog runs .", "cat cat dog", "the", "dog runs the cat runs"]
    rows = [
        {"id": number, "text": texts[number % 5], "label": f"{number % 2}"} for number in range(40)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "corpus.jsonl"


@pytest.fixture
def encode(sentkit, words):
    """Run `sentkit encode` with blocks of 200 bytes."""

    def run(*arguments, stdin=b""):
        return sentkit("encode", "-m", words, "-q", "--block-bytes", 200, *arguments, stdin=stdin)

    return run


@pytest.fixture
def folder(encode, corpus):
    assert encode(corpus, "-o", "whole/").code == 0
    return Path("whole")


@pytest.fixture
def joined(sentkit):
    def read(path):
        result = sentkit("cat", path, "-o", "joined.safetensors", "-f")
        assert (result.code, result.err) == (0, "")
        return Path("joined.safetensors").read_bytes()

    return read
