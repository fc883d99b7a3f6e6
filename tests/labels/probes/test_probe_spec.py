"""The record of the vectors of a saved probe, with wrong values in each field."""

import json

import numpy as np
import pytest

from sentkit.errors import SentkitError
from sentkit.labels.probes.classifiers import VectorClassifier, read_classifier, write_classifier
from sentkit.model import find_encoder
from sentkit.model.query_encoder import Recorded

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
