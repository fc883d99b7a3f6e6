"""The operations on words: how many words change, which, and where the mark is; and one after
another.
"""

from decimal import ROUND_FLOOR, Decimal
from itertools import chain

import pytest

from sentkit.augment.catalogue import Chain, parse_operation, parse_operations
from sentkit.augment.operations import (
    Draw,
    delete,
    lower,
    negate,
    no_punctuation,
    parse_share,
    parse_spans,
    reorder,
    repeat,
    span_delete,
    swap,
    synonym,
)
from support import redone

SYNONYMS = {"big": ("large",), "dog": ("domestic dog", "hound"), "don't": ("never",)}
ALL = parse_share("1")
HALF = parse_share("0.5")
SHARES = ("0", "0.05", "0.29", "0.32", "0.7", "1")
SPANS = ("5x0.05", "2x0.5", "1x1", "5x0", "3x0.3")


def words(n):
    """All are different, so that each can be followed."""
    return [f"w{index}" for index in range(n)]


def draw(key=0):
    return Draw(b"test %d" % key)


def test_a_share_of_words_is_exact():
    """It is rounded down, but is at least one word of two, except for a share of 0.

    Floats fail: 0.29 * 100 is 28.999, but 0.29 of 100 words is 29.
    """
    lengths = (*range(23), 50, 99, 100, 101, 1000)
    for text in (*(f"{n / 1000:.3f}" for n in range(1001)), ".7", "0.3", "1", "1.", "0"):
        share = parse_share(text)
        number = Decimal(text)
        floors = [int((number * n).to_integral_value(ROUND_FLOOR)) for n in lengths]
        minima = [1 if number and n >= 2 else 0 for n in lengths]

        assert [share.of(n) for n in lengths] == [*map(max, floors, minima)], text


@pytest.mark.parametrize(
    ("spans", "n", "room", "spans_together", "expected"),
    [
        ("5x0.05", 100, 99, 1, (5, 5)),  # five spans of 5 %
        ("5x0.05", 19, 18, 1, (5, 1)),  # 0.95 words become one
        ("5x0.05", 5, 4, 1, (4, 1)),  # the fifth would delete the last word
        ("5x0.05", 1, 0, 1, (0, 0)),
        ("5x0.05", 100, 100, 2, (5, 5)),  # five pairs
        ("5x0.05", 9, 9, 2, (4, 1)),  # eight words in four pairs
        ("5x0.05", 1, 1, 2, (0, 0)),
        # Half of seven words is three, and a pair of such spans has six.
        ("1x0.5", 7, 7, 2, (1, 3)),
        ("3x1", 7, 6, 1, (1, 6)),
        ("5x0", 10, 9, 1, (0, 0)),
    ],
)
def test_spans_that_do_not_fit_are_omitted_or_shortened(spans, n, room, spans_together, expected):
    """The number of spans or pairs and their length, worked by hand."""
    assert parse_spans(spans).fit(n, room, spans_together=spans_together) == expected


CHANGES = {  # the number of places that an operation draws in n words, and the length of a span
    delete: (SHARES, lambda share, n: (max(0, min(share.of(n), n - 1)), 1)),
    repeat: (SHARES, lambda share, n: (share.of(n), 1)),
    swap: ((None, *SHARES), lambda share, n: (min(1 if share is None else share.of(n), n // 2), 2)),
    span_delete: (SPANS, lambda spans, n: spans.fit(n, max(0, n - 1))),
    reorder: (SPANS, lambda spans, n: spans.fit(n, n, spans_together=2)),
}


@pytest.mark.parametrize("mark", [None, "#"])
@pytest.mark.parametrize(
    ("operation", "written"),
    [(change, value) for change, (values, _) in CHANGES.items() for value in values],
)
def test_the_places_that_change(operation, written, mark):
    """As many as fit, disjoint and in order. The result is that of plain loops over the record."""
    parse = parse_share if operation in (delete, repeat, swap) else parse_spans
    value = None if written is None else parse(written)
    count = CHANGES[operation][1]
    marks = {"mark": mark} if operation in (delete, span_delete) else {}
    for n in range(60):
        changed, note = operation(words(n), draw(n), value, **marks)
        shown = {
            "op": operation.__name__.replace("_", "-"),
            **note,
            **({"mark": mark} if mark else {}),
        }
        number, length = count(value, n)
        starts = [*chain.from_iterable(note["at"])] if operation is reorder else note["at"]
        covered = {start + offset for start in starts for offset in range(length)}

        assert " ".join(changed) == redone(" ".join(words(n)), shown)
        assert (len(note["at"]), note.get("length", length)) == (number, length)
        assert len(covered) == len(starts) * length
        assert starts == sorted(starts) or operation is reorder
        assert covered <= {*range(n)}


def test_case_and_punctuation():
    """Punctuation goes around words and alone; a text of punctuation only is unchanged."""
    texts = [
        "Well , he said: “don't!”",
        "A 3.5 % rise - (big).",
        '«Straße» 50% ("a-b"), $5,',
        "... !",
        "",
    ]
    unpunctuated = [" ".join(no_punctuation(text.split(), draw())[0]) for text in texts]

    assert unpunctuated == [
        "Well he said don't",
        "A 3.5 % rise big",
        "Straße 50% a-b $5",
        "... !",
        "",
    ]
    assert lower(["A", "ÉTÉ", "x"], draw())[0] == ["a", "été", "x"]


def test_a_synonym_keeps_punctuation_and_capital():
    changed, note = synonym(['"Big', "dogs", "don't,\"", "says", "BIG."], draw(), ALL, SYNONYMS)

    assert " ".join(changed) == '"Large dogs never," says LARGE.'
    assert note == {"at": [0, 2, 4], "words": ["Large", "never", "LARGE"]}


def test_a_synonym_may_have_two_words():
    """Each synonym is drawn by some key, and later operations receive its words."""
    results = {" ".join(synonym(["dog"] * 2, draw(key), HALF, SYNONYMS)[0]) for key in range(40)}

    assert results == {"domestic dog dog", "dog domestic dog", "hound dog", "dog hound"}


@pytest.mark.parametrize(("rate", "count"), [("0.3", 3), ("0.5", 4), ("0.1", 1), ("0", 0)])
def test_number_of_synonyms(rate, count):
    """Only four of the ten words have a synonym."""
    _, note = synonym([*words(6), "big", "dog", "big", "dog"], draw(), parse_share(rate), SYNONYMS)

    assert len(note["at"]) == count
    assert set(note["at"]) <= {6, 7, 8, 9}
    assert synonym(words(9), draw(), ALL, SYNONYMS) == (words(9), {"at": [], "words": []})


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("DOG", "HOUND"),
        ("Dog,", "Hound,"),
        ("U.S.", "America"),
        ("Don\u2019t", "Never"),
        ("...", "..."),
    ],
)
def test_lookup_of_synonyms(word, expected):
    """A word that contains punctuation is looked up whole first; apostrophes are normalized."""
    synonyms = {"dog": ("hound",), "u.s.": ("America",), "don't": ("never",)}

    assert list(synonym([word, "x"], draw(), ALL, synonyms)[0]) == [expected, "x"]


DROPPED = {
    "He does not like tea.": "He does like tea.",
    "Not all dogs bark.": "All dogs bark.",
    "It is NOT good.": "It is good.",
    "I think not.": "I think.",
    "He did not, however, go.": "He did, however, go.",
    "He did (not) go.": "He did go.",
    "It isn't, is it?": "It is, is it?",
    "It isn\u2019t so.": "It is so.",
    "You can't go.": "You can go.",
    "WE CAN'T GO": "WE CAN GO",
    "Won't you go?": "Will you go?",
    "They cannot and will not go.": "They can and will not go.",
    "He ca n't go , nor did n't he .": "He can go , nor did n't he .",
    "Don't go.": "Do go.",
    "He shouldn't've gone.": "He should've gone.",
}
INSERTED = {
    "The cat is asleep.": "The cat is not asleep.",
    "He said that it was, and had been, fine.": "He said that it was not, and had been, fine.",
    "They're tired.": "They're not tired.",
    "It's raining.": "It's not raining.",
    "The dog's bone was old.": "The dog's bone was not old.",
    "Will Smith is an actor.": "Will Smith is not an actor.",
    "In May he could go.": "In May he could not go.",
    "Is he here?": "Is not he here?",
    "SHE MUST GO": "SHE MUST NOT GO",
    "Will you go?": "Will not you go?",
    "May I come in?": "May not I come in?",
    "I'd go.": "I'd not go.",
}
PREFIXED = {
    "He likes tea.": "Not he likes tea.",
    "The BBWAA began.": "Not the BBWAA began.",
    "Rome fell.": "Not Rome fell.",
    "I like tea.": "Not I like tea.",
    "“A dog barks.”": "Not “a dog barks.”",
    "tea": "Not tea",
    "not": "Not not",
    "Not.": "Not not.",
}


@pytest.mark.parametrize(
    ("rule", "pairs"),
    [("drop", DROPPED), ("insert", INSERTED), ("prefix", PREFIXED), ("none", {"": ""})],
)
def test_the_first_rule_that_applies(rule, pairs):
    for text, negation in pairs.items():
        words = text.split()
        negated, note = negate(words, draw())

        assert (" ".join(negated), note["rule"]) == (negation, rule)
        assert words == text.split()


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


def test_each_operation_receives_the_previous_result_and_draws_independently():
    """A mark is a word of the previous result."""
    text = " ".join(words(10))
    half = ("delete=0.5", "repeat=1", "delete=0.5")
    chains = ((half, None), (("swap=0.3", "swap=0.3"), None), (half, "[DEL]"))
    results = [Chain(parse_operations(written), 0, mark, {}).vary(text) for written, mark in chains]
    (variant, notes), (_, (first, second)), (marked, _) = results

    assert len(variant.split()) == 5
    assert [len(note["at"]) for note in notes] == [5, 5, 5]
    assert first["at"] != second["at"]
    later = Chain(parse_operations(["swap=0.3"]), 0, None, {}).vary(text, before=1)
    assert later[1][0]["at"] == second["at"]
    assert "[DEL] [DEL]" in marked
