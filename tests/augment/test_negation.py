"""Negations by rules, worked by hand."""

import pytest

from sentkit.augment.negation import negate
from sentkit.augment.operations import Draw

DRAW = Draw(b"")  # negation makes no random choices

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
}


@pytest.mark.parametrize(
    ("rule", "pairs"), [("drop", DROPPED), ("insert", INSERTED), ("prefix", PREFIXED), ("none", {"": ""})]
)
def test_the_first_rule_that_applies(rule, pairs):
    for text, negation in pairs.items():
        words = text.split()
        negated, note = negate(words, DRAW)

        assert (" ".join(negated), note["rule"]) == (negation, rule)
        assert words == text.split()


@pytest.mark.parametrize("text", ["The cat is asleep.", "You can go.", "It's raining."])
def test_negation_of_a_negation_restores_the_text(text):
    """The inserted "not" is removed first."""
    once, _ = negate(text.split(), DRAW)

    assert " ".join(negate(once, DRAW)[0]) == text
