"""Windows cover a text, each token counts once, and the characters of a window contain its
tokens.
"""

from fractions import Fraction
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.block import Row, block_of_rows
from sentkit.model.encoding import encode_texts
from sentkit.model.groups import EncodeStats, RowGroup
from sentkit.model.static.tokenizers import WordLookup
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import (
    TokenBlock,
    WindowOptions,
    WindowTokenizer,
    shares,
    window_ranges,
)

PIECES = [
    "a",
    "cat",
    "unbelievable",
    "中国",
    "é",
    "!",
    "\U0001f600",
    "e\u0301",
    "x" * 30,
    "İstanbul",
]
PIECES += [" \t", "ﬁ"]
LONG = st.lists(st.sampled_from(PIECES), min_size=30, max_size=90).map(" ".join)
UNICODE = st.text(st.characters(codec="utf-8", exclude_characters="<["), min_size=60, max_size=200)
SIZES = st.tuples(st.integers(18, 26), st.integers(1, 6))
HOW = {
    "plain": {},
    "lowercase": {"lowercase": True},
    "prompt": {"prompt": "a cat: "},
    "skip": {"prompt": "a cat: "},
    "template": {"lowercase": True},
}


@pytest.fixture(scope="module")
def folders(roberta, metaspace):
    return {"nano": "nano", "roberta": str(roberta), "metaspace": str(metaspace)}


@pytest.fixture(scope="module", params=["nano", "roberta", "metaspace"])
def make(request, folders):
    """A tokenizer that reads texts in one of the ways of HOW."""

    @cache  # of all examples
    def tokenizer_of(way, max_length=24):
        checkpoint = read_checkpoint(folders[request.param])
        tokenizer = Tokenizer(checkpoint, max_length=max_length, **HOW[way])
        if way == "skip":
            tokenizer.skip_prompt()
        if way == "template":
            tokenizer.set_template("[X] is [MASK].", None)
        return tokenizer

    return tokenizer_of


def split(tokenizer, text, size=None, stride=None, **options):
    [tokens] = WindowTokenizer(tokenizer, WindowOptions(size, stride, **options))([text])
    return tokens


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_windows_cover_all_tokens_at_equal_distances_and_each_token_counts_once(count, room, data):
    """A token of k windows counts 1/k in each of them; a token without a vector does not count."""
    stride = data.draw(st.integers(1, room))
    counted = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))

    ranges = window_ranges(count, room, stride)

    assert [start for start, _ in ranges] == [stride * number for number in range(len(ranges))]
    assert all(end == min(start + room, count) for start, end in ranges)
    assert set().union(*(range(*window) for window in ranges)) == set(range(count))
    assert all(end < count for _, end in ranges[:-1])  # no window is inside the one before it
    windows = [sum(first <= token < last for first, last in ranges) for token in range(count)]
    weights = [
        Fraction(*count_and_windows) for count_and_windows in zip(counted, windows, strict=True)
    ]
    expected = [sum(weights[start:end]) for start, end in ranges]
    assert shares(ranges, np.array(counted, float)) == pytest.approx(
        [float(weight) for weight in expected]
    )
    assert sum(expected) == sum(counted)


class Means:
    """An encoder whose vectors are the mean of the numbers and 1, and then twice as long."""

    groups_at_once = 0
    width = 2
    spaces = (None,)
    smallest_batch = None
    refusals = MappingProxyType({})
    steps = (lambda vectors: 2 * vectors,)

    def encode(self, batches):
        return map(self.means, batches)

    def means(self, batch):
        return [
            np.array(
                [[np.mean(tokens.ids) if tokens.ids else 0, 1] for tokens in batch], np.float32
            )
        ]


def test_windows_with_a_longer_prompt_have_the_same_distance_or_less():
    """The default distance is half of the 22 tokens beside [CLS] and [SEP]. A prompt of 15 words
    leaves 7 of them, so that windows are 7 apart: no token may be between two.
    """
    windows = WindowTokenizer(Tokenizer(read_checkpoint("nano"), max_length=24), WindowOptions())
    prompted = windows.with_prompt("the " * 15)
    given_distance = WindowTokenizer(windows.tokenizer, WindowOptions(None, 11))

    assert (windows.stride, windows.with_prompt("the ").stride, prompted.stride) == (11, 11, 11)
    assert prompted.record == windows.record
    [tokens] = prompted(["cat " * 20])
    assert [len(window.ids) for window in tokens.windows.later_windows] == [24, 23]
    with pytest.raises(UsageError, match="a stride of 11: a window of 24 tokens has 7 of the text"):
        given_distance.with_prompt("the " * 15)


def test_unknown_words_count_for_the_length_and_not_for_the_mean():
    """Windows 1 x 2 x x x and 3 4: three known words have the weight 3, of which x has none.

    A text without known words has a vector of zeros.
    """
    words = WordLookup({str(n): n for n in range(100)}, max_length=6, prompt="")
    tokens = split(words, "1 x 2 x x x 3 4", stride=6)
    [vectors] = encode_texts(TokenBlock.of([tokens]), Means(), 8)

    assert tokens.windows.weights == (2, 2)
    assert vectors.tolist() == [[2 * (2 * 1.5 + 2 * 3.5) / 4, 2]]
    assert encode_texts(TokenBlock.of([split(words, "x " * 9)]), Means(), 8)[0].tolist() == [[0, 0]]
    stats = EncodeStats()
    rows = block_of_rows([Row(b"", {}, "t.txt", 1)])
    stats.add(RowGroup(rows, np.array([[0]]), TokenBlock.of([tokens])))
    assert (stats.tokens, stats.unknown, stats.windows, stats.split) == (4, 4, 2, 1)


@pytest.mark.parametrize("way", HOW)
def test_the_first_window_is_the_truncated_text(make, way):
    """So prompt, template and special tokens are in it; and each window has as many of them."""
    tokenizer = make(way)
    text = "unbelievable cat, 中国 and \U0001f600 İstanbul " * 9
    [truncated] = tokenizer([text])
    tokens = split(tokenizer, text)

    assert (tokens.ids, tokens.readout_token_index, tokens.full_length) == (
        truncated.ids,
        truncated.readout_token_index,
        truncated.full_length,
    )
    assert truncated.truncated
    assert not tokens.truncated
    [located] = tokenizer.locate([text])
    first, last = located.text_range
    for window in (tokens, *tokens.windows.later_windows):
        text_tokens = len(window.ids) - located.repeated_count
        assert window.ids[:first] == located.ids[:first]
        assert window.ids[first + text_tokens :] == located.ids[last:]
        if way == "template":
            assert window.ids[window.readout_token_index] == tokenizer.mask_id


@given(text=LONG | UNICODE, sizes=SIZES, way=st.sampled_from([*HOW]))
def test_windows_cover_the_text_and_contain_their_tokens(make, text, sizes, way):
    """Each token of the text is in a window, and its characters are in text[start:end]."""
    tokenizer = make(way, max_length=10_000)
    size, stride = sizes
    [whole] = tokenizer([text])
    tokens = split(tokenizer, text, size, stride, chunks=True)
    if whole.problem or whole.full_length <= size:
        assert not tokens.windows or tokens.windows.characters == ((0, len(text)),)
        return
    characters = tokens.windows.characters
    assert (characters[0][0], characters[-1][1]) == (0, len(text))
    [located] = tokenizer.locate([text])
    first, last = located.text_range
    room = size - located.repeated_count
    for number, (start, end) in enumerate(characters):
        low = number * min(stride, room)
        token_range = range(first + low, min(first + low + room, last))
        ids = (tokens, *tokens.windows.later_windows)[number].ids
        assert ids[first : len(ids) - (len(whole.ids) - last)] == [
            whole.ids[i] for i in token_range
        ]
        for i in token_range:
            low_character, high_character = located.characters[i - first]
            assert low_character == high_character or start <= low_character < high_character <= end
    assert token_range.stop == last


@given(text=LONG)
def test_places_are_those_of_the_library(make, text):
    """Its offsets count characters of the text, also after characters of several tokens or code
    points.
    """
    tokenizer = make("plain", max_length=10_000)
    [located] = tokenizer.locate([text])
    encoding = tokenizer.backend.encode(text)

    first, last = located.text_range
    pairs = zip(located.characters, encoding.offsets[first:last], strict=True)
    assert [
        actual for actual, expected in pairs if expected[0] < expected[1] and actual != expected
    ] == []


@given(words=st.lists(st.sampled_from(["İ", "İstanbul", "cat", "é"]), min_size=1, max_size=20))
def test_places_are_right_if_lower_case_is_longer(make, words):
    """All characters of words are in a token, and none has characters of two words."""
    text = " ".join(words)
    tokenizer = make("lowercase", max_length=10_000)

    [located] = tokenizer.locate([text])

    covered = {index for start, end in located.characters for index in range(start, end)}
    assert covered | {i for i, character in enumerate(text) if character == " "} == set(
        range(len(text))
    )
    inside = [text[start:end].strip() for start, end in located.characters]
    assert all(" " not in token_text for token_text in inside)


@given(
    words=st.lists(
        st.sampled_from(["cat", "dog", "U.S.", "cat,dog", "zebra", ":-)", "中"]), max_size=40
    ),
    size=st.integers(1, 9),
)
def test_a_chunk_of_words_has_the_words_of_its_characters(words, size):
    text = "  " + "\u2003".join(words) + "\n"
    lookup = WordLookup({"cat": 0, "dog": 1, "U.S.": 2, ",": 3}, max_length=None, prompt="")

    tokens = split(lookup, text, size, size, chunks=True)

    inside = {index for start, end in tokens.windows.characters for index in range(start, end)}
    outside = {character for index, character in enumerate(text) if index not in inside}
    assert outside <= set("\u2003:-)"), "only blanks, and marks without a vector"
    chunks = tokens, *tokens.windows.later_windows
    for chunk, (start, end) in zip(chunks, tokens.windows.characters, strict=True):
        [alone] = lookup([text[start:end]])
        assert (alone.ids, alone.unknown_count) == (chunk.ids, chunk.unknown_count)
