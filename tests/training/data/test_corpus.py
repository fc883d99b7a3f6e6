"""The rows of a corpus, and its digest, by which a resumed run knows its rows."""

from dataclasses import replace

import numpy as np
import pytest

from sentkit.formats.rows.rows import Inputs
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.corpus_writer import RowCounts, write_corpus
from sentkit.training.data.examples import ExampleParser
from sentkit.training.methods.contrast import Contrast
from support import in_jsonl
from training.small import make_base


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


@pytest.mark.parametrize("second", ["guide", "comparison"])
def test_tokens_are_those_that_the_trained_encoder_reads(corpus_of, base, tmp_path, second):
    """Not those of a guide, nor those of texts without prompts, which are only compared."""
    rows = with_negatives([1, 2])
    settings = Contrast.Settings()
    alone = corpus_of(Contrast, rows, settings)
    if second == "guide":
        settings = Contrast.Settings(guide=str(make_base(tmp_path / "guide")))
    else:
        base = replace(base, prompt_of_side={"anchor": "dog"})
    corpus = corpus_of(Contrast, rows, settings, base)
    batch = corpus.batch(np.array([0, 1]))

    assert (len(alone.ids), len(corpus.ids)) == (3 * 7, 2 * 3 * 7)
    assert corpus.tokens == batch.tokens == alone.tokens == 3 * 7
    assert batch.take(slice(1, 2)).row_tokens == batch.row_tokens[1:] == [3 * 4]
    assert (corpus.columns, len(batch.texts), len(batch.second_texts)) == (4, 4, 4)


def test_rows_that_are_too_long_only_for_the_guide_have_a_warning_of_their_own(base, tmp_path):
    """A larger max_length does not help them."""
    guide = make_base(tmp_path / "guide", max_position_embeddings=8)
    rows = tmp_path / "rows.jsonl"
    texts = ["a dog", "a dog " * 5, "a dog " * 20]
    rows.write_text(in_jsonl(*({"anchor": text, "positive": "a dog"} for text in texts)))
    reads = Contrast.reads(base, Contrast.Settings(guide=str(guide), max_length=32))
    parser = ExampleParser("contrast", reads, {})
    counts = write_corpus(tmp_path, Inputs([str(rows)]), parser, base.training_tokenizer)

    assert [*counts.warnings()] == [
        "1 of 3 rows was truncated to the maximum length (--set max_length)",
        "1 of 3 rows was truncated to the maximum length of the guide, only for the guide",
    ]


def test_messages_about_one_row_are_in_the_singular():
    one = RowCounts(
        used=1, without_target=1, why_no_target="no score", blank=1, duplicates=1, truncated=1
    )
    two = RowCounts(used=3, without_target=2, why_no_target="no score", truncated=2)

    assert [*one.warnings()] == [
        "1 row skipped: no score",
        "1 row skipped: an empty text, of which no model computes a vector",
        "1 row skipped: duplicate texts (dedup=on)",
        "1 of 1 row was truncated to the maximum length (--set max_length)",
    ]
    assert [*two.warnings()] == [
        "2 rows skipped: no score",
        "2 of 3 rows were truncated to the maximum length (--set max_length)",
    ]
