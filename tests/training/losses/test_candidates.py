"""The contrast with any number of negatives: plain loops, sentence-transformers, masks,
gradients.
"""

import math
from dataclasses import replace

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


def is_negative(anchors, positives, drop, i, left, right):
    """Whether the text `right` is a negative of row i, seen from its anchor or its positive."""
    side, n = left
    other, m = right
    if other.rows[m] == i and other is not left[0] and (other is positives or other is anchors):
        return True  # the pair itself
    if drop.equal_texts and other.ids[m] in (anchors.ids[i], positives.ids[i]):
        return False
    if anchors.guide is None:
        return True
    own = cosine(anchors.guide[i], positives.guide[i])
    limit = own - drop.margin * (abs(own) if drop.relative else 1)
    return cosine(side.guide[n], other.guide[m]) <= limit


def summed(anchors, positives, drop, i, side, groups, skip=lambda other, m: False):
    """The sum of e^(cosine / temperature) over the candidates of one side of row i."""
    return sum(
        math.exp(cosine(side.vectors[i], other.vectors[m]) / TAU)
        for other in groups
        for m in range(len(other.ids))
        if not skip(other, m) and is_negative(anchors, positives, drop, i, (side, i), (other, m))
    )


def loops(anchors, positives, negatives, form, drop):
    """Minus the logarithm of the share of the positive, with the sums written out."""
    values = []
    for i in range(len(anchors.ids)):
        common = (anchors, positives, drop, i)
        own = math.exp(cosine(anchors.vectors[i], positives.vectors[i]) / TAU)
        forward = summed(*common, anchors, [positives, negatives])
        backward = summed(*common, positives, [anchors])
        of_row = {"skip": lambda other, m, i=i: other.rows[m] == i}
        among = summed(*common, anchors, [anchors], **of_row)
        between = summed(*common, positives, [positives, negatives], **of_row)
        sums = {"one-way": [forward], "symmetric": [forward, backward]}
        sums["full"] = [forward + backward + among + between]
        values.append(sum(-math.log(own / each) for each in sums[form]) / len(sums[form]))
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
    positives = replace(
        positives, ids=torch.tensor([20, 12, 22])
    )  # the second positive is the third anchor
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
        value, [each.vectors.requires_grad_() for each in (anchors, positives, negatives)]
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("drop", [ALL, Filter(), Filter(margin=0.3)], ids=str)
@pytest.mark.parametrize("cosines", [1, 12, 14])
def test_spans_have_the_values_and_the_gradient_of_the_whole_batch(
    form, drop, cosines, monkeypatch
):
    """Spans of one and two of three anchors."""
    results = []
    for most in (1 << 22, cosines):
        monkeypatch.setattr(losses, "MAX_COSINES", most)
        given = [
            replace(each, vectors=each.vectors.clone().requires_grad_())
            for each in batch(guide=True)
        ]
        values = candidate_contrast(*given, TAU, form, drop)
        (values * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        results.append([values, *(each.vectors.grad for each in given)])

    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
