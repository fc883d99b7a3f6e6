"""A folder that is replaced: killed at any system call, a whole one is under the name."""

import os
import signal
from pathlib import Path

import pytest

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.export import new_folder
from sentkit.formats.outputs import temporary
from sentkit.formats.outputs.temporary import leftovers, private_folder, publish_folder

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
