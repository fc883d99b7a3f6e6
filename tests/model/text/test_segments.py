"""Pairs as two segments, compared with the tokenizers of transformers."""

import pytest

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.text.tokenizer import SegmentTokenizer, longest_first
from support import NANO

WORDS = ["the", "market", "fell", "again", "today", "and", "she", "reads", "a", "long", "book", "about"]
PAIRS = [
    (" ".join(WORDS[:first]), " ".join(WORDS[:second])) for first in range(0, 12, 2) for second in range(12)
]


@pytest.fixture(scope="module")
def checkpoint():
    return read_checkpoint(str(NANO))


@pytest.fixture(scope="module")
def theirs():
    import transformers

    return transformers.AutoTokenizer.from_pretrained(NANO)


@pytest.mark.parametrize("max_length", [5, 8, 9, 16, 64])
def test_pairs_and_sentences_are_those_of_transformers(checkpoint, theirs, max_length):
    """Ids, types and truncation, for texts of 0 to 11 words."""
    tokenizer = SegmentTokenizer(checkpoint, max_length)
    first, second = tokenizer(PAIRS)
    names = {"truncation": True, "max_length": max_length, "return_token_type_ids": True}
    expected = theirs(*map(list, zip(*PAIRS, strict=True)), **names)
    whole = theirs(*map(list, zip(*PAIRS, strict=True)))["input_ids"]

    assert [a.ids + b.ids for a, b in zip(first, second, strict=True)] == expected["input_ids"]
    types = [[0] * len(a.ids) + [1] * len(b.ids) for a, b in zip(first, second, strict=True)]
    assert types == expected["token_type_ids"]
    truncated = [a.truncated or b.truncated for a, b in zip(first, second, strict=True)]
    assert truncated == [len(ids) > max_length for ids in whole]
    assert tokenizer.second_type == 1
    [column] = tokenizer([(text,) for text, _ in PAIRS])
    alone = theirs([text for text, _ in PAIRS], truncation=True, max_length=max_length)["input_ids"]
    assert [each.ids for each in column] == alone


def test_pairs_lose_their_start_if_the_tokenizer_truncates_there(checkpoint, theirs, monkeypatch):
    tokenizer = SegmentTokenizer(checkpoint, 8)
    monkeypatch.setattr(tokenizer.plain, "truncates_start", True)
    monkeypatch.setattr(theirs, "truncation_side", "left")
    first, second = tokenizer(PAIRS)

    expected = theirs(*map(list, zip(*PAIRS, strict=True)), truncation=True, max_length=8)["input_ids"]
    assert [a.ids + b.ids for a, b in zip(first, second, strict=True)] == expected


@pytest.mark.parametrize(
    ("counts", "room", "kept"),
    [((2, 3), 5, (2, 3)), ((2, 9), 5, (2, 3)), ((9, 2), 5, (3, 2)), ((9, 9), 5, (2, 3)), ((0, 9), 5, (0, 5))],
)
def test_the_longer_text_is_truncated_first(counts, room, kept):
    assert longest_first(*counts, room) == kept


def test_no_room_for_two_texts(checkpoint):
    with pytest.raises(UsageError, match="a maximum length of 4 tokens leaves no room for two texts"):
        SegmentTokenizer(checkpoint, 4)([("a", "b")])
