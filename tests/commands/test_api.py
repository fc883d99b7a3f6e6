"""Models behind an OpenAI-compatible endpoint, with a server of the tests."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from api_server import Answer, character_vectors
from sentkit import Encoder
from sentkit.commands.diff import lines
from sentkit.errors import DataError, UnavailableError
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
    monkeypatch.setattr("sentkit.model.api.ApiEncoder.tokens_per_batch", 100)
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
    "http://user:password@host/v1#NAME": "the URL of the model has an account",
    "http://host/v1?key=password#NAME": "the URL of the model has a query",
    "http://host/v1": "the URL of the model has no name of a model",
    "http://host/v1#": "the URL of the model has no name of a model",
    "http:///v1#NAME": "the URL of the model has no valid host and port",
    "http://host:99999/v1#NAME": "the URL of the model has no valid host and port",
    "http://[::1/v1#NAME": "the URL of the model has no valid host and port",
    "http://ho st/v1#NAME": "the URL of the model has no valid host and port",
}


@pytest.mark.parametrize("model", REFUSED)
def test_wrong_urls_are_refused_without_their_secrets(sentkit, model):
    done = sentkit("encode", "-m", model, "-v", stdin=LINES)

    assert (done.code, done.out) == (2, b"")
    assert done.told[0].startswith(f"sentkit encode: {REFUSED[model]}")
    assert "password" not in done.err


@pytest.mark.parametrize("host", ["a..b", "999.1.1.1", "127.0.0.1:1", f"{'a' * 70}.x"])
def test_hosts_without_a_server_are_an_error(sentkit, monkeypatch, host):
    monkeypatch.setattr("sentkit.model.api.FIRST_WAIT", 0.001)
    done = sentkit("encode", "-m", f"http://{host}/v1#NAME", stdin=LINES)

    assert (done.code, done.out) == (69, b"")
    assert done.told[0].startswith(f"sentkit encode: http://{host}/v1#NAME: ")


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


def test_a_folder_is_resumed_and_reused(sentkit, api):
    """Blocks have the same bytes in any order of the work; the texts of complete blocks are not
    sent again, and with --reuse only new ones.
    """
    Path("in.txt").write_text("".join(f"text {number}\n" for number in range(300)))
    encode = ("encode", "in.txt", "-m", api.model, "--block-bytes", "512", "-o")
    assert sentkit(*encode, "whole/").code == 0
    assert sentkit(*encode, "parts/", "--shard", "2/3").code == 0
    assert sentkit(*encode, "parts/", "--shard", "1/3").code == 0
    before = len(api.texts)
    assert sentkit(*encode, "parts/", "--resume").code == 0
    last_third = len(api.texts) - before

    names = sorted(path.name for path in Path("whole").glob("*.safetensors"))
    assert len(names) > 3
    for name in names:
        assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes()
    assert last_third < 150
    Path("more.txt").write_text("text 7\nnew\ntext 250\n")
    before = len(api.texts)
    done = sentkit("encode", "more.txt", "-m", api.model, "--reuse", "whole", "-o", "-")
    assert api.texts[before:] == ["width", "new"]
    assert (done.vectors() == character_vectors(["text 7", "new", "text 250"])).all()


def test_a_changed_server_does_not_continue_a_folder(sentkit, api):
    """The width, and with another name or prompt the record, are those of the first process."""
    Path("in.txt").write_text("".join(f"text {number}\n" for number in range(100)))
    encode = ("encode", "in.txt", "--block-bytes", "512", "-o", "out/", "-m")
    assert sentkit(*encode, api.model, "--shard", "1/2").code == 0
    other_name = sentkit(*encode, f"{api.address}/v1#other", "--resume")
    other_prompt = sentkit(*encode, api.model, "--prompt", "q: ", "--resume")
    api.vectors = lambda texts: character_vectors(texts)[:, :3]
    other_width = sentkit(*encode, api.model, "--resume")
    sentkit("check", "out")

    assert [done.code for done in (other_name, other_prompt)] == [65, 65]
    assert other_width.code == 65, other_width.err


def test_search_encodes_a_query_only_with_the_given_model(sentkit, api):
    """A data file does not send texts and the key to the server that it names."""
    api.vectors = lambda texts: character_vectors(texts) - character_vectors(["b"])
    sentkit("encode", "-m", api.model, "--prompt", "p: ", "-o", "c.safetensors", stdin=LINES)
    before = len(api.requests)
    refused = sentkit("search", "b dog", "--corpus", "c.safetensors")
    unasked = len(api.requests) == before
    flags = ("--metric", "euclidean", "--top", "1")
    done = sentkit("search", "b dog", "--corpus", "c.safetensors", "-m", api.model, *flags)
    other = sentkit("search", "b dog", "--corpus", "c.safetensors", "-m", f"{api.address}/v1#no")

    assert (refused.code, unasked) == (66, True)
    assert "texts are sent to an API only with -m" in refused.told[0]
    model = f"-m '{api.model}'"
    assert refused.told[1:] == [f"  c.safetensors was encoded with this model; add {model}"]
    assert (done.code, done.rows[0]["hits"][0]["text"]) == (0, "b dog"), done.err
    assert api.texts.count("p: b dog") == 3
    assert (other.code, other.told[-1]) == (65, f"  name the model of c.safetensors: {model}")


def test_search_in_files(sentkit, api):
    Path("notes.txt").write_text(LINES)
    api.vectors = lambda texts: character_vectors(texts) - character_vectors(["c"])
    done = sentkit("search", "b dog", "notes.txt", "-m", api.model, "--metric", "euclidean")

    assert (done.code, done.rows[0]["hits"][0]["text"]) == (0, "b dog"), done.err


def test_search_of_rows_names_the_model(sentkit, api):
    """Rows record only the label."""
    Path("c.jsonl").write_bytes(sentkit("encode", "-m", api.model, stdin=LINES).out)
    refused = sentkit("search", "b dog", "--corpus", "c.jsonl")
    done = sentkit("search", "b dog", "--corpus", "c.jsonl", "-m", api.model)

    assert refused.code == 66
    assert (done.code, done.rows[0]["hits"][0]["similarity"]) == (0, 1), done.err


def test_diff_with_a_model_behind_an_api(sentkit, api):
    sentkit("encode", "-m", api.model, "-o", "a.safetensors", stdin=LINES)
    same = sentkit("diff", "a.safetensors", "-m", api.model)
    api.vectors = lambda texts: character_vectors(texts)[:, ::-1]
    other = sentkit("diff", "a.safetensors", "-m", api.model, "--fail-under", "cosine=0.99")
    refused = sentkit("diff", "a.safetensors", "-m", api.model, "--precision", "bf16")

    assert (same.code, same.rows[0]["explanation"]["equal"]) == (0, True), same.err
    assert (other.code, other.rows[0]["explanation"]["equal"]) == (1, False), other.err
    assert refused.code == 2


def test_diff_leaves_out_the_texts_that_a_server_refuses(sentkit, api):
    """As servers refuse long texts. If all are refused, the message of the server is the error."""

    def refuse(number, request, answer):
        if any(len(text) > 20 for text in request["input"]):
            return Answer({"error": {"message": "too long"}}, 413)
        return None

    rows = ["a cat", "a dog", "x" * 21, "the sea", "ships"]
    Path("t.txt").write_text("\n".join(rows))
    Path("long.txt").write_text("x" * 21)
    api.wrong = refuse
    result = sentkit("diff", api.model, "-m", "static", "--texts", "t.txt")
    only_long = sentkit("diff", api.model, "-m", "static", "--texts", "long.txt")

    assert (result.code, result.rows[0]["vectors"]) == (0, 4), result.err
    problem = "t.txt:3: the server refuses this text: status 413: too long"
    warning = f"sentkit diff: warning: refused rows, which are left out: 1; the first is {problem}"
    assert warning in result.told
    assert (only_long.code, only_long.told) == (
        65,
        ["sentkit diff: long.txt:1: the server refuses this text: status 413: too long"],
    )


@pytest.mark.parametrize("flags", [(), ("-q",)])
@pytest.mark.parametrize("limit", ["cosine=0.99", "neighbours=0.9"])
def test_refused_texts_fail_the_gate_of_diff(sentkit, api, limit, flags):
    """Nothing is known about them, although all other vectors are those of the model."""

    def refuse(number, request, answer):
        if any(len(text) > 25 for text in request["input"]):
            return Answer({"detail": "too long"}, 422)
        return None

    rows = [*(f"text {number}" for number in range(4)), "x" * 26, " ", "y" * 27]
    Path("t.txt").write_text("\n".join(rows))
    api.vectors = Encoder("static").encode
    words = ("diff", api.model, "-m", "static", "--texts", "t.txt", *flags)
    accepted = sentkit(*words, "--fail-under", limit)
    api.wrong = refuse
    unlimited = sentkit(*words)
    limited = sentkit(*words, "--fail-under", limit)

    assert (accepted.code, accepted.rows[0]["refused"]) == (0, 0), accepted.err
    assert "refused" not in accepted.rows[0]["explanation"]["text"]
    assert (unlimited.code, limited.code) == (0, 1)
    for result in (unlimited, limited):
        record = result.rows[0]
        assert (record["refused"], record["vectors"], record["explanation"]["equal"]) == (
            2,
            4,
            True,
        )
        assert record["explanation"]["text"].endswith("as declared; 2 of 6 texts were refused")
    problem = f"sentkit diff: {api.model} refused texts, which are not compared: 2"
    assert limited.told[-1] == problem


def test_the_table_of_diff_counts_refused_texts():
    similarities = {"pairs": 6, "spearman": None}
    neighbours = {"rows": 4, "top": 3, "mean": 1.0, "lowest": 1.0}
    record = {
        "a": {"width": 4},
        "b": {"width": 3},
        "vectors": 4,
        "neighbours": neighbours,
        "similarities": similarities,
    }
    row = {"measure": "texts that A refused", "value": "2", "of": ""}

    assert row in lines({**record, "refused": 2})
    assert row["measure"] not in [line["measure"] for line in lines({**record, "refused": 0})]


REFUSED_BY_DIFF = {
    ("-m", "static", "--key", "id"): "--key cannot be used with --model",
    ("-m", "API", "--precision", "bf16"): "--precision cannot be used with a model behind an API",
    ("-m", "API", "--device", "cpu"): "--device cannot be used with a model behind an API",
    ("x.jsonl", "-m", "static"): "B cannot be used with --model",
    ("x.jsonl",): "API is a model; compare it with another one: -m MODEL",
}


@pytest.mark.parametrize("words", REFUSED_BY_DIFF, ids=" ".join)
def test_flags_that_diff_of_an_api_refuses(sentkit, api, words):
    words_of_api = [api.model if word == "API" else word for word in words]
    done = sentkit("diff", api.model, *words_of_api)

    problem = REFUSED_BY_DIFF[words].replace("API is", f"{api.model} is")
    assert (done.code, done.told[0]) == (2, f"sentkit diff: {problem}")
    assert api.requests == []


def test_flags_of_diff_work_for_an_api(sentkit, api):
    """A server with the vectors of static, but in reverse for one text."""
    texts = [f"text {number} of a few" for number in range(12)]
    Path("t.csv").write_text("title\n" + "".join(f"{text}\n" for text in texts))
    encoder = Encoder("static", precision="fp32")

    def vectors(texts):
        rows = encoder.encode(texts)
        rows[[text == "text 3 of a few" for text in texts]] *= -1
        return rows

    api.vectors = vectors
    flags = ("--texts", "t.csv", "--field", "text=title", "--top", "3", "--worst", "2")
    done = sentkit("diff", api.model, "-m", "static", *flags, "--precision", "fp32", "--json")
    gate = ("--fail-under", "cosine=0.9")
    failed = sentkit("diff", api.model, "-m", "static", *flags, *gate)
    [record] = done.rows

    assert done.code == 0, done.err
    assert (record["vectors"], record["neighbours"]["top"]) == (12, 3)
    assert record["equal"] == 11
    rows = [(row["row"], row["cosine"]) for row in record["worst"]]
    assert rows == [(5, pytest.approx(-1))]  # the line in the file, behind its header
    assert (failed.code, ", below 0.9" in failed.err) == (1, True), failed.err


OUTPUTS_OF_ENCODE = (
    "--normalize -o a.safetensors",
    "--dim 2 --store float16 -o a.safetensors",
    "--threads 2 -o a.jsonl --vectors base64",
    "--store int8 -o a.safetensors",
    "-o DIR/ --shard 1/1 --block-bytes 512",
)


@pytest.mark.parametrize("flags", OUTPUTS_OF_ENCODE)
def test_flags_of_outputs_work_for_an_api(sentkit, api, flags):
    """The vectors are those of the server, within the loss of the stored form."""
    words = flags.split()
    done = sentkit("encode", "-m", api.model, *words, stdin=LINES)
    expected = character_vectors(TEXTS)
    if "--dim" in words:
        expected = expected[:, :2]
    if "--normalize" in words:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    path = words[words.index("-o") + 1]
    vectors = sentkit("cat", path, "--vectors", "list").vectors()

    assert done.code == 0, done.err
    error = np.abs(expected).max() / 127 if "int8" in words else 1e-3 * np.abs(expected).max()
    assert np.abs(vectors - expected).max() <= error


def test_report_of_a_model_behind_an_api(sentkit, api):
    """The same value as of the vectors of encode, and a name from the name of the model."""
    words = ["one", "two words", "three", "four more words", "five"]
    pairs = [
        {"text_a": a, "text_b": b, "score": score}
        for a, b, score in zip(words, words[1:] + words[:1], (1, 2, 3, 4, 5), strict=True)
    ]
    Path("pairs.jsonl").write_text(in_jsonl(*pairs))
    as_json = ("--format", "json")
    done = sentkit("report", f"{api.address}/v1#org/tiny", "--pairs", "x=pairs.jsonl", *as_json)
    named = sentkit("report", f"x={api.model}", "--pairs", "x=pairs.jsonl", *as_json)
    rows = sentkit("encode", "pairs.jsonl", "-m", api.model).out
    scored = sentkit("score", "--gold", "score", stdin=rows)

    assert (done.code, named.code) == (0, 0), done.err + named.err
    assert [record.rows[0]["row"] for record in (done, named)] == ["tiny", "x"]
    assert done.rows[0]["value"] == scored.rows[0]["spearman"]


WITHOUT_API = (
    "train simcse in.txt -o out",
    "export -o out",
    "distill-static -o out",
    "build-entries in.txt",
    "predict in.txt",
    "translate in.txt",
)


@pytest.mark.parametrize("words", WITHOUT_API, ids=lambda words: words.split()[0])
def test_commands_that_need_files_of_a_model_refuse_an_api(sentkit, api, words):
    Path("in.txt").write_text(LINES)
    done = sentkit(*words.split(), "-m", api.model)

    problem = "a model behind an API has no files here, which this command needs"
    assert (done.code, api.requests) == (2, [])
    assert done.told[0] == f"sentkit {words.split()[0]}: {problem}"


def test_inspect_shows_width_and_space(sentkit, api):
    done = sentkit("inspect", api.model)
    [row] = sentkit("encode", "-m", api.model, stdin="a\n").rows

    assert done.code == 0
    assert (done.rows[0]["width"], done.rows[0]["space"]) == (4, row["_emb"])


def test_the_class_encoder(api):
    encoder = Encoder(api.model, prompt="q: ", threads=2, normalize=False)
    vectors = encoder.encode(TEXTS)

    assert (vectors == character_vectors([f"q: {text}" for text in TEXTS])).all()
    assert encoder.width == 4
    assert encoder.space.startswith("tiny/api:")
    assert (pickle.loads(pickle.dumps(encoder)).encode(TEXTS) == vectors).all()
    for arguments in ({"readout": "cls"}, {"max_length": 3}, {"on_truncate": "window"}):
        with pytest.raises(ValueError, match="cannot be used with a model behind an API"):
            Encoder(api.model, **arguments)


def test_the_class_encodes_a_text_that_a_server_refused_before(api):
    """The first vector of the text is not finite; the later ones are."""
    nan = {"index": 0, "embedding": [float("nan"), 0, 0, 0]}
    api.wrong = lambda number, request, answer: {"data": [nan]} if number == 1 else None
    encoder = Encoder(api.model)
    with pytest.raises(DataError, match=r"^TEXT:1: the server's vector has NaN"):
        encoder.encode(["a cat"])

    for _ in range(2):
        assert (encoder.encode(["a cat"]) == character_vectors(["a cat"])).all()


def test_errors_of_a_server_name_the_arguments_of_the_class(api):
    api.dimensions = False
    encoder = Encoder(api.model, dim=2)
    with pytest.raises(UnavailableError, match=r"^dim 2: the vectors of .* have 4") as error:
        encoder.encode("a cat")

    assert error.value.advice == 'the server ignores "dimensions"; omit dim'


def test_a_dry_run_counts_characters(sentkit, api):
    """It sends a sample: here all texts."""
    done = sentkit("encode", "-m", api.model, "-n", stdin=LINES)
    [plan] = done.rows

    assert done.code == 0
    assert (plan["rows"], plan["characters"]) == (6, sum(map(len, TEXTS)))
    assert plan.keys() == {"rows", "texts", "characters", *ESTIMATES}


ESTIMATES = ("bytes_estimate", "seconds_estimate", "memory_estimate")


def test_refused_rows_of_a_folder(sentkit, api):
    """They go to --rejects, and are not sent again by --resume."""

    def wrong(number, request, answer):
        if "text 7" in request["input"]:
            return Answer({"detail": "no"}, 422)
        return None

    api.wrong = wrong
    texts = [f"text {number}" for number in range(100)]
    Path("in.txt").write_text("".join(f"{text}\n" for text in texts))
    flags = ("--block-bytes", "512", "--rejects", "bad.jsonl", "-o", "out/")
    done = sentkit("encode", "in.txt", "-m", api.model, *flags)
    before = len(api.requests)
    resumed = sentkit("encode", "in.txt", "-m", api.model, *flags, "--resume")
    [bad] = map(json.loads, Path("bad.jsonl").read_text().splitlines())

    assert (done.code, resumed.code) == (0, 0)
    assert len(api.requests) == before + 1
    assert (bad["line"], bad["row"]) == (8, "text 7")
    texts.remove("text 7")
    assert (sentkit("cat", "out/").vectors() == character_vectors(texts)).all()


def test_bad_rows_empty_input_and_the_same_bytes(sentkit, api):
    """As with other models."""
    rows = in_jsonl({"text": "a", "id": 1.50}, {"text": "b"})
    first, second = (sentkit("encode", "-m", api.model, stdin=rows) for _ in range(2))
    bad = sentkit("encode", "-m", api.model, stdin=rows + '{"text":7}\n')
    skipped = sentkit("encode", "-m", api.model, "--rejects", "r", stdin=rows + '{"text":7}\n')
    empty = sentkit("encode", "-m", api.model)

    assert (first.code, first.out) == (0, second.out)
    assert bad.code == 65
    assert bad.told == ['sentkit encode: -:3: "text" is a number, expected a string']
    assert (skipped.code, skipped.out) == (0, first.out)
    assert (empty.code, empty.told) == (65, ["sentkit encode: no rows in standard input"])
