"""CLEAR: five steps beside a padded reference, and what the checkpoint keeps."""

import pytest
import torch
import transformers

from sentkit.training.methods.clear import CLEAR
from support import padded


@pytest.fixture
def rows(texts):
    return [{"text_a": text, "text_b": " ".join(text.split()[::-1])} for text in texts]


def contrast(one, other):
    rows, half, total = [*one, *other], len(one), 0.0
    for i, anchor in enumerate(rows):
        raised = {
            k: torch.exp(torch.cosine_similarity(anchor, row, dim=0) / 0.1)
            for k, row in enumerate(rows)
            if k != i
        }
        total = total - torch.log(raised[(i + half) % (2 * half)] / sum(raised.values()))
    return total / (2 * half)


def masked_tokens(model, batch):
    """BertForMaskedLM over both texts of each row; `labels` of -100 are not predicted."""
    texts = [text for row in zip(*batch.texts, strict=True) for text in row]
    chosen, shown = ([each for row in batch.draws[name] for each in row] for name in ("chosen", "shown"))
    ids, mask = padded(texts)
    labels = torch.full_like(ids, -100)
    for row, (places, values) in enumerate(zip(chosen, shown, strict=True)):
        labels[row, places] = ids[row, places]
        ids[row, places] = torch.tensor(values)
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_five_steps, rows, base_folder):
    """In float64 and without dropout, with torch's AdamW."""
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0, "weight_decay": 0, "dropout": 0, "clip": 0}
    trainer = trainer_of(CLEAR, rows, double=True, mlm_weight=0.5, **recipe)
    a, c, b, d = (value.detach().clone().requires_grad_() for value in trainer.method.projection.parameters())
    model = transformers.BertForMaskedLM.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()

    def loss_of(batch, rows):
        projected = []
        for texts in batch.texts:
            ids, mask = padded(texts)
            states = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            projected.append(torch.relu(means @ a.T + c) @ b.T + d)
        return contrast(*projected) + 0.5 * masked_tokens(model, batch)

    check_five_steps(trainer, [*model.parameters(), a, b, c, d], loss_of)


def test_the_checkpoint_keeps_the_language_model(trainer_of, rows):
    method = trainer_of(CLEAR, rows, head="fresh").method

    assert "cls.predictions.bias" in method.finished().tensors
    assert method.finished().config["architectures"] == ["BertForMaskedLM"]
    assert {name.partition(".")[0] for name in method.finished().heads} == {"projection"}
