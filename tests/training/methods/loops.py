"""Formulas of losses that several methods share, in loops over rows of torch, and masked batches."""

import torch

from support import padded


def cosine(one, other):
    return torch.cosine_similarity(one, other, dim=0)


def in_batch(anchors, positives, negatives=(), weight=0.0):
    """-log of the share of the own positive among all positives and negatives, at the temperature 0.05.

    `weight` is added for the own negative.
    """
    total = 0.0
    for i, anchor in enumerate(anchors):
        heated = [cosine(anchor, row) / 0.05 for row in [*positives, *negatives]]
        if weight:
            heated[len(positives) + i] = heated[len(positives) + i] + weight
        total = total + torch.stack(heated).logsumexp(0) - heated[i]
    return total / len(anchors)


def paired(one, other, heat=0.1):
    """NT-Xent: each of the 2N rows looks for its partner among all others."""
    rows, half, total = [*one, *other], len(one), 0.0
    for i, anchor in enumerate(rows):
        heated = {k: cosine(anchor, row) / heat for k, row in enumerate(rows) if k != i}
        total = total + torch.stack([*heated.values()]).logsumexp(0) - heated[(i + half) % len(rows)]
    return total / len(rows)


def ranking(similarities, scores):
    """The formula of CoSENT with a scale of 20."""
    pairs = [(i, k) for i in range(len(scores)) for k in range(len(scores)) if scores[i] > scores[k]]
    return torch.log(1 + sum(torch.exp(20 * (similarities[k] - similarities[i])) for i, k in pairs))


def cross_entropy(logits, labels):
    values = [row.logsumexp(0) - row[int(label)] for row, label in zip(logits, labels, strict=True)]
    return sum(values) / len(values)


def masked(texts, chosen, shown):
    """The input of transformers: the shown tokens, their mask, and labels, which are -100 elsewhere."""
    ids, mask = padded(texts)
    labels = torch.full_like(ids, -100)
    for row, (places, tokens) in enumerate(zip(chosen, shown, strict=True)):
        labels[row, places] = ids[row, places]
        ids[row, places] = torch.tensor(tokens).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def copies(module):
    """The parameters of a module, to train them once more."""
    return [value.detach().clone().requires_grad_() for value in module.parameters()]
