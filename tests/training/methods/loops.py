"""What the references of several methods share: cross entropy, masked batches, copies of parameters."""

import torch

from support import padded


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
