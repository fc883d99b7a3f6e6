"""The digest of a corpus, by which a resumed run knows its rows."""

from dataclasses import replace

import numpy as np
import pytest

from sentkit.training.data.corpus import Corpus


def corpus():
    """Two rows of two texts, with all columns."""
    return Corpus(
        ids=np.arange(6, dtype=np.int32),
        ends=np.array([[1, 3], [4, 6]]),
        targets=np.array([0.0, 1.0]),
        labels=("no", "yes"),
        vectors=np.eye(2, dtype=np.float32),
        files=np.array([0, 1], np.int32),
    )


@pytest.mark.parametrize("name", ["ids", "ends", "targets", "vectors", "files"])
def test_the_digest_depends_on_each_number_of_each_column(name):
    assert corpus().digest == corpus().digest
    values = getattr(corpus(), name)
    digests = {corpus().digest}
    for index in range(values.size):
        changed = values.copy()
        changed.reshape(-1)[index] += 1
        digests.add(replace(corpus(), **{name: changed}).digest)

    assert len(digests) == 1 + values.size


def test_the_digest_depends_on_the_labels_and_not_on_the_names_of_files():
    assert replace(corpus(), labels=("yes", "no")).digest != corpus().digest
    assert replace(corpus(), file_names=("a.jsonl", "b.jsonl")).digest == corpus().digest
