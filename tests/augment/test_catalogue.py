"""Operations by name: values, defaults, and refusals; and operations one after another."""

import pytest

from sentkit.augment.catalogue import OPERATIONS, Chain, check_flags, parse_operation, parse_operations
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

    assert {name: parse_operation(name).bind(None, {})[1] for name in notes} == notes
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
        check_flags(parse_operations([written]), {**NOTHING, **given}, 1)

    assert str(error.value) == problem


TEXT = "one  two three\tfour five six seven eight nine ten"


def chain(*written, seed=0, mark=None):
    return Chain(parse_operations(written), seed, mark, {"two": ("deux",)})


def test_each_operation_receives_the_previous_result_and_draws_independently():
    """A mark is a word of the previous result."""
    variant, notes = chain("delete=0.5", "repeat=1", "delete=0.5").vary(TEXT)
    _, (first, second) = chain("swap=0.3", "swap=0.3").vary(TEXT)

    assert len(variant.split()) == 5
    assert [len(note["at"]) for note in notes] == [5, 5, 5]
    assert first["at"] != second["at"]
    assert "[DEL] [DEL]" in chain("delete=0.5", "repeat=1", mark="[DEL]").vary(TEXT)[0]


def test_only_an_unchanged_text_keeps_its_spaces():
    for operation in ("lower", "delete=0", "synonym=0", "no-punctuation"):
        made = chain(operation)
        assert made.vary(TEXT)[0] == TEXT
        assert made.left == [1]

    assert chain("synonym").vary(TEXT)[0] == "one deux three four five six seven eight nine ten"


def test_draws_depend_only_on_their_key():
    """The key is text, seed, view and number of the operation."""
    made, again = chain("delete=0.5"), chain("delete=0.5")
    again.vary("something else")
    others = [made.vary(TEXT, (1,)), made.vary(TEXT, (0, 0)), made.vary(TEXT, before=1)]
    others += [made.vary(TEXT + "!"), chain("delete=0.5", seed=1).vary(TEXT)]

    assert again.vary(TEXT) == made.vary(TEXT)
    assert len({variant.replace("!", "") for variant, _ in [*others, made.vary(TEXT)]}) == 6


def test_unchanged_texts_are_counted_for_each_operation():
    made = chain("synonym", "delete")
    for text in ("two", "three four", "", "two three"):
        made.vary(text)

    assert made.texts == 4
    assert made.left == [3, 2]  # "two" alone is less than a third of itself, and keeps its word


def test_a_replacement_is_one_of_the_candidates():
    made = chain("paraphrase", "lower")
    found = {made.vary(f"text {n}", others=["ABC", "D  e"])[0] for n in range(20)}

    assert found == {"abc", "d e"}
    assert made.vary("Same", others=[])[0] == "same"
    assert made.left[0] == 1
