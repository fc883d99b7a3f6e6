"""SimCSE without labels: its loss, its steps, and its checkpoint."""

import pytest
import torch
import transformers

from reference_steps import take_step
from sentkit.training.methods.simcse import SimCSE
from support import padded


def contrast(one, other, temperature):
    """The paper's equation 1, in loops."""
    total = 0.0
    for i in range(len(one)):
        cosines = [torch.cosine_similarity(one[i], other[j], dim=0) / temperature for j in range(len(other))]
        total = total - torch.log(torch.exp(cosines[i]) / sum(torch.exp(each) for each in cosines))
    return total / len(one)


def test_five_steps_are_those_of_a_padded_reference(trainer_of, losses_of, texts, base, base_folder):
    """transformers' BertModel, plain loops and torch's AdamW, in float64 and without dropout."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=4, epochs=2, lr=1e-3, dropout=0, clip=0)
    head = [value.detach().clone() for value in (trainer.method.head.weight, trainer.method.head.bias)]
    order = [trainer.order.at(step) for step in range(5)]
    ours = losses_of(trainer)[:5]

    model = transformers.BertModel.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    head = [value.requires_grad_() for value in head]
    optimizer = torch.optim.AdamW([*model.parameters(), *head], lr=1e-3, weight_decay=0.0)
    steps = trainer.order.steps
    theirs = []
    for step, rows in enumerate(order):
        ids, mask = padded([base.training_tokenizer([texts[row]])[0].ids for row in rows])
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        vectors = torch.tanh(states @ head[0].T + head[1])
        loss = contrast(vectors, vectors, 0.05)
        theirs.append(take_step(optimizer, loss, 1e-3 * (steps - step) / steps))

    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    assert ours[0] != ours[-1]


def test_two_dropout_masks_make_two_views(trainer_of, texts):
    trainer = trainer_of(SimCSE, texts, batch=4)
    trainer.method.train()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))

    assert not torch.equal(outputs["one"], outputs["other"])
    trainer.method.eval()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))
    assert torch.equal(outputs["one"], outputs["other"])


def test_masked_tokens_are_predicted_as_by_transformers(trainer_of, texts, base_folder):
    """BertForMaskedLM gives the same loss, and `labels` of -100 are not predicted."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=13, dropout=0, mlm_weight=0.1)
    batch = trainer.batch(0)
    terms = trainer.method.loss(trainer.method.encode(batch))
    model = transformers.BertForMaskedLM.from_pretrained(base_folder, dtype=torch.float64).eval()
    longest = max(map(len, batch.texts[0]))
    ids, labels, mask = (torch.full((13, longest), fill) for fill in (0, -100, 0))
    rows = zip(batch.texts[0], batch.draws["chosen"], batch.draws["shown"], strict=True)
    for row, (text, [chosen], [shown]) in enumerate(rows):
        ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text).long(), 1
        labels[row, chosen] = ids[row, chosen]
        ids[row, chosen] = torch.tensor(shown).long()
    expected = model(input_ids=ids, attention_mask=mask, labels=labels).loss.item()

    assert terms["mlm"].value.item() == pytest.approx(0.1 * expected, rel=0, abs=1e-9)
    assert terms["mlm"].weight == sum(max(1, round(0.15 * (len(text) - 2))) for text in batch.texts[0])


def test_the_trained_language_model_is_kept(trainer_of, texts):
    trainer = trainer_of(SimCSE, texts, batch=7, mlm_weight=0.1)
    before = trainer.method.finished().tensors
    trainer.train()
    after = trainer.method.finished().tensors

    assert before.keys() == after.keys()
    assert not torch.equal(before["cls.predictions.bias"], after["cls.predictions.bias"])
    assert trainer.method.finished().heads.keys() == {"head.weight", "head.bias"}
