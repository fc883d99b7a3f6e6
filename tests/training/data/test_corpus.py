"""The rows of a corpus, and its digest, by which a resumed run knows its rows."""

from dataclasses import replace

import numpy as np
import pytest

from sentkit.training.data.corpus import Corpus
from sentkit.training.methods.contrast import Contrast


def corpus():
    """Two rows of two texts, with all columns."""
    return Corpus(
        ids=np.arange(6, dtype=np.int32),
        ends=np.array([1, 3, 4, 6]),
        first_texts=np.array([0, 2, 4]),
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


def test_the_digest_depends_on_the_texts_of_each_row():
    ragged = replace(corpus(), first_texts=np.array([0, 1, 4]))
    other = replace(corpus(), first_texts=np.array([0, 3, 4]))

    assert len({corpus().digest, ragged.digest, other.digest}) == 3


def with_negatives(counts):
    """Rows with so many negatives."""
    return [{"anchor": "a", "positive": "b", "negatives": ["c"] * count} for count in counts]


def test_a_row_with_many_texts_needs_no_space_in_other_rows(corpus_of):
    """Neither in the corpus nor in a batch without this row."""
    corpus = corpus_of(Contrast, with_negatives([50, *[0] * 20, 2]), Contrast.Settings())
    batch = corpus.batch(np.array([1, 21, 2]))

    assert corpus.ends.size == 50 + 2 + 2 * 22
    assert corpus.first_texts.size == 22 + 1
    assert corpus.columns == 52
    assert [[len(text) for text in column] for column in batch.texts] == [
        [3, 3, 3],
        [3, 3, 3],
        [0, 3, 0],
        [0, 3, 0],
    ]
    assert len(corpus.batch(np.array([3])).texts) == 2
    assert len(corpus.batch(np.array([3, 0])).texts) == 52
