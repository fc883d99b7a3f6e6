"""Files opened: what "-" means, what a suffix means, and outputs that are whole or not there."""

import gzip
import io
import os
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from sentkit.errors import CannotCreateError, NoInputError, UnavailableError, UsageError
from sentkit.formats import files
from sentkit.formats.files import bare_suffix, open_input, open_output, refuse_existing


def read(path: str) -> bytes:
    with open_input(path) as file:
        return file.read()


def write(
    path: Path | str, content: bytes, *, force: bool = False, fails: type[BaseException] | None = None
) -> None:
    with open_output(str(path), force=force) as file:
        file.write(content)
        if fails is not None:
            raise fails


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("a.jsonl", ".jsonl"),
        ("a.JSONL.GZ", ".jsonl"),
        ("a.b/c.csv.zst", ".csv"),
        ("a.gz", ""),
        ("a.gz.gz", ".gz"),
        ("a", ""),
        ("-", ""),
        (".gz", ""),
        ("", ""),
    ],
)
def test_the_suffix_before_the_packing_says_the_form(path: str, suffix: str) -> None:
    assert bare_suffix(path) == suffix


# Inputs


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
def test_an_input_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder.gz").mkdir()
    Path("file").touch()

    with pytest.raises(NoInputError) as caught:
        read(path)

    assert problem in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_input_without_permission_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0)

    with pytest.raises(NoInputError, match="Permission denied"):
        read(str(tmp_path / "a"))


def test_a_minus_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))

    assert read("-") == b"a\xff"


def test_a_terminal_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    with pytest.raises(UsageError, match="standard input is a terminal"):
        read("-")


def test_a_closed_standard_input_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(NoInputError, match="standard input is closed"):
        read("-")


def test_a_named_pipe_is_read_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"one\ntwo\n",))
    thread.start()

    assert read(str(tmp_path / "pipe")) == b"one\ntwo\n"
    thread.join()


def test_zst_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(UnavailableError, match=r"\.zst needs the package zstandard"):
        read(str(tmp_path / "a.zst"))


def test_a_hostile_kilobyte_of_zst_is_unpacked_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a gigabyte of zeros takes 8 KB packed; what is held of it at once stays far below."""
    packer = zstandard.ZstdCompressor().compressobj()
    zeros = bytes(1 << 20)
    (tmp_path / "a.zst").write_bytes(b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush())
    held: list[int] = []
    take = files.ZstdFrames.readinto

    def measured(self: files.ZstdFrames, room: Any) -> int:
        found = take(self, room)
        held.append(len(self.plain))
        return found

    monkeypatch.setattr(files.ZstdFrames, "readinto", measured)
    with open_input(str(tmp_path / "a.zst")) as file:
        size = sum(len(piece) for piece in iter(lambda: file.read(1 << 20), b""))

    assert size == 256 << 20
    assert max(held) <= 64 << 20


# Outputs


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b'{"a":1}\n' * 1000)

    assert read(str(tmp_path / name)) == b'{"a":1}\n' * 1000
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_packed_output_is_what_its_suffix_says(tmp_path: Path) -> None:
    write(tmp_path / "a.gz", b"hello")
    write(tmp_path / "a.zst", b"hello")

    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"hello"
    assert (
        zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "a.zst").read_bytes()) == b"hello"
    )


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_output_holds_no_time_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write(tmp_path / f"a{suffix}", b"hello")
    monkeypatch.setattr("time.time", lambda: 1e9)
    write(tmp_path / f"b{suffix}", b"hello")

    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_header_of_gzip_says_no_name_and_no_time(tmp_path: Path) -> None:
    """RFC 1952: the fourth byte is the flags, then come four bytes of time."""
    write(tmp_path / "a.gz", b"hello")

    assert (tmp_path / "a.gz").read_bytes()[3:8] == bytes(5)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_nothing_is_left_of_an_output_that_fails(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / name, b"half", fails=KeyboardInterrupt)

    assert list(tmp_path.iterdir()) == []


def test_an_output_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    with pytest.raises(RuntimeError):
        write(tmp_path / "a", b"new", force=True, fails=RuntimeError)

    assert (tmp_path / "a").read_bytes() == b"old"


def test_an_output_that_exists_is_refused_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    with pytest.raises(CannotCreateError, match="a: exists already") as caught:
        write(tmp_path / "a", b"new")

    assert caught.value.advice == "use -f to overwrite it"
    assert (tmp_path / "a").read_bytes() == b"old"
    write(tmp_path / "a", b"new", force=True)
    assert (tmp_path / "a").read_bytes() == b"new"


def test_standard_output_always_exists_and_is_never_refused(capfdbinary: Any) -> None:
    refuse_existing("-", force=False)
    write("-", b"a\xff\n")

    assert capfdbinary.readouterr().out == b"a\xff\n"


def test_a_closed_standard_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(CannotCreateError, match="standard output is closed"):
        write("-", b"")


@pytest.mark.parametrize("force", [False, True])
def test_a_device_is_written_and_never_replaced(force: bool) -> None:
    write("/dev/null", b"x", force=force)

    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert not Path("/dev/null.part").exists()


def test_a_named_pipe_is_written_and_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    thread.start()

    write(tmp_path / "pipe", b"through")
    thread.join()

    assert found == [b"through"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("path", ["nowhere/a", "file/a", "taken", "folder"])
def test_an_output_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, force: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    Path("taken.part").mkdir()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(CannotCreateError, match=rf"^{path}(\.part)?: "):
        write(path, b"x", force=force)

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(CannotCreateError, match="Permission denied"):
        write(tmp_path / "a", b"")


def test_zst_output_without_its_library_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(UnavailableError):
        write(tmp_path / "a.zst", b"")

    assert list(tmp_path.iterdir()) == []
