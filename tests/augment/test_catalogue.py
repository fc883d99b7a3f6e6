"""Operations by name: values, defaults, and refusals; and operations one after another."""

from sentkit.augment.catalogue import OPERATIONS, Chain, parse_operation, parse_operations


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
