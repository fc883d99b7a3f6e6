"""Existing files: `sentkit train` overwrites only with -f, and never files of others."""

import fcntl
import shutil

from support import contents


def test_links_in_the_folder_of_the_state_are_not_followed(train, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out.part").mkdir()
    for name in ("tokens.i32", "ends.npy", "rows.json", "state-1.pt", "best-0.pt"):
        (tmp_path / "out.part" / name).symlink_to("../precious")

    assert train("-f", "--save-every", 1).code == 0
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_remains_of_a_replaced_checkpoint_are_removed(train, tmp_path):
    """With -f the old folder is there for a moment; --resume of a finished run, also with -f, is
    quick.
    """
    assert train().code == 0
    before = contents(tmp_path / "out")
    written = (tmp_path / "out/model.safetensors").stat().st_mtime_ns
    for flags in ((), ("-f",), ("-f",)):
        assert train("--resume", *flags).code == 0
        assert contents(tmp_path / "out") == before
        assert (tmp_path / "out/model.safetensors").stat().st_mtime_ns == written
        assert not (tmp_path / "out.part").exists()
        shutil.copytree(tmp_path / "out", tmp_path / "out.part/checkpoint")


def test_two_runs_cannot_share_a_folder(train, tmp_path):
    (tmp_path / "out.part").mkdir()
    with (tmp_path / "out.part/rows.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = train()

    assert result.code == 73
    assert result.told[0] == "sentkit train: out.part: another sentkit train uses this folder"
