"""The ids of texts by words, against those of the library for whole texts."""

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from sentkit.formats.checkpoints.folders import find_model
from sentkit.model.text import rules
from sentkit.model.text.rules import WordIds, reads_words_alone

CHARACTERS = " '-[](MASK]aAzéÉßẞİΣς中\u0131\u0301\u0308\u00a0\u00b4\u3000\t\n\x00\x01\x1c¿…😀\ufffd"
TEXTS = st.lists(st.text(st.sampled_from(CHARACTERS) | st.characters(exclude_categories=["Cs"])), max_size=6)
PIECES = ("[MASK]", "[UNK]x", "don't", "(a)", "U.S.", "", "  ", "a  b", "x" * 120, "e\u0301 \u0301e")


def rules_of(**normalizer):
    path = Path(str(find_model("nano"))) / "tokenizer.json"
    rules = json.loads(path.read_text())
    rules["normalizer"] |= normalizer
    return rules | {"truncation": None, "padding": None}


@pytest.fixture(
    scope="module",
    params=[(), ("lowercase", "strip_accents"), ("handle_chinese_chars", "clean_text")],
    ids=["nano", "cased", "as they are"],
)
def both(request):
    rules = rules_of(**dict.fromkeys(request.param, False))
    library = Library.from_str(json.dumps(rules))

    def encode(texts):
        return [each.ids for each in library.encode_batch_fast(texts, add_special_tokens=False)]

    assert reads_words_alone(rules)
    return library, WordIds(encode, rules)


@given(texts=TEXTS)
@example(texts=[*PIECES, " ".join(PIECES)])
def test_words_have_the_ids_of_their_text(both, texts):
    library, by_words = both
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]

    ids, counts = by_words(texts)

    assert counts.tolist() == [*map(len, expected)]
    assert ids.tolist() == [*chain.from_iterable(expected)]


def test_forgotten_words_have_the_same_ids(both, monkeypatch):
    _, by_words = both
    before = by_words(["a cat", "a dog, a cat"])
    monkeypatch.setattr(rules, "MOST_CHARACTERS", 0)
    monkeypatch.setattr(rules, "TEXTS_AT_ONCE", 1)

    after = by_words(["a cat", "a dog, a cat"])

    assert [each.tolist() for each in after] == [each.tolist() for each in before]
    assert set(by_words.numbers) == {"a", "dog,", "dog", ",", "cat"}  # of the last text only


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"normalizer": {"type": "Sequence", "normalizers": []}},
        {"model": {"type": "BPE"}},
        {"added_tokens": [{"content": "New York", "normalized": False}]},
        {"added_tokens": [{"content": "COVID-19", "normalized": True}]},
    ],
)
def test_other_tokenizers_read_whole_texts(change):
    assert not reads_words_alone(rules_of() | change)
