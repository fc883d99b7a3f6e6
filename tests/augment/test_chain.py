"""Operations one after another."""

import pytest

from sentkit.augment.catalogue import Materials, parse_operations
from sentkit.augment.chain import Chain

TEXT = "one  two three\tfour five six seven eight nine ten"


def chain(*written, seed=0, mark=None):
    materials = Materials(mark, {"two": ("deux",)})
    return Chain([each.step(materials) for each in parse_operations(written)], seed)


def test_each_operation_sees_what_the_one_before_has_left():
    variant, notes = chain("delete=0.5", "repeat=1", "delete=0.5").vary(TEXT)

    assert len(variant.split()) == 5
    assert [len(note["at"]) for note in notes] == [5, 5, 5]


def test_a_mark_is_a_word_to_what_follows():
    variant, _ = chain("delete=0.5", "repeat=1", mark="[DEL]").vary(TEXT)

    assert "[DEL] [DEL]" in variant


@pytest.mark.parametrize("operation", ["lower", "delete=0", "synonym=0", "no-punctuation"])
def test_a_text_that_is_left_alone_keeps_its_blanks(operation):
    made = chain(operation)

    assert made.vary(TEXT)[0] == TEXT
    assert made.left == [1]


def test_a_text_that_changes_has_one_blank_between_words():
    assert chain("synonym").vary(TEXT)[0] == "one deux three four five six seven eight nine ten"


def test_what_is_drawn_hangs_on_its_key_alone():
    """The same text, seed, view and number: the same variant, whatever came before; else another."""
    made, again = chain("delete=0.5"), chain("delete=0.5")
    again.vary("something else")
    first = made.vary(TEXT)[0]
    others = [
        made.vary(TEXT, (1,))[0],
        made.vary(TEXT, (0, 0))[0],
        made.vary(TEXT, before=1)[0],
        chain("delete=0.5", seed=1).vary(TEXT)[0],
        made.vary(TEXT + "!")[0].replace("!", ""),
    ]

    assert again.vary(TEXT)[0] == first
    assert len({first, *others}) == 6


def test_operations_of_one_kind_draw_for_themselves():
    """Twice `swap` is not what it was: the second has a number of its own."""
    _, notes = chain("swap=0.3", "swap=0.3").vary(TEXT)

    assert notes[0]["at"] != notes[1]["at"]


def test_texts_that_are_left_are_counted_for_each_operation():
    made = chain("synonym", "delete")
    for text in ("two", "three four", "", "two three"):
        made.vary(text)

    assert made.texts == 4
    assert made.left == [3, 2]  # "two" alone is less than a third of itself, and keeps its word


def test_another_text_is_one_of_those_that_are_there():
    made = chain("paraphrase", "lower")
    found = {made.vary(f"text {n}", others=["ABC", "D  e"])[0] for n in range(20)}

    assert found == {"abc", "d e"}
    assert made.vary("Same", others=[])[0] == "same"
    assert made.left[0] == 1
