"""CLEAR: five steps beside a padded reference, and what the checkpoint keeps."""

from dataclasses import replace

import pytest
import torch
import transformers

from sentkit.training.methods.mlm import CLEAR
from training.losses.formulas import loop_paired, mean
from training.methods.loops import copies, masked


@pytest.fixture
def rows(texts):
    return [{"text_a": text, "text_b": " ".join(text.split()[::-1])} for text in texts]


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, rows, reference, base_folder):
    """In float64 and without dropout, with torch's AdamW."""
    recipe = {"batch": 4, "epochs": 2, "lr": 1e-3, "warmup": 0, "weight_decay": 0, "dropout": 0, "clip": 0}
    trainer = trainer_of(CLEAR, rows, double=True, mlm_weight=0.5, **recipe)
    a, c, b, d = copies(trainer.method.projection)
    model = transformers.BertForMaskedLM.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()

    padded = replace(reference, model=model.bert)

    def loss_of(batch, rows):
        projected = [torch.relu(padded.mean(texts) @ a.T + c) @ b.T + d for texts in batch.texts]
        texts = [text for row in zip(*batch.texts, strict=True) for text in row]
        draws = ([each for row in batch.draws[name] for each in row] for name in ("chosen", "shown"))
        return mean(loop_paired(*projected, 0.1)) + 0.5 * model(**masked(texts, *draws)).loss

    check_steps(trainer, [*model.parameters(), a, b, c, d], loss_of)


def test_the_checkpoint_keeps_the_language_model(trainer_of, rows):
    method = trainer_of(CLEAR, rows, head="fresh").method

    assert "cls.predictions.bias" in method.finished().tensors
    assert method.finished().config["architectures"] == ["BertForMaskedLM"]
    assert {name.partition(".")[0] for name in method.finished().heads} == {"projection"}
