"""Inputs at URLs: memory://, a web server, and a server that answers as the hub does."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from sentkit.errors import UnavailableError
from sentkit.formats import urls
from sentkit.formats.checkpoints.command_record import command_record, inputs_of
from sentkit.formats.files import open_file, shown_path
from sentkit.formats.outputs import temporary
from support import in_jsonl
from web import forget, web_server

ROWS = [{"text": f"row {number}"} for number in range(40)]
CONTENT = in_jsonl(*ROWS).encode()
COMPRESSED = gzip.compress(CONTENT, mtime=0)
FIRST = "a" * 40  # commits
SECOND = "b" * 40
SECRETS = ("hidden", "signed")


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
def first_look(monkeypatch, tmp_path_factory):
    """As in a new process: nothing of a URL is known. Copies are in a folder of the test."""
    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    forget()
    yield folder
    forget()
    assert [*folder.iterdir()] == []


@pytest.fixture
def hub(hub):
    hub.commit(
        "org/name", FIRST, {"data/b.jsonl": CONTENT, "data/a.txt": b"a cat\n", "c.jsonl": CONTENT}
    )
    return hub


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", ["memory", "file", "http", "chunks", "hub"])
def test_a_url_has_the_rows_of_the_local_file(sentkit, hub, memory, tmp_path, kind, name):
    hub.end = "chunks" if kind == "chunks" else "length"
    memory.pipe(f"/bucket/{name}", FORMS[name])
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / name).write_bytes(FORMS[name])
    hub.files[f"/{name}"] = FORMS[name]
    hub.commit("org/name", FIRST, {name: FORMS[name]})
    folders = {
        "memory": "memory://bucket",
        "file": f"file://{tmp_path}/far",
        "hub": "hf://datasets/org/name",
    }
    result = sentkit("cat", f"{folders.get(kind, hub.address)}/{name}")

    assert (result.code, result.rows) == (0, ROWS), result.err


def test_an_array_at_a_url_has_the_vectors_of_the_local_file(sentkit, web):
    np.save("vectors.npy", np.eye(3, dtype=np.float32))
    web.files["/vectors.npy"] = Path("vectors.npy").read_bytes()
    url = f"{web.address}/vectors.npy"
    web.files["/vectors.npy?download=true"] = web.files["/vectors.npy"]
    runs = [sentkit("cat", name) for name in ("vectors.npy", url, f"{url}?download=true")]

    assert [run.code for run in runs] == [0, 0, 0], runs
    assert runs[2].rows == runs[1].rows == runs[0].rows
    assert [row["embedding"] for row in runs[1].rows] == np.eye(3).tolist()


def test_all_reads_of_a_command_see_the_same_commit(hub):
    """The branch moves between two reads, and the new commit has other rows."""
    hub.commit("org/name", FIRST, {"c.jsonl": CONTENT, "d.jsonl": b"first"})
    first = open_file("hf://datasets/org/name/c.jsonl").read()
    hub.commit("org/name", SECOND, {"c.jsonl": b"second", "d.jsonl": b"second"})

    assert open_file("hf://datasets/org/name/c.jsonl").read() == first == CONTENT
    assert open_file("hf://datasets/org/name/d.jsonl").read() == b"first"
    assert (
        shown_path("hf://datasets/org/name@main/d.jsonl")
        == f"hf://datasets/org/name@{FIRST}/d.jsonl"
    )
    assert shown_path("hf://datasets/org/name/d.jsonl") == f"hf://datasets/org/name@{FIRST}/d.jsonl"
    assert open_file(f"hf://datasets/org/name@{SECOND}/c.jsonl").read() == b"second"


@pytest.mark.parametrize("revision", ["refs/convert/parquet", "refs%2Fconvert%2Fparquet", "v1"])
def test_a_revision_is_a_branch_a_reference_or_a_tag(hub, revision):
    hub.commit("org/name", SECOND, {"c.jsonl": b"second"})
    hub.references = {"refs/convert/parquet": FIRST, "v1": FIRST}
    name = f"hf://datasets/org/name@{revision}/c.jsonl"

    assert open_file(name).read() == CONTENT
    assert shown_path(name) == f"hf://datasets/org/name@{FIRST}/c.jsonl"


def test_the_commit_is_recorded(sentkit, hub):
    name = "hf://datasets/org/name/c.jsonl"
    Path("words.txt").write_text("row 1 0\n")
    encoded = sentkit("encode", "-m", "words.txt", name, "-o", "vectors/")

    assert encoded.code == 0, encoded.err
    record = json.loads(Path("vectors/run.json").read_text())["inputs"][0]
    assert record["path"] == f"hf://datasets/org/name@{FIRST}/c.jsonl"
    assert (record["grid"], record["size"], record["name"]) == ("bytes", len(CONTENT), "c.jsonl")
    assert sentkit("check", "vectors", "--deep").code == 0
    command = command_record(["train"], inputs_of({"FILE": [name]}), None)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert command["inputs"] == [{"flag": "FILE", "path": record["path"], "sha256": digest}]


@pytest.mark.parametrize("kind", ["length", "chunks", "hub"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_a_broken_connection_is_an_error(sentkit, hub, kind, name):
    """The server sends half of the bytes and closes the connection."""
    hub.end = "chunks" if kind == "chunks" else "length"
    hub.files[f"/{name}"] = FORMS[name]
    hub.commit("org/name", FIRST, {name: FORMS[name]})
    hub.broken = True
    url = f"hf://datasets/org/name/{name}" if kind == "hub" else f"{hub.address}/{name}"
    result = sentkit("cat", url, "-o", "out.jsonl")

    problem = result.told[-1].split(": ")[1:3]
    assert (result.code, problem) == (69, [url, "cannot be read"]), result.err
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("broken", [False, True])
def test_an_answer_without_a_length_is_refused(sentkit, web, broken):
    """Nothing shows whether it is complete."""
    web.files["/rows.jsonl"] = CONTENT
    web.end = "nothing"
    web.broken = broken
    result = sentkit("cat", f"{web.address}/rows.jsonl")

    problem = "the server states no length, so that a broken connection would not be detected"
    assert (result.code, result.out) == (66, b"")
    assert result.told == [
        f"sentkit cat: {web.address}/rows.jsonl: {problem}",
        "  download it, and name the local file",
    ]


def test_a_short_file_of_fsspec_is_an_error(sentkit, memory, monkeypatch):
    """The file system states a size, and sends half of the bytes."""
    memory.pipe("/bucket/rows.jsonl", CONTENT)
    half = CONTENT[: len(CONTENT) // 2]
    monkeypatch.setattr(
        type(memory), "get_file", lambda self, path, copy: Path(copy).write_bytes(half)
    )
    result = sentkit("cat", "memory://bucket/rows.jsonl")

    assert (result.code, result.out) == (69, b"")
    assert result.told[-1].endswith(
        "memory://bucket/rows.jsonl: is incomplete, or changed while it was read"
    )


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("kind", ["http", "hub"])
def test_a_server_that_does_not_answer_is_an_error(sentkit, hub, kind, status):
    hub.files["/c.jsonl"] = CONTENT
    hub.status = status
    url = "hf://datasets/org/name/c.jsonl" if kind == "hub" else f"{hub.address}/c.jsonl"
    result = sentkit("cat", url)

    assert (result.code, result.told[-1]) == (
        69,
        f"sentkit cat: {url}: cannot be read: status {status}",
    )


def test_all_reads_of_a_command_see_the_same_content(web):
    """A file of a web server changes between two reads, and while it is read."""
    web.files["/rows.jsonl"] = CONTENT
    name = f"{web.address}/rows.jsonl"
    first = open_file(name)
    head = first.read(10)
    web.files["/rows.jsonl"] = CONTENT.replace(b"row", b"new")

    assert head + first.read() == CONTENT
    assert open_file(name).read() == CONTENT
    assert web.asked == {"/rows.jsonl": 1}


def test_a_redirect_is_followed(web):
    web.files["/other.jsonl"] = CONTENT
    web.redirects["/rows.jsonl"] = "/other.jsonl"

    assert open_file(f"{web.address}/rows.jsonl").read() == CONTENT


MISSING = ": no such file, or access is denied"


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("memory://bucket/none.jsonl", 66, MISSING),
        ("hf://datasets/org/name/none.jsonl", 66, MISSING),
        ("hf://datasets/org/none/none.jsonl", 66, MISSING),
        ("hf://datasets/org/name/data", 66, ": is a folder, expected a file\n  download it first"),
        ("memory://bucket", 66, ": is a folder, expected a file\n  download it first"),
        ("hf://datasets/org", 66, MISSING),
        ("WEB/empty.jsonl", 65, None),
        ("memory://bucket/empty.jsonl", 65, None),
        ("WEB/none.jsonl", 66, MISSING),
        ("WEB/closed.jsonl", 66, MISSING),
        ("http://127.0.0.1:9/none.jsonl", 69, ": cannot be read: no connection to the server"),
        ("http://", 2, ": not a valid URL"),
        ("http://[::1", 2, ": not a valid URL"),
        ("odd://none.jsonl", 2, ": unknown scheme odd"),
        ("http:/none.jsonl", 66, ": no such file"),
        ("hf://datasets/org/name/closed.jsonl", 66, MISSING),
        ("s3://bucket/rows.jsonl", 69, ": cannot be read: Install s3fs to access S3"),
    ],
)
def test_what_cannot_be_read(sentkit, hub, memory, monkeypatch, url, code, told):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    hub.refused["/closed.jsonl"] = 401, ""
    hub.refused[f"/datasets/org/name/resolve/{FIRST}/closed.jsonl"] = 403, "GatedRepo"
    hub.commit("org/name", FIRST, {"data/a.txt": b"", "closed.jsonl": CONTENT})
    hub.files.update({"/empty.jsonl": b"", "/closed.jsonl": CONTENT})
    memory.pipe("/bucket/empty.jsonl", b"")
    url = url.replace("WEB", hub.address)
    result = sentkit("cat", url)

    expected = f"sentkit cat: {url}{told}" if told else f"sentkit cat: no rows in {url}"
    assert (result.code, "\n".join(result.told)[: len(expected)]) == (code, expected)


@pytest.mark.parametrize(
    ("name", "content"), [("/rows.jsonl", CONTENT), ("/rows.jsonl.gz", COMPRESSED)]
)
def test_content_that_the_server_compresses_is_decompressed(web, name, content):
    """The content of a .gz file stays as it is: with this header, some servers name its format."""
    web.files[name] = COMPRESSED
    web.encoding = "gzip"

    assert open_file(f"{web.address}{name}").read() == content
    web.files["/other.jsonl"] = b"not compressed"
    with pytest.raises(UnavailableError, match="the content is not compressed as its header"):
        open_file(f"{web.address}/other.jsonl")


def test_the_copy_of_a_killed_process_is_removed(web, first_look):
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = temporary.private_name(first_look / "input").name
    leftover = first_look / name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    leftover.mkdir()
    (leftover / "content").write_bytes(CONTENT)
    web.files["/rows.jsonl"] = CONTENT
    open_file(f"{web.address}/rows.jsonl").close()

    assert not leftover.exists()


def test_blocks_of_two_commits_do_not_mix(sentkit, hub):
    """Both contents have the same size and the same ends. The first commit works."""
    Path("words.txt").write_text("row 1 0\n")
    rows = in_jsonl(*({"text": f"row {number:0100}"} for number in range(4000))).encode()
    hub.commit("org/name", FIRST, {"rows.jsonl": rows})
    encode = ["encode", "-m", "words.txt", "-o", "vectors/", "--resume"]
    name = "hf://datasets/org/name/rows.jsonl"
    first = sentkit(*encode, name, "--shard", "1/2")
    hub.commit("org/name", SECOND, {"rows.jsonl": rows.replace(b"2000", b"2222")})
    second = sentkit(*encode, name, "--shard", "2/2")
    pinned = f"hf://datasets/org/name@{FIRST}/rows.jsonl"

    assert (first.code, second.code) == (0, 65), first.err + second.err
    assert "rows.jsonl has changed since the first block (its commit)" in second.err
    assert sentkit(*encode, pinned, "--shard", "2/2").code == 0
    assert [row["text"] for row in sentkit("cat", "vectors").rows][2000] == f"row {2000:0100}"


def test_others_cannot_read_a_copy_and_the_process_removes_it(hub, first_look, tmp_path):
    hub.files["/rows.jsonl"] = CONTENT
    copy = Path(urls.local_copy(f"{hub.address}/rows.jsonl"))
    of_hub = Path(urls.local_copy("hf://datasets/org/name/c.jsonl"))
    command = [sys.executable, "-m", "sentkit", "cat", f"{hub.address}/rows.jsonl"]
    completed = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE
    )

    assert {path.parent.stat().st_mode & 0o777 for path in (copy, of_hub)} == {0o700}
    assert {copy.parent.parent, of_hub.parent.parent} == {first_look}
    assert (completed.returncode, completed.stdout) == (0, CONTENT)
    assert [*tmp_path.iterdir()] == []


def test_no_secret_is_printed_or_recorded(sentkit, web):
    """The account and the query of a URL go to its server, and to no message and no output."""
    web.files["/rows.jsonl"] = CONTENT + b"[]\n"
    Path("words.txt").write_text("row 1 0\n")
    url = f"{web.address.replace('//', '//user:hidden@')}/rows.jsonl?key=signed"
    runs = [
        sentkit("cat", url),
        sentkit("cat", url, "--rejects", "bad.jsonl"),
        sentkit("cat", url.replace("rows", "none")),
        sentkit(
            "encode", "-v", "-m", "words.txt", url, "-o", "vectors/", "--rejects", "worse.jsonl"
        ),
        sentkit("search", "row", url.replace("rows", "none")),
        sentkit("score", url),
    ]

    assert [run.code for run in runs] == [65, 0, 66, 0, 66, 65]
    # which cannot read an input without its query
    assert sentkit("check", "vectors", "--deep").code == 0
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
        content = open_file(f"{web.address.replace('//', '//user:hidden@')}/rows.jsonl").read()

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
    """A vector file of each kind of storage, and queries."""
    words = "".join(f"{number} {number} {40 - number}\n" for number in range(40))
    Path("words.txt").write_text(f"row 1 2\n{words}")
    Path("rows.jsonl").write_bytes(CONTENT)
    encode = ["encode", "-m", "words.txt", "rows.jsonl"]
    runs = [sentkit(*encode, "-o", "queries.jsonl")]
    for store in ("float32", "int8"):
        runs.append(sentkit(*encode, "-o", f"{store}.safetensors", "--store", store))
    assert [run.code for run in runs] == [0] * 3, runs
    return ["float32.safetensors", "int8.safetensors"]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_vectors_at_a_url_are_those_of_the_local_files(sentkit, hub, memory, vectors, command):
    """The outputs differ only in the names of the files."""
    for path in filter(Path.is_file, Path().rglob("*")):
        memory.pipe(f"/bucket/{path}", path.read_bytes())
        hub.files[f"/{path}"] = path.read_bytes()
    hub.commit("org/name", FIRST, {path[1:]: content for path, content in hub.files.items()})

    for path in vectors:
        local = sentkit(*(path if word == "PATH" else word for word in command))
        for root in ("memory://bucket/", "hf://datasets/org/name/", f"{hub.address}/"):
            remote = sentkit(*(root + path if word == "PATH" else word for word in command))
            recorded = root.replace("name/", f"name@{FIRST}/").encode()
            assert (remote.code, local.code) == (0, 0), remote.err + local.err
            shown = remote.out.replace(recorded, b"").replace(root.encode(), b"")
            assert shown == local.out


def test_damage_of_a_vector_file_is_found_at_a_url(sentkit, memory, vectors):
    content = Path("float32.safetensors").read_bytes()
    memory.pipe("/bucket/float32.safetensors", content[:-9] + b"!" + content[-8:])
    check = sentkit("check", "memory://bucket/float32.safetensors", "--deep")

    assert (check.code, "damaged" in check.err or "digest" in check.err) == (1, True), check.err


@pytest.mark.parametrize("old", ["float32.safetensors", "int8.safetensors"])
@pytest.mark.parametrize("output", ["new/", "new.safetensors"])
def test_old_vectors_at_a_url_are_reused(sentkit, memory, vectors, old, output):
    """Vectors are copied, and the outputs are those of the local old vectors."""
    bucket = "memory://bucket/"
    for path in filter(Path.is_file, Path().rglob("*")):
        memory.pipe(f"/bucket/{path}", path.read_bytes())
    kind = "int8" if "int8" in old else "float32"
    more = ["--block-bytes", "200"] if output == "new/" else []
    encode = ["encode", "-m", "words.txt", "rows.jsonl", "--store", kind, *more]
    local = sentkit(*encode, "--reuse", old, "-o", f"local-{output}")
    remote = sentkit(*encode, "--reuse", f"{bucket}{old}", "-o", f"remote-{output}")
    pairs = zip(files_of(f"local-{output}"), files_of(f"remote-{output}"), strict=True)

    assert (local.code, remote.code) == (0, 0), local.err + remote.err
    assert remote.err.replace(bucket, "") == local.err
    for local_file, remote_file in pairs:
        assert local_file.read_bytes() == remote_file.read_bytes()


def files_of(path):
    return sorted(Path(path).glob("*.safetensors")) or [Path(path)]
