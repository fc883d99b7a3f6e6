"""Inputs at URLs: memory://, a web server, and a server that answers as the hub does."""

import gzip
import hashlib
import io
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from sentkit.formats import urls
from sentkit.formats.checkpoints.export import command_record, inputs_of
from support import in_jsonl
from web import forget, web_server

ROWS = [{"text": f"row {number}"} for number in range(40)]
CONTENT = in_jsonl(*ROWS).encode()
FIRST, SECOND = "a" * 40, "b" * 40  # commits
SECRETS = ("hidden", "signed", "hf_private")
LICENSE = "\n  accept the license on its web page, then set HF_TOKEN"


def as_parquet(rows):
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


FORMS = {
    "rows.jsonl": CONTENT,
    "rows.jsonl.gz": gzip.compress(CONTENT),
    "rows.jsonl.zst": zstandard.compress(CONTENT),
    "rows.csv": "\n".join(["text", *(row["text"] for row in ROWS)]).encode(),
    "rows.parquet": as_parquet(ROWS),
    "rows": CONTENT,
}


@pytest.fixture(autouse=True)
def first_look(monkeypatch):
    """As in a new process: nothing of a URL is known, and blocks are small, so that a file has several."""
    forget()
    monkeypatch.setattr(urls, "BLOCK", 100)
    monkeypatch.setattr(urls, "FIRST", 100)
    monkeypatch.setattr(urls, "sleep", lambda seconds: None)


@pytest.fixture
def hub(hub):
    hub.commit("org/name", FIRST, {"data/b.jsonl": CONTENT, "data/a.txt": b"a cat\n", "c.jsonl": CONTENT})
    return hub


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", ["memory", "http", "whole", "hub"])
def test_a_url_has_the_rows_of_the_local_file(sentkit, hub, memory, kind, name):
    """`whole`: the server sends no parts of a file."""
    hub.ranges = kind != "whole"
    memory.pipe(f"/bucket/{name}", FORMS[name])
    hub.files[f"/{name}"] = FORMS[name]
    hub.commit("org/name", FIRST, {name: FORMS[name]})
    urls = {"memory": "memory://bucket", "hub": "hf://datasets/org/name"}
    done = sentkit("cat", f"{urls.get(kind, hub.address)}/{name}")

    assert (done.code, done.rows) == (0, ROWS), done.err


def test_memory_holds_few_blocks_of_a_file(monkeypatch, web):
    """A file of 4,000 blocks; reading it twice fetches it twice, as only the last blocks are kept."""
    content = bytes(range(250)) * 1600
    web.files["/large.txt"] = content
    reader = urls.open_url(f"{web.address}/large.txt")

    assert urls.remote_file(f"{web.address}/large.txt").size == len(content)
    reader.seek(-1000, os.SEEK_END)
    assert reader.read() == content[-1000:]
    assert web.spans[1:] == [(start, start + 99) for start in range(len(content) - 1000, len(content), 100)]
    assert urls.block.cache_info().maxsize == urls.KEPT
    assert reader.seek(12_345) == 12_345
    assert reader.read(300) == content[12_345:12_645]
    assert reader.tell() == 12_645


def test_a_pattern_lists_the_files_of_the_hub_and_of_memory(sentkit, hub, memory):
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        memory.pipe(f"/bucket/{name}", f"{name}\n".encode())
    of_memory = sentkit("cat", "memory://bucket/*.txt")
    of_hub = sentkit("cat", "hf://datasets/org/name/data/*")
    missing = sentkit("cat", "memory://bucket/*.csv")

    assert [row["text"] for row in of_memory.rows] == ["a.txt", "b.txt"]
    assert of_hub.rows == [{"text": "a cat"}, *ROWS]
    assert (missing.code, missing.told) == (
        66, ["sentkit cat: memory://bucket/*.csv: no file matches this pattern"],
    )  # fmt: skip


def test_all_reads_of_a_command_see_the_same_commit(hub):
    """The branch moves between two reads, and the new commit has other rows."""
    name = "hf://datasets/org/name/c.jsonl"
    before = urls.open_url(name).read()
    hub.commit("org/name", SECOND, {"c.jsonl": b'{"text":"other"}\n'})
    urls.block.cache_clear()

    assert urls.open_url(name).read() == before == CONTENT
    assert urls.recorded(name) == f"hf://datasets/org/name@{FIRST}/c.jsonl"
    assert urls.open_url(f"hf://datasets/org/name@{SECOND}/c.jsonl").read() == b'{"text":"other"}\n'


def test_the_commit_is_printed_and_recorded(sentkit, hub):
    name = "hf://datasets/org/name/c.jsonl"
    Path("words.txt").write_text("row 1 0\n")
    encoded = sentkit("encode", "-v", "-m", "words.txt", name, "-o", "vectors/")
    told = f"sentkit encode: hf://datasets/org/name: commit {FIRST}"

    assert (encoded.code, told in encoded.told) == (0, True), encoded.err
    record = json.loads(Path("vectors/run.json").read_text())["inputs"][0]
    assert record["path"] == f"hf://datasets/org/name@{FIRST}/c.jsonl"
    assert (record["grid"], record["size"], record["name"]) == ("bytes", len(CONTENT), "c.jsonl")
    assert sentkit("check", "vectors", "--deep").code == 0
    command = command_record(["train"], inputs_of({"FILE": [name]}), None)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert command["inputs"] == [{"flag": "FILE", "path": record["path"], "sha256": digest}]


@pytest.mark.parametrize("kind", ["http", "whole"])
def test_a_broken_connection_is_resumed(web, monkeypatch, kind):
    """Each of two answers ends after half of its bytes; the third one has the rest."""
    monkeypatch.setattr(urls, "BLOCK", 1 << 20)
    monkeypatch.setattr(urls, "FIRST", 1 << 20)
    web.ranges = kind == "http"
    web.files["/rows.jsonl"], web.broken = CONTENT, 2

    assert urls.open_url(f"{web.address}/rows.jsonl").read() == CONTENT
    assert web.broken == 0
    middle, size = len(CONTENT) // 2, len(CONTENT)
    if kind == "http":  # the first byte was asked for alone, to learn the size
        starts = [0, 0, middle, middle + (size - middle) // 2]
        assert web.spans == [(0, 0)] + [(start, size - 1) for start in starts[1:]]


@pytest.mark.parametrize("kind", ["http", "whole", "hub"])
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
def test_a_connection_that_always_breaks_is_an_error(sentkit, hub, kind, name):
    hub.ranges = kind != "whole"
    hub.files[f"/{name}"] = FORMS[name.replace("c", "rows", 1)]
    hub.commit("org/name", FIRST, {name: hub.files[f"/{name}"]})
    hub.broken = 1000
    url = f"hf://datasets/org/name/{name}" if kind == "hub" else f"{hub.address}/{name}"
    done = sentkit("cat", url, "-o", "out.jsonl")

    assert (done.code, done.told[-1].split(": ")[1:3]) == (69, [url, "cannot be read"]), done.err
    assert not Path("out.jsonl").exists()


def test_a_busy_server_is_asked_again(hub, monkeypatch):
    waits = []
    monkeypatch.setattr(urls, "sleep", waits.append)
    hub.files["/rows.jsonl"], hub.busy = CONTENT, 2

    assert urls.open_url(f"{hub.address}/rows.jsonl").read() == CONTENT
    assert waits == [0.2, 1.0]
    for busy in range(1, 5):
        urls.block.cache_clear()
        urls.remote_file.cache_clear()
        hub.busy = busy
        assert urls.open_url("hf://datasets/org/name/c.jsonl").read() == CONTENT
    urls.block.cache_clear()
    del waits[:]
    hub.busy, hub.retry_after = 2, "7"  # the server decides how long to wait
    urls.open_url(f"{hub.address}/rows.jsonl").read()
    assert waits == [7.0, 7.0]


def test_a_file_that_changes_while_it_is_read_is_an_error(sentkit, web):
    web.files["/rows.jsonl"] = CONTENT
    reader = urls.open_url(f"{web.address}/rows.jsonl")
    reader.read(10)
    web.tags["/rows.jsonl"] = '"second"'

    with pytest.raises(urls.DataError, match="has changed while it was read"):
        reader.read()


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("memory://bucket/none.jsonl", 66, ": no such file"),
        ("hf://datasets/org/name/none.jsonl", 66, ": no such file"),
        ("hf://datasets/org/none/none.jsonl", 66, ": no such file"),
        ("hf://datasets/org/name/data", 66, ": is a folder, expected a file"),
        ("WEB/empty.jsonl", 65, None),
        ("memory://bucket/empty.jsonl", 65, None),
        ("hf://datasets/org", 66, ": expected hf://datasets/ORG/NAME/FILE"),
        ("WEB/none.jsonl", 66, ": no such file"),
        ("http://127.0.0.1:9/none.jsonl", 69, ": the server cannot be reached"),
        ("odd://none.jsonl", 66, ': no such file, and "odd" is not the scheme of a URL'),
        ("http:/none.jsonl", 66, ": no such file"),
        ("x://none.jsonl", 66, ": no such file"),
        ("WEB/closed.jsonl", 66, ": access is denied"),
        ("WEB/endless.jsonl", 66, ": the server states no length"),
        ("hf://datasets/org/name/closed.jsonl", 66, ": access requires an accepted license" + LICENSE),
        ("s3://bucket/rows.jsonl", 69, ": s3:// needs the package s3fs\n  pip install s3fs"),
    ],
)
def test_what_cannot_be_read(sentkit, hub, memory, monkeypatch, url, code, told):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    hub.ranges = hub.length = "endless" not in url
    hub.refused["/closed.jsonl"] = 401, ""
    hub.refused[f"/datasets/org/name/resolve/{FIRST}/closed.jsonl"] = 403, "GatedRepo"
    hub.commit("org/name", FIRST, {"data/a.txt": b"", "closed.jsonl": CONTENT})
    hub.files.update({"/empty.jsonl": b"", "/closed.jsonl": CONTENT, "/endless.jsonl": CONTENT})
    memory.pipe("/bucket/empty.jsonl", b"")
    url = url.replace("WEB", hub.address)
    done = sentkit("cat", url)

    expected = f"sentkit cat: {url}{told}" if told else f"sentkit cat: no rows in {url}"
    assert (done.code, "\n".join(done.told)[: len(expected)]) == (code, expected)


def test_blocks_of_two_commits_do_not_mix(sentkit, hub, monkeypatch):
    """Both contents have the same size and the same ends. The first commit works."""
    monkeypatch.setattr(urls, "BLOCK", 1 << 20)
    monkeypatch.setattr(urls, "FIRST", 1 << 20)
    Path("words.txt").write_text("row 1 0\n")
    rows = in_jsonl(*({"text": f"row {number:0100}"} for number in range(4000))).encode()
    hub.commit("org/name", FIRST, {"rows.jsonl": rows})
    encode = ["encode", "-m", "words.txt", "-o", "vectors/", "--resume"]
    name = "hf://datasets/org/name/rows.jsonl"
    first = sentkit(*encode, name, "--shard", "1/2")
    hub.commit("org/name", SECOND, {"rows.jsonl": rows.replace(b"2000", b"2222")})
    forget()
    second = sentkit(*encode, name, "--shard", "2/2")
    pinned = f"hf://datasets/org/name@{FIRST}/rows.jsonl"

    assert (first.code, second.code) == (0, 65), first.err + second.err
    assert "rows.jsonl has changed since the first block (its commit)" in second.err
    assert sentkit(*encode, pinned, "--shard", "2/2").code == 0
    assert [row["text"] for row in sentkit("cat", "vectors").rows][2000] == f"row {2000:0100}"


def test_no_secret_is_printed_or_recorded(sentkit, web):
    """The account and the query of a URL go to its server, and to no message and no output."""
    web.files["/rows.jsonl"] = CONTENT + b"[]\n"
    Path("words.txt").write_text("row 1 0\n")
    url = f"{web.address.replace('//', '//user:hidden@')}/rows.jsonl?key=signed"
    runs = [
        sentkit("cat", url),
        sentkit("cat", url, "--rejects", "bad.jsonl"),
        sentkit("cat", url.replace("rows", "none")),
        sentkit("encode", "-v", "-m", "words.txt", url, "-o", "vectors/", "--rejects", "worse.jsonl"),
        sentkit("search", "row", url.replace("rows", "none")),
        sentkit("score", url),
    ]

    assert [run.code for run in runs] == [65, 0, 66, 0, 66, 65]
    assert sentkit("check", "vectors", "--deep").code == 0  # which cannot read an input without its query
    assert web.authorizations[0] == "Basic dXNlcjpoaWRkZW4="
    shown = f"{web.address}/rows.jsonl?..."
    assert runs[0].told[0].startswith(f"sentkit cat: {shown}:41: ")
    assert json.loads(Path("bad.jsonl").read_text())["file"] == shown
    for text in [run.err + run.out.decode() for run in runs] + [
        path.read_bytes().decode(errors="replace") for path in Path().rglob("*") if path.is_file()
    ]:
        assert [secret for secret in SECRETS if secret in text] == []


def test_a_password_is_not_sent_to_another_server(web):
    with web_server() as other:
        other.files["/rows.jsonl"] = CONTENT
        web.redirects["/rows.jsonl"] = f"{other.address}/rows.jsonl"
        content = urls.open_url(f"{web.address.replace('//', '//user:hidden@')}/rows.jsonl").read()

    assert content == CONTENT
    assert {*web.authorizations} == {"Basic dXNlcjpoaWRkZW4="}
    assert {*other.authorizations} == {None}


READERS = [
    ["cat", "PATH"],
    ["inspect", "PATH", "--json"],
    ["search", "--corpus", "PATH", "--queries", "queries.jsonl", "--top", "3"],
    ["duplicates", "queries.jsonl", "--against", "PATH", "--threshold", "0.9"],
    ["cluster", "PATH", "-k", "2"],
    ["diff", "PATH", "queries.jsonl"],
    ["check", "PATH", "--deep", "--json"],
]


@pytest.fixture
def vectors(sentkit):
    """A vector folder of several blocks, a vector file of each kind of storage, and queries."""
    words = "".join(f"{number} {number} {40 - number}\n" for number in range(40))
    Path("words.txt").write_text(f"row 1 2\n{words}")
    Path("rows.jsonl").write_bytes(CONTENT)
    encode = ["encode", "-m", "words.txt", "rows.jsonl"]
    runs = [
        sentkit(*encode, "-o", "folder/", "--block-bytes", "200"),
        sentkit(*encode, "-o", "queries.jsonl"),
    ]
    for store in ("float32", "int8"):
        runs.append(sentkit(*encode, "-o", f"{store}.safetensors", "--store", store))
    assert [run.code for run in runs] == [0] * 4, runs
    return ["folder", "float32.safetensors", "int8.safetensors"]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_vectors_at_a_url_are_those_of_the_local_files(sentkit, hub, memory, vectors, command):
    """The outputs differ only in the names of the files."""
    for path in filter(Path.is_file, Path().rglob("*")):
        memory.pipe(f"/bucket/{path}", path.read_bytes())
        hub.files[f"/{path}"] = path.read_bytes()
    hub.commit("org/name", FIRST, {path[1:]: content for path, content in hub.files.items()})

    for place in vectors:
        local = sentkit(*(place if word == "PATH" else word for word in command))
        for root in (
            "memory://bucket/",
            "hf://datasets/org/name/" if place == "folder" else f"{hub.address}/",
        ):
            far = sentkit(*(root + place if word == "PATH" else word for word in command))
            recorded = root.replace("name/", f"name@{FIRST}/").encode()
            assert (far.code, local.code) == (0, 0), far.err + local.err
            shown = far.out.replace(recorded, b"").replace(root.encode(), b"")
            assert shown == local.out


@pytest.mark.parametrize("name", ["folder/00000-000000000200.safetensors", "float32.safetensors"])
def test_damage_and_missing_blocks_are_found_at_a_url(sentkit, memory, vectors, name):
    for path in filter(Path.is_file, Path().rglob("*")):
        memory.pipe(f"/bucket/{path}", path.read_bytes())
    content = Path(name).read_bytes()
    memory.pipe(f"/bucket/{name}", content[:-9] + b"!" + content[-8:])
    place = "memory://bucket/" + name.partition("/")[0]
    check = sentkit("check", place, "--deep")

    assert (check.code, "damaged" in check.err or "digest" in check.err) == (1, True), check.err
    if "/" in name:
        removed = sentkit("check", place, "--deep", "--remove", "--json")
        assert (removed.code, removed.rows[0]["removed"], memory.exists(f"/bucket/{name}")) == (1, 1, False)
        missing = sentkit("cat", place)
        assert (missing.code, "missing blocks: 1" in missing.err) == (65, True), missing.err
        assert len(sentkit("cat", "--partial", place).rows) < len(ROWS)


@pytest.mark.parametrize("old", ["folder", "float32.safetensors", "int8.safetensors"])
@pytest.mark.parametrize("output", ["new/", "new.safetensors"])
def test_old_vectors_at_a_url_are_reused(sentkit, hub, memory, vectors, old, output):
    """Vectors and blocks are copied, and the outputs are those of the local old vectors."""
    place = "hf://datasets/org/name" if old == "folder" else "memory://bucket"
    for path in filter(Path.is_file, Path().rglob("*")):
        memory.pipe(f"/bucket/{path}", path.read_bytes())
    hub.commit("org/name", FIRST, {str(path): path.read_bytes() for path in Path("folder").iterdir()})
    kind = "int8" if "int8" in old else "float32"
    more = ["--block-bytes", "200"] if output == "new/" else []
    encode = ["encode", "-m", "words.txt", "rows.jsonl", "--store", kind, *more]
    runs = [
        sentkit(*encode, "--reuse", f"{root}{old}", "-o", f"{end}{output}")
        for root, end in (("", "near-"), (f"{place}/", "far-"))
    ]

    assert [run.code for run in runs] == [0, 0], runs
    assert runs[1].err.replace(f"{place}/", "") == runs[0].err
    for near, far in zip(files_of(f"near-{output}"), files_of(f"far-{output}"), strict=True):
        assert near.read_bytes() == far.read_bytes()


def files_of(path):
    return sorted(Path(path).glob("*.safetensors")) or [Path(path)]
