"""Texts in languages that a tokenizer does not know. The expected values are counted by hand."""

import numpy as np
import pytest

from sentkit.model.text.languages import CERTAIN, PROBABLE, LanguageCheck, letters_of

WORD_PIECE = {
    "model": {"type": "WordPiece", "continuing_subword_prefix": "##"},
    "added_tokens": [{"content": "[CLS]", "special": True}],
}
BYTE_LEVEL = {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}
METASPACE = {"model": {"type": "Unigram"}, "pre_tokenizer": {"type": "Metaspace"}}


def judged(rules, *tokens_of_texts, texts=None, before=0):
    """The result for texts with these tokens; without `texts`, none is too long."""
    tokens_of_texts = [tokens.split() for tokens in tokens_of_texts]
    vocabulary = sorted({token for tokens in tokens_of_texts for token in tokens})
    unknown = vocabulary.index("[UNK]") if "[UNK]" in vocabulary else None
    check = LanguageCheck(rules, unknown, vocabulary.__getitem__)
    ids = [vocabulary.index(token) for tokens in tokens_of_texts for token in tokens]
    lengths = np.array([len(tokens) for tokens in tokens_of_texts])
    texts = texts or ["a"] * len(tokens_of_texts)
    values = check(texts, np.array(ids, np.int32), lengths, lengths, before)
    return [0] * len(texts) if values is None else values.tolist()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 4 words, 2 divided, 14 letters in 6 tokens: 2.33 < 1.75 + 2 * 0.5
        ("un per ##ro est ##a con", PROBABLE),
        # 5 words, 1 divided, 19 letters in 6 tokens: 3.17 > 1.75 + 2 * 0.2
        ("the dog is play ##ing here", 0),
        # only 3 words
        ("per ##ro est ##a con", 0),
        # as many marks as words
        ("un - per ##ro . est ##a / con :", 0),
        # special tokens are no marks
        ("[CLS] [CLS] [CLS] un per ##ro est ##a con", PROBABLE),
        # after a mark, ##ro begins a word: 5 words, 1 divided, 14 letters in 6 tokens: 2.33 > 2.15
        ("un per - ##ro est ##a con", 0),
        # one letter for each token
        ("ж ##ш ##ю ж ##ю ж ##ш ж ##я", CERTAIN),
        # 1 of 4 words is unknown, then 1 of 5, then 2 of 3
        ("the dog barks [UNK]", CERTAIN),
        ("the big dog barks [UNK]", 0),
        ("dog [UNK] [UNK]", 0),
        # ideograms that the vocabulary has count 2 letters: 2 > 1.75
        ("我 喜 欢 狗", 0),
    ],
)
def test_words_divided_into_short_tokens_are_of_another_language(tokens, expected):
    assert judged(WORD_PIECE, tokens) == [expected]


@pytest.mark.parametrize(
    ("rules", "tokens", "expected"),
    [
        (METASPACE, "▁un ▁per ro ▁est a ▁con", PROBABLE),
        (METASPACE, "▁the ▁dog ▁is ▁play ing ▁here", 0),
        # without blanks, all tokens are one word
        (METASPACE, "▁ 我 喜欢 狗 我 喜欢 狗 我 喜欢 狗", 0),
        (METASPACE, "▁the ▁dog ▁is ▁here <0xE6> <0x88> <0x91> <0xE6> <0x88> <0x91>", CERTAIN),
        (BYTE_LEVEL, "Ġun Ġper ro Ġest a Ġcon", PROBABLE),
        # the bytes of 4 ideograms; of 1 emoji after 4 words
        (BYTE_LEVEL, "Ġæ Ī ĳ æ Ī ĳ æ Ī ĳ æ Ī ĳ", CERTAIN),
        (BYTE_LEVEL, "Ġthe Ġdog Ġis Ġhere Ġð Ł Ĺ", 0),
        # two letters of Cyrillic are one token, as in a vocabulary that knows Russian
        (BYTE_LEVEL, "ĠÐ½ÐµÑĤ ĠÐ½ÐµÑĤ ĠÐ½ÐµÑĤ ĠÐ½ÐµÑĤ", 0),
    ],
)
def test_the_start_of_a_word_by_the_kind_of_tokenizer(rules, tokens, expected):
    assert judged(rules, tokens) == [expected]


def test_texts_of_one_call_are_judged_alone():
    spanish = "un per ##ro est ##a con"
    english = "the dog is play ##ing here"
    assert judged(WORD_PIECE, english, spanish, "##ro", english) == [0, PROBABLE, 0, 0]


def test_the_tokens_of_the_prompt_are_left_out():
    tokens = "query here the dog un per ##ro est ##a con"
    assert judged(WORD_PIECE, tokens, before=4) == [PROBABLE]
    assert judged(WORD_PIECE, tokens) == [
        0
    ]  # 8 words, 2 divided, 30 letters in 10 tokens: 3 > 2.25
    assert judged(WORD_PIECE, "query", before=1) == [0]


def test_a_text_with_many_characters_for_a_token_is_not_judged_unless_it_has_unknown_tokens():
    assert judged(WORD_PIECE, "un per ##ro est ##a con", texts=["a" * 22]) == [0]
    assert judged(WORD_PIECE, "un [UNK] per ##ro est ##a con", texts=["a" * 99]) == [PROBABLE]


@pytest.mark.parametrize(
    ("text", "letters"),
    [("dog", 3), ("añ", 2), ("हिन्दी", 3), ("한국", 4), ("狗", 2), ("a1", 0), ("-", 0), ("", 0)],
)
def test_letters_of_a_token(text, letters):
    assert letters_of(text) == letters
