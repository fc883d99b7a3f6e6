"""What the references of several methods share: cross entropy, masked batches, copies of
parameters.
"""

import pytest
import torch
import transformers

from sentkit.model.checkpoint.heads import HEADS
from support import padded

RECIPE = {
    "batch": 4,
    "epochs": 2,
    "lr": 1e-3,
    "dropout": 0,
    "clip": 0,
    "warmup": 0,
    "weight_decay": 0,
}
RECIPE["double"] = True


every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])


def reference_model(folder, family="bert"):
    """The masked language model of transformers, without dropout."""
    kind = getattr(transformers, f"{HEADS[family].kind}ForMaskedLM")
    model, report = kind.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long())


def draws_of(batch):
    """The chosen positions and the shown tokens of all texts, by row."""
    return [[value for row in batch.draws[name] for value in row] for name in ("chosen", "shown")]


def masked(batch):
    """The input of transformers: the shown tokens, their mask, and labels, which are -100
    elsewhere.
    """
    ids, mask = padded([text for row in zip(*batch.texts, strict=True) for text in row])
    labels = torch.full_like(ids, -100)
    for row, (positions, tokens) in enumerate(zip(*draws_of(batch), strict=True)):
        labels[row, positions] = ids[row, positions]
        ids[row, positions] = torch.tensor(tokens).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def labelled(texts):
    """Pairs of each text and the next one, with the three labels in turn."""
    words = ["entailment", "neutral", "contradiction"]
    pairs = zip(texts, texts[1:] + texts[:1], strict=True)
    return [{"text_a": a, "text_b": b, "label": words[i % 3]} for i, (a, b) in enumerate(pairs)]


def copies(module):
    """The parameters of a module, to train them once more."""
    return [value.detach().clone().requires_grad_() for value in module.parameters()]
