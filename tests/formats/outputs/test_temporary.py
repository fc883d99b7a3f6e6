"""Temporary files and folders: several writers of one output, and processes that are killed."""

import errno
import os
import resource
import signal
import subprocess
from itertools import count
from pathlib import Path

import pytest

from sentkit.console import Console
from sentkit.errors import CannotCreateError
from sentkit.flags.outputs import check_paths
from sentkit.formats.checkpoints.writing import new_folder
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import (
    HOST,
    UnpublishedFile,
    create,
    private_folder,
    publish_folder,
    remove_leftovers,
)
from support import contents

# Several writers of one output


def halves(path, *contents, force):
    """A writer for each content; all write in turns, half by half."""
    outputs = [UnpublishedFile(path, force=force) for _ in contents]
    for half in (slice(None, 4), slice(4, None)):
        for output, content in zip(outputs, contents, strict=True):
            output.file.write(content[half])
            output.file.flush()
    for output in outputs:
        output.finish()
    return outputs


def test_with_force_the_last_of_several_writers_wins_whole(tmp_path):
    for output in halves(tmp_path / "a", b"first whole", b"second whole", force=True):
        output.publish()
        output.discard()

    assert contents(tmp_path) == {"a": b"second whole"}


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("none/sub", "the folder none/sub does not exist"),
        ("a" * 300, "cannot be written: file name too long"),
        ("file", "cannot be written: not a directory"),
    ],
)
def test_a_file_that_cannot_be_created_is_an_error_of_its_output(tmp_path, folder, problem):
    (tmp_path / "file").touch()
    with pytest.raises(CannotCreateError, match=f"^{folder}/x: {problem}$"):
        UnpublishedFile(tmp_path / folder / "x", force=False, name=f"{folder}/x")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_without_force_the_first_of_several_writers_wins_whole(tmp_path, monkeypatch, links):
    """On file systems with and without hard links."""

    def link(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", link)
    first, second = halves(tmp_path / "a", b"first whole", b"second whole", force=False)

    first.publish()
    first.discard()
    with pytest.raises(CannotCreateError, match="a: already exists") as caught:
        second.publish()
    second.discard()

    assert caught.value.advice == "another process created it; use -f to overwrite it"
    assert contents(tmp_path) == {"a": b"first whole"}


def test_a_link_made_during_the_writing_is_not_followed(tmp_path):
    (tmp_path / "precious").write_bytes(b"precious")

    def work():
        with open_output(str(tmp_path / "a"), force=False) as file:
            file.write(b"new")
            (tmp_path / "a").symlink_to("precious")

    with pytest.raises(CannotCreateError, match="a: already exists"):
        work()

    assert contents(tmp_path) == {"a": b"precious", "precious": b"precious"}


# Files of killed processes


def test_a_command_removes_only_files_of_killed_processes_of_this_machine(tmp_path, capsys):
    killed = subprocess.Popen(["true"])
    killed.wait()
    names = {
        "dead": f"{HOST}-{killed.pid}-01234567",
        "earlier": f"{HOST}-{os.getpid()}-01234567",  # of a process with the number of this one
        "living": f"{HOST}-{os.getppid()}-01234567",
        "distant": f"01234567-{killed.pid}-01234567",
        "former": f"old-{HOST}-{killed.pid}-01234567",
        "other": "notes",
    }
    paths = {which: tmp_path / f".out.jsonl.sentkit-{name}" for which, name in names.items()}
    for path in paths.values():
        path.write_bytes(b"half")
    check_paths(Console("cat"), {"--output": str(tmp_path / "out.jsonl")}, {})

    [warning] = capsys.readouterr().err.splitlines()
    assert f"{paths['former']}: the previous output, renamed by a killed process" in warning
    assert {which for which, path in paths.items() if not path.exists()} == {"dead", "earlier"}


def test_an_error_of_a_private_file_has_its_name(tmp_path):
    """A limit of the file size has the same effect as a full disk."""
    path = tmp_path / "tokens.i32"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with create(path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                file.write(bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert caught.value.filename == str(path)


# A folder that is replaced: killed at any system call, a whole one is under the name


CALLS = [  # of publish_folder
    (os, "fsync"),
    (os, "rmdir"),
    (os, "unlink"),
    (Path, "rename"),
]


def fill(folder, content):
    for name in ("weights", "config", "1_Pooling/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def content(folder):
    """What its files hold: of a whole folder one word."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.read_text() for path in files} if len(files) == 3 else {"not whole"}


def replace(target):
    with private_folder(target, "out") as new:
        fill(new, "new")
        publish_folder(new, target, force=True, name="out")


def dying(function, moments, last):
    """The function, which kills the process at this moment: before or after one of its calls."""

    def wrapped(*args, **kwargs):
        if next(moments) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if next(moments) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def killed_at(target, moment):
    """Replace the folder in a child that dies at one of its system calls; how the child ended."""
    child = os.fork()
    moments = count()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for owner, name in CALLS:
        setattr(owner, name, dying(getattr(owner, name), moments, moment))
    replace(target)
    os._exit(0)


def test_a_kill_at_any_system_call_leaves_a_complete_folder(tmp_path):
    """Under its name; between the two renames, beside it, and reported."""
    contents_seen = set()
    aside = 0
    for call in range(200):
        target = tmp_path / str(call) / "out"
        fill(target, "old")
        code = killed_at(target, call)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        former = remove_leftovers(target)
        if target.exists():
            assert content(target) in ({"old"}, {"new"})
            contents_seen |= content(target)
        else:
            aside += 1
            assert list(map(content, former)) == [{"old"}]
        assert {*target.parent.iterdir()} <= {target, *former}
    else:
        pytest.fail("it never ends")

    assert content(target) == {"new"}
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert contents_seen == {"old", "new"}
    assert aside == 2  # after the first rename, before the second


def test_without_force_a_folder_of_another_process_stays(tmp_path):
    def work():
        with new_folder(str(tmp_path / "out"), force=False) as new:
            fill(new, "new")
            fill(tmp_path / "out", "of another process")

    with pytest.raises(CannotCreateError, match="out: already exists") as caught:
        work()

    assert caught.value.advice == "another process created it; use -f to overwrite it"
    assert content(tmp_path / "out") == {"of another process"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_if_the_new_folder_cannot_be_renamed_the_old_one_stays(tmp_path):
    fill(tmp_path / "out", "old")

    with pytest.raises(FileNotFoundError):
        publish_folder(tmp_path / "nowhere", tmp_path / "out", force=True, name="out")

    assert content(tmp_path / "out") == {"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
