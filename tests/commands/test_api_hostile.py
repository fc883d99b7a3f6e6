"""A server that gives wrong answers: never a wrong row, a bug (70) or a hang."""

import base64
import json
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from api_server import Answer, character_vectors

TEXTS = ["a cat", "b dog", "c owl", "d fox", "e elk"]  # of one length, so they keep their order
LINES = "".join(f"{text}\n" for text in TEXTS)
KEY = "sk-a-secret-of-32-characters-0001"
PAGE = b"<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"
DEEP = b"[" * 100_000 + b"]" * 100_000


def items(change):
    """A change of the list of vectors in an answer."""

    def changed(answer):
        return {**answer, "data": change(answer["data"])}

    return changed


def item(**fields):
    """Other fields of the third vector; ... removes one."""

    def change(data):
        changed = {name: value for name, value in {**data[2], **fields}.items() if value is not ...}
        return [*data[:2], changed, *data[3:]]

    return items(change)


def first_number(value):
    """Another first number of the third vector."""

    def change(data):
        numbers = as_numbers(data[2]["embedding"])
        return [*data[:2], {**data[2], "embedding": [value, *numbers[1:]]}, *data[3:]]

    return items(change)


def as_numbers(embedding):
    if isinstance(embedding, list):
        return embedding
    return np.frombuffer(base64.b64decode(embedding), "<f4").tolist()


def in_base64(kind, *numbers):
    return base64.b64encode(struct.pack(kind, *numbers)).decode()


@dataclass
class Kind:
    """A wrong answer: what it is, made of the right one; the exit code, and part of the message."""

    answer: object
    code: int
    message: str


BAD_ROW = "-:3: the server"  # the third text
KINDS = {
    # One wrong vector: its row is bad.
    "null": Kind(item(embedding=None), 65, f"{BAD_ROW} gives no vector"),
    "missing vector": Kind(item(embedding=...), 65, f"{BAD_ROW} gives no vector"),
    "a number as vector": Kind(item(embedding=1.5), 65, f"{BAD_ROW}'s vector is neither"),
    "an object as vector": Kind(item(embedding={"0": 1}), 65, f"{BAD_ROW}'s vector is neither"),
    "nested vectors": Kind(item(embedding=[[1, 2, 3, 4]]), 65, f"{BAD_ROW}'s vector is neither"),
    "a null in it": Kind(first_number(None), 65, f"{BAD_ROW}'s vector is neither"),
    "a boolean in it": Kind(first_number(True), 65, f"{BAD_ROW}'s vector is neither"),
    "a string in it": Kind(first_number("1"), 65, f"{BAD_ROW}'s vector is neither"),
    "NaN": Kind(first_number(float("nan")), 65, f"{BAD_ROW}'s vector has NaN"),
    "infinity": Kind(first_number(float("-inf")), 65, f"{BAD_ROW}'s vector has NaN"),
    "above float32": Kind(first_number(1e39), 65, f"{BAD_ROW}'s vector has NaN"),
    "above float64": Kind(first_number(10**400), 65, f"{BAD_ROW}'s vector is not of float32"),
    "no numbers": Kind(item(embedding=[]), 65, f"{BAD_ROW}'s vector is not of float32"),
    "no base64": Kind(item(embedding="AAAA*AAAA"), 65, f"{BAD_ROW}'s vector is not of float32"),
    "an empty string": Kind(item(embedding=""), 65, f"{BAD_ROW}'s vector is not of float32"),
    "half a number": Kind(
        item(embedding=in_base64("<fh", 1, 2)), 65, f"{BAD_ROW}'s vector is not of float32"
    ),
    "NaN in base64": Kind(
        item(embedding=in_base64("<4f", 1, 2, 3, float("nan"))), 65, f"{BAD_ROW}'s vector has NaN"
    ),
    # A wrong answer as a whole.
    "another width": Kind(item(embedding=[1, 2, 3]), 69, "-:3: "),
    "float64 in base64": Kind(item(embedding=in_base64("<4d", 1, 2, 3, 4)), 69, "has 8 numbers"),
    "one vector less": Kind(items(lambda data: data[:-1]), 69, "has 4 vectors, expected 5"),
    "one vector more": Kind(
        items(lambda data: [*data, {**data[0], "index": 5}]), 69, "has 6 vectors, expected 5"
    ),
    "no vectors": Kind(items(lambda data: []), 69, "has 0 vectors"),
    "an index twice": Kind(item(index=1), 69, 'two items of the answer have the "index" 1'),
    "an index too large": Kind(item(index=5), 69, 'no valid "index"'),
    "a negative index": Kind(item(index=-1), 69, 'no valid "index"'),
    "an index as string": Kind(item(index="2"), 69, 'no valid "index"'),
    "an index as boolean": Kind(item(index=False), 69, 'no valid "index"'),
    "a fraction as index": Kind(item(index=2.0), 69, 'no valid "index"'),
    "no index": Kind(item(index=...), 69, 'no valid "index"'),
    "items that are lists": Kind(
        items(lambda data: [as_numbers(vector["embedding"]) for vector in data]),
        69,
        'no valid "index"',
    ),
    "data is an object": Kind(items(lambda data: {"0": data}), 69, "the answer has no vectors"),
    "data is null": Kind(items(lambda data: None), 69, "the answer has no vectors"),
    "a list": Kind(lambda answer: answer["data"], 69, "the answer has no vectors"),
    "an error with status 200": Kind(
        lambda answer: {"error": {"message": "out of memory"}}, 69, "no vectors: out of memory"
    ),
    "HTML": Kind(lambda answer: Answer(PAGE), 69, "not JSON: <!DOCTYPE html>"),
    "nothing": Kind(lambda answer: Answer(b""), 69, "not JSON: an empty answer"),
    "half of the JSON": Kind(
        lambda answer: Answer(json.dumps(answer).encode()[:90]), 69, "the answer is not JSON"
    ),
    "two answers": Kind(lambda answer: Answer(json.dumps(answer).encode() * 2), 69, "not JSON"),
    "other bytes": Kind(lambda answer: Answer(bytes(range(256))), 69, "the answer is not JSON"),
    "a deep list": Kind(lambda answer: Answer(DEEP), 69, "the answer"),
    # Broken connections: tried again, and then an error.
    "a cut body": Kind(lambda answer: Answer(answer, cut=40), 69, "-:1: "),
    "no answer": Kind(lambda answer: Answer(b"", None), 69, "(8 tries)"),
    "another length": Kind(lambda answer: Answer(answer, length=10**6), 69, "the connection broke"),
    "no length": Kind(lambda answer: Answer(answer, length="", cut=30), 69, "not JSON"),
    "a wrong compression": Kind(
        lambda answer: Answer(answer, headers={"Content-Encoding": "gzip"}), 69, "cannot be read"
    ),
    # Statuses.
    "500": Kind(lambda answer: Answer(PAGE, 500), 69, "status 500: <!DOCTYPE html>"),
    "503": Kind(lambda answer: Answer({"message": "busy"}, 503), 69, "status 503: busy (8 tries)"),
    "429": Kind(lambda answer: Answer({"detail": "quota"}, 429), 69, "status 429: quota (8 tries)"),
    "429 for a day": Kind(
        lambda answer: Answer({}, 429, headers={"Retry-After": "86400"}),
        69,
        "wait for 86400 seconds",
    ),
    "401": Kind(lambda answer: Answer({"error": "no key"}, 401), 69, "status 401: no key"),
    "404": Kind(lambda answer: Answer({"error": "no model"}, 404), 69, "status 404: no model"),
    "a redirect": Kind(
        lambda answer: Answer(b"", 307, headers={"Location": "http://127.0.0.1:1/"}),
        69,
        "status 307",
    ),
    "204": Kind(lambda answer: Answer(b"", 204, length=""), 69, "status 204"),
    "400": Kind(lambda answer: Answer({"error": {"message": "no"}}, 400), 65, "status 400: no"),
    "422 of FastAPI": Kind(
        lambda answer: Answer({"detail": [{"msg": "too long"}]}, 422), 65, "status 422: "
    ),
}


@pytest.fixture(autouse=True)
def hang():
    """A hang is a failure."""

    def stop(number, frame):
        raise AssertionError("a hang")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def keyed(api, monkeypatch):
    monkeypatch.setenv("SENTKIT_API_KEY", KEY)
    return api


def test_there_are_forty_kinds():
    assert len(KINDS) >= 40


@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_answer_is_an_error_with_the_row(sentkit, keyed, name):
    """No row is wrong. With --rejects, only rows that have no vector are left out."""
    kind = KINDS[name]
    keyed.wrong = lambda number, request, answer: kind.answer(answer) if number else None
    done = sentkit("encode", "-m", keyed.model, stdin=LINES)
    keyed.requests.clear()
    rejecting = sentkit("encode", "-m", keyed.model, "--rejects", "bad.jsonl", stdin=LINES)

    assert done.code == kind.code, done.err
    assert kind.message in done.told[-1 if len(done.told) == 1 else 0], done.err
    assert "sentkit encode: -:" in done.told[0]
    written = done.vectors().reshape(-1, 4)
    assert (written == character_vectors(TEXTS)[: len(written)]).all()
    rejected = kind.code == 65 and "status" not in kind.message
    assert rejecting.code == (0 if rejected else kind.code), rejecting.err
    if rejected:
        expected = character_vectors([text for text in TEXTS if text != "c owl"])
        assert (rejecting.vectors() == expected).all()
    assert KEY not in done.err + rejecting.err


@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_first_answer_is_an_error(sentkit, api, name):
    """That of the text which shows the width: the third text here is the first one."""
    kind = KINDS[name]

    def wrong(number, request, answer):
        data = answer["data"] * 3
        return kind.answer({**answer, "data": [{**data[0], "index": index} for index in range(3)]})

    api.wrong = wrong
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert (done.code, done.out) == (69, b""), done.err


def test_a_server_that_recovers(sentkit, api):
    """Each request fails once: it is sent again, and the rows are right."""
    failures = [
        Answer(b"", None),
        Answer({"error": "busy"}, 503),
        Answer({}, 429, headers={"Retry-After": "0"}),
        Answer({}, 429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Answer({}, 500, headers={"Retry-After": "soon"}),
        Answer(PAGE, cut=10),
    ]
    seen = set()

    def wrong(number, request, answer):
        first = request["input"][0]
        if first in seen:
            return None
        seen.add(first)
        return failures[len(seen) % len(failures)]

    api.wrong = wrong
    texts = [f"text {number}" for number in range(300)]
    done = sentkit("encode", "-m", api.model, stdin="\n".join(texts))

    assert done.code == 0, done.err
    assert len(api.requests) >= 20
    assert (done.vectors() == character_vectors(texts)).all()


def test_retry_after_is_obeyed(sentkit, api):
    times = []

    def wrong(number, request, answer):
        times.append(time.monotonic())
        if len(times) == 2:
            return Answer({}, 429, headers={"Retry-After": "1"})
        return None

    api.wrong = wrong
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert done.code == 0
    assert times[2] - times[1] >= 1


def test_the_key_is_sent_and_never_shown(sentkit, keyed):
    """Also if the server repeats it, and not with a redirect."""
    answers = [
        Answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401),
        Answer(f"<p>Authorization: Bearer {KEY}</p>".encode()),
        Answer({"error": f"no quota for {KEY}"}, 429),
        Answer({"error": f"{KEY} sent a text that is too long"}, 400),
        Answer(b"", 302, headers={"Location": f"{keyed.address}/v1/embeddings?key={KEY}"}),
    ]
    for answer in answers:
        keyed.requests.clear()
        keyed.wrong = lambda number, request, right, answer=answer: answer if number else None
        flags = ("-v", "--rejects", "bad.jsonl", "-f")
        done = sentkit("encode", "-m", keyed.model, *flags, stdin=LINES)
        rejected = Path("bad.jsonl").read_text() if Path("bad.jsonl").exists() else ""
        assert done.code in (65, 69)
        assert KEY not in done.err + rejected
        assert KEY[:20] not in done.err + rejected
    keyed.wrong = lambda number, request, right: None
    sentkit("encode", "-m", keyed.model, "-o", "out.safetensors", stdin=LINES)

    assert {*keyed.keys} == {f"Bearer {KEY}"}
    assert KEY.encode() not in Path("out.safetensors").read_bytes()


@pytest.mark.parametrize("key", ["a b", "a\nb: c", "\u00e9"])
def test_a_key_that_no_header_can_have_is_refused_unseen(sentkit, api, monkeypatch, key):
    monkeypatch.setenv("SENTKIT_API_KEY", key)
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert (done.code, api.requests) == (2, [])
    assert done.told == [
        "sentkit encode: the variable SENTKIT_API_KEY has a character that a key cannot have"
    ]


def test_slow_bytes_end_with_the_time_of_a_request(sentkit, api, monkeypatch):
    """Each byte arrives in time, but not the whole body."""
    monkeypatch.setattr("sentkit.model.api.TIMEOUT", 1)
    monkeypatch.setattr("sentkit.model.api.TRIES", 2)
    api.wrong = lambda number, request, answer: (
        Answer(answer, delay=0.02) if request["input"] != ["width"] else None
    )
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert done.code == 69
    assert "-:1: " in done.told[0]


def test_a_head_without_an_end_is_an_error(sentkit, api, monkeypatch):
    """Byte by byte, which no time limit of a read notices."""
    monkeypatch.setattr("sentkit.model.api.TIMEOUT", 0.3)
    monkeypatch.setattr("sentkit.model.api.CONNECT_TIMEOUT", 0.3)
    monkeypatch.setattr("sentkit.model.api.LONGEST_RETRY_AFTER", 0.3)
    api.wrong = lambda number, request, answer: Answer(b"", "head")
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert done.code == 69
    assert "no answer within 0.9 seconds" in done.told[0]


def test_an_answer_without_an_end_is_an_error(sentkit, api, monkeypatch):
    monkeypatch.setattr("sentkit.model.api.MOST_BYTES_OF_TEXT", 1000)
    api.wrong = lambda number, request, answer: Answer(b"1" * 10**6) if number else None
    done = sentkit("encode", "-m", api.model, stdin=LINES)

    assert done.code == 69
    assert "an answer of more than 5,000 bytes" in done.told[0]


@pytest.mark.parametrize(
    ("flags", "expected"), [((), 4), (("--threads", "1"), 1), (("--threads", "11"), 11)]
)
def test_requests_at_a_time(sentkit, api, flags, expected):
    """Four by default, else as --threads says, also above the number of CPUs."""
    texts = [f"text {number}" for number in range(600)]
    texts_of_last_group = {*texts[160:]}
    are_there = threading.Event()

    def wait_for_the_others(number, request, answer):
        if request["input"][0] not in texts_of_last_group:  # the first groups have few requests
            return
        if api.active == expected:
            time.sleep(0.05)  # in which one too many would arrive
            are_there.set()
        assert are_there.wait(60)

    api.wrong = wait_for_the_others

    assert sentkit("encode", "-m", api.model, *flags, stdin="\n".join(texts)).code == 0
    assert api.most_active == expected


def test_too_many_threads_are_refused(sentkit, api):
    assert sentkit("encode", "-m", api.model, "--threads", "1000", stdin=LINES).code == 2


def encoding(api, *flags):
    command = [sys.executable, "-m", "sentkit", "encode", "-m", api.model, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, stdin=subprocess.PIPE, **pipes)


def wait_for(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def test_ctrl_c_ends_at_once(api):
    """While all requests wait for an answer that never comes."""
    api.wrong = lambda number, request, answer: Answer(answer, delay=60) if number else None
    process = encoding(api)
    process.stdin.write(LINES.encode())
    process.stdin.close()
    wait_for(lambda: len(api.requests) > 1)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=20) == 130
    assert time.monotonic() - start < 5


def test_a_reader_that_leaves_ends_the_command(api):
    """As `| head -1`: no error, and not all texts are sent."""
    Path("in.txt").write_text("".join(f"text {number}\n" for number in range(30_000)))
    process = encoding(api, "in.txt")
    process.stdout.readline()
    process.stdout.close()

    assert process.wait(timeout=60) in (0, 141)
    assert process.stderr.read() == b""
    assert len(api.texts) < 30_000


def test_kills_within_a_folder_and_resume(sentkit, api):
    """After kills at any time, --resume gives the same files as one run."""
    Path("in.txt").write_text("".join(f"text {number}\n" for number in range(400)))
    flags = ("in.txt", "--block-bytes", "512", "-o")
    assert sentkit("encode", "-m", api.model, *flags, "whole/").code == 0
    api.wrong = lambda number, request, answer: time.sleep(0.01)
    for kill in range(3):
        before = len(api.requests)
        process = encoding(api, *flags, "parts/", "--resume")
        wait_for(lambda before=before, kill=kill: len(api.requests) > before + 2 + kill)
        process.kill()
        process.communicate()
    api.wrong = lambda number, request, answer: None
    assert sentkit("encode", "-m", api.model, *flags, "parts/", "--resume").code == 0

    names = sorted(path.name for path in Path("whole").iterdir())
    assert sorted(path.name for path in Path("parts").iterdir()) == names
    for name in names:
        if name.endswith(".safetensors"):
            assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes()
