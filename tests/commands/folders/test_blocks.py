"""`encode -o DIR/`: the joined bytes depend only on the input and the model."""

import gzip
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sentkit import cli
from sentkit.console import in_words
from sentkit.formats.vectors.file_writer import VectorFileWriter
from sentkit.formats.vectors.folders import open_folder
from sentkit.formats.vectors.grid import Block
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.model.runs import folder_writer
from sentkit.model.static.tokenizers import WordLookup

TEXTS = st.sampled_from(["the cat", "dog", "", "the dog runs . the cat", "é " * 30])
NEWLINES = st.sampled_from(["\n", "\r\n"])


SUFFIXES = [".jsonl", ".txt", *([".parquet"] if find_spec("pyarrow") else [])]


def write_table(path, texts, size):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())})
    parquet.write_table(table, path, row_group_size=size)


@settings(max_examples=8)
@given(data=st.data())
def test_shards_kills_and_order_do_not_change_the_joined_bytes(sentkit, words, data):
    files = []
    for _ in range(data.draw(st.integers(1, 3), "files")):
        suffix = data.draw(st.sampled_from(SUFFIXES))
        texts = data.draw(st.lists(TEXTS, max_size=8))
        newline = data.draw(NEWLINES)
        final = data.draw(st.booleans())
        lines = [json.dumps({"text": text}) if suffix == ".jsonl" else text for text in texts]
        blank = newline if suffix == ".jsonl" and data.draw(st.booleans()) else ""
        body = blank + newline.join(lines) + (newline if final and lines else "")
        expected = texts if final or suffix != ".txt" or not texts or texts[-1] else texts[:-1]
        files.append((suffix, body, expected))
    assume(any(expected for _, _, expected in files))
    size = data.draw(st.integers(1, 60), "block")
    count = data.draw(st.integers(1, 9), "shards")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, (suffix, body, expected) in enumerate(files):
            paths.append(Path(folder, f"{number}{suffix}"))
            if suffix == ".parquet":
                write_table(paths[-1], expected, data.draw(st.integers(1, 4), "row group"))
            else:
                paths[-1].write_bytes(body.encode())
        whole = f"{folder}/whole"
        sharded = f"{folder}/sharded"
        command = ["encode", *paths, "-m", words, "-q", "--block-bytes", size]

        assert sentkit(*command, "-o", f"{whole}/").err == ""
        shards = data.draw(st.permutations(range(1, count + 1)))
        for shard in shards[: data.draw(st.integers(0, count))]:
            assert sentkit(*command, "-o", f"{sharded}/", "--shard", f"{shard}/{count}").err == ""
        for path in sorted(Path(sharded).glob("0*")):  # lost blocks
            if data.draw(st.booleans()):
                path.unlink()
        new_count = data.draw(st.integers(1, 9), "new shards")
        resume = [*command, "-o", f"{sharded}/", "--resume"]
        for shard in data.draw(st.permutations(range(new_count))):
            assert sentkit(*resume, "--shard", f"{shard}/{new_count}").err == ""

        joined = []
        for path in (whole, sharded):
            assert sentkit("cat", path, "-o", f"{path}.safetensors").err == ""
            joined.append(Path(f"{path}.safetensors").read_bytes())
        rows = [row["text"] for row in sentkit("cat", whole).rows]
        assert rows == [text for _, _, texts in files for text in texts]
        assert joined[0] == joined[1]


@settings(max_examples=100)
@given(
    body=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bcd"]), max_size=20),
    size=st.integers(1, 12),
)
def test_each_line_starts_in_one_range(tmp_path_factory, body, size):
    path = tmp_path_factory.getbasetemp() / "body"
    path.write_bytes(b"".join(body))
    lines = []
    starts = []  # pairs of the start of a range and the offset of a line in it
    for start in range(0, len(path.read_bytes()), size):
        raw_blocks = Block(0, start, start + size, False, 0, "text", str(path)).raw_blocks()
        for line in itertools.chain.from_iterable(block.raws for block in raw_blocks):
            starts.append((start, sum(map(len, lines))))
            lines.append(line)

    assert lines == path.read_bytes().splitlines(keepends=True) or b"\r" in path.read_bytes()
    assert b"".join(lines) == path.read_bytes()
    assert all(start <= offset < start + size for start, offset in starts)


def test_streams_tables_and_vector_files_have_blocks_of_rows(
    encode, sentkit, corpus, folder, joined
):
    raw = Path(corpus).read_bytes()
    Path("in.jsonl.gz").write_bytes(gzip.compress(raw))
    Path("in.csv").write_text('text\n"the\ncat"\n' + "dog\n" * 9)
    rows = [json.loads(line) for line in raw.splitlines()]
    for name, stdin in {"in.jsonl.gz": b"", "-": raw, "whole": b""}.items():
        for shard in ("2/2", "1/2"):
            assert encode(name, "-o", f"of{name}/", "--shard", shard, stdin=stdin).code == 0
        encoded = sentkit("cat", f"of{name}").rows
        assert [{key: row[key] for key in ("id", "text", "label")} for row in encoded] == rows
    assert encode("in.csv", "-o", "table/").code == 0
    assert [row["text"] for row in sentkit("cat", "table").rows] == ["the\ncat"] + ["dog"] * 9
    assert len(list(Path("table").glob("0*"))) == 4  # of three rows
    for name, source in {"ofin.jsonl.gz": "in.jsonl.gz", "table": "in.csv"}.items():
        assert sentkit("check", name, "--deep").rows[0]["problems"] == []
        assert encode(source, "-o", f"new{name}/", "--reuse", name).told == []


@pytest.mark.parametrize(
    "other",
    [
        b'{"text":"cat"}\n{"text":"the"}\n' * 3,
        # in text, a line of JSON is a bad row
        b'the\n{"text":"cat"}\n{"text":"the"}\n{"text":"cat"}\n',
    ],
)
def test_a_stream_that_differs_from_its_blocks_is_refused(encode, other):
    """The first line of a stream changes the digests of all blocks."""
    flags = "-o", "a/", "--rejects", "/dev/null"

    assert encode("-", *flags, stdin=b'{"text":"the"}\n{"text":"cat"}\n' * 3).code == 0
    result = encode("-", *flags, "--resume", stdin=other)

    assert result.code == 65
    assert "are not those of the block 00000-000000000000.safetensors" in result.err


def test_an_input_with_another_middle_is_refused(encode):
    """Its size and its ends, whose digests are in run.json, are equal."""
    content = b'{"text":"the cat"}\n' * 20_000
    Path("in.jsonl").write_bytes(content)
    flags = "in.jsonl", "-o", "a/", "--block-bytes", "100K", "--resume"
    assert encode(*flags).code == 0
    Path("a/00000-000000000000.safetensors").unlink()
    middle = content.index(b"cat", len(content) // 2)
    Path("in.jsonl").write_bytes(content[:middle] + b"dog" + content[middle + 3 :])
    result = encode(*flags)

    problem = "its bytes 102401 to 204800 are not those of the block 00000-000000102400.safetensors"
    assert (result.code, problem in result.err) == (65, True)


@pytest.mark.parametrize(("before", "now"), [(9, 6), (6, 9)])
def test_a_pipe_that_ends_at_the_edge_of_another_block_is_refused(encode, before, now):
    """All blocks of three rows that both have are equal; they would be a folder of other rows."""
    row = b'{"text":"the"}\n'
    assert encode("-", "-o", "a/", stdin=row * before).code == 0
    blocks = len(list(Path("a").glob("0*")))
    result = encode("-", "-o", "a/", "--resume", stdin=row * now)

    problem = "it has more or fewer rows than when the block 00000-000000000003.safetensors was"
    assert (result.code, problem in result.err) == (65, True)
    assert len(list(Path("a").glob("0*"))) == blocks == before // 3


def test_a_bad_row_names_its_place_in_the_block(encode, corpus):
    lines = Path(corpus).read_bytes().splitlines(keepends=True)
    lines[30] = b'{"text":7}\n'
    Path(corpus).write_bytes(b"".join(lines))
    result = encode(corpus, "-o", "a/")
    start = int(result.err.partition("(from byte ")[2].partition(")")[0])
    number = int(result.err.partition("):")[2].partition(":")[0])

    assert result.code == 65
    assert b"".join(lines)[start - 1 :].splitlines()[number - 1] == b'{"text":7}'


def test_each_process_appends_its_bad_rows_once(encode):
    lines = [json.dumps({"text": 7 if n % 9 == 4 else "the cat"}) for n in range(60)]
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for shard in ("1/3", "2/3", "3/3", "2/3"):
        flags = ("--shard", shard, "--resume", "--rejects", "bad.jsonl")
        assert encode("in.jsonl", "-o", "a/", *flags).code == 0
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]

    assert [reject["row"] for reject in rejects] == ['{"text": 7}'] * 7
    assert len({(reject["file"], reject["line"]) for reject in rejects}) == 7


def test_bad_rows_that_a_killed_process_appended_are_not_appended_again(encode):
    """It was killed after it appended the bad rows of a block, and before the block appeared."""
    lines = [json.dumps({"text": 7 if n % 9 == 4 else "the cat"}) for n in range(60)]
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    flags = ("in.jsonl", "-o", "a/", "--rejects", "bad.jsonl")
    assert encode(*flags).code == 0
    complete = Path("bad.jsonl").read_bytes()
    blocks = sorted(Path("a").glob("0*"))
    blocks[2].unlink()
    blocks[-1].unlink()
    rejects_without_last = complete.splitlines(keepends=True)[:-1]
    Path("bad.jsonl").write_bytes(b"".join(rejects_without_last))
    resumed = encode(*flags, "--resume")

    assert resumed.code == 0
    assert sorted(Path("a").glob("0*")) == blocks
    assert Path("bad.jsonl").read_bytes() == complete


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("cut", [1, 0.3, 0.99, 1.0])
def test_the_bad_rows_of_blocks_that_were_written_in_part_are_completed(encode, count, cut):
    """The last blocks are missing, and the file ends within a line, as after a full disk."""
    lines = [json.dumps({"text": 7 if n % 9 > 4 else "the cat"}) for n in range(63)]
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    flags = ("in.jsonl", "-o", "a/", "--rejects", "bad.jsonl")
    assert encode(*flags).code == 0
    complete = Path("bad.jsonl").read_bytes()
    blocks = sorted(Path("a").glob("0*"))[-count:]
    for block in blocks:
        block.unlink()
    Path("bad.jsonl").write_bytes(b"")
    assert encode(*flags, "--resume").code == 0
    of_blocks = Path("bad.jsonl").read_bytes()
    assert len(of_blocks.splitlines()) > 2 * count
    earlier = complete.removesuffix(of_blocks)

    for block in blocks:
        block.unlink()
    kept = cut if isinstance(cut, int) else round(cut * len(of_blocks)) - 1  # not the newline
    Path("bad.jsonl").write_bytes(earlier + of_blocks[:kept])
    assert encode(*flags, "--resume").code == 0
    assert Path("bad.jsonl").read_bytes() == complete


def test_a_folder_that_stopped_at_a_bad_row_can_continue_without_it(encode):
    """Its blocks are those of a folder that skips bad rows from the start."""
    lines = [json.dumps({"text": 7 if n == 50 else "the cat"}) for n in range(60)]
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    stopped = encode("in.jsonl", "-o", "a/")
    blocks = list(Path("a").glob("0*"))
    resumed = encode("in.jsonl", "-o", "a/", "--resume", "--rejects", "bad.jsonl")
    whole = encode("in.jsonl", "-o", "b/", "--rejects", "/dev/null")

    assert (stopped.code, resumed.code, whole.code) == (65, 0, 0)
    assert len(blocks) > 2
    assert Path("a/run.json").read_bytes() == Path("b/run.json").read_bytes()
    assert len(Path("bad.jsonl").read_text().splitlines()) == 1
    names = sorted(path.name for path in Path("b").glob("0*"))
    assert sorted(path.name for path in Path("a").glob("0*")) == names
    for name in names:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


@pytest.mark.parametrize("can_write", [True, False])
def test_a_dry_run_checks_the_permissions_of_the_bad_rows_as_the_run_does(
    encode, monkeypatch, can_write
):
    """Without the permission to read, they are only appended."""
    open_file = Path.open

    def with_permissions(path, mode="r", **options):
        is_denied = mode == "ab+" or (mode == "ab" and not can_write)
        if path.name == "bad.jsonl" and is_denied:
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, mode, **options)

    Path("in.jsonl").write_text('{"text":"the"}\n{"text":7}\n')
    Path("bad.jsonl").write_text("{}\n")
    monkeypatch.setattr(Path, "open", with_permissions)
    flags = ("in.jsonl", "-o", "a/", "--rejects", "bad.jsonl")
    planned = encode(*flags, "-n")
    content = Path("bad.jsonl").read_bytes()
    done = encode(*flags)

    assert content == b"{}\n"
    assert planned.code == done.code == (0 if can_write else 73)
    if can_write:
        assert len(Path("bad.jsonl").read_bytes().splitlines()) == 2
    else:
        assert (
            planned.told
            == done.told
            == ["sentkit encode: bad.jsonl: cannot be written: permission denied"]
        )


def test_if_bad_rows_cannot_be_written_their_block_is_written_again(encode):
    Path("in.jsonl").write_text('{"text":"the"}\n{"text":7}\n')
    failed = encode("in.jsonl", "-o", "a/", "--rejects", "/dev/full")
    blocks = list(Path("a").glob("0*"))
    result = encode("in.jsonl", "-o", "a/", "--rejects", "bad.jsonl", "--resume")

    assert (failed.code, blocks, result.code) == (74, [], 0)
    assert json.loads(Path("bad.jsonl").read_bytes())["row"] == '{"text":7}'


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "-"])
@pytest.mark.parametrize("size", [24, 25, 10**6])
def test_the_first_row_of_the_inputs_determines_the_kind_of_all_blocks(
    sentkit, encode, joined, name, size
):
    """The folder skips the same rows as a vector file, for all blocks and any order of shards."""
    sentence = '{"text":"the"}\n'
    pair = '{"text_a":"the","text_b":"cat"}\n'
    raw = f'{{"text":7}}\n{sentence}{pair * 3}{sentence * 2}{pair}'.encode()
    Path("empty.jsonl").touch()
    Path("in.jsonl").write_bytes(raw)
    Path("in.jsonl.gz").write_bytes(gzip.compress(raw))
    inputs = "empty.jsonl", name, "--rejects", "/dev/null"
    stdin = raw if name == "-" else b""
    sentkit("encode", "-m", "words.txt", "-q", *inputs, "-o", "one.safetensors", stdin=stdin)
    for shard in ("3/3", "2/3", "1/3"):
        result = encode(*inputs, "-o", "a/", "--shard", shard, "--block-bytes", size, stdin=stdin)
        assert (result.code, result.err) == (0, "")

    assert len(sentkit("cat", "one.safetensors").rows) == 3
    assert joined("a") == joined("one.safetensors")


@pytest.mark.parametrize("names", [["in.jsonl"], ["-"], ["empty.jsonl", "in.jsonl"]])
def test_a_block_without_rows_does_not_depend_on_time(sentkit, encode, monkeypatch, names):
    """The thread that reads the next block can find the kind of the rows before the block is
    written.
    """
    raw = b'{"text":7}\n' + b'{"text_a":"the","text_b":"cat"}\n' * 20
    write = folder_writer.BlockWriter.write
    stdin = raw if names == ["-"] else b""
    Path("empty.jsonl").touch()
    Path("in.jsonl").write_bytes(raw)
    size = 11 if names == ["in.jsonl"] else 100  # a stream has blocks of one row
    flags = *names, "--rejects", "/dev/null", "--block-bytes", size

    def write_late(writer, *rest):
        time.sleep(0.05)
        return write(writer, *rest)

    encode(*flags, "-o", "early/", "--shard", "9/9", stdin=stdin)
    monkeypatch.setattr(folder_writer.BlockWriter, "write", write_late)
    result = encode(*flags, "-o", "late/", "--shard", "9/9", stdin=stdin)
    assert result.code == 0, result.err
    first = "00000-000000000000.safetensors"
    names_there = VectorFile(f"late/{first}").names

    assert Path("early", first).read_bytes() == Path("late", first).read_bytes()
    assert VectorFile(f"late/{first}").count == 0
    if names == ["in.jsonl"]:  # a file of known length is read up to its first good row
        assert names_there == ("embedding_a", "embedding_b")
    else:
        assert names_there == ("embedding",)


def test_a_folder_without_rows_is_an_error(encode):
    for name, content in {"a.jsonl": "", "b.jsonl": "\n", "-": ""}.items():
        Path(name).write_text(content)
        result = encode(name, "-o", f"of{name}/")
        assert result.code == 65
        assert result.told[-1].startswith("sentkit encode: no rows in ")


@pytest.mark.parametrize("flags", [[], ["--resume"], ["--shard", "1/1"]])
@pytest.mark.parametrize("content", ["", "{}\n" * 200])
def test_a_folder_without_rows_does_not_refuse_the_corrected_input(encode, sentkit, content, flags):
    """Also after several blocks of bad rows. The error leaves no folder."""
    Path("in.jsonl").write_text(content)
    refused = encode("in.jsonl", "-o", "a/", "--rejects", "/dev/null", *flags)
    assert not Path("a").exists()
    Path("in.jsonl").write_text('{"text":"the cat"}\n')
    corrected = encode("in.jsonl", "-o", "a/", *flags)

    assert refused.code == 65
    assert (corrected.code, corrected.err) == (0, "")
    assert len(sentkit("cat", "a").rows) == 1


def test_shards_without_rows_leave_a_folder_that_existed(encode):
    """The last process removes the settings. A pipe can have rows for another process."""
    Path("in.jsonl").write_text("{}\n" * 20)
    Path("a").mkdir()
    for shard in ("1/2", "2/2"):
        flags = ("--rejects", "/dev/null", "--shard", shard)
        assert encode("in.jsonl", "-o", "a/", *flags).code == 65
        assert encode("-", "-o", "b/", *flags).code == 65

    assert list(Path("a").iterdir()) == []
    assert Path("b", "run.json").exists()


def test_a_shard_without_rows_can_end_after_another_one_removed_the_folder(encode, monkeypatch):
    Path("in.jsonl").write_text("{}\n" * 20)
    undo = folder_writer.BlockWriter.undo

    def undo_twice(writer):
        undo(writer)
        writer.new_names.clear()
        undo(writer)

    monkeypatch.setattr(folder_writer.BlockWriter, "undo", undo_twice)
    refused = encode("in.jsonl", "-o", "a/", "--rejects", "/dev/null", "--shard", "1/2")

    assert (refused.code, Path("a").exists()) == (65, False)
    assert "no rows in in.jsonl" in refused.err


def test_the_error_of_a_folder_without_rows_keeps_the_blocks_of_other_processes(
    encode, monkeypatch
):
    """Another process resumes the folder before this one ends with an error."""
    Path("in.jsonl").write_text("{}\n" * 200)
    other_name = "00000-000000099999.safetensors"
    write = folder_writer.BlockWriter.write

    def write_with_other(writer, new, path, *rest):
        Path("a", other_name).touch()
        return write(writer, new, path, *rest)

    monkeypatch.setattr(folder_writer.BlockWriter, "write", write_with_other)
    refused = encode("in.jsonl", "-o", "a/", "--rejects", "/dev/null")
    names = sorted(path.name for path in Path("a").iterdir())

    assert (refused.code, names) == (65, [other_name, "run.json"])


def test_a_full_disk_leaves_complete_blocks(shell, corpus, words, encode, folder, joined):
    text = "the cat " * 4000
    Path("in.jsonl").write_text(Path(corpus).read_text() + json.dumps({"text": text}) + "\n")
    command = "sentkit encode in.jsonl -m words.txt -q --block-bytes 200 -o a/"
    result = shell(f"ulimit -f 16; PYTHONDONTWRITEBYTECODE=1 {command}")
    complete = sorted(path.name for path in Path("a").iterdir())

    assert result.code == 74
    assert len(complete) > 5
    assert not [name for name in complete if name.startswith(".")]
    assert shell(f"{command} --resume").code == 0
    assert encode("in.jsonl", "-o", "b/").code == 0
    assert joined("a") == joined("b")


def test_the_next_block_is_tokenized_before_the_vectors_of_a_block_are_known(
    sentkit, words, monkeypatch
):
    """So a GPU does not wait between two blocks."""
    calls = itertools.count()
    second_block = threading.Event()
    tokenize = WordLookup.__call__
    encode = folder_writer.encode_group

    def counted(self, texts):
        if next(calls) == 1:
            second_block.set()
        return tokenize(self, texts)

    def waiting(group, *rest):
        assert second_block.wait(60)
        return encode(group, *rest)

    monkeypatch.setattr(WordLookup, "__call__", counted)
    monkeypatch.setattr(folder_writer, "encode_group", waiting)
    Path("two.txt").write_text("the cat\nthe dog\n")

    result = sentkit("encode", "two.txt", "-m", words, "-q", "-o", "two/", "--block-bytes", 8)

    assert result.err == ""
    assert [row["text"] for row in sentkit("cat", "two/").rows] == ["the cat", "the dog"]


FAILPOINTS = [
    (os, "fsync"),
    (os, "link"),
    (Path, "replace"),
    (VectorFileWriter, "write"),
    (VectorFileWriter, "finish"),
]


def dying(function, call, moment):
    """The function, of which one call kills the process: before it runs (moment 1), or
    after (2).
    """
    calls = itertools.count(1)

    def wrapped(*args, **kwargs):
        last = next(calls) == call
        if last and moment == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def test_random_kills_at_failpoints_do_not_change_the_joined_bytes(corpus, folder, joined):
    """Thirty children die before or after a random system call, with a number of shards that
    changes.
    """
    draw = random.Random(0)
    exit_codes = []
    flags = ["-m", "words.txt", "-q", "--block-bytes", "200"]
    command = ["encode", corpus, *flags, "-o", "killed/", "--resume"]
    for number in range(31):
        owner, name = draw.choice(FAILPOINTS)
        call = draw.randint(1, 5)
        moment = draw.randint(1, 2)
        shard = draw.randint(1, 9)
        shards = draw.randint(1, 9)
        child = os.fork()
        if child == 0:
            if number < 30:
                setattr(owner, name, dying(getattr(owner, name), call, moment))
                command += ["--shard", f"{min(shard, shards)}/{shards}"]
            os._exit(cli.run_command_line(command))
        status = os.waitpid(child, 0)[1]
        exit_codes.append(os.waitstatus_to_exitcode(status))
        written = sorted(Path("killed").glob("0*"))
        if len(written) > 5 and number < 30:  # so that the next children have work
            for path in written[::2]:
                path.unlink()

    assert exit_codes[-1] == 0
    assert exit_codes.count(-9) > 10
    assert joined("killed") == joined("whole")


def test_the_blocks_of_a_parquet_file_are_known_before_they_exist(encode, sentkit, joined, corpus):
    """400 bytes are 6 rows: a shard reads only its blocks, and `check` counts the missing ones."""
    pytest.importorskip("pyarrow")
    sentkit("cat", corpus, "-o", "corpus.parquet")
    big = ("corpus.parquet", "--block-bytes", "400")
    first = encode(*big, "-o", "parts/", "--shard", "1/3")
    [state] = sentkit("check", "parts", "--shards", "3").rows
    [recorded] = json.loads(Path("parts/run.json").read_text())["inputs"]
    rest = encode(*big, "-o", "parts/", "--resume")
    encode(*big, "-o", "whole/")

    assert (first.code, first.err, rest.code, rest.err) == (0, "", 0, "")
    assert (state["blocks"], state["missing"], state["rows"], state["missing_shards"]) == (
        2,
        5,
        12,
        "2-3",
    )
    assert (recorded["grid"], recorded["rows"], recorded["format"]) == ("rows", 40, "parquet")
    assert sentkit("check", "parts", "--deep").code == 0
    assert joined("parts") == joined("whole")
    encode(corpus, "-o", "lines/")
    assert sentkit("cat", "parts").rows == sentkit("cat", "lines").rows
    sentkit("cat", corpus, "--head", "39", "-o", "corpus.parquet", "-f")  # another file
    resumed = encode(*big, "-o", "parts/", "--resume")
    deep = sentkit("check", "parts", "--deep")
    assert (resumed.code, deep.code) == (65, 1)
    assert "corpus.parquet has changed since the first block (its rows)" in resumed.err
    assert "corpus.parquet: has changed: its size differs from run.json" in deep.err


def test_a_bad_row_of_a_parquet_file_has_its_number(encode, sentkit):
    pytest.importorskip("pyarrow")
    rows = '{"text":"the cat"}\n' * 9 + '{"text":null}\n'
    sentkit("cat", "-o", "rows.parquet", stdin=rows)

    assert encode("rows.parquet", "-o", "parts/").told == [
        'sentkit encode: rows.parquet:10: "text" is null, expected a string'
    ]
    assert encode("rows.parquet", "-o", "skipped/", "--rejects", "/dev/null").code == 0
    assert len(sentkit("cat", "skipped").rows) == 9


def test_a_folder_can_have_more_than_a_hundred_thousand_inputs(tmp_path, folder):
    run = json.loads((folder / "run.json").read_bytes())
    [one_input] = run["inputs"]
    run["block_bytes"] = 20
    run["inputs"] = [one_input | {"size": 20}] * 100_000 + [one_input | {"size": 30}]
    (tmp_path / "run.json").write_text(json.dumps(run))
    last = ["100000-000000000000.safetensors", "100000-000000000020.safetensors"]
    for name in last:
        (tmp_path / name).touch()
    large_folder = open_folder(str(tmp_path))
    status = large_folder.status()

    assert [*status.complete_blocks] == last
    assert len(status.missing_blocks) == 100_000
    indices = [large_folder.block(100_000, start).index for start in (0, 20)]
    assert indices == [100_000, 100_001]


def test_the_number_of_blocks_of_a_compressed_file_is_unknown_until_the_last_one(
    encode, sentkit, corpus, monkeypatch
):
    raw = Path(corpus).read_bytes()
    Path("in.jsonl.gz").write_bytes(gzip.compress(raw))
    encode("in.jsonl.gz", "-o", "a/", "--shard", "2/2")
    result = sentkit("check", "a", "--shards", "2")
    [state] = result.rows

    assert (result.code, state["missing"], state["missing_shards"]) == (1, None, "1-2")
    assert result.told == [
        f"sentkit check: a: {state['blocks']} blocks are complete, others are missing",
        "  their number is unknown until the last one exists",
    ]
    assert in_words(state["missing"], "unknown") == "unknown"
    assert "missing blocks: an unknown number" in sentkit("cat", "a").err
    encode("in.jsonl.gz", "-o", "a/", "--resume")

    assert sentkit("check", "a").code == 0


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"line 1\nlast line", b"line 1\nlast line\n"),
        (b'{"file":"a","line":1}\n{"file":"a","li', b'{"file":"a","line":1}\n'),
        (b'{"fi', b""),
        (b'{"file":"a","line":1}', b'{"file":"a","line":1}\n'),
    ],
)
def test_only_a_part_of_a_record_is_removed_from_a_file_of_bad_rows(
    encode, corpus, tmp_path, content, kept
):
    (tmp_path / "bad.jsonl").write_bytes(content)
    encode(corpus, "-o", "out/")
    assert encode(corpus, "-o", "out/", "--resume", "--rejects", "bad.jsonl").code == 0

    assert (tmp_path / "bad.jsonl").read_bytes() == kept


def test_bad_rows_of_a_folder_can_be_printed(encode, corpus, tmp_path):
    with (tmp_path / corpus).open("a") as file:
        file.write('{"text":3}\n')
    done = encode(corpus, "-o", "out/", "--rejects", "-")

    assert (done.code, [row["row"] for row in done.rows]) == (0, ['{"text":3}'])
    assert not (tmp_path / "-").exists()


def test_several_readouts_replace_the_files_of_a_folder(sentkit, tiny, tmp_path):
    """DIR/ is a folder of files, not a vector folder."""
    (tmp_path / "x.sweep").mkdir()
    for folder in ("sw/", "x.sweep", "new.sweep/"):
        sweep = ("encode", "-m", tiny, "--readout", "cls,pooler:mean", "-q", "-o", folder)
        first = sentkit(*sweep, stdin="a cat")
        again = sentkit(*sweep, stdin="a cat")
        forced = sentkit(*sweep, "-f", stdin="a cat")

        assert [first.code, again.code, forced.code] == [0, 73, 0]
        names = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert names == ["cls.safetensors", "pooler-mean.safetensors"]
    one = sentkit("encode", "-m", tiny, "--readout", "cls", "-o", "one/", "-f", stdin="a cat")
    assert (one.code, "--force does not work with a vector folder" in one.err) == (2, True)


def test_a_checkpoint_is_no_folder_for_vectors(sentkit, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "checkpoint")
    before = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    result = sentkit("encode", "-m", "static", "-o", f"{tmp_path}/checkpoint/", stdin=b"a cat\n")

    assert result.code == 73
    assert "is a folder with a config.json, as of a checkpoint" in result.err
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == before


def test_a_folder_of_vectors_with_another_file_continues(sentkit, tmp_path):
    """Such as a file that a user has put there."""
    command = ("encode", "-m", "static", "-o", f"{tmp_path}/vectors/", "--resume")
    assert sentkit(*command, stdin=b"a cat\n").code == 0
    (tmp_path / "vectors/config.json").write_text("{}")

    assert sentkit(*command, stdin=b"a cat\n").code == 0
