"""Temporary files and folders: several writers of one output, and processes that are killed."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.export import new_folder
from sentkit.formats.outputs import temporary
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import Draft, create, leftovers, private_folder, publish_folder
from support import contents
from support import write_output as write

# Several writers of one output


def halves(path: Path, *contents: bytes, force: bool) -> list[Draft]:
    """A writer for each content; all write in turns, half by half."""
    drafts = [Draft(path, force=force) for _ in contents]
    for half in (slice(None, 4), slice(4, None)):
        for draft, content in zip(drafts, contents, strict=True):
            draft.file.write(content[half])
            draft.file.flush()
    for draft in drafts:
        draft.finish()
    return drafts


def test_with_force_the_last_of_several_writers_wins_whole(tmp_path: Path) -> None:
    for draft in halves(tmp_path / "a", b"first whole", b"second whole", force=True):
        draft.publish()
        draft.discard()

    assert contents(tmp_path) == {"a": b"second whole"}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_without_force_the_first_of_several_writers_wins_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """On file systems with and without hard links."""
    if not links:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    first, second = halves(tmp_path / "a", b"first whole", b"second whole", force=False)

    first.publish()
    first.discard()
    with pytest.raises(CannotCreateError, match="a: already exists") as caught:
        second.publish()
    second.discard()

    assert caught.value.advice == "another process created it; use -f to overwrite it"
    assert contents(tmp_path) == {"a": b"first whole"}


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_link_made_during_the_writing_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")

    def work() -> None:
        with open_output(str(tmp_path / "a"), force=False) as file:
            file.write(b"new")
            (tmp_path / "a").symlink_to("precious")

    with pytest.raises(CannotCreateError, match="a: already exists"):
        work()

    assert contents(tmp_path) == {"a": b"precious", "precious": b"precious"}


# Files of killed processes


def child(folder: Path) -> subprocess.Popen[str]:
    """A process that opens the output `a`, writes, prints "ready" and waits."""
    program = (
        "import sys\nfrom sentkit.formats.outputs.outputs import open_output\n"
        "with open_output('a', force=True) as out:\n"
        "    out.write(b'half'); out.flush(); print('ready', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_only_files_of_dead_processes_are_leftovers(tmp_path: Path) -> None:
    living, killed = child(tmp_path), child(tmp_path)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL

    found = leftovers(tmp_path / "a")
    assert [path.read_bytes() for path in found] == [b"half"]
    assert len(contents(tmp_path)) == 2
    assert leftovers(tmp_path / "b") == []

    living.communicate("")
    assert living.returncode == 0
    assert leftovers(tmp_path / "a") == found
    write(tmp_path / "a", b"new", force=True)
    assert leftovers(tmp_path / "a") == found


def test_without_file_locks_no_leftovers_are_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(temporary.fcntl, "flock", failing(errno.ENOLCK))
    with open_output(str(tmp_path / "a"), force=False) as out:
        out.write(b"new")
        assert leftovers(tmp_path / "a") == []

    assert contents(tmp_path) == {"a": b"new"}


def test_a_command_reports_files_of_killed_processes(tmp_path: Path) -> None:
    half, old = ".out.jsonl.sentkit-0123456789abcdef", ".out.jsonl.sentkit-old-0123456789abcdef"
    (tmp_path / "rows.txt").write_text("a cat\n")
    (tmp_path / half).write_bytes(b"half")
    (tmp_path / old).mkdir()
    command = [sys.executable, "-m", "sentkit", "cat", "rows.txt", "-o", "out.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert f"{half}: an incomplete output of a killed process; move or remove it" in done.stderr
    assert f"{old}: the previous output, renamed" in done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"text": "a cat"}
    assert (tmp_path / half).read_bytes() == b"half"


def test_an_error_of_a_private_file_has_its_name(tmp_path):
    """A limit of the file size has the same effect as a full disk."""
    path, before = tmp_path / "tokens.i32", resource.getrlimit(resource.RLIMIT_FSIZE)
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


def fill(folder: Path, content: str) -> None:
    for name in ("weights", "config", "1_Pooling/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def content(folder: Path) -> set[str]:
    """What its files hold: of a whole folder one word."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.read_text() for path in files} if len(files) == 3 else {"not whole"}


def replace(target: Path) -> None:
    with private_folder(target, "out") as new:
        fill(new, "new")
        publish_folder(new, target, force=True, name="out")


def dying(function, call, counted):
    """The function, of which one call kills the process: before it if the number is even, after it if odd."""

    def wrapped(*args, **kwargs):
        counted.append(1)
        if len(counted) == call // 2 + 1 and call % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*args, **kwargs)
        if len(counted) == call // 2 + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return wrapped


def killed_at(target: Path, call: int) -> int:
    """Replace the folder in a child that dies at one of its system calls; how the child ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counted: list[int] = []
    for owner, name in CALLS:
        setattr(owner, name, dying(getattr(owner, name), call, counted))
    replace(target)
    os._exit(0)


def test_a_kill_at_any_system_call_leaves_a_complete_folder(tmp_path: Path) -> None:
    """Under its name; between the two renames, beside it, and reported."""
    seen, aside = set(), 0
    for call in range(200):
        target = tmp_path / str(call) / "out"
        fill(target, "old")
        code = killed_at(target, call)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        left = leftovers(target)
        if target.exists():
            assert content(target) in ({"old"}, {"new"})
            seen |= content(target)
        else:
            aside += 1
            assert [content(path) for path in left if temporary.OLD in path.name] == [{"old"}]
        assert {path.name for path in target.parent.iterdir()} <= {"out", *(path.name for path in left)}
    else:
        pytest.fail("it never ends")

    assert content(target) == {"new"}
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert seen == {"old", "new"}
    assert aside == 2  # after the first rename, before the second


def test_without_force_a_folder_of_another_process_stays(tmp_path: Path) -> None:
    def work() -> None:
        with new_folder(tmp_path / "out", force=False) as new:
            fill(new, "new")
            fill(tmp_path / "out", "of another process")

    with pytest.raises(CannotCreateError, match="out: already exists") as caught:
        work()

    assert caught.value.advice == "another process created it; use -f to overwrite it"
    assert content(tmp_path / "out") == {"of another process"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_if_the_new_folder_cannot_be_renamed_the_old_one_stays(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")

    with pytest.raises(FileNotFoundError):
        publish_folder(tmp_path / "nowhere", tmp_path / "out", force=True, name="out")

    assert content(tmp_path / "out") == {"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
