"""Views change exact counts of positions or entries, and each sentence uses only its own draw."""

import numpy as np
import pytest
import torch

from sentkit.model.transformer.packed import pack
from sentkit.papers.consert.method import VIEWS, share

MIXED = [10, 6, 1, 7, 7, 20]
WIDTH = 24
CUTS = ["token-cutoff", "feature-cutoff", "dropout"]


@pytest.fixture
def bert(base):
    return base.body(None)


@pytest.fixture
def sentences(base):
    """Random ids, none of which is a special token."""
    random = np.random.default_rng(0)
    return lambda lengths: [random.integers(5, base.architecture.vocabulary, length) for length in lengths]


def generator(seed=0):
    return np.random.default_rng(seed)


def random_states(lengths, width=WIDTH):
    return torch.randn(sum(lengths), width, generator=torch.Generator().manual_seed(1))


def batch(lengths):
    return pack([range(1, length + 1) for length in lengths])


@pytest.mark.parametrize(
    ("rate", "count", "expected"),
    [
        (0.15, 20, 3),
        (0.15, 10, 1),
        (0.15, 6, 0),
        (0.2, 768, 153),
        (0.2, 10 * 768, 1536),
        (0.29, 100, 29),  # in floats 28.999999999999996
        (0.57, 100, 57),  # in floats 56.99999999999999
        (1e-05, 100_000, 1),  # written with an exponent
        (0.0, 9, 0),
        (1.0, 9, 9),
    ],
)
def test_share_is_the_floor_in_decimal_arithmetic(rate, count, expected):
    assert share(rate, count) == expected


@pytest.mark.parametrize(
    ("name", "lengths", "rate", "width", "counts"),
    [
        ("token-cutoff", [10, 6, 20], 0.15, WIDTH, [1, 0, 3]),  # rows
        ("feature-cutoff", MIXED, 0.2, 768, [153] * 6),  # columns
        ("dropout", [10, 3], 0.2, 768, [1536, 460]),  # entries
    ],
)
def test_a_cut_clears_exact_counts_in_each_sentence(name, lengths, rate, width, counts):
    drawn = VIEWS[name].draw(generator(), lengths, width, rate)
    _, disturb = VIEWS[name].apply(batch(lengths), drawn)
    states = random_states(lengths, width)
    before, after = states.split(lengths), disturb(states).split(lengths)
    zero = [own == 0 for own in after]
    gone = {"token-cutoff": [own.all(1) for own in zero], "feature-cutoff": [own.all(0) for own in zero]}

    assert [each.sum().item() for each in gone.get(name, zero)] == counts
    cells = [each.sum().item() for each in zero]
    sizes = {"token-cutoff": [width] * len(lengths), "feature-cutoff": lengths, "dropout": [1, 1]}[name]
    assert cells == [count * size for count, size in zip(counts, sizes, strict=True)]
    assert all(torch.equal(a[~own], b[~own]) for a, b, own in zip(before, after, zero, strict=True))
    if name == "feature-cutoff":
        assert not torch.equal(*gone[name][:2])


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_copies_the_states_and_only_kept_entries_get_gradients(name):
    view = VIEWS[name]
    states = random_states(MIXED)
    kept = states.clone()
    _, disturb = view.apply(batch(MIXED), view.draw(generator(), MIXED, WIDTH, 0.5))

    found = disturb(states.requires_grad_())
    (found * 3).sum().backward()

    assert torch.equal(states, kept)
    assert torch.equal(states.grad, (found != 0) * 3.0)


def test_shuffle_permutes_only_the_positions_of_each_sentence():
    packed = pack([[5] * length for length in MIXED], at=[0] * len(MIXED))
    drawn = VIEWS["shuffle"].draw(generator(), MIXED, WIDTH, 0.0)
    moved, disturb = VIEWS["shuffle"].apply(packed, drawn)

    assert disturb is None
    assert moved.ids is packed.ids
    assert moved.at is packed.at
    assert moved.lengths == packed.lengths
    assert moved.positions.tolist() == np.concatenate(drawn).tolist()
    assert moved.positions.tolist() != packed.positions.tolist()
    for own, length in zip(moved.positions.split(MIXED), MIXED, strict=True):
        assert sorted(own.tolist()) == list(range(length))


@pytest.mark.parametrize(
    ("rate", "sizes"), [(0.15, [8, 5, 1, 17]), (0.0, [10, 6, 1, 20]), (1.0, [1, 1, 1, 1])]
)
def test_a_window_keeps_consecutive_tokens_with_their_positions(rate, sizes):
    """Of 10 tokens 8.5 are kept, rounded down, and of 1 token 1."""
    lengths = [10, 6, 1, 20]
    packed = batch(lengths)
    drawn = VIEWS["span-cutoff"].draw(generator(), lengths, WIDTH, rate)
    moved, disturb = VIEWS["span-cutoff"].apply(packed, drawn)

    assert disturb is None
    assert moved.lengths == tuple(sizes)
    for own, places in zip(moved.positions.split(sizes), drawn, strict=True):
        assert own.tolist() == list(range(places[0], places[0] + len(places)))
    assert (moved.ids - 1).tolist() == moved.positions.tolist()


@pytest.mark.parametrize("name", VIEWS)
def test_part_of_a_draw_changes_its_sentences_as_the_whole_draw_does(name, bert, sentences):
    """A draw for another batch is an error."""
    texts = sentences(MIXED)
    drawn = VIEWS[name].draw(generator(), MIXED, bert.width, 0.3)

    def first_states(which):
        packed, disturb = VIEWS[name].apply(pack(texts[which]), drawn[which])
        return next(bert.states(packed, disturb=disturb)).split(packed.lengths)

    whole = first_states(slice(None))
    with torch.no_grad():
        part = first_states(slice(1, 4))

    assert all(torch.equal(a, b) for a, b in zip(whole[1:4], part, strict=True))
    with pytest.raises(AssertionError, match="a draw for other sentences"):
        VIEWS[name].apply(batch([3, 3]), [np.array([0])])


def test_shuffle_includes_special_tokens():
    """In many draws, each of 4 places gets each position about equally often."""
    drawn = np.stack(VIEWS["shuffle"].draw(generator(), [4] * 4000, WIDTH, 0.0))
    counts = np.stack([np.bincount(column, minlength=4) for column in drawn.T])

    assert counts.min() > 850
    assert counts.max() < 1150
