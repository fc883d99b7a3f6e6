"""`sentkit.Encoder`: the vectors of the command, copies by pickle, columns of a batch."""

import io
import json
import pickle
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

import sentkit
from sentkit.cli import status
from sentkit.errors import UsageError
from support import TEXTS, python_of


@pytest.fixture(scope="module")
def encoder():
    return sentkit.Encoder("nano", precision="fp32", device="cpu")


def test_vectors_equal_those_of_the_command(encoder, tmp_path):
    """To the bit, for more rows than the first group has."""
    texts = [f"{text} {number}" for number in range(4) for text in TEXTS]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in texts))
    output = tmp_path / "vectors.safetensors"
    command = ["encode", str(tmp_path / "texts.txt"), "--precision", "fp32", "-q", "-o", str(output)]
    assert status(command) == 0

    vectors = encoder.encode(texts)

    assert vectors.dtype == np.float32
    assert vectors.tobytes() == load_file(output)["embeddings"].tobytes()


@pytest.mark.parametrize("rows", [3, 40])
def test_by_default_any_number_of_rows_has_the_vectors_of_the_command(monkeypatch, capfdbinary, rows):
    """The errors of some 60 sums of 256 or 1,024 terms add up."""
    monkeypatch.delenv("SENTKIT_PRECISION", raising=False)
    texts = [f"{text} {number}" for number in range(9) for text in TEXTS][:rows]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    assert status(["encode", "-q", "--device", "cpu"]) == 0
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    class_ = sentkit.Encoder("nano", device="cpu")
    expected = class_.encode(texts)

    errors = np.abs(np.array([row["embedding"] for row in found], np.float32) - expected)
    assert errors.max() < (60 * 1024) ** 0.5 * 2**-24 * np.abs(expected).max()
    assert {row["_emb"] for row in found} == {class_.space}


@pytest.mark.parametrize("name", ["max_length", "dim", "window", "stride"])
@pytest.mark.parametrize("value", [0, 2.5, "8"])
def test_numbers_below_one_are_refused_as_by_the_command(name, value):
    with pytest.raises(UsageError, match=f"{name} is {value!r}, expected a whole number of 1 or more"):
        sentkit.Encoder("nano", on_truncate="window", **{name: value})


@pytest.mark.usefixtures("with_torch")
def test_long_texts_can_have_the_mean_of_windows(capfdbinary, monkeypatch):
    """As with the flags of the command, also after a copy by pickle."""
    flags = {"precision": "fp32", "max_length": 8, "on_truncate": "window", "window": 7, "stride": 4}
    text = "a man plays a guitar and the cat sleeps by the river"
    copy = pickle.loads(pickle.dumps(sentkit.Encoder("nano", **flags)))
    vectors = copy.encode(["a dog", text])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"a dog\n{text}".encode())))
    names = ["--precision", "fp32", "--max-length", "8", "--on-truncate", "window", "--window", "7:4"]
    assert status(["encode", "-q", *names]) == 0

    rows = [json.loads(line)["embedding"] for line in capfdbinary.readouterr().out.splitlines()]
    assert np.array_equal(vectors, np.array(rows, np.float32))
    for wrong in ({"window": 7}, {"stride": 7}):
        with pytest.raises(UsageError, match='window and stride need on_truncate="window"'):
            sentkit.Encoder("nano", **wrong)
    with pytest.raises(UsageError, match='on_truncate is "chunks", expected "warn" or "window"'):
        sentkit.Encoder("nano", on_truncate="chunks")


def test_a_copy_by_pickle_gives_the_same_vectors(encoder):
    encoder.encode(["a cat"])  # the weights are loaded, and are not copied
    stored = pickle.dumps(encoder)
    copy = pickle.loads(stored)

    assert len(stored) < 1000
    assert copy.encode(TEXTS).tobytes() == encoder.encode(TEXTS).tobytes()
    assert copy.space == encoder.space


@pytest.mark.usefixtures("with_torch")
def test_threads_load_and_prepare_the_weights_once(encoder, monkeypatch):
    """The load and the preparation take so long that the second thread arrives before their end."""
    from sentkit.model.transformer import encoder as module

    shared, calls = sentkit.Encoder("nano", precision="fp32", device="cpu"), []

    def watched(function):
        def call(*values):
            calls.append(function.__name__)
            time.sleep(0.1)
            return function(*values)

        return call

    monkeypatch.setattr(shared.model, "encoder", watched(shared.model.encoder))
    monkeypatch.setattr(module, "prepare_for_cpu", watched(module.prepare_for_cpu))
    with ThreadPoolExecutor(2) as pool:
        vectors = list(pool.map(shared.encode, [["a cat"], ["a cat"]]))

    assert calls == ["encoder", "prepare_for_cpu"]
    assert all(np.array_equal(each, encoder.encode(["a cat"])) for each in vectors)


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("threads", [2, 9])  # 9: shared batches
def test_threads_of_a_program_stay_and_change_no_vector(encoder, threads, monkeypatch):
    import torch

    from sentkit.model.encoding import BUDGETS
    from sentkit.model.transformer.encoder import TransformerEncoder

    used, start = [], TransformerEncoder._start
    watched = lambda self, batch: used.append(torch.get_num_threads()) or start(self, batch)  # noqa: E731
    monkeypatch.setattr(TransformerEncoder, "_start", watched)
    monkeypatch.setitem(BUDGETS, "cpu", 16)  # several batches
    monkeypatch.setattr(encoder.loaded, "budget", 16)
    monkeypatch.setattr("sentkit.process._threads", None)  # other tests run commands in this process
    torch.set_num_threads(threads)
    program = sentkit.Encoder("nano", precision="fp32", device="cpu")
    vectors = program.encode(TEXTS)

    assert program.loaded.groups_at_once == 0  # so that Ctrl-C ends the batches too
    assert torch.get_num_threads() == threads
    assert set(used) == {1 if threads == 2 else 9}
    torch.set_num_threads(1)
    assert np.array_equal(vectors, encoder.encode(TEXTS))


@pytest.mark.usefixtures("with_torch")
def test_a_fork_has_threads_of_its_own(forked_program):
    script = f"""import os, sys, sentkit, torch
from sentkit.model.encoding import BUDGETS
BUDGETS["cpu"] = 16  # several batches
torch.set_num_threads(2)
encoder, texts = sentkit.Encoder("nano", precision="fp32", device="cpu"), {TEXTS!r}
vectors = encoder.encode(texts)
child = os.fork()
if child == 0:
    os._exit(int((encoder.encode(texts) != vectors).any()))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"""
    subprocess.run([*python_of(forked_program), "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("kind", [list, np.array, partial(np.array, dtype=object)])
def test_a_batch_keeps_its_columns_and_gets_two_more(encoder, kind):
    batch = {"id": np.array([7, 8]), "text": kind(["a cat", "a dog"])}
    result = encoder(batch)

    assert list(result) == ["id", "text", "embedding", "_emb"]
    assert result["id"].tolist() == [7, 8]
    assert result["embedding"].tobytes() == encoder.encode(["a cat", "a dog"]).tobytes()
    assert result["_emb"].tolist() == [encoder.space] * 2
    assert encoder.encode([]).shape == (0, encoder.width)


def test_truncated_texts_are_counted_in_a_warning():
    encoder = sentkit.Encoder("nano", precision="fp32", max_length=4)
    with pytest.warns(UserWarning, match="1 of 2 rows were truncated to 4 tokens"):
        encoder.encode(["a cat", "a man plays a guitar in the street"])


@pytest.mark.parametrize("texts", ["a cat", b"a cat"])
def test_one_text_is_no_sequence(encoder, texts):
    problem = f"texts is of type {type(texts).__name__}, expected a sequence of str"
    with pytest.raises(TypeError, match=problem):
        encoder.encode(texts)


@pytest.mark.parametrize("bad", [3, None, b"", float("nan")], ids=repr)
def test_other_values_than_strings_are_refused(encoder, bad):
    problem = re.escape(f"texts[1] is of type {type(bad).__name__}, expected str")
    for texts in (["a cat", bad], np.array(["a cat", bad, None], object)):
        for read in (encoder.encode, lambda column: encoder({"text": column})):
            with pytest.raises(TypeError, match=problem):
                read(texts)


def test_several_readouts_and_sets_of_words_are_refused():
    with pytest.raises(UsageError, match="one readout"):
        sentkit.Encoder("nano", readout="cls,mean")
    with pytest.raises(UsageError, match="the space depends on all texts"):
        sentkit.Encoder("words:binary")


def test_the_import_of_the_package_loads_no_large_library():
    code = "import sentkit, sys; print({'numpy', 'torch'} & set(sys.modules)); sentkit.Encoder"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError):
        sentkit.nothing  # noqa: B018
