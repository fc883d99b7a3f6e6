"""Outputs at URLs: memory://, file://, and a server that answers as the hub does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sentkit.formats import urls
from sentkit.formats.outputs import uploads
from support import heed_signals, in_jsonl
from web import SIGNED, forget

ROWS = [{"text": f"row {number}"} for number in range(40)]
CONTENT = in_jsonl(*ROWS).encode()
SECRET = "hf_private"
FIRST = "a" * 40
FOLDER = "hf://datasets/me/vectors"


@pytest.fixture(autouse=True)
def first_look(monkeypatch):
    """As in a new process; nobody waits."""
    forget()
    monkeypatch.setattr(urls, "sleep", lambda seconds: None)
    Path("rows.jsonl").write_bytes(CONTENT)
    words = "".join(f"{number} {number} {40 - number}\n" for number in range(40))
    Path("words.txt").write_text(f"row 1 2\n{words}")


@pytest.fixture
def hub(hub):
    hub.commit("org/name", FIRST, {"old.jsonl": b'{"text":"old"}\n'})
    return hub


def tree(hub, repository):
    return hub.tree(repository, "main")


OUTPUTS = {
    "jsonl": ["cat", "rows.jsonl", "-o", "PLACE/out.jsonl"],
    "gz": ["cat", "rows.jsonl", "-o", "PLACE/out.jsonl.gz"],
    "parquet": ["cat", "rows.jsonl", "-o", "PLACE/out.parquet"],
    "vectors": ["encode", "-m", "words.txt", "rows.jsonl", "-o", "PLACE/out.safetensors"],
    "int8": ["encode", "-m", "words.txt", "rows.jsonl", "--store", "int8", "-o", "PLACE/out.safetensors"],
    "rejects": ["cat", "bad.jsonl", "--rejects", "PLACE/out.jsonl"],
}
WRITTEN = {"memory": "memory://bucket", "file": "file://HERE/far", "hub": "hf://datasets/org/name"}


@pytest.mark.parametrize("place", WRITTEN)
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_at_a_url_has_the_bytes_of_the_local_one(sentkit, hub, memory, place, name):
    """It is whole; no other file is beside it, and none is left in the temporary folder."""
    Path("bad.jsonl").write_bytes(CONTENT + b"[]\n")
    url = WRITTEN[place].replace("HERE", str(Path.cwd()))
    Path("near").mkdir()
    Path("far").mkdir()
    runs = [sentkit(*(word.replace("PLACE", to) for word in OUTPUTS[name])) for to in ("near", url)]
    [local] = Path("near").iterdir()
    far = {
        "memory": {path.removeprefix("/bucket/"): memory.cat(path) for path in memory.find("/bucket")},
        "file": {path.name: path.read_bytes() for path in Path("far").iterdir()},
        "hub": {path: content for path, content in tree(hub, "org/name").items() if path != "old.jsonl"},
    }[place]

    assert [run.code for run in runs] == [0, 0], runs
    assert far == {local.name: local.read_bytes()}


ENCODE = ["encode", "-m", "words.txt", "rows.jsonl", "--block-bytes", "100"]  # several blocks


@pytest.fixture
def expected(sentkit):
    """The blocks of the local folder, and its rows."""
    assert sentkit(*ENCODE, "-o", "near/").code == 0
    blocks = {path.name: path.read_bytes() for path in Path("near").glob("*.safetensors")}
    assert len(blocks) == 8
    return blocks


def blocks_in(files):
    return {path.rpartition("/")[2]: files[path] for path in files if path.endswith(".safetensors")}


@pytest.mark.parametrize("place", ["me/vectors", "org/name/sub/vectors"])
def test_a_folder_of_the_hub_has_the_blocks_of_the_local_one(sentkit, hub, expected, place):
    """A new repository is private. The last blocks are one commit; then comes the card."""
    folder = f"hf://datasets/{place}"
    start = place.partition("/sub/")[2] and "sub/vectors/"
    done = sentkit(*ENCODE, "-o", f"{folder}/", "-v")
    forget()
    repository = "/".join(place.split("/")[:2])

    assert (done.code, done.err.count("blocks written: 8")) == (0, 1), done.err
    assert (f"{folder} is a new private repository" in done.err) == (not start)
    assert blocks_in(tree(hub, repository)) == expected
    names = [f"{start}{name}" for name in sorted(expected)]
    assert hub.history == [[f"{start}run.json"], names, [f"{start}README.md"]]
    assert hub.created == ([] if start else [("me/vectors", "private")])
    assert hub.messages[1] == "sentkit: 00000-000000000000.safetensors and 7 more"
    assert sentkit("cat", folder).rows == sentkit("cat", "near").rows
    check = sentkit("check", folder, "--deep", "--json")
    assert (check.code, check.rows[0]["blocks"], check.rows[0]["rows"]) == (0, 8, 40), check.err


def test_shards_of_several_machines_make_one_folder(sentkit, hub, expected):
    """The last one writes the card. A repeated command changes nothing."""
    runs = []
    for shard in ("1/3", "2/3", "3/3", "1/3"):
        runs.append(sentkit(*ENCODE, "-o", f"{FOLDER}/", "--shard", shard, "--resume"))
        forget()
        complete = [bool(path) for path in tree(hub, "me/vectors") if path == "README.md"]
        assert (runs[-1].code, len(complete)) == (0, len(runs) > 2), runs[-1].err

    assert blocks_in(tree(hub, "me/vectors")) == expected
    assert [len(names) for names in hub.history] == [1, 3, 2, 3, 1]
    assert "already complete: 3" in runs[-1].err
    missing = sentkit(*ENCODE, "-o", f"{FOLDER}/")
    assert (missing.code, "--resume continues it" in missing.err) == (73, True), missing.err


def test_the_card_has_model_space_counts_and_commands(sentkit, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    Path("more.jsonl").write_text('{"sentence":"row 1 2"}\n')
    encode = ["encode", "-m", "words.txt", "more.jsonl", "--field", "text=sentence", "-o", f"{FOLDER}/"]
    done = sentkit(*encode, "--shard", "1/1", "--resume")
    files = tree(hub, "me/vectors")
    card, record = files["README.md"].decode(), json.loads(files["run.json"])
    space = record["encoder"]["_emb"]

    assert done.code == 0, done.err
    for line in (
        "viewer: false", f"| space | `{space}` |", "| rows | `1` |", "| blocks | `1` |",
        "| inputs | `more.jsonl` |",
        f"    sentkit encode more.jsonl -m words.txt --field text=sentence -o {FOLDER}/",
        f"    sentkit search 'a text' --corpus {FOLDER}", f"    sentkit check {FOLDER}",
    ):  # fmt: skip
        assert line in card.splitlines(), card
    assert {*filter(None, hub.authorizations)} == {f"Bearer {SECRET}"}
    assert SECRET not in done.err + "".join(content.decode(errors="replace") for content in files.values())


def test_the_card_of_a_person_is_kept(sentkit, hub):
    hub.commit("me/vectors", FIRST, {"README.md": b"# mine\n"})
    assert sentkit(*ENCODE, "-o", f"{FOLDER}/").code == 0

    assert tree(hub, "me/vectors")["README.md"] == b"# mine\n"
    assert hub.created == []


def test_a_folder_in_memory_resumes(sentkit, memory, expected):
    """Without commits, each block is written at once. Another setting is refused."""
    for name in ("run.json", "00000-000000000100.safetensors"):
        memory.pipe(f"/bucket/vectors/{name}", Path("near", name).read_bytes())
    done = sentkit(*ENCODE, "-o", "memory://bucket/vectors/", "--resume")
    forget()
    other = sentkit(*ENCODE, "-o", "memory://bucket/vectors/", "--resume", "--store", "int8")

    assert (done.code, "blocks written: 7, already complete: 1" in done.err) == (0, True), done.err
    assert blocks_in({path: memory.cat(path) for path in memory.find("/bucket")}) == expected
    assert sorted(memory.ls("/bucket/vectors", detail=False))[-2:] == [
        "/bucket/vectors/README.md",
        "/bucket/vectors/run.json",
    ]
    assert (other.code, '"store" is "float32"' in other.err) == (65, True), other.err


def test_damaged_blocks_of_the_hub_are_removed_in_one_commit(sentkit, hub, expected):
    files = {f"vectors/{path.name}": path.read_bytes() for path in Path("near").iterdir()}
    bad = sorted(files)[1:3]
    for name in bad:
        files[name] = files[name][:-9] + b"!" + files[name][-8:]
    hub.commit("me/name", FIRST, files)
    place = "hf://datasets/me/name/vectors"
    check = sentkit("check", place, "--deep", "--remove", "--json")
    forget()
    again = sentkit(*ENCODE, "-o", place, "--resume")

    assert (check.code, check.rows[0]["removed"], hub.history[0]) == (1, 2, bad), check.err
    assert (again.code, blocks_in(tree(hub, "me/name"))) == (0, expected), again.err


def test_a_group_has_the_blocks_of_some_time(sentkit, hub, expected, monkeypatch):
    """With three shards, a group has the time of three. It is also written when it is large."""
    now, waits = [0.0], []

    def tick():
        now[0] += 1.0
        return now[0]

    def wait(seconds):
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(uploads, "monotonic", tick)
    monkeypatch.setattr(uploads, "sleep", wait)
    monkeypatch.setattr(uploads, "SPACING", 3.5)
    assert sentkit(*ENCODE, "-o", f"{FOLDER}/").code == 0
    assert [len(names) for names in hub.history] == [1, 4, 4, 1]

    forget()
    monkeypatch.setattr(uploads, "SPACING", 100.0)
    monkeypatch.setattr(uploads, "GROUP_FILES", 3)
    assert sentkit(*ENCODE, "-o", "hf://datasets/me/other/", "--shard", "1/2").code == 0
    assert [len(names) for names in hub.history[4:]] == [1, 3, 1]
    assert [150 < seconds < 200 for seconds in waits] == [True]
    assert 3600 / 40.0 + 3 <= 100


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        *(("commit", trouble) for trouble in (429, 412, 409, 503, "before", "after")),
        *((kind, trouble) for kind in ("preupload", "batch", "object") for trouble in (429, "after")),
    ],
)
def test_a_commit_is_repeated(sentkit, hub, expected, monkeypatch, trouble, kind):
    """After a busy time, another commit, or a broken connection; "after": the server did its work."""
    waits = []
    monkeypatch.setattr(urls, "sleep", waits.append)
    hub.trouble, hub.troubled, hub.retry_after = [trouble] * 3, (kind,), "9"
    done = sentkit(*ENCODE, "-o", f"{FOLDER}/")

    assert (done.code, hub.trouble) == (0, []), done.err
    assert blocks_in(tree(hub, "me/vectors")) == expected
    assert [len(names) for names in hub.history] == [1, 8, 1]
    if kind == "commit" and isinstance(trouble, int):
        assert waits == ([9.0, 9.0, 15.0] if trouble == 429 else [1.0, 4.0, 15.0])


@pytest.mark.parametrize("force", [False, True])
def test_an_output_that_exists(sentkit, hub, memory, force):
    Path("near.jsonl").write_bytes(b"{}\n")
    Path("far.jsonl").write_bytes(b"{}\n")
    memory.pipe("/bucket/old.jsonl", b"{}\n")
    far = f"file://{Path('far.jsonl').resolve()}"
    for place in ("near.jsonl", "hf://datasets/org/name/old.jsonl", "memory://bucket/old.jsonl", far):
        done = sentkit("cat", "rows.jsonl", "-o", place, *["-f"][: int(force)])
        told = [f"sentkit cat: {place}: already exists", "  use -f to overwrite it"]
        assert (done.code, done.told) == ((0, []) if force else (73, told))
    contents = [
        memory.cat("/bucket/old.jsonl"),
        Path("far.jsonl").read_bytes(),
        tree(hub, "org/name")["old.jsonl"],
    ]
    assert contents == ([CONTENT] * 3 if force else [b"{}\n", b"{}\n", b'{"text":"old"}\n'])


def test_an_output_that_appears_meanwhile_is_not_overwritten(sentkit, hub, monkeypatch):
    """Another process writes the file between the first look and the commit, which names its parent."""
    write, waits = hub.write, []

    def after_another(repository, action, revision, body):
        if action == "commit" and not waits:
            waits.append(1)
            hub.commit("org/name", "b" * 40, {"new.jsonl": b"other\n"})
        return write(repository, action, revision, body)

    monkeypatch.setattr(hub, "write", after_another)
    done = sentkit("cat", "rows.jsonl", "-o", "hf://datasets/org/name/new.jsonl")

    assert (done.code, done.told[0].endswith("already exists")) == (73, True), done.err
    assert tree(hub, "org/name") == {"new.jsonl": b"other\n"}


def test_an_input_is_not_overwritten(sentkit, hub):
    url = "hf://datasets/org/name/old.jsonl"
    done = sentkit("cat", url, "-o", url, "-f")

    assert (done.code, done.told[0]) == (2, f"sentkit cat: -o {url}: would overwrite the input {url}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://127.0.0.1:9/out.jsonl", ": a web server cannot be written"),
        ("odd://bucket/out.jsonl", ': no such file, and "odd" is not the scheme of a URL'),
        ("hf://datasets/me/none/out.jsonl", ": there is no such place to write to"),
        (f"hf://datasets/org/name@{FIRST}/out.jsonl", ": a commit cannot be changed"),
        ("memory://bucket/", ": expected the URL of a file"),
    ],
)
def test_what_cannot_be_written(sentkit, hub, url, told):
    """It is refused before the work."""
    done = sentkit("cat", "none.jsonl", "-o", url)

    assert (done.code, told in done.told[0]) in ((73, True), (66, False)), done.err
    done = sentkit("cat", "rows.jsonl", "-o", url)
    assert (done.code, told in done.told[0]) == (73, True), done.err


def test_a_token_that_may_not_write(sentkit, hub, monkeypatch):
    hub.forbidden = True
    done = sentkit(*ENCODE, "-o", "hf://datasets/org/name/")

    assert (done.code, done.told) == (73, [
        "sentkit encode: hf://datasets/org/name: access is denied",
        "  set HF_TOKEN to a token that may write",
    ])  # fmt: skip


def test_an_output_that_cannot_be_sent_is_kept(sentkit, hub):
    hub.trouble, hub.troubled = [503] * 100, ("commit",)
    done = sentkit("cat", "rows.jsonl", "-o", "hf://datasets/org/name/out.jsonl")
    kept = Path(done.told[1].partition("the complete output is ")[2])

    assert (done.code, done.told[0]) == (
        69,
        "sentkit cat: hf://datasets/org/name: cannot be written: HfHubHTTPError, status 503",
    )
    assert kept.read_bytes() == CONTENT
    kept.unlink()
    assert "out.jsonl" not in tree(hub, "org/name")


def test_a_bad_row_keeps_the_blocks_before_it(sentkit, hub):
    """A corrected command may have other settings: without a block, run.json is removed."""
    lines = CONTENT.splitlines(keepends=True)
    for place, blocks in ((30, 5), (1, 0)):
        forget()
        Path("rows.jsonl").write_bytes(b"".join([*lines[:place], b"[]\n", *lines[place:]]))
        name = f"me/vectors{place}"
        done = sentkit(*ENCODE, "-o", f"hf://datasets/{name}/")
        files = tree(hub, name)
        assert (done.code, len(blocks_in(files)), "run.json" in files) == (65, blocks, blocks > 0), done.err


# Writes groups of four blocks: each look at the clock is a second.
PROGRAM = """
import itertools, sys
from sentkit.formats.outputs import uploads
uploads.monotonic, uploads.SPACING = itertools.count().__next__, 3.5
uploads.WAITS = 16 * [0.05]
from sentkit.__main__ import main
sys.exit(main())
"""


def start(hub, folder, words=(*ENCODE, "-o", f"{FOLDER}/", "--resume"), environment=os.environ):
    """A writer as a process, with a token."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, **environment, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": SECRET, "HF_HOME": str(folder / "home")}
    environment |= {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=heed_signals)


def test_the_command_of_a_job_array(hub, tmp_path):
    """The rows are Parquet files of the hub. Nothing has the token or the address of an upload."""
    for name, part in (("a", ROWS[:25]), ("b", ROWS[25:])):
        pq.write_table(pa.table({"sentence": [row["text"] for row in part]}), f"{name}.parquet")
    hub.commit(
        "org/name", FIRST, {f"data/{name}.parquet": Path(f"{name}.parquet").read_bytes() for name in "ab"}
    )
    given = ["encode", "hf://datasets/org/name/data/*.parquet", "--field", "text=sentence", "-m", "words.txt"]
    given += ["--block-bytes", "640", "-o", f"{FOLDER}/", "--shard", "auto", "--resume"]  # ten rows
    environment = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_STEP": "1"}
    writers = [
        start(hub, tmp_path / task, given, environment | {"SLURM_ARRAY_TASK_ID": task}) for task in "01"
    ]
    ends = list(map(finish, writers))

    assert [code for code, _ in ends] == [0, 0], ends
    files = tree(hub, "me/vectors")
    assert len(blocks_in(files)) == 5
    card = files["README.md"].decode()
    assert "sentkit encode 'hf://datasets/org/name/data/*.parquet' -m words.txt --field text=sentence" in card
    assert f"hf://datasets/org/name@{FIRST}/data/b.parquet" in files["run.json"].decode()
    for content in files.values():
        assert [secret for secret in (SECRET, SIGNED) if secret.encode() in content] == []


def finish(process):
    told = process.communicate()[1].decode()
    assert [secret for secret in (SECRET, SIGNED) if secret in told] == []
    return process.returncode, told


def at_request(hub, number, moment, act):
    """Call a function at one of the requests that write."""
    seen = []

    def watch(now):
        if now == moment:
            seen.append(now)
            if len(seen) == number:
                act()

    hub.watch = watch


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((3, "after"), (7, "before"), (10, "after")),
        *(pytest.param(n, ("before", "after")[n % 2], marks=pytest.mark.slow) for n in range(1, 21)),
    ],
)
def test_a_killed_writer_resumes(hub, tmp_path, expected, number, moment):
    """Killed at one of its requests. All commits have complete blocks; the next call ends the work."""
    folder = tmp_path / "temporary"
    process = start(hub, folder)
    at_request(hub, number, moment, process.kill)
    killed = finish(process)
    hub.watch = lambda moment: None
    for files in hub.repositories.get("me/vectors", {}).values():
        assert blocks_in(files).items() <= expected.items()
        assert len(blocks_in(files)) in (0, 4, 8)
    done = finish(start(hub, folder))

    assert (killed[0], done[0]) == (-signal.SIGKILL, 0), (number, moment, killed, done)
    files = tree(hub, "me/vectors")
    assert blocks_in(files) == expected
    assert {*files} - {*expected} == {".gitattributes", "run.json", "README.md"}
    assert list(folder.glob(".vectors*")) == []


def test_writers_at_the_same_time(hub, tmp_path, expected):
    """Two processes begin together; connections break, and the hub is busy. Each commit has one parent."""
    hub.trouble, hub.retry_after = [412, "after", 429, "before", 503, 412], "0"
    hub.troubled = ("commit",)
    words = [*ENCODE, "-o", f"{FOLDER}/", "--resume", "--shard"]
    writers = [start(hub, tmp_path / str(each), [*words, f"{each}/2"]) for each in (1, 2)]
    ends = list(map(finish, writers))

    assert [code for code, _ in ends] == [0, 0], ends
    assert blocks_in(tree(hub, "me/vectors")) == expected
    assert hub.trouble == []
    assert [names for names in hub.history if "run.json" in names] == [["run.json"]]
    assert sum("is complete" in told for _, told in ends) >= 1


def test_a_signal_sends_the_complete_blocks(hub, tmp_path, expected):
    """SIGTERM comes while the first group is sent: it is completed, and so is the block after it."""
    process = start(hub, tmp_path / "temporary")
    at_request(hub, 6, "before", process.terminate)
    code, told = finish(process)

    assert (code, "--resume continues" in told) == (75, True), told
    assert len(blocks_in(tree(hub, "me/vectors"))) == 4
    assert list((tmp_path / "temporary").glob(".vectors*")) == []
    assert finish(start(hub, tmp_path / "temporary"))[0] == 0
    assert blocks_in(tree(hub, "me/vectors")) == expected


def test_others_cannot_read_the_temporary_files(sentkit, hub, expected, monkeypatch, tmp_path):
    """The folder of temporary files belongs to all users, and the umask can allow them to read."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes = []

    def watch(moment):
        modes.extend(path.stat().st_mode & 0o777 for path in tmp_path.glob(".*.sentkit-*"))

    hub.watch = watch
    assert sentkit("cat", "rows.jsonl", "-o", "hf://datasets/org/name/rows.jsonl").code == 0
    assert {*modes} == {0o600}
    assert sentkit(*ENCODE, "-o", f"{FOLDER}/").code == 0
    assert {*modes} == {0o600, 0o700}
    assert list(tmp_path.glob(".*.sentkit-*")) == []


def test_the_card_of_many_files_is_short(sentkit, hub):
    """A bar in a prompt does not end the cell of a table."""
    names = [f"{number}.jsonl" for number in range(9)]
    for name in names:
        Path(name).write_bytes(CONTENT)
    done = sentkit("encode", "-m", "words.txt", "--prompt", "row|", *names, "-o", f"{FOLDER}/")
    card = tree(hub, "me/vectors")["README.md"].decode()

    assert done.code == 0, done.err
    assert "| inputs | `0.jsonl and 8 more` |" in card
    assert "| prompt | `row\\|` |" in card
    assert f"    sentkit encode {' '.join(names[:4])} ... -m words.txt --prompt 'row|' -o {FOLDER}/" in card


def test_no_secret_of_an_input_is_in_a_folder(sentkit, hub):
    """The account and the query of a URL are in no file, and in no message of a commit."""
    hub.files["/rows.jsonl"] = CONTENT
    url = f"{hub.address.replace('//', '//user:hidden@')}/rows.jsonl?key=signed"
    done = sentkit("encode", "-v", "-m", "words.txt", url, "-o", f"{FOLDER}/")
    files = tree(hub, "me/vectors")

    assert (done.code, sorted(files)[-2:]) == (0, ["README.md", "run.json"]), done.err
    assert f"{hub.address}/rows.jsonl?..." in files["README.md"].decode()
    for text in (done.err, *hub.messages, *(content.decode(errors="replace") for content in files.values())):
        assert [secret for secret in ("hidden", "signed") if secret in text] == []
