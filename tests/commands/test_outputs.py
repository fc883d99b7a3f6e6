"""The outputs of one command appear together, or none of them does."""

import os
import subprocess
import sys

import pytest

ROWS = '{"embedding":[1,2],"g":"x"}\n{"embedding":[2,1],"g":"y"}\n{"embedding":[1,1],"g":"x"}\nbad\n'
SKIP = ("--rejects", "bad")


@pytest.fixture(autouse=True)
def rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text(ROWS)


@pytest.mark.parametrize(
    "call",
    [
        ("cluster", "-k", "2", "--centroids", "c.jsonl"),
        ("cat",),
        ("score",),
        ("search", "--corpus", "corpus.jsonl", "--queries"),
        ("probe", "--label", "g", "--few-shot", "1"),
        ("whiten", "fit", "--kind", "center"),
    ],
    ids=lambda call: call[0],
)
def test_if_the_disk_is_full_nothing_appears(sentkit, tmp_path, call):
    """The device is full for the rows, and the other outputs would have room."""
    (tmp_path / "corpus.jsonl").write_text('{"embedding":[1,2],"text":"a"}\n')
    output = "full.safetensors" if call[0] == "whiten" else "/dev/full"
    (tmp_path / "full.safetensors").symlink_to("/dev/full")
    before = sorted(path.name for path in tmp_path.iterdir())

    done = sentkit(*call, "rows.jsonl", "-o", output, *SKIP)
    assert done.code == 74
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_with_room_all_of_them_appear(sentkit, tmp_path):
    done = sentkit("cluster", "-k", "2", "rows.jsonl", "--centroids", "c.jsonl", "-o", "out.jsonl", *SKIP)

    assert done.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "c.jsonl", "out.jsonl", "rows.jsonl"]
    assert '"row":"bad"' in (tmp_path / "bad").read_text()


def test_finished_outputs_stay_if_the_reader_of_the_rows_leaves(tmp_path):
    """Exit 0, as everywhere in a pipe; the centroids were written before."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sentkit", "cluster", "-k", "2", "rows.jsonl", "--centroids", "c.jsonl"]
    done = subprocess.run(
        [*command, "--rejects", "/dev/null"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)

    assert done.returncode == 0
    assert (tmp_path / "c.jsonl").read_text().count("\n") == 2


def test_an_output_behind_a_link(sentkit, tmp_path):
    """The link stays; vectors and rows are joined in the folder of its target."""
    (tmp_path / "far").mkdir()
    (tmp_path / "v.safetensors").symlink_to("far/target.safetensors")

    assert sentkit("cat", "rows.jsonl", "--head", 2, "-o", "v.safetensors").code == 0
    assert sentkit("cat", "rows.jsonl", "--head", 3, "-o", "v.safetensors").code == 73
    assert sentkit("cat", "rows.jsonl", "--head", 3, "-o", "v.safetensors", "-f").code == 0
    assert (tmp_path / "v.safetensors").is_symlink()
    assert len(sentkit("cat", "far/target.safetensors").rows) == 3
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["target.safetensors"]
