"""The contrast with any number of negatives: plain loops, sentence-transformers, masks,
gradients.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from sentkit.training import losses
from sentkit.training.losses import Filter, Texts, candidate_contrast
from sentkit.training.recipe import FORMS
from training.losses.formulas import cosine

TAU = 0.05
ALL = Filter(equal_texts=False)


def texts(seed, first_id, guide):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, 5, generator=random, dtype=torch.float64)
    other = torch.randn(3, 3, generator=random, dtype=torch.float64) if guide else None
    return Texts(vectors, torch.arange(first_id, first_id + 3), torch.arange(3), other)


def batch(guide=False):
    """Three anchors; the first has two negatives, the second none, the third one."""
    return (
        texts(0, 10, guide),
        texts(1, 20, guide),
        replace(texts(2, 30, guide), rows=torch.tensor([0, 0, 2])),
    )


def is_negative(anchors, positives, drop, i, from_text, to_text):
    """Whether `to_text` is a negative of row i, seen from `from_text`, its anchor or positive."""
    from_side, n = from_text
    to_side, m = to_text
    is_other_side = to_side is not from_side and (to_side is positives or to_side is anchors)
    if is_other_side and to_side.rows[m] == i:
        return True  # the pair itself
    if drop.equal_texts and to_side.ids[m] in (anchors.ids[i], positives.ids[i]):
        return False
    if anchors.guide is None:
        return True
    cosine_of_pair = cosine(anchors.guide[i], positives.guide[i])
    limit = cosine_of_pair - drop.margin * (abs(cosine_of_pair) if drop.relative else 1)
    return cosine(from_side.guide[n], to_side.guide[m]) <= limit


def summed(anchors, positives, drop, i, side, groups, skip=lambda candidates, m: False):
    """The sum of e^(cosine / temperature) over the candidates of one side of row i."""
    return sum(
        math.exp(cosine(side.vectors[i], candidates.vectors[m]) / TAU)
        for candidates in groups
        for m in range(len(candidates.ids))
        if not skip(candidates, m)
        and is_negative(anchors, positives, drop, i, (side, i), (candidates, m))
    )


def loops(anchors, positives, negatives, form, drop):
    """Minus the logarithm of the share of the positive, with the sums written out."""
    values = []
    for i in range(len(anchors.ids)):
        summed_for_row = partial(summed, anchors, positives, drop, i)
        positive = math.exp(cosine(anchors.vectors[i], positives.vectors[i]) / TAU)
        forward = summed_for_row(anchors, [positives, negatives])
        backward = summed_for_row(positives, [anchors])

        def is_of_row(other, m, i=i):
            return other.rows[m] == i

        among = summed_for_row(anchors, [anchors], skip=is_of_row)
        between = summed_for_row(positives, [positives, negatives], skip=is_of_row)
        sums = {"one-way": [forward], "symmetric": [forward, backward]}
        sums["full"] = [forward + backward + among + between]
        values.append(sum(-math.log(positive / total) for total in sums[form]) / len(sums[form]))
    return values


FILTERS = {
    "none": (ALL, False),
    "equal texts": (Filter(), False),
    "guide": (Filter(equal_texts=False), True),
    "guide with a margin": (Filter(margin=0.3), True),
    "guide with a relative margin": (Filter(margin=0.2, relative=True), True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILTERS)
def test_values_equal_plain_loops(form, name):
    drop, guide = FILTERS[name]
    anchors, positives, negatives = batch(guide)
    # The second positive is the third anchor.
    positives = replace(positives, ids=torch.tensor([20, 12, 22]))
    negatives = replace(negatives, ids=torch.tensor([21, 22, 20]))

    values = candidate_contrast(anchors, positives, negatives, TAU, form, drop)

    assert values.tolist() == pytest.approx(
        loops(anchors, positives, negatives, form, drop), rel=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_finite_differences(form):
    anchors, positives, negatives = batch(guide=True)

    def value(*vectors):
        named = [
            replace(t, vectors=v)
            for t, v in zip((anchors, positives, negatives), vectors, strict=True)
        ]
        return candidate_contrast(*named, 0.5, form, Filter(margin=0.3))

    assert gradcheck(
        value, [texts.vectors.requires_grad_() for texts in (anchors, positives, negatives)]
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("drop", [ALL, Filter(), Filter(margin=0.3)], ids=str)
@pytest.mark.parametrize("cosines", [1, 12, 14])
def test_spans_have_the_values_and_the_gradient_of_the_whole_batch(
    form, drop, cosines, monkeypatch
):
    """Spans of one and two of three anchors."""
    results = []
    for max_cosines in (1 << 22, cosines):
        monkeypatch.setattr(losses, "MAX_COSINES", max_cosines)
        sides = [
            replace(texts, vectors=texts.vectors.clone().requires_grad_())
            for texts in batch(guide=True)
        ]
        values = candidate_contrast(*sides, TAU, form, drop)
        (values * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        results.append([values, *(texts.vectors.grad for texts in sides)])

    for of_batch, of_spans in zip(*results, strict=True):
        torch.testing.assert_close(of_spans, of_batch, rtol=1e-12, atol=1e-12)
