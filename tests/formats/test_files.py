"""Inputs: standard input and compression by suffix."""

import gzip
import io
import os
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import zstandard

from sentkit.errors import DataError, NoInputError, NoRowsError, UnavailableError
from sentkit.formats.files import bare_suffix, expanded, open_input
from sentkit.formats.rows.rows import Inputs, ReadCounter
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vectors import VectorReader


def read(path):
    with open_input(path) as file:
        return file.read()


@pytest.mark.parametrize(
    ("paths", "suffix"),
    [
        (["a.jsonl", "a.JSONL.GZ"], ".jsonl"),
        (["a.b/c.csv.zst"], ".csv"),
        (["a.gz.gz"], ".gz"),
        (["a.gz", "a", "-", ".gz", ""], ""),
    ],
)
def test_the_suffix_before_the_compression_is_the_format(paths, suffix):
    assert {path: bare_suffix(path) for path in paths} == dict.fromkeys(paths, suffix)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("folder", "folder: is a folder, expected a file"),
        ("folder.gz", "folder.gz: is a folder, expected a file"),
        ("file/inside", "file/inside: cannot be read: Not a directory"),
        ("a\0b", "a\0b: cannot be read: embedded null byte"),
        ("x" * 5000, "cannot be read: File name too long"),
    ],
)
def test_an_unreadable_input_is_reported(tmp_path, monkeypatch, path, problem):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder.gz").mkdir()
    Path("file").touch()

    with pytest.raises(NoInputError) as caught:
        read(path)

    assert problem in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_input_without_permission_is_reported(tmp_path):
    (tmp_path / "a").touch(mode=0)

    with pytest.raises(NoInputError, match="Permission denied"):
        read(str(tmp_path / "a"))


def test_a_folder_without_permission_is_reported(tmp_path, monkeypatch):
    """Otherwise its texts would be missing, and nothing would say so."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    Path("notes/private").mkdir(parents=True)
    Path("notes/a.txt").write_text("a\n")
    Path("notes/private").chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(NoInputError, match="notes/private: cannot be read: Permission denied"):
            list(expanded(["notes"], text_folders=True))
        with pytest.raises(NoInputError, match="no file matches this pattern"):
            list(expanded(["notes/p*"]))
    finally:
        os.seteuid(user)
        Path("notes/private").chmod(0o755)
    assert list(expanded(["notes"], text_folders=True)) == ["notes/a.txt"]


def test_a_minus_is_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert read("-") == b"a\xff"

    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(NoInputError, match="standard input is closed"):
        read("-")


def test_a_named_pipe_is_read_as_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"one\ntwo\n",))
    thread.start()

    assert read(str(tmp_path / "pipe")) == b"one\ntwo\n"
    thread.join()


def test_zst_without_its_library_names_the_package(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(UnavailableError, match=r"\.zst needs the package zstandard"):
        read(str(tmp_path / "a.zst"))


def test_a_large_window_of_zst_is_named(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    path = tmp_path / "a.zst"
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(compressor.compress(b"x" * 100) + compressor.flush())

    with pytest.raises(DataError, match="the window of this zst file is too large") as caught:
        read(str(path))
    assert caught.value.advice == f"zstd -dc --long=31 {path} | sentkit ..."


# The share of the input files that has been read


def inputs(*paths):
    return open_inputs(paths, counter=ReadCounter(paths))


def take(rows, count):
    return len(list(islice(rows, count)))


def test_the_share_counts_bytes(tmp_path, monkeypatch):
    """Two files of 100 lines of equal length: after one of them and a half, three quarters."""
    monkeypatch.setattr("sentkit.formats.rows.lines.READ", 100)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes((b"y" * 99 + b"\n") * 100)
    files = inputs(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    rows = files.read(lambda row: row)

    assert files.counter.share(0) == 0
    assert take(rows, 150) == 150
    assert files.counter.share(150) == pytest.approx(0.75)
    assert files.counter.share(75) == pytest.approx(0.375)  # half of the rows read are not done
    assert take(rows, 1000) == 50
    assert files.counter.share(200) == 1


def test_the_share_counts_compressed_bytes(tmp_path):
    """Random letters compress evenly, so the share is that of the rows, except for bytes read in
    advance.
    """
    random = np.random.default_rng(0)
    lines = ["".join(map(chr, random.integers(97, 123, 1000))) for _ in range(1000)]
    path = tmp_path / "a.txt.gz"
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content))
    files = inputs(str(path))
    rows = files.read(lambda row: row)
    take(rows, 500)

    assert files.counter.share(500) == pytest.approx(0.5, abs=0.15)
    take(rows, 500)
    assert files.counter.share(1000) <= 1


def test_the_share_counts_rows_of_a_vector_file(tmp_path, monkeypatch):
    """As many as the blocks before have."""
    monkeypatch.setattr("sentkit.formats.vectors.vector_file.BLOCK", 1)
    path = str(tmp_path / "v.safetensors")
    with create_vector_file(path, {}, ("embedding",), width=2, force=False) as writer:
        for _ in range(20):
            writer.write([b"{}"], np.ones((1, 1, 2), np.float32))
    files = inputs(path)
    rows = (row for block in VectorReader(files).blocks() for row in block.rows)
    take(rows, 5)

    assert files.counter.share(4) == pytest.approx(4 / 5 * 4 / 20, abs=0.01)


def test_a_pipe_has_no_share(tmp_path, monkeypatch):
    """`inspect -` reads a pipe of rows without a meter."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("a\n")
    reading, writing = os.pipe()
    os.write(writing, b"a cat\n")
    os.close(writing)
    stdin = io.BufferedReader(io.FileIO(reading))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))

    assert inputs(str(tmp_path / "a.txt"), str(tmp_path / "pipe")).counter.share(1) is None
    assert ReadCounter([str(tmp_path / "absent")]).share(1) is None
    assert take(Inputs(["-"]).read(lambda row: row), 5) == 1


def test_a_file_on_standard_input_has_a_share(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a\nb\n")
    with (tmp_path / "a.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        files = inputs("-")
        assert take(files.read(lambda row: row), 9) == 2

    assert files.counter.share(1) == 0.5


@pytest.mark.parametrize(
    ("paths", "contents", "problem"),
    [
        (["-"], [], "no rows in standard input"),
        (["a.txt"], [""], "no rows in a.txt"),
        (["a.jsonl"], [""], "no rows in a.jsonl"),
        (["a.jsonl"], ["\n\n"], "no rows in a.jsonl"),
        (["a.csv"], [""], "no rows in a.csv"),
        (["a"], [""], "no rows in a"),
        (["a.tsv", "b.txt"], ["text\n", ""], "no rows in a.tsv and 1 more files"),
        (["a.txt", "b.txt"], ["", "a\n"], None),
        (["a.txt", "b.txt"], ["a\n", ""], None),
    ],
)
def test_inputs_without_rows_are_an_error(tmp_path, monkeypatch, paths, contents, problem):
    """One file without rows is no error if another has one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    for path, content in zip(paths, contents, strict=False):
        Path(path).write_text(content)
    if problem is None:
        assert len(list(inputs(*paths).read(lambda row: row))) == 1
    else:
        with pytest.raises(NoRowsError, match=f"^{problem}$"):
            list(inputs(*paths).read(lambda row: row))


@pytest.mark.parametrize("error", [ValueError("closed file"), OSError(9, "bad file descriptor")])
def test_a_file_that_is_closed_at_this_moment_has_no_share(tmp_path, error):
    """Another thread than that of the progress reads and closes the file."""

    class Closed:
        def tell(self):
            raise error

    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    counter = ReadCounter([str(path)])
    with path.open("rb") as file, counter.file(file):
        file.readline()
        counter.add_rows(1)
        assert counter.share(1) == 0.5
    with pytest.raises(type(error)), counter.file(Closed()):
        assert counter.share(1) is None
