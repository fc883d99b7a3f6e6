"""Models behind an OpenAI-compatible endpoint, with a server of the tests."""

import json
from pathlib import Path

import numpy as np
import pytest

from api_server import Answer, character_vectors
from sentkit.formats.vectors.fingerprint import digest
from support import in_jsonl

TEXTS = ["a cat", "b dog", "c", "d is longer than the others", "e\u0301 \U0001f600", "a cat"]
LINES = "".join(f"{text}\n" for text in TEXTS)


@pytest.mark.parametrize("base64", [True, False])
def test_rows_get_the_vectors_of_the_server(sentkit, api, base64):
    """Equal texts are sent once, blank ones never: their vectors are zero, as of other models."""
    api.base64 = base64
    done = sentkit("encode", "-m", api.model, stdin=LINES + " \n")

    assert (done.code, len(done.told)) == (0, 1)
    assert (done.vectors() == [*character_vectors(TEXTS), np.zeros(4)]).all()
    assert sorted(api.texts) == sorted({"width", *TEXTS})
    space = digest([api.address.removeprefix("http://") + "/v1", "tiny", "api", None])
    assert {row["_emb"] for row in done.rows} == {f"tiny/api:{space}"}


def test_a_server_that_refuses_base64_is_asked_for_numbers(sentkit, api):
    def wrong(number, request, answer):
        if request["encoding_format"] != "float":
            return Answer({"error": {"message": "unknown encoding_format"}}, 400)
        return None

    api.wrong = wrong
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert done.code == 0
    assert (done.vectors() == character_vectors(TEXTS)).all()


def test_prompts_dimensions_and_unit_length(sentkit, api):
    """The prompt is sent before the text, and N as "dimensions". Unit length is of sentkit."""
    flags = ("--prompt", "q: ", "--dim", "2", "--normalize", "-o", "out.safetensors")
    done = sentkit("encode", "-m", api.model, *flags, stdin=LINES)
    rows = sentkit("cat", "out.safetensors").vectors()
    expected = character_vectors([f"q: {text}" for text in TEXTS])[:, :2]

    assert done.code == 0
    assert np.allclose(rows, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    assert {request.get("dimensions") for request in api.requests} == {2}


def test_prompts_by_side(sentkit, api):
    row = {"text_a": "one", "text_b": "two"}
    done = sentkit("encode", "-m", api.model, "--prompt", "a=q: ,b=p: ", stdin=in_jsonl(row))

    assert (done.vectors("embedding_a") == character_vectors(["q: one"])).all()
    assert (done.vectors("embedding_b") == character_vectors(["p: two"])).all()


def test_dimensions_that_the_server_ignores_are_an_error(sentkit, api):
    api.dimensions = False
    done = sentkit("encode", "-m", api.model, "--dim", "2", stdin=LINES)

    assert (done.code, done.out) == (69, b"")
    assert done.told[1:] == ['  the server ignores "dimensions"; omit --dim']


def test_the_space_is_of_endpoint_name_and_dimensions(sentkit, api):
    """Not of the prompt, so that queries and passages meet, and not of the scheme."""

    def space(model, *flags):
        return sentkit("encode", "-m", model, *flags, stdin="a\n").rows[0]["_emb"]

    first = space(api.model)
    same = [(f"{api.address}/v1/#tiny",), (f"{api.address}/v1/embeddings#tiny",)]
    same.append((api.model, "--prompt", "q: "))
    others = [(f"{api.address}/v1#other",), (api.model, "--dim", "4"), ("static",)]

    assert {space(*words) for words in same} == {first}
    assert len({first, *(space(*words) for words in others)}) == 4


def test_batches_by_count_and_by_characters(sentkit, api, monkeypatch):
    """At most 32 texts, and 100 characters unless one text has more. The rows keep their order."""
    monkeypatch.setattr("sentkit.model.api.ApiEncoder.budget", 100)
    texts = [f"{number:03d} " + "x" * (number % 60) for number in range(300)] + ["y" * 500]
    done = sentkit("encode", "-m", api.model, stdin="\n".join(texts))
    sizes = [[*map(len, request["input"])] for request in api.requests[1:]]

    assert (done.vectors() == character_vectors(texts)).all()
    assert all(len(size) <= 32 and (sum(size) <= 100 or len(size) == 1) for size in sizes)
    assert max(map(len, sizes)) > 10


def test_answers_are_ordered_by_their_index(sentkit, api):
    def wrong(number, request, answer):
        return {**answer, "data": answer["data"][::-1]}

    api.wrong = wrong
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert (done.vectors() == character_vectors(TEXTS)).all()


REFUSED = {
    "http://user:password@host/v1#NAME": "-m: the URL has an account",
    "http://host/v1?key=password#NAME": "-m: the URL has a query",
    "http://host/v1": "-m: the URL has no name of a model",
    "http://host/v1#": "-m: the URL has no name of a model",
    "http:///v1#NAME": "-m: the URL has no valid host and port",
    "http://host:99999/v1#NAME": "-m: the URL has no valid host and port",
    "http://[::1/v1#NAME": "-m: the URL has no valid host and port",
    "http://ho st/v1#NAME": "-m: the URL has no valid host and port",
}


@pytest.mark.parametrize("model", REFUSED)
def test_wrong_urls_are_refused_without_their_secrets(sentkit, model):
    done = sentkit("encode", "-m", model, "-v", stdin=LINES)

    assert (done.code, done.out) == (2, b"")
    assert done.told[0].startswith(f"sentkit encode: {REFUSED[model]}")
    assert "password" not in done.err


INSIDE = (
    "--readout cls",
    "--max-length 9",
    "--prompt-name query",
    "--device cpu",
    "--precision fp32",
    "--on-truncate mark",
    "--on-truncate error",
    "--on-truncate window",
    "--on-truncate chunks",
    "--batch-tokens 5",
)


@pytest.mark.parametrize("flags", INSIDE)
def test_flags_that_need_the_inside_are_refused(sentkit, api, flags):
    done = sentkit("encode", "-m", api.model, *flags.split(), stdin=LINES)

    assert (done.code, done.out, api.requests) == (2, b"", [])
    assert done.told[0].startswith(f"sentkit encode: {flags.split()[0]}")
    assert "cannot be used with a model behind an API" in done.told[0]


def test_rows_that_the_server_refuses_are_bad_rows(sentkit, api):
    """A refused batch is divided. Without --rejects, the rows before the first one are written."""

    def wrong(number, request, answer):
        if any("bad" in text for text in request["input"]):
            return Answer({"error": {"message": "text\n too long"}}, 400)
        return None

    api.wrong = wrong
    lines = "".join(f"{number}\n" for number in range(20)) + "bad\nlast\nbad 2\n"
    first = sentkit("encode", "-m", api.model, stdin=lines)
    done = sentkit("encode", "-m", api.model, "--rejects", "bad.jsonl", stdin=lines)
    bad = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]

    reason = "the server refuses this text: status 400: text too long"
    assert (first.code, len(first.rows)) == (65, 20)
    assert first.told == [f"sentkit encode: -:21: {reason}"]
    assert (done.code, len(done.rows)) == (0, 21)
    assert [row["reason"] for row in bad] == [reason, reason]
    assert [row["line"] for row in bad] == [21, 23]
    assert (done.vectors() == character_vectors([*map(str, range(20)), "last"])).all()
