"""Outputs are whole or not there, and no other file in their folder changes."""

import gzip
import os
import resource
import stat
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from sentkit.errors import AnswerIsNo, CannotCreateError, UnavailableError, UsageError
from sentkit.formats.outputs.outputs import (
    check_creatable,
    check_places,
    escaped,
    open_appended,
    open_output,
    published_together,
)
from sentkit.formats.outputs.temporary import HOST, UnpublishedFile
from support import write_output as write


def contents(folder):
    """Each name with its bytes, or where it links to."""
    paths = [*folder.iterdir()]
    return {
        path.name: str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in paths
    }


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_the_suffix_decides_the_compression(tmp_path, monkeypatch, suffix):
    """Equal rows give equal bytes at any time."""
    write(tmp_path / f"a.{suffix}", b"hello")
    monkeypatch.setattr("time.time", lambda: 1e9)
    write(tmp_path / f"b.{suffix}", b"hello")

    compressed = (tmp_path / f"a.{suffix}").read_bytes()
    unzst = zstandard.ZstdDecompressor().decompressobj()
    assert (gzip.decompress if suffix == "gz" else unzst.decompress)(compressed) == b"hello"
    assert (tmp_path / f"b.{suffix}").read_bytes() == compressed


def test_a_closed_standard_output_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(CannotCreateError, match="standard output is closed"):
        write("-", b"")


@pytest.mark.parametrize("force", [False, True])
def test_a_device_is_written_and_never_replaced(tmp_path, force):
    (tmp_path / "link").symlink_to("/dev/null")

    write("/dev/null", b"x", force=force)
    write(tmp_path / "link", b"x", force=force)

    assert Path("/dev/null").is_char_device()
    assert not list(Path("/dev").glob(".null*"))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_named_pipe_is_written_and_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    contents = []
    thread = threading.Thread(target=lambda: contents.append((tmp_path / "pipe").read_bytes()))
    thread.start()

    write(tmp_path / "pipe", b"through")
    thread.join()

    assert contents == [b"through"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("path", ["nowhere/a", "file/a", "folder", "loop", "x" * 300, "a\0b"])
def test_an_output_that_cannot_be_created_is_an_error(tmp_path, monkeypatch, path, force):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(CannotCreateError, match=rf"^{path}: "):
        write(path, b"x", force=force)

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)

    with pytest.raises(CannotCreateError, match="Permission denied"):
        write(tmp_path / "a", b"")


@pytest.mark.parametrize(("name", "library"), [("a.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_without_the_library_of_a_format_nothing_is_written(tmp_path, monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnavailableError, match=f"need.* the package {library}"):
        write(tmp_path / name, b'{"x":1}\n')

    assert list(tmp_path.iterdir()) == []


def test_files_with_similar_names_stay(tmp_path):
    """No name beside the output is written, no link there is followed; whether checked or
    written.
    """
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "a.part").symlink_to("precious")
    (tmp_path / ".a.sentkit-0123456789abcdef").symlink_to("precious")
    (tmp_path / ".a.sentkit-").write_bytes(b"mine")
    before = contents(tmp_path)

    check_creatable(str(tmp_path / "a"), force=False)
    assert contents(tmp_path) == before
    write(tmp_path / "a", b"new")

    assert contents(tmp_path) == {**before, "a": b"new"}


def test_an_existing_temporary_name_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / f".a.sentkit-{HOST}-{os.getpid()}-{bytes(4).hex()}").symlink_to(
        tmp_path / "precious"
    )
    monkeypatch.setattr(os, "urandom", bytes)
    with pytest.raises(CannotCreateError, match="a: cannot be written: file exists"):
        UnpublishedFile(tmp_path / "a", force=False)

    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("force", [False, True])
def test_the_longest_name_can_be_written(tmp_path, force):
    """255 bytes, which are 85 letters of three bytes."""
    write(tmp_path / ("あ" * 85), b"new", force=force)

    assert contents(tmp_path) == {"あ" * 85: b"new"}


# Symbolic links


def test_a_link_is_written_through(tmp_path):
    """Through a chain of links; a target that exists needs -f."""
    (tmp_path / "there").mkdir()
    (tmp_path / "second").symlink_to("there/target")
    (tmp_path / "first").symlink_to("second")

    write(tmp_path / "first", b"old")
    with pytest.raises(CannotCreateError, match="first: already exists"):
        write(tmp_path / "first", b"new")
    assert contents(tmp_path / "there") == {"target": b"old"}
    write(tmp_path / "first", b"new", force=True)

    assert contents(tmp_path / "there") == {"target": b"new"}
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_descriptor_is_written_at_its_position(tmp_path, path):
    """Standard output is a file here; its earlier content stays."""
    program = f"with open_output({path!r}, force=False) as out: out.write(b'new')"
    program = f"from sentkit.formats.outputs.outputs import open_output\n{program}"
    with (tmp_path / "out").open("wb") as out:
        out.write(b"old ")
        out.flush()
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)

    assert contents(tmp_path) == {"out": b"old new"}


def test_a_replaced_file_keeps_its_mode_and_its_readers(tmp_path):
    """The new file is renamed to the name; the old one is never written to."""
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    with (tmp_path / "a").open("rb") as reader:
        write(tmp_path / "a", b"new", force=True)

        assert reader.read() == b"old"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            b'{"text":"\xc2\x9b","embedding":[0.123456,-2]}',
            b'{"text":"\\u009b","embedding":[0.123456,-2]}',
        ),
        (b'{"embedding":[1,2,3,4,5,6,7,8,9,10]}', b'{"embedding":[1,2,3,4,5,6,7,8,9,10]}'),
        (b"[1,2]", b"[1,2]"),
    ],
)
def test_a_terminal_gets_rows_without_control_characters(line, expected):
    assert escaped(line) == expected


# Outputs of one command


def test_outputs_appear_together_in_the_order_in_which_they_are_opened(tmp_path, monkeypatch):
    published = []
    publish = UnpublishedFile.publish
    monkeypatch.setattr(
        UnpublishedFile, "publish", lambda self: (published.append(self.target.name), publish(self))
    )

    with published_together(), open_output(str(tmp_path / "rejects"), force=False):
        write(tmp_path / "main.gz", b"rows")
        assert not (tmp_path / "main.gz").exists()

    assert published == ["rejects", "main.gz"]
    assert gzip.decompress((tmp_path / "main.gz").read_bytes()) == b"rows"
    assert (tmp_path / "rejects").exists()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("inside", [True, False], ids=["in an output", "after the outputs"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError, SystemExit])
def test_if_the_work_fails_no_output_appears(tmp_path, failure, inside, suffix):
    (tmp_path / f"b{suffix}").write_bytes(b"old")

    def work():
        with published_together():
            write(tmp_path / f"a{suffix}", b"one")
            write(tmp_path / f"b{suffix}", b"two", force=True, fails=failure if inside else None)
            raise failure

    with pytest.raises(failure):
        work()

    assert contents(tmp_path) == {f"b{suffix}": b"old"}


@pytest.mark.parametrize("answer", [AnswerIsNo("too low"), BrokenPipeError()])
def test_outputs_that_are_finished_stay_when_the_work_was_done(tmp_path, answer):
    def work():
        with published_together():
            write(tmp_path / "a", b"one")
            with open_output(str(tmp_path / "b"), force=False):
                raise answer

    with pytest.raises(type(answer)):
        work()

    assert contents(tmp_path) == {"a": b"one"}


def test_if_a_rename_fails_only_side_files_appear(tmp_path):
    """Another process makes the second output meanwhile."""

    def work():
        with published_together():
            write(tmp_path / "a", b"one")
            write(tmp_path / "b", b"two")
            (tmp_path / "b").write_bytes(b"of another process")

    with pytest.raises(CannotCreateError, match="b: already exists"):
        work()

    assert contents(tmp_path) == {"a": b"one", "b": b"of another process"}


# Compared with inputs and with each other, under different names


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "runs/seed-1", "other"):
        Path(name).mkdir(parents=True)
    for name in ("in", "model/weights", "runs/seed-1/weights", "runs/rows", "other/in"):
        Path(name).write_text("content")
    Path("link").symlink_to("in")
    Path("links").symlink_to("model")
    Path("nowhere").symlink_to("new")
    os.link("in", "hard")
    os.mkfifo("pipe")


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("output", "source"),
    [
        *(("in", "in"), ("./in", "in"), ("link", "in"), ("hard", "in")),
        *(("model", "model"), ("links", "model"), ("model/weights", "model")),
        *(("runs", "runs/rows"), ("runs", "runs/seed-1/weights")),
    ],
)
def test_an_output_that_would_overwrite_an_input_is_refused(output, source):
    problem = rf"^--rejects {output}: would overwrite the input {source}$"
    with pytest.raises(UsageError, match=problem) as caught:
        check_places(
            {"-o": "new", "--rejects": ["fresh", output]}, {"FILE": [], "-m": None, "--dev": source}
        )

    assert caught.value.advice == "choose another output"


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("output", "source"),
    [
        *(("new", "in"), ("nowhere", "in"), ("model/new", "model"), ("runs/seed-2", "runs/rows")),
        *(("other/in", "in"), ("pipe", "pipe"), ("/dev/null", "/dev/null"), ("-", "-")),
        *(("a\0b", "in"), ("x" * 300, "x" * 300)),
    ],
)
def test_other_outputs_are_not_refused(output, source):
    """An input that does not exist is reported by what reads it."""
    check_places({"-o": output, "--rejects": None}, {"FILE": [source]})
    for first, second in pairwise(["new", "newer", "-", "/dev/stderr", "runs/a", "runs/b"]):
        check_places({"-o": first, "--log": second}, {})
    check_places({"-o": "/dev/null", "--log": "/dev/null"}, {})


SAME = "is also the path of -o"
INSIDE = "contains, or is inside, the path of -o"


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("new", "new", SAME),
        ("new", "./new", SAME),
        ("nowhere", "new", SAME),
        ("in", "hard", SAME),
        ("link", "in", SAME),
        ("-", "-", SAME),
        ("-", "/dev/stdout", SAME),
        ("/dev/fd/1", "/dev/stdout", SAME),
        ("runs", "runs/log", INSIDE),
        ("runs/rows", "runs", INSIDE),
    ],
)
def test_two_outputs_with_one_path_are_refused(first, second, problem):
    """Also if one is inside the other."""
    with pytest.raises(UsageError, match=rf"^--log {second}: {problem}$"):
        check_places({"-o": first, "--log": second}, {})


CHECK = """
import sys
from sentkit.errors import UsageError
from sentkit.formats.outputs.outputs import check_places
try:
    check_places({sys.argv[1]: sys.argv[2]}, {"FILE": sys.argv[3]})
except UsageError as error:
    sys.stderr.write(str(error))
"""


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("--rejects in - < in", "--rejects in: would overwrite the input standard input"),
        ("--rejects hard /dev/stdin < in", "--rejects hard: would overwrite the input /dev/stdin"),
        ("-o link /dev/fd/0 < in", "-o link: would overwrite the input /dev/fd/0"),
        ("-o - in >> in", "standard output: would overwrite the input in"),
        ("-o /dev/stdout link >> in", "-o /dev/stdout: would overwrite the input link"),
        ("-o - - < in >> in", "standard output: would overwrite the input standard input"),
        ("-o new - < in > out", ""),
        ("-o - - < /dev/null > /dev/null", ""),
        ("-o - - < <(cat in) > >(cat)", ""),
        ("-o in - <&-", ""),
        ("-o - in >&-", ""),
    ],
)
def test_redirected_standard_streams_are_compared_as_files(command, problem):
    shell = ["bash", "-c", f'"$0" -c "$1" {command}', sys.executable, CHECK]
    completed = subprocess.run(shell, capture_output=True, text=True, check=False)

    assert completed.stderr == problem
    assert Path("in").read_text() == "content"


def test_an_error_while_a_file_grows_is_told(tmp_path):
    """As on a disk that becomes full: the system writes only the start, which is no error yet."""
    path = str(tmp_path / "appended")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError, match="File too large"), open_appended(path) as file:  # noqa: PT012
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            file.write(b"x" * 20)
            file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
