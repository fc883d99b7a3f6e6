"""Templates: the words around a sentence, and the full stops of the papers."""

import pytest

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.templates import DEFAULT, FULL_STOPS, TEMPLATES, Template, find_template

PAPERS = {
    "defsent-plus": 'This sentence : "a cat" means [MASK] . ',
    "defsent-plus-paper": "This sentence: 'a cat' means [MASK].",
    "promptbert": 'This sentence : "a cat." means [MASK] .',
    "promptbert-1": 'This sentence of "a cat." means [MASK].',
    "promptroberta": "This sentence : ' a cat. ' means[MASK].",
    "promptroberta-1": "The sentence : ' a cat. ' means[MASK].",
    "sncse": 'This sentence : " a cat . " means [MASK] .',
    "sncse-1": 'This sentence of " a cat . " means [MASK] .',
}


def test_named_templates_agree_with_their_papers() -> None:
    assert {name: template.around("a cat") for name, template in TEMPLATES.items()} == PAPERS
    assert find_template(None, None, "[MASK]").text == TEMPLATES[DEFAULT].text


@pytest.mark.parametrize(
    ("sentence", "promptbert", "sncse"),
    [
        ("a cat", "a cat.", "a cat ."),
        ("a cat.", "a cat.", "a cat."),
        ("a cat?", "a cat?", "a cat?"),
        ('"a cat"', '"a cat"', '"a cat"'),
        ("cats'", "cats'", "cats'"),
        ("a cat!", "a cat!.", "a cat!"),
        ("a cat;", "a cat;.", "a cat;"),
        ("a cat. ", "a cat. .", "a cat.  ."),
        ("une chatte…", "une chatte….", "une chatte… ."),
        ("", ".", " ."),
    ],
)
def test_final_punctuation_is_added_if_missing(sentence: str, promptbert: str, sncse: str) -> None:
    assert FULL_STOPS["none"](sentence) == sentence
    assert FULL_STOPS["promptbert"](sentence) == promptbert
    assert FULL_STOPS["sncse"](sentence) == sncse


def test_the_mask_of_the_tokenizer_replaces_the_placeholder() -> None:
    """Of a named template and of any text with placeholders."""
    named, other = (find_template(text, None, "<mask>") for text in ("promptroberta", "[MASK] = [X]!"))

    assert named.around("a cat") == "This sentence : ' a cat. ' means<mask>."
    assert other.around("a [MASK] cat") == "<mask> = a [MASK] cat!"
    assert other.full_stop == "none"


def test_the_full_stop_flag_overrides_the_template() -> None:
    assert find_template("promptbert", "none", "[MASK]").around("a") == 'This sentence : "a" means [MASK] .'
    assert find_template("[X] [MASK]", "sncse", "[MASK]").around("a") == "a . [MASK]"


@pytest.mark.parametrize("sentence", ["", "a", "a [X] b", "This sentence"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_place_of_a_sentence_is_its_position(name: str, sentence: str) -> None:
    template = TEMPLATES[name]
    whole = template.around(sentence)

    start, end = template.place(whole)

    assert whole[start:end] == FULL_STOPS[template.full_stop](sentence)


@pytest.mark.parametrize(
    "text", ["", "[X]", "[MASK]", "[X] [X] [MASK]", "[X] [MASK] [MASK]", "X MASK", "bertprompt"]
)
def test_a_template_has_one_sentence_and_one_mask(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Template(text)

    assert str(caught.value) == f'template "{text}" needs [X] once and [MASK] once'
    assert caught.value.advice == f"named templates: {', '.join(TEMPLATES)}"


def test_an_unknown_full_stop_is_refused() -> None:
    with pytest.raises(UsageError, match='unknown full-stop rule "loud"'):
        Template("[X] [MASK]", "loud")
