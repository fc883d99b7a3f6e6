"""Which words are one token, as transformers sees it."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from sentkit.formats.checkpoints.folders import find_model, read_checkpoint
from sentkit.formats.rows.block import Row, block_of
from sentkit.model.text.tokenizer import OneToken, Tokenizer, single_tokens

CONFIG = {"model_type": "bert", "vocab_size": 400, "hidden_size": 8, "num_hidden_layers": 1}
WORDS = [
    *("cat", "Able", "able", "unable", "naïve", "Café", "中", "!", "don't", "ice cream", "cats and dogs"),
    *("floccinaucinihilipilification", "x" * 300, "\U0001f9ff", "1.10", "", "\u200b", "the", "dog"),
]


def auto(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def tokenizer_of(folder, **how):
    return Tokenizer(read_checkpoint(str(folder)), max_length=64, **how)


@pytest.fixture(scope="module")
def nano():
    """A WordPiece as BERT's, which lowers the case."""
    return find_model("nano")


@pytest.fixture(scope="module")
def roberta(byte_level):
    """To this byte-level BPE `cat` and ` cat` are two tokens, and ` dog` is one and `dog` is not."""
    return byte_level(["cat able the", "able", "the cat a dog", "a dog and the dog"])


@pytest.fixture
def vocabulary(tmp_path):
    """A tokenizer of this model alone, without a single special token."""

    def make(model):
        backend = Backend(model)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        return tokenizer_of(tmp_path)

    return make


def expected_of(theirs, word):
    ids = theirs(word, add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 and ids[0] != theirs.unk_token_id else None


def test_single_tokens_agree_with_transformers_for_bert(nano):
    """A prompt and a template do not affect words."""
    ours, prefixed, templated = tokenizer_of(nano), tokenizer_of(nano, prompt="query: "), tokenizer_of(nano)
    templated.set_template("defsent-plus", None)
    theirs = auto(nano)
    found = single_tokens(ours, WORDS)

    assert found == [expected_of(theirs, word) for word in WORDS]
    assert {None} < set(found)
    assert single_tokens(prefixed, WORDS) == single_tokens(templated, WORDS) == found


def test_single_tokens_agree_with_transformers_for_roberta(roberta):
    """Without a space before the word: that would be another token, or several."""
    ours, theirs = tokenizer_of(roberta), auto(roberta)
    names = theirs.get_vocab()
    cat, dog = single_tokens(ours, ["cat", "dog"])

    assert single_tokens(ours, WORDS) == [expected_of(theirs, word) for word in WORDS]
    assert (cat, dog) == (names["cat"], None)
    assert names["Ġcat"] != cat
    assert "Ġdog" in names


def test_blanks_around_a_word_are_ignored_and_a_checkpoint_can_declare_lowercasing(roberta):
    plain, lowered = tokenizer_of(roberta), tokenizer_of(roberta, lowercase=True)

    assert single_tokens(plain, [" cat", "able\t", "Cat"]) == [*single_tokens(plain, ["cat", "able"]), None]
    assert single_tokens(lowered, ["Cat"]) == single_tokens(plain, ["cat"])


def test_special_tokens_are_not_words(nano, roberta):
    assert single_tokens(tokenizer_of(nano), ["[MASK]", "[UNK]", "[CLS]"]) == [None] * 3
    assert single_tokens(tokenizer_of(roberta), ["<mask>", "<unk>", "</s>"]) == [None] * 3


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"odd": 0, "cat": 1}, unk_token="odd"),
        models.WordPiece({"odd": 0, "cat": 1}, unk_token="odd"),
        models.Unigram([("odd", -9.0), ("cat", -1.0)], unk_id=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_unknown_token_is_not_a_word(vocabulary, model):
    ours = vocabulary(model)

    assert single_tokens(ours, ["cat", "z", "odd"]) == [1, None, None]


def test_rows_with_other_words_are_dropped_and_counted(nano, monkeypatch):
    """In their order, for any size of the groups."""
    monkeypatch.setattr("sentkit.model.encoding.FIRST_GROUP", 2)
    words = ["cat", "ice cream", "dog", "cat", "[MASK]", "able"]
    rows = block_of(Row(b"{}", {"word": word}, "-", 1) for word in words)
    chosen = OneToken(tokenizer_of(nano), lambda row: str(row.values["word"]))

    assert [row.values["word"] for block in chosen.among([rows]) for row in block] == [
        "cat",
        "dog",
        "cat",
        "able",
    ]
    assert (chosen.rows, chosen.left_out) == (6, 2)
