"""The tokens that mlm predicts: their number, their replacements and the special tokens."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch

from sentkit.errors import UsageError
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.training.methods.mlm import MaskedLanguageModel, vocabulary_of

MASK, SPECIALS = 4, (0, 1, 2, 3, 4)  # of the small tokenizer


def test_fifteen_percent_of_the_tokens_are_chosen_and_at_least_one(mlm_of, drawn):
    """By hand: 0.15 n, rounded, halves to the even number, and not under 1."""
    wanted = {1: 1, 3: 1, 7: 1, 10: 2, 14: 2, 20: 3, 30: 4, 40: 6, 100: 15}
    for step in range(20):
        batch = drawn(mlm_of(), *wanted, step=step)

        assert [len(places) for places in batch.draws["chosen"]] == list(wanted.values())
        assert all(len(set(places.tolist())) == len(places) for places in batch.draws["chosen"])


def test_every_place_is_chosen_as_often(mlm_of, drawn):
    """Two of ten, 4,000 times: each 800 times, with a standard deviation of 25."""
    method, counts = mlm_of(), Counter()
    for step in range(40):
        batch = drawn(method, *[10] * 100, step=step)
        counts.update(np.concatenate(batch.draws["chosen"]).tolist())

    assert sorted(counts) == list(range(1, 11))
    assert all(abs(count - 800) < 125 for count in counts.values())


def test_of_ten_tokens_eight_are_masked_one_replaced_and_one_kept(mlm_of, base, drawn):
    """20,000 tokens: the shares have standard deviations of 0.003 and 0.002."""
    method, kinds, replacing = mlm_of(), Counter(), []
    batch = drawn(method, *[100] * 1334)
    rows = zip(batch.texts[0], batch.draws["chosen"], batch.draws["shown"], strict=True)
    for tokens, places, shown in rows:
        for place, token in zip(places.tolist(), shown.tolist(), strict=True):
            kind = "mask" if token == MASK else "kept" if token == tokens[place] else "other"
            kinds[kind] += 1
            replacing += [token] if kind == "other" else []
    total = sum(kinds.values())

    assert total == 20010
    assert abs(kinds["mask"] / total - 0.8) < 0.015
    assert abs(kinds["other"] / total - 0.1) < 0.011
    assert abs(kinds["kept"] / total - 0.1) < 0.011
    assert not set(replacing) & set(SPECIALS)
    # About 2,000 draws out of all other tokens: each is drawn 4.5 times on average, and 1% of them never.
    ordinary = set(range(len(SPECIALS), base.architecture.vocabulary))
    assert set(replacing) < ordinary
    assert len(ordinary - set(replacing)) < 0.03 * len(ordinary)


def test_special_tokens_are_never_chosen(mlm_of, drawn):
    """Those inside of a text no more than those around it."""
    method = mlm_of(mask_rate=1)
    batch = drawn(method, [2, 200, 4, 300, 1, 0, 400, 3, 2, 3])

    assert batch.draws["chosen"][0].tolist() == [1, 3, 6]


def test_the_shares_are_settings(mlm_of, drawn):
    masked = drawn(mlm_of(mask_share=1, random_share=0), 10, 20)
    kept = drawn(mlm_of(mask_share=0, random_share=0, mask_rate=0.5), 10, 20)
    other = drawn(mlm_of(mask_share=0, random_share=1, mask_rate=0.5), 10, 20)

    assert [set(shown.tolist()) for shown in masked.draws["shown"]] == [{MASK}, {MASK}]
    assert [len(places) for places in kept.draws["chosen"]] == [5, 10]
    for tokens, places, shown in zip(kept.texts[0], *kept.draws.values(), strict=True):
        assert tokens[places].tolist() == shown.tolist()
    assert not set(np.concatenate(other.draws["shown"]).tolist()) & set(SPECIALS)
    for tokens, places, shown in zip(other.texts[0], *other.draws.values(), strict=True):
        assert (tokens[places] != shown).all()


def word_level(*words, special=()):
    tokenizer = object.__new__(Tokenizer)  # without a checkpoint
    tokenizer.backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.backend.add_special_tokens(list(special))
    return tokenizer


def test_special_tokens_are_found_by_their_names_and_by_their_mark(base):
    """Marked in the file, or of a usual name; here are also more tokens than words in the table."""
    sizes = SimpleNamespace(vocabulary=8)
    tokens = word_level(
        "<unk>", "<s>", "</s>", "<mask>", "a", "[X1]", "cat", "<pad>", "dog", special=["[X1]"]
    )
    found = vocabulary_of(tokens, sizes)

    assert found.mask == 3
    assert found.words.tolist() == [4, 6]
    assert found.ordinary.tolist() == [n in (4, 6) for n in range(8)]


def test_a_tokenizer_must_have_a_mask_and_a_word():
    sizes = SimpleNamespace(vocabulary=8)
    with pytest.raises(UsageError, match="mlm needs a mask token, but this tokenizer has none"):
        vocabulary_of(word_level("[UNK]", "a"), sizes)
    with pytest.raises(UsageError, match="only special tokens"):
        vocabulary_of(word_level("[UNK]", "[MASK]"), sizes)


@pytest.mark.parametrize(("word", "problem"), [("a", "mask token"), ("[MASK]", "only special tokens")])
def test_a_tokenizer_is_refused_before_any_row_is_read(base, word, problem):
    with pytest.raises(UsageError, match=problem):
        MaskedLanguageModel.check(
            replace(base, training_tokenizer=word_level("[UNK]", word)),
            MaskedLanguageModel.Settings(head="fresh"),
        )


def test_the_check_draws_no_random_numbers(base):
    before = torch.random.get_rng_state()
    for head in ("own", "fresh"):
        MaskedLanguageModel.check(base, MaskedLanguageModel.Settings(head=head))

    assert torch.equal(torch.random.get_rng_state(), before)
