"""Cases in which a command once silently ignored a part of its command line."""

import os

import pytest

from support import in_jsonl


@pytest.fixture
def pairs(sentkit, tmp_path):
    texts = (("a cat", "a dog", 3), ("a man", "a boat", 0), ("red", "scarlet", 4))
    rows = ({"text_a": a, "text_b": b, "title": "the sea", "score": score} for a, b, score in texts)
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*rows))
    sentkit("encode", "pairs.jsonl", "-o", "pairs.safetensors")
    return "pairs.jsonl"


def test_export_leaves_other_folders_and_the_working_folder_alone(sentkit, tmp_path, monkeypatch):
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part/state").write_text("precious")

    assert sentkit("export", "-o", "made").code == 0
    assert (tmp_path / "made.part/state").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "made.part"]
    monkeypatch.chdir(tmp_path / "made")
    assert sentkit("export", "-m", ".", "-o", ".", "-f").code == 73
    assert os.path.exists("model.safetensors")  # noqa: PTH110
