"""`sentkit train defsent-plus`: definitions and entries in, a checkpoint out, read in the
best way.
"""

import json
import os

import pytest

from commands.train.records import record_of
from sentkit.formats.vectors.fingerprint import target_space
from sentkit.formats.vectors.vector_file import VectorFile
from support import PAIRS

DICTIONARY = [
    {"entry": "cat", "definition": "a small animal that purrs"},
    {"entry": "hot dog", "definition": "a sausage in a roll"},
    {"entry": "rain", "definition": "water that falls from clouds"},
    {"entry": "cat", "definition": "a whip with nine cords"},
    {"entry": "sea", "definition": "much salt water"},
    {"entry": "to walk", "definition": "go on foot"},
    {"entry": "rain", "definition": "a steady fall of anything"},
]
QUICK = ("--batch", 3, "--set", "max_length=64", "--threads", 1, "-q")


@pytest.fixture
def rows(tmp_path, jsonl):
    (tmp_path / "dict.jsonl").write_bytes(jsonl(*DICTIONARY))
    return "dict.jsonl"


@pytest.fixture
def entries(sentkit, rows, tiny):
    result = sentkit(
        "build-entries", rows, "-m", tiny, "--readout", "mean", "-o", "entries.safetensors", "-q"
    )
    assert (result.code, result.err) == (0, "")
    return "entries.safetensors"


@pytest.fixture
def train(sentkit, tiny, rows, entries):
    """`sentkit train defsent-plus dict.jsonl --entries entries.safetensors -m TINY -o out` and
    more.
    """

    command = ("train", "defsent-plus", rows, "-m", tiny, "--entries", entries, *QUICK)
    return lambda *flags, output="out": sentkit(*command, "-o", output, *flags)


def test_the_checkpoint_records_its_entries(train, sentkit, tiny):
    result = train("--lr", 0.01, "--set", "pooling=mean")
    record = record_of()
    emb = VectorFile("entries.safetensors").metadata["_emb"]
    space = emb.rpartition(":")[2]
    encode = ("encode", "-m", "out")
    encoded = sentkit(*encode, stdin="a cat\n").rows[0]["_emb"]
    pooled = sentkit(*encode, "--readout", "pooler:mean", stdin="a cat\n").rows[0]["_emb"]
    entries = {"file": "entries.safetensors", "count": 5, "_emb": emb}

    assert (result.code, result.err) == (0, "")
    assert (result.rows[0]["method"], result.rows[0]["step"]) == ("defsent-plus", 3)
    assert (record["readout"], record["rows"], record["parents"]) == ("mean", 7, [str(tiny)])
    assert record["pooler"] == {"activation": "tanh", "readout": "pooler:mean", "lands_in": space}
    assert record["entries"].items() >= entries.items()
    assert record["entries"]["hash"] == record["run"]["entries"]
    assert (encoded.partition(":")[0], target_space(encoded)) == ("out/mean", None)
    assert target_space(pooled) == space
    assert "dev_by_readout" not in record


def test_the_projection_may_come_from_another_checkpoint(train, tiny, copy_of, tmp_path):
    """Its weights are a part of the identity of the run; a checkpoint cannot replace it."""
    from safetensors.numpy import load_file, save_file

    other = copy_of(tiny, "other")
    flags = ("--lr", 0.01, "--set", f"projection_from={other}")
    assert train("--lr", 0.01, output="plain").code == train(*flags).code == 0
    over_its_input = train(*flags, "-f", output=str(other))
    tensors = load_file(other / "model.safetensors")
    name = next(name for name in tensors if name.endswith("pooler.dense.bias"))
    save_file(tensors | {name: tensors[name] + 1}, other / "model.safetensors", {"format": "pt"})
    resumed = train(*flags, "--resume")
    assert train(*flags, "-f", output="two").code == 0
    plain = (tmp_path / "plain/model.safetensors").read_bytes()
    equal_projection = (tmp_path / "out/model.safetensors").read_bytes()
    other_projection = (tmp_path / "two/model.safetensors").read_bytes()

    assert equal_projection == plain
    assert other_projection != plain
    assert record_of("out")["run"]["projection_hash"] != record_of("two")["run"]["projection_hash"]
    assert (resumed.code, over_its_input.code) == (65, 2)
    assert "projection_hash" in resumed.err
    assert f"would overwrite the input {other}" in over_its_input.err


def test_entries_of_another_kind_of_model_are_reported(
    sentkit, rows, tiny, entries, copy_of, tmp_path
):
    folder = copy_of(tiny)
    rules = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(rules | {"normalizer": None}))
    flags = ("--entries", entries, "-o", "out", "--set", "max_length=64", "--threads", 1)
    result = sentkit("train", "defsent-plus", rows, "-m", folder, *flags)
    of_tiny = sentkit("train", "defsent-plus", rows, "-m", tiny, *flags, "-f")

    assert result.code == of_tiny.code == 0
    warning = f"the entries were made with {tiny}, which has another tokenizer"
    assert f"entries.safetensors: {warning}" in result.err
    assert "another tokenizer" not in of_tiny.err


def test_the_best_readout_on_dev_is_declared(train, sentkit, tmp_path, jsonl, tiny):
    """Each score is that of `encode` and `score`, in the template where it is read by prompt."""
    (tmp_path / (dev := "dev.jsonl")).write_bytes(jsonl(*PAIRS))
    result = train("--dev", dev, "--lr", 0.01, "--epochs", 2)
    record = record_of()

    def scored(model, name):
        flags = ("--readout", name, "--precision", "fp32", "-o", "dev.safetensors", "-f", "-q")
        sentkit("encode", dev, "-m", model, *flags)
        return sentkit("score", "dev.safetensors", "--gold", "score").rows[0]["spearman"]

    scores = {name: scored("out", name) for name in ("mean", "cls", "prompt")}

    assert result.code == 0
    assert record["dev_by_readout"] == pytest.approx(scores, rel=1e-6)
    assert record["readout"] == max(scores, key=scores.get)
    assert record["dev"] == record["dev_by_readout"][record["readout"]]
    assert abs(record["dev"] - result.rows[0]["dev"]) < 1e-4  # printed with seven digits
    assert result.rows[0]["readout"] == record["readout"]
    assert record["dev_before"] == pytest.approx(scored(tiny, record["readout"]), rel=1e-6)
    assert len(set(scores.values())) > 1


def test_several_runs_read_the_entries_again(sentkit, tiny, rows, entries, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    command = ("train", "defsent-plus", rows, "-m", tiny, "--entries", "pipe", *QUICK)
    done = sentkit(*command, "-o", "grid", "--lr", "1e-3,1e-2")

    assert (done.code, "pipe: a pipe cannot be read again" in done.err) == (2, True)
