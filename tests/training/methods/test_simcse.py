"""SimCSE without labels: its loss, its steps, and its checkpoint."""

import pytest
import torch
import transformers

from sentkit.training.methods.simcse import SimCSE
from training.losses.formulas import loop_in_batch, mean
from training.methods.loops import copies, masked


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    """transformers' BertModel, plain loops and torch's AdamW, in float64 and without dropout."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=4, epochs=2, lr=1e-3, dropout=0, clip=0)
    weight, bias = copies(trainer.method.head)

    def loss_of(batch, rows):
        vectors = torch.tanh(reference.first(batch.texts[0]) @ weight.T + bias)
        return mean(loop_in_batch(vectors, vectors, 0.05))

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of)


def test_two_dropout_masks_make_two_views(trainer_of, texts):
    trainer = trainer_of(SimCSE, texts, batch=4)
    trainer.method.train()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))

    assert not torch.equal(outputs["one"], outputs["other"])
    trainer.method.eval()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))
    assert torch.equal(outputs["one"], outputs["other"])


def test_masked_tokens_are_predicted_as_by_transformers(trainer_of, texts, base_folder):
    """BertForMaskedLM gives the same loss; labels of -100 are not predicted. The trained head is kept."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=13, dropout=0, mlm_weight=0.1)
    batch = trainer.batch(0)
    terms = trainer.method.loss(trainer.method.encode(batch))
    model = transformers.BertForMaskedLM.from_pretrained(base_folder, dtype=torch.float64).eval()
    chosen, shown = ([each for [each] in batch.draws[name]] for name in ("chosen", "shown"))
    expected = model(**masked(batch.texts[0], chosen, shown)).loss.item()

    assert terms["mlm"].value.item() == pytest.approx(0.1 * expected, rel=0, abs=1e-9)
    assert terms["mlm"].weight == sum(max(1, round(0.15 * (len(text) - 2))) for text in batch.texts[0])
    before = trainer.method.finished().tensors
    trainer.train()
    after = trainer.method.finished().tensors
    assert before.keys() == after.keys()
    assert not torch.equal(before["cls.predictions.bias"], after["cls.predictions.bias"])
    assert trainer.method.finished().heads.keys() == {"head.weight", "head.bias"}
