"""Rows as examples: scores within a scale, and members that a method leaves unread."""

import json

import numpy as np
import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import PAIR, SENTENCE, TRIPLET
from sentkit.formats.rows.rows import Row
from sentkit.papers.pairsupcon.method import PairSupCon
from sentkit.training.data.examples import NLI, ExampleParser, Labels, Reads, Scores
from sentkit.training.methods.pairs import SBERT
from sentkit.training.methods.simcse import SupervisedSimCSE

TEXTS = {"text_a": "a", "text_b": "b"}


def row(**values):
    return Row(json.dumps(values).encode(), values, "rows.jsonl", 1)


def parser_of(*kinds, fields=None, target_field=None, target=None):
    return ExampleParser("it", Reads(kinds, target_field, target), fields or {})


@pytest.mark.parametrize("score", [5, -5, 1.5])
def test_a_score_beyond_the_limit_is_a_bad_row(score):
    reads = SBERT.reads(None, SBERT.Settings(objective="regression", scale=1.0))
    parse = parser_of(PAIR, target_field="score", target=reads.target)
    problem = f'"score" is {score}, outside the scale of 1'
    with pytest.raises(DataError) as caught:
        parse(row(**TEXTS, score=score))

    assert str(caught.value) == f"rows.jsonl:1: {problem}"
    assert caught.value.advice == f"use --set scale={abs(score)}"


def test_a_score_within_the_limit_is_a_target_and_a_pair_without_a_score_is_omitted():
    for limit, score in ((5.0, 5), (5.0, -5), (5.0, 0.1), (None, 1e9)):
        parse = parser_of(PAIR, target_field="score", target=Scores(limit))
        assert parse(row(**TEXTS, score=score)).target == score
        assert [parse(row(**TEXTS, score=missing)) for missing in ("", "  ", None)] == [None] * 3


@pytest.mark.parametrize(
    ("value", "problem"),
    [("high", '"sim" is a string, expected a number'), ("6", '"sim" is 6, outside the scale of 5')],
)
def test_a_bad_score_is_named_as_the_row_names_it(value, problem):
    parse = parser_of(PAIR, target_field="score", target=Scores(5.0), fields={"score": "sim"})
    with pytest.raises(DataError) as caught:
        parse(row(**TEXTS, sim=value))

    assert str(caught.value) == f"rows.jsonl:1: {problem}"


def test_fields_that_are_missing_are_named_with_their_mapping():
    parse = parser_of(TRIPLET, fields={"anchor": "query", "positive": "answer"})
    with pytest.raises(DataError) as caught:
        parse(row(query="a", answer="b"))

    assert str(caught.value) == (
        'rows.jsonl:1: it needs "anchor" (here "query"), "positive" (here "answer") and "negative"; '
        'this row has "query" and "answer"'
    )
    advice = "name the field, for example --field negative=title, which applies to all files"
    assert caught.value.advice == advice


@pytest.mark.parametrize(
    ("parse", "values", "unread"),
    [
        (parser_of(SENTENCE, PAIR), TEXTS | {"label": "contradiction", "score": 1}, ("label", "score")),
        (parser_of(PAIR), TEXTS | {"score": None}, ("score",)),
        (parser_of(PAIR), TEXTS | {"source": "somewhere"}, ()),
        (parser_of(SENTENCE), {"text": "a", "label": "news"}, ()),
        (parser_of(TRIPLET), {"anchor": "a", "positive": "b", "negative": "c", "score": 1}, ()),
        (  # a method that reads one of them
            parser_of(PAIR, target_field="label", target=Labels(NLI)),
            TEXTS | {"label": "neutral", "score": 1},
            (),
        ),
        (  # by the name in the row
            parser_of(PAIR, fields={"label": "relation"}),
            TEXTS | {"relation": "contradiction", "label": "of a shelf"},
            ("relation",),
        ),
    ],
)
def test_ignored_fields_of_a_pair_are_recorded(parse, values, unread):
    assert parse.unread == ()
    parse(row(**values))

    assert parse.unread == unread


@pytest.mark.parametrize(
    ("method", "settings", "names"),
    [
        (PairSupCon, {}, ("text_a", "text_b")),
        (SBERT, {"objective": "softmax"}, ("text_a", "text_b")),
        (SBERT, {"objective": "triplet"}, ("anchor", "positive", "negative")),
        (SupervisedSimCSE, {}, ("anchor", "positive", "negative")),
    ],
)
def test_a_batch_has_the_texts_of_its_rows_in_the_order_of_the_fields(
    corpus_of, base, texts, method, settings, names
):
    rows = [dict(zip(names, texts[i:], strict=False)) | {"label": "entailment"} for i in range(4)]
    batch = corpus_of(method, rows, method.Settings(**settings)).batch(np.array([2, 0, 3]))

    for name, column in zip(names, batch.texts, strict=True):
        tokens = base.training_tokenizer([rows[number][name] for number in (2, 0, 3)])
        assert [ids.tolist() for ids in column] == [list(each.ids) for each in tokens]
