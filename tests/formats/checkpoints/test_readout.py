"""The names of readouts, their layers, and the templates of the readout prompt."""

import pytest

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import inexpressible
from sentkit.formats.checkpoints.readout import (
    DEFAULT,
    FULL_STOPS,
    NAMED,
    TEMPLATES,
    Readout,
    Template,
    find_template,
    parse_readout,
    parse_readouts,
)
from sentkit.formats.checkpoints.reductions import PLAIN, Plain


@pytest.mark.parametrize(
    ("name", "layers", "reduction"),
    [
        ("cls", (12,), "cls"),
        ("mean-last2", (12, 11), "mean"),
        ("mean-first-last", (1, 12), "mean"),
        ("mean-emb-last", (0, 12), "mean"),
        ("pooler", (12,), "pooler"),
        ("prompt", (12,), "token"),
        ("L0:cls", (0,), "cls"),
        ("L0+L4+L5:cls", (0, 4, 5), "cls"),
        ("wk", (4, 5, 6, 7, 8, 9, 10, 11, 12), "wk"),
        ("wk-clip", (4, 5, 6, 7, 8, 9, 10, 11, 12), "wk-clip"),
        ("L0+L2+L4+L6+L8:wk", (0, 2, 4, 6, 8), "wk"),
    ],
)
def test_a_name_selects_layers_and_a_reduction(name, layers, reduction):
    readout = parse_readout(name)

    assert (readout.name, readout.layers_in(12), readout.reduction) == (name, layers, reduction)


@pytest.mark.parametrize(
    "name",
    [
        *("", "CLS", "mean ", "best"),
        *("L", "L*", "L1+", "L+1", "L*+L1", "L:cls", "L-1:cls", "L*:cls", "L\u0663:cls"),
        *(
            f"L{'9' * 5000}:cls",
            "L1:pooler",
            "L1+:cls",
            "L1+L2:max",
            "L1:cls:mean",
            "L1:wk",
            "L*:wk",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_a_list_of_names(name):
    with pytest.raises(UsageError, match="unknown readout") as caught:
        parse_readout(name)

    assert caught.value.advice is not None
    assert all(readout in caught.value.advice for readout in NAMED)


def test_a_star_selects_all_layers_and_the_embeddings_and_all_every_readout_of_a_layer():
    names = [readout.name for readout in parse_readouts("L*:cls, mean,L1:cls,mean", 3)]
    plain = ["cls", "max", "mean", "mean-sqrt", "weighted-mean", "last"]

    assert names == ["L0:cls", "L1:cls", "L2:cls", "L3:cls", "mean"]
    assert [layer_readout.name for layer_readout in parse_readouts("L2:all", 3)] == [
        f"L2:{name}" for name in plain
    ]
    every = [f"L{layer}:{name}" for name in plain for layer in (0, 1)]
    assert [layer_readout.name for layer_readout in parse_readouts("L*:all", 1)] == every


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("L6", "L6:mean"),
        ("L1+L12", "L1+L12:mean"),
        ("L*", "L*:mean"),
        ("cls, L2 ,L*", "cls,L2:mean,L*:mean"),
    ],
)
def test_layers_without_a_reduction_are_read_by_their_mean(short, whole):
    assert parse_readouts(short, 12) == parse_readouts(whole, 12)


def test_the_list_of_readouts_explains_layers_without_a_reduction():
    with pytest.raises(UsageError) as caught:
        parse_readouts("L1:best", 12)

    assert "(L<k> is L<k>:mean, L* every layer)" in caught.value.advice


WK = "needs 5 different layers or more"
LAYERS = "name the layers, such as L0+L1+...:"


@pytest.mark.parametrize(
    ("name", "depth", "problem", "advice"),
    [
        ("L4:cls", 3, "needs more layers than the encoder has (3)", None),
        ("L1+L4:mean", 3, "needs more layers than the encoder has (3)", None),
        ("mean-last2", 0, "needs more layers than the encoder has (0)", None),
        ("L1+L2+L3+L4+L5:wk", 4, "needs more layers than the encoder has (4)", None),
        ("wk", 7, WK, f"{LAYERS}wk"),
        ("wk-clip", 3, WK, f"{LAYERS}wk-clip"),
        ("L1+L2+L3+L4+L4:wk", 12, WK, f"{LAYERS}wk"),
    ],
)
def test_missing_layers_are_refused(name, depth, problem, advice):
    with pytest.raises(UsageError) as caught:
        parse_readouts(name, depth)

    shown = name.replace("L4+L4", "L4")
    assert (str(caught.value), caught.value.advice) == (f'readout "{shown}" {problem}', advice)


@pytest.mark.parametrize("name", ["added", "concat:added"])
def test_a_readout_that_a_pooling_module_does_not_have_is_not_written_as_one(name, monkeypatch):
    added = Readout("added", (-1,), "added")
    monkeypatch.setitem(PLAIN, "added", Plain("Another reduction"))
    monkeypatch.setitem(NAMED, "added", added)
    readout = added
    if name != "added":
        readout = Readout(name, (-1,), name)

    assert inexpressible(readout) == "a Pooling module has no added"
    assert inexpressible(NAMED["mean"]) is None


def test_each_readout_of_a_layer_has_one_function_and_a_text_for_the_manual():
    assert [name for name, plain in PLAIN.items() if not plain.summary] == []
    assert [name for name, plain in PLAIN.items() if bool(plain.reduce) == bool(plain.row)] == []


def test_wk_sorts_its_layers():
    assert parse_readout("L4+L3+L2+L1+L0:wk") == parse_readout("L0+L1+L2+L3+L4:wk")
    assert parse_readouts("wk", 8)[0].layers_in(8) == (4, 5, 6, 7, 8)


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


def test_named_templates_agree_with_their_papers():
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
def test_final_punctuation_is_added_if_missing(sentence, promptbert, sncse):
    assert FULL_STOPS["none"](sentence) == sentence
    assert FULL_STOPS["promptbert"](sentence) == promptbert
    assert FULL_STOPS["sncse"](sentence) == sncse


@pytest.mark.parametrize(
    ("text", "full_stop", "sentence", "expected"),
    [
        ("promptroberta", None, "a cat", "This sentence : ' a cat. ' means<mask>."),
        ("[MASK] = [X]!", None, "a [MASK] cat", "<mask> = a [MASK] cat!"),
        ("promptbert", "none", "a", 'This sentence : "a" means <mask> .'),
        ("[X] [MASK]", "sncse", "a", "a . <mask>"),
    ],
)
def test_the_mask_of_the_tokenizer_replaces_the_placeholder(text, full_stop, sentence, expected):
    """Of a named template and of any text with placeholders; the flag overrides the full stop."""
    assert find_template(text, full_stop, "<mask>").around(sentence) == expected


def test_a_template_has_one_sentence_and_one_mask_and_a_known_full_stop():
    for text in (
        "",
        "[X]",
        "[MASK]",
        "[X] [X] [MASK]",
        "[X] [MASK] [MASK]",
        "X MASK",
        "bertprompt",
    ):
        with pytest.raises(
            UsageError, match=r'template ".*" needs \[X\] once and \[MASK\] once$'
        ) as caught:
            Template(text)
        assert caught.value.advice == f"named templates: {', '.join(TEMPLATES)}"
    with pytest.raises(UsageError, match='unknown full-stop rule "loud"'):
        Template("[X] [MASK]", "loud")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("avg_first_last", "mean-first-last"),
        ("cls_token", "cls"),
        ("MEAN", "mean"),
        ("mean-frist-last", "mean-first-last"),
    ],
)
def test_a_readout_of_another_library_or_with_a_typing_error_has_its_name(name, meant):
    with pytest.raises(UsageError) as caught:
        parse_readout(name)

    assert caught.value.advice.startswith(f'did you mean "{meant}"? available: cls, max, mean')
