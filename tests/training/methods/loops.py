"""What the references of several methods share: cross entropy, masked batches, copies of parameters."""

import torch

from support import padded

RECIPE = {"batch": 4, "epochs": 2, "lr": 1e-3, "dropout": 0, "clip": 0, "warmup": 0, "weight_decay": 0}
RECIPE["double"] = True


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long())


def masked(texts, chosen, shown):
    """The input of transformers: the shown tokens, their mask, and labels, which are -100 elsewhere."""
    ids, mask = padded(texts)
    labels = torch.full_like(ids, -100)
    for row, (places, tokens) in enumerate(zip(chosen, shown, strict=True)):
        labels[row, places] = ids[row, places]
        ids[row, places] = torch.tensor(tokens).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def labelled(texts):
    """Pairs of each text and the next one, with the three labels in turn."""
    words = ["entailment", "neutral", "contradiction"]
    pairs = zip(texts, texts[1:] + texts[:1], strict=True)
    return [{"text_a": a, "text_b": b, "label": words[i % 3]} for i, (a, b) in enumerate(pairs)]


def copies(module):
    """The parameters of a module, to train them once more."""
    return [value.detach().clone().requires_grad_() for value in module.parameters()]
