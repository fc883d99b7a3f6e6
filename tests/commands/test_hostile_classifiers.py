"""Saved probes with any values: `predict` gives rows that are JSON, or an error that blames the
files.
"""

import json
from functools import partial

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import ODD, mutated, places, replaced
from sentkit.errors import SentkitError
from sentkit.labels.probes.classifiers import VectorClassifier, read_classifier, write_classifier
from sentkit.model import find_encoder
from sentkit.model.query_encoder import recorded, recorded_options

INPUTS = 3000  # of each slow test
WEIGHTS = {"weight": np.ones((2, 3)), "bias": np.ones(2)}
NUMBERS = st.sampled_from([0.0, -1.5, 1e308, 3e38, np.inf, -np.inf, np.nan])


@st.composite
def arrays(draw, plain):
    """A tensor with one other value, or with another shape or type."""
    changed = np.array(plain)
    if draw(st.booleans()):
        shape = draw(
            st.sampled_from([(), (0,), (1,), (2,), (3,), (2, 1), (2, 3), (3, 3), (2, 0), (1, 2, 3)])
        )
        changed = np.resize(changed, shape)
    if changed.size and draw(st.booleans()):
        changed.flat[draw(st.integers(0, changed.size - 1))] = draw(NUMBERS)
    types = ["float64", "float32", "float16", "int64", "int8", "uint8", "bool", "uint16"]
    with np.errstate(all="ignore"):
        return changed.astype(draw(st.sampled_from(types)))


def answers_are_json(run, *flags):
    """Exit code 0 with rows that are JSON objects without equal names, or 65 or 66 with a
    message.
    """
    result = run("predict", "-m", *flags)

    assert result.code in (0, 65, 66), result.err
    for line in result.out.splitlines():
        names = json.loads(line, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
        assert len({*names}) == len(names)
        orjson.loads(line)  # which refuses NaN
    assert "a bug" not in result.err


@pytest.mark.slow
@settings(max_examples=INPUTS)
@given(data=st.data())
def test_any_value_in_a_saved_probe(sentkit, tmp_path, data):
    """One or more changes of the note, of the tensors, or of bytes of the file."""
    note = {
        "kind": "classifier",
        "classes": ["no", "1"],
        "labels": ["no", 1],
        "_emb": "m/cls:0a1b00000000",
    }
    note["rows"] = 3
    if data.draw(st.booleans()):
        path = data.draw(st.sampled_from(places(note)))
        note = replaced(
            note, path, data.draw(ODD | st.sampled_from(["no", "yes", ["a", "b", "c"]]))
        )
    tensors = {name: data.draw(arrays(plain) | st.just(plain)) for name, plain in WEIGHTS.items()}
    if data.draw(st.integers(0, 9)) == 0:
        del tensors[data.draw(st.sampled_from(sorted(tensors)))]
    content = safetensors.numpy.save(tensors, {"sentkit": json.dumps(note)})
    if data.draw(st.integers(0, 3)) == 0:
        content = data.draw(mutated([content]))
    (tmp_path / "c.safetensors").write_bytes(content)
    rows = b'{"embedding":[1,2,3],"_emb":"m/cls:0a1b00000000"}\n{"embedding":[1e38,-2,0]}\n'
    flags = data.draw(st.sampled_from([[], ["--all"], ["--rejects", "/dev/null"], ["--name", "p"]]))

    answers_are_json(partial(sentkit, stdin=rows), "c.safetensors", *flags)


FIELDS = ["model", "readout", "prompt", "max_length", "steps", "transform", "template", "full_stop"]
FIELDS += ["vectors"]
ODD_RECORDS = json.loads(
    '[null, true, 0, -1, 1000000000, 1e400, 1.5, NaN, "", "/", "nano/zz", "../nano", [], [[]], {}, '
    '{"a": 1}, ["/dim=0:"], ["/dim=99999:x"], ["/n:", "/n:"]]'
)


@pytest.mark.parametrize("field", [*FIELDS, "spec", "_emb"])
def test_a_wrong_record_is_an_error_of_the_user(tmp_path, field):
    """It may name another model, because `predict` compares the spaces. Another exception
    is a bug.
    """
    usual = {"model": "nano", "readout": "mean", "prompt": "", "max_length": 512, "steps": []}
    path = tmp_path / "p.safetensors"
    for value in ODD_RECORDS:
        spec = {**usual, field: value} if field in FIELDS else {}
        probe = VectorClassifier(str(path), ("x", "y"), np.ones((2, 4)), np.ones(2), spec)
        with path.open("wb") as file:
            write_classifier(
                file, probe, {"_emb": "nano/mean:f2b4fc57a9e2", **({} if spec else {field: value})}
            )
        try:
            classifier = read_classifier(str(path))
            model = recorded(classifier.spec, "model", str)
            if model is not None:
                options = recorded_options(classifier.spec)
                find_encoder(model, options, device="cpu", download=False)
        except SentkitError:
            pass
