"""Concatenated sentences, and the conversion to the padded form and back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sentkit.model.transformer.packed import Packed, pack


def test_ids_are_concatenated_and_positions_restart():
    """The padded index selects the tokens, also if the positions are permuted."""
    packed = pack([[5, 6, 7], np.array([8]), (9, 10)], at=[2, 0, 1])

    assert packed.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert packed.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert packed.lengths == (3, 1, 2)
    assert packed.starts.tolist() == [0, 3, 4]
    assert packed.read_rows.tolist() == [2, 3, 5]
    assert packed.ids.dtype == packed.positions.dtype == torch.int64
    assert packed.padded.tolist() == [0, 1, 2, 3, 6, 7]
    assert packed.pad(packed.ids).tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]
    assert Packed(torch.arange(4), torch.tensor([2, 0, 1, 0]), (3, 1)).padded.tolist() == [0, 1, 2, 3]


def test_attention_is_padded_in_groups_of_similar_length():
    """The first group ends above 75 = 100 * 3 / 4, the next one above 56 = 75 * 3 / 4, then 24 = 40 - 16."""
    groups = pack([[1] * length for length in (5, 100, 76, 75, 40, 20) * 20]).groups

    assert groups.shapes == ((40, 100), (20, 75), (20, 40), (40, 20))
    assert groups.order.tolist()[:5] == [1, 7, 13, 19, 25]


@pytest.mark.parametrize(("short", "shapes"), [(5, ((6, 100),)), (6, ((1, 100), (6, 6)))])
def test_a_group_saves_512_tokens_of_padding(short, shapes):
    """5 sentences of 6 tokens save 5 * 94 = 470 tokens, 6 save 564."""
    assert pack([[1] * 100, *[[1] * 6] * short]).groups.shapes == shapes


def test_the_last_token_fills_a_sentence_and_is_masked():
    """Causal attention needs no mask, because the padding follows."""
    packed = pack([[5, 6], [7, 8, 9]])
    groups = packed.groups
    causal = Packed(packed.ids, packed.positions, packed.lengths, causal=True)
    values = torch.arange(6.0)[:, None]  # a sixth row has no token

    assert [part.tolist() for part in groups.pad(values)] == [[[[2], [3], [4]], [[0], [1], [1]]]]
    assert groups.masks[0].int().tolist() == [[[[1, 1, 1]]], [[[1, 1, 0]]]]
    assert causal.groups.masks == (None,)


@pytest.mark.parametrize("lengths", [[1], [4, 4], [3, 190, 7, 2, 40, 41, 7]])
def test_the_parts_of_the_groups_join_to_the_batch(lengths):
    groups = pack([[1] * length for length in lengths]).groups
    states, vectors = torch.randn(sum(lengths), 3), torch.randn(len(lengths), 3)

    assert torch.equal(groups.unpad(groups.pad(states)), states)
    assert torch.equal(groups.join(groups.split(vectors)), vectors)
    assert [part.shape[0] for part in groups.split(vectors)] == [count for count, _ in groups.shapes]


def test_readouts_reduce_only_the_tokens_to_read():
    packed = replace(pack([[5, 8, 7], [8, 8]]), read=np.array([True, False, True, True, False]))

    assert packed.kept.tolist() == [0, 2, 3]
    assert packed.read_part.ids.tolist() == [5, 7, 8]
    assert packed.read_part.lengths == (2, 1)
