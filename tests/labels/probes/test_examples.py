"""Rows -> features and classes; the record of the vectors of a saved probe, with wrong values."""

import json

import numpy as np
import pytest

from sentkit.errors import DataError, SentkitError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.probes.classifiers import VectorClassifier, read_classifier, write_classifier
from sentkit.labels.probes.probing import classes_of, codes_of, read_examples
from sentkit.model import find_encoder
from sentkit.model.query_encoder import Recorded


@pytest.fixture
def read(tmp_path):
    """The examples in these lines."""

    def read(*lines, label="label"):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return read_examples(VectorReader(Inputs([str(path)])), str(path), label)

    return read


def test_features_of_a_sentence_and_of_a_pair(read):
    """Of a pair (|u - v|, u * v), here of (1, 5) and (3, -2)."""
    found = read('{"embedding":[1,2],"label":"x"}', '{"embedding":[3,4],"label":"y"}')
    pair = read('{"embedding_a":[1,5],"embedding_b":[3,-2],"label":1}')

    assert (found.features.tolist(), found.names) == ([[1, 2], [3, 4]], ("x", "y"))
    assert pair.features.tolist() == [[2, 7, 3, -10]]


def test_classes_are_strings(read):
    """A table has "1" where JSON has 1."""
    found = read(*(f'{{"embedding":[1],"label":{value}}}' for value in ("1", '"1"', "0", "true")))

    assert found.names == ("1", "1", "0", "true")


VECTOR = '"embedding":[1]'
TRIPLET = '"label":"x","embedding_anchor":[1],"embedding_positive":[1],"embedding_negative":[1]'


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (VECTOR, '"label" is missing'),
        *(
            (f'{VECTOR},"label":{value}', f'"label" is a{kind}, expected a string or a whole number')
            for value, kind in (("0.5", " number"), ('["x"]', " list"))
        ),
        (f'{VECTOR},"label":null', '"label" is null, expected a string or a whole number'),
        (f'{VECTOR},"label":""', '"label" is empty'),
        (TRIPLET, "this row is a triplet; probe reads sentences and pairs"),
        (
            '"label":"x","embedding_a":[1e30],"embedding_b":[1e30]',
            "the vectors of this pair are too large to multiply",
        ),
        ('"label":"x","embedding":"AADAfw=="', "a vector contains NaN or infinity"),
    ],
)
def test_a_row_without_a_class_or_features_is_refused(read, row, problem):
    with pytest.raises(DataError, match=r"rows\.jsonl:1: ") as told:
        read(f"{{{row}}}")

    assert told.value.problem == problem


def test_classes_are_counted_in_alphabetical_order(read):
    found = read(*(f'{{"embedding":[1],"label":"{name}"}}' for name in "cabca"))
    counts = classes_of(found, "label")

    assert counts == {"a": 2, "b": 1, "c": 2}
    assert list(counts) == ["a", "b", "c"]
    assert np.array_equal(codes_of(found, list(counts), "label"), [2, 0, 1, 2, 0])


def test_an_unknown_class_is_named(read):
    found = read(*(f'{{"embedding":[1],"label":{n}}}' for n in range(10, 22)))

    with pytest.raises(DataError) as told:
        codes_of(found, ["10", "11"], "label")

    assert told.value.problem == '"label": TRAIN does not contain the class "12"'


USUAL = {"model": "nano", "readout": "mean", "prompt": "", "max_length": 512, "steps": []}
FIELDS = [*USUAL, "transform", "template", "full_stop", "vectors"]
ODD = json.loads(
    '[null, true, 0, -1, 1000000000, 1e400, 1.5, NaN, "", "/", "nano/zz", "../nano", [], [[]], {}, {"a": 1},'
    ' ["/dim=0:"], ["/dim=99999:x"], ["/n:", "/n:"]]'
)


@pytest.mark.parametrize("field", [*FIELDS, "spec", "_emb"])
def test_a_wrong_record_is_an_error_of_the_user(tmp_path, field):
    """It may name another model, because `predict` compares the spaces. Another exception is a bug."""
    path = tmp_path / "p.safetensors"
    for value in ODD:
        spec = {**USUAL, field: value} if field in FIELDS else {}
        probe = VectorClassifier(str(path), ("x", "y"), np.ones((2, 4)), np.ones(2), spec)
        with path.open("wb") as file:
            write_classifier(
                file, probe, {"_emb": "nano/mean:f2b4fc57a9e2", **({} if spec else {field: value})}
            )
        try:
            found = read_classifier(str(path))
            recorded = Recorded(found.path, found.spec)
            if recorded.model is not None:
                find_encoder(recorded.model, recorded.options(), device="cpu", download=False)
        except SentkitError:
            pass
