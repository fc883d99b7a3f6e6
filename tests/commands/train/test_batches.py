"""`--set batches=...`: negatives of one file only, exact resume, and refusals."""

import numpy as np
import pytest

from sentkit.training.data.corpus import Corpus
from support import TEXTS, contents


@pytest.fixture
def files(tmp_path, jsonl):
    """Five pairs with "cat", four with "dog", one with "rain"."""
    for name, count in {"cat": 5, "dog": 4, "rain": 1}.items():
        pairs = [{"text_a": f"{name} {TEXTS[n]}", "text_b": TEXTS[n]} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(*pairs))
    return ("cat.jsonl", "dog.jsonl")


@pytest.fixture
def contrast(sentkit, tiny):
    def run(*words, output="out"):
        flags = ("-m", tiny, "--batch", 2, "--epochs", 2, "-q", "--threads", 1, "-o", output)
        return sentkit("train", "contrast", *words, *flags)

    return run


@pytest.mark.parametrize("batches", ["by-file", "proportional", "round-robin"])
def test_a_batch_has_rows_of_one_file(contrast, files, monkeypatch, batches):
    seen = []
    original = Corpus.batch

    def recording(self, rows):
        seen.append({int(self.files[row]) for row in rows})
        return original(self, rows)

    monkeypatch.setattr(Corpus, "batch", recording)
    done = contrast(*files, "--set", f"batches={batches}")

    assert done.code == 0
    assert [len(numbers) for numbers in seen] == [1] * 8  # 2 + 2 batches in each of two epochs
    assert seen.count({0}) == seen.count({1}) == 4


def test_a_stopped_run_continues_with_the_same_bytes(contrast, files, tmp_path, stop_at):
    flags = (*files, "--set", "batches=by-file", "--save-every", 1)
    contrast(*flags, output="whole")
    with stop_at(3):
        stopped = contrast(*flags)
    resumed = contrast(*flags, "--resume")

    assert (stopped.code, resumed.code) == (75, 0)
    whole, out = contents(tmp_path / "whole"), contents(tmp_path / "out")
    assert whole["model.safetensors"] == out["model.safetensors"]


def test_damaged_files_of_a_killed_run_have_no_effect(contrast, files, tmp_path, stop_at):
    """A killed process leaves the token files and the numbers of the files. --resume makes them
    from the rows, whatever is at their paths.
    """
    flags = (*files, "--set", "batches=by-file", "--save-every", 1)
    contrast(*flags, output="whole")
    with stop_at(3):
        contrast(*flags)
    part = tmp_path / "out.part"
    np.save(part / "files.npy", np.array([0, 10**9, -1], np.int32))
    np.save(part / "targets.npy", np.array([None, "x"], object), allow_pickle=True)
    (part / "ends.npy").write_bytes(b"\x93NUMPY")
    np.save(part / "first_texts.npy", np.array([0, 10**9, -1, np.nan]))
    (part / "rows.json").write_text(
        '{"labels": 1, "teacher": null, "files": [NaN], "second_texts": "x"}'
    )
    (part / "tokens.i32").symlink_to("missing")
    resumed = contrast(*flags, "--resume")

    assert resumed.code == 0, resumed.err
    whole, out = contents(tmp_path / "whole"), contents(tmp_path / "out")
    assert whole["model.safetensors"] == out["model.safetensors"]


def test_the_files_are_a_part_of_the_identity(contrast, files, tmp_path, stop_at):
    """The same rows, of which one is in the other file."""
    flags = (*files, "--set", "batches=by-file", "--save-every", 1)
    with stop_at(2):
        contrast(*flags)
    first, *others = (tmp_path / "dog.jsonl").read_bytes().splitlines(keepends=True)
    with (tmp_path / "cat.jsonl").open("ab") as file:
        file.write(first)
    (tmp_path / "dog.jsonl").write_bytes(b"".join(others))
    moved = contrast(*flags, "--resume")

    assert moved.code == 65
    assert "belongs to a different run: data" in moved.err


def test_what_has_no_batches_by_file(contrast, files):
    one_file = contrast(files[0], "--set", "batches=by-file")
    small_file = contrast(*files, "rain.jsonl", "--set", "batches=by-file")
    unknown = contrast(*files, "--set", "batches=each")

    problem = "batches=by-file needs several different files, and only cat.jsonl has rows"
    assert (one_file.code, problem in one_file.err) == (2, True)
    problem = "rain.jsonl: 1 row can be used, but batches=by-file needs at least 2 of each file"
    assert (small_file.code, problem in small_file.err) == (65, True)
    assert "batches=each: expected mixed, by-file, proportional, round-robin" in unknown.err


def test_methods_with_a_loss_for_each_row_refuse_it(sentkit, tiny, files):
    refused = sentkit(*("train", "mlm", *files, "-m", tiny, "-o", "o", "--set", "batches=by-file"))

    assert refused.code == 2
    assert "batches has no effect with mlm, which has no negatives of the batch" in refused.err
