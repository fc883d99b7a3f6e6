"""Operations by name: values, defaults, and refusals."""

import pytest

from sentkit.augment.catalogue import OPERATIONS, check_flags, parse_operation, parse_operations
from sentkit.errors import UsageError

NOTHING = {"--synonyms": None, "--paraphrases": None, "--mark": None, "--key": None}


def test_default_values_are_those_of_the_papers():
    """CLEAR: 70 % of the words, five spans of 5 %, 30 % of the words; ESimCSE: 0.32."""
    notes = {
        "delete": {"rate": 0.7},
        "span-delete": {"count": 5, "rate": 0.05},
        "reorder": {"count": 5, "rate": 0.05},
        "synonym": {"rate": 0.3},
        "repeat": {"rate": 0.32},
        **{name: {} for name in ("swap", "negate", "lower")},
    }

    assert {name: parse_operation(name).note for name in notes} == notes
    for name, kind in OPERATIONS.items():
        if kind.default is not None:
            assert parse_operation(name) == parse_operation(f"{name}={kind.default}")


@pytest.mark.parametrize(
    ("written", "problem", "advice"),
    [
        ("delet", 'unknown operation "delet"', 'did you mean "delete"?'),
        ("span_delete=1x1", 'unknown operation "span_delete"', 'did you mean "span-delete"?'),
        ("qq", 'unknown operation "qq"', "available: delete, span-delete, reorder"),
        ("", 'unknown operation ""', "available:"),
        ("delete=2", "expected a share from 0 to 1, for example delete=0.7", None),
        ("delete=", "the value after = is missing", None),
        ("swap=1.1", "expected a share from 0 to 1, for example swap=0.1", None),
        ("reorder=0x0.1", "expected a count of 1 or more, for example reorder=5x0.05", None),
        ("lower=1", "lower accepts no value", None),
        ("negate=", "the value after = is missing", None),
    ],
)
def test_invalid_operations_are_refused(written, problem, advice):
    with pytest.raises(UsageError) as error:
        parse_operation(written)

    assert str(error.value).startswith(f'--op "{written}": {problem}')
    assert (error.value.advice or "").startswith(advice or "")


@pytest.mark.parametrize("second", ["paraphrase", "negate=other"])
def test_an_operation_that_replaces_the_text_must_come_first(second):
    assert parse_operations([second, "delete"])
    with pytest.raises(UsageError, match="has to be the first --op"):
        parse_operations(["delete", second])


@pytest.mark.parametrize(
    ("written", "given", "problem"),
    [
        ("synonym", {}, "--op synonym needs --synonyms FILE"),
        ("paraphrase", {}, "--op paraphrase needs --paraphrases FILE"),
        ("lower", {"--synonyms": ["x"]}, "--synonyms can be used only with --op synonym"),
        ("lower", {"--paraphrases": "x"}, "--paraphrases can be used only with --op paraphrase"),
        ("lower", {"--key": "id"}, "--key can be used only with --op paraphrase"),
        ("reorder", {"--mark": "X"}, "--mark can be used only with --op delete or --op span-delete"),
        ("delete", {"--mark": ""}, '--mark "": expected a word without spaces'),
        ("span-delete", {"--mark": "a b"}, '--mark "a b": expected a word without spaces'),
    ],
)
def test_flags_must_match_the_operations(written, given, problem):
    with pytest.raises(UsageError) as error:
        check_flags(parse_operations([written]), {**NOTHING, **given})

    assert str(error.value) == problem
