"""Rows as examples: scores within a scale, and members that a method leaves unread."""

import json
import re

import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import NEGATIVES, PAIR, POSITIVE, SENTENCE, TRIPLET
from sentkit.formats.rows.rows import Row
from sentkit.training.data.examples import NLI, ExampleParser, Labels, Reads, Scores

TEXTS = {"text_a": "a", "text_b": "b"}


def row(**values):
    return Row(json.dumps(values).encode(), values, "rows.jsonl", 1)


def parser_of(*kinds, fields=None, target_field=None, target=None):
    return ExampleParser("it", Reads(kinds, target_field, target), fields or {})


def test_a_score_within_the_limit_is_a_target_and_a_pair_without_a_score_is_omitted():
    for limit, score in ((5.0, 5), (5.0, -5), (5.0, 0.1), (None, 1e9)):
        parse = parser_of(PAIR, target_field="score", target=Scores(limit))
        assert parse(row(**TEXTS, score=score)).target == score
        assert [parse(row(**TEXTS, score=missing)) for missing in ("", "  ", None)] == [None] * 3


@pytest.mark.parametrize(
    ("limit", "score", "problem", "scale"),
    [
        (5.0, 6, '"score" is 6, outside the scale of 5', "6"),
        (5.0, -6.0, '"score" is -6, outside the scale of 5', "6"),
        (5.0, 5.0000012, '"score" is 5.0000012, outside the scale of 5', "5.0000012"),
        (5.0000012, 5.5, '"score" is 5.5, outside the scale of 5.0000012', "5.5"),
        (5.0, 1234564.9, '"score" is 1234564.9, outside the scale of 5', "1234564.9"),
    ],
)
def test_a_score_beyond_the_limit_is_named_with_the_scale_that_has_it(limit, score, problem, scale):
    parse = parser_of(PAIR, target_field="score", target=Scores(limit))
    with pytest.raises(DataError) as caught:
        parse(row(**TEXTS, score=score))

    assert problem in str(caught.value)
    assert caught.value.advice == f"use --set scale={scale}"
    Scores(float(scale))(row(**TEXTS, score=score), "score")


@pytest.mark.parametrize(
    ("parse", "values", "ignored"),
    [
        (
            parser_of(SENTENCE, PAIR),
            TEXTS | {"label": "contradiction", "score": 1},
            ("label", "score"),
        ),
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
def test_ignored_fields_of_a_pair_are_recorded(parse, values, ignored):
    assert parse.ignored_fields == ()
    parse(row(**values))

    assert parse.ignored_fields == ignored


def test_negatives_after_a_first_row_without_them_are_not_dropped():
    """The first row determines the kind, and a row with more texts is of another kind."""
    pair = {"anchor": "a", "positive": "b"}
    for name, texts in (("negative", "c"), ("negatives", ["c", "d"])):
        parse = parser_of(TRIPLET, NEGATIVES, POSITIVE, PAIR)
        assert parse(row(**pair)).texts == ("a", "b")
        with pytest.raises(DataError, match=f'has "{name}", which the first row does not have'):
            parse(row(**pair, **{name: texts}))
        # Nothing to drop.
        for none in (None, texts[:0]):
            assert parse(row(**pair, **{name: none})).texts == ("a", "b")


def test_a_negative_beside_a_list_of_negatives_is_not_dropped():
    """Neither in a later row nor in the first one, whose kind would be that of one negative."""
    pair = {"anchor": "a", "positive": "b"}
    advice = r'write all negatives as "negatives": \["..."\] in every row'
    for first, later, name in (
        ({"negatives": []}, {"negatives": [], "negative": "e"}, "negative"),
        ({"negatives": ["c"]}, {"negatives": ["d"], "negative": "e"}, "negative"),
        ({"negative": "c"}, {"negative": "d", "negatives": ["e"]}, "negatives"),
    ):
        parse = parser_of(TRIPLET, NEGATIVES, POSITIVE, PAIR)
        parse(row(**pair, **first))
        with pytest.raises(DataError, match=f'has "{name}", which the first row does') as error:
            parse(row(**pair, **later))
        assert re.match(advice, error.value.advice)
        # Nothing to drop.
        assert parse(row(**pair, **later | {name: None})).texts[:2] == ("a", "b")

    parse = parser_of(TRIPLET, NEGATIVES, POSITIVE, PAIR)
    with pytest.raises(DataError, match='has "negatives" beside "negative"') as error:
        parse(row(**pair, negative="c", negatives=["d"]))
    assert re.match(advice, error.value.advice)
    # A method without lists of negatives ignores them.
    parse = parser_of(TRIPLET)
    assert parse(row(**pair, negative="c", negatives=["d"])).texts == ("a", "b", "c")


def test_a_method_without_negatives_ignores_them():
    parse = parser_of(POSITIVE, fields={"positive": "answer"})
    values = {"anchor": "a", "answer": "b"}

    assert parse(row(**values)).texts == parse(row(**values, negatives=["c"])).texts == ("a", "b")
