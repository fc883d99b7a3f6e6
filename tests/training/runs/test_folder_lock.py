"""The lock of a folder, if another process ends and removes it at the same moment."""

import fcntl
from pathlib import Path

import pytest

from sentkit.errors import CannotCreateError
from sentkit.training.runs.folder_lock import lock_folder


def refusal(folder):
    """The error of an attempt to lock the folder."""
    with (
        pytest.raises(CannotCreateError) as caught,
        lock_folder(folder, "run.lock", is_first_process=True),
    ):
        pytest.fail("the folder is locked")
    return str(caught.value)


@pytest.mark.parametrize("is_new", [False, True])
def test_the_file_is_removed_before_it_is_locked(tmp_path, monkeypatch, is_new):
    """With `is_new`, a third process has already created it again."""
    lock = fcntl.flock

    def late_lock(file, operation):
        (tmp_path / "out.part/run.lock").unlink()
        if is_new:
            (tmp_path / "out.part/run.lock").touch()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late_lock)

    assert "another sentkit train uses this folder" in refusal(tmp_path / "out.part")


def test_the_folder_is_removed_before_the_file_is_created(tmp_path, monkeypatch):
    mkdir = Path.mkdir

    def early_mkdir(folder, **options):
        mkdir(folder, **options)
        folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", early_mkdir)

    assert "another sentkit train uses this folder" in refusal(tmp_path / "out.part")


def test_a_folder_that_cannot_be_created_has_another_message(tmp_path):
    (tmp_path / "file").touch()

    reason = "cannot be created and locked: not a directory"
    assert reason in refusal(tmp_path / "file/out.part")
