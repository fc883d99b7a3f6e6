"""Inputs: standard input and compression by suffix."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest
import zstandard

from sentkit.errors import NoInputError, UnavailableError
from sentkit.formats import files
from sentkit.formats.files import bare_suffix, open_input


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


def test_a_hostile_zst_file_is_decompressed_in_pieces(tmp_path, monkeypatch):
    """A quarter of a gigabyte of zeros takes 8 KB compressed; memory stays far below."""
    packer = zstandard.ZstdCompressor().compressobj()
    zeros = bytes(1 << 20)
    (tmp_path / "a.zst").write_bytes(b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush())
    held = []
    take = files.ZstdFrames.readinto

    def measured(self, room):
        found = take(self, room)
        held.append(len(self.plain))
        return found

    monkeypatch.setattr(files.ZstdFrames, "readinto", measured)
    with open_input(str(tmp_path / "a.zst")) as file:
        size = sum(len(piece) for piece in iter(lambda: file.read(1 << 20), b""))

    assert size == 256 << 20
    assert max(held) <= 64 << 20
