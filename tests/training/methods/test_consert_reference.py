"""ConSERT step by step, against transformers' BertModel over padded batches and plain loops.

All in float64 and without the encoder's dropout; the draws of the views are the trainer's own.
"""

import pytest
import torch
import transformers

from reference_steps import take_step
from sentkit.papers.consert.method import ConSERT
from support import padded

STEPS, RATE = 4, 1e-3


def cut_token(states, row, drawn):
    for place in drawn:
        states[row, place] = 0


def cut_feature(states, row, drawn):
    for feature in drawn:
        states[row, :, feature] = 0


def cut_entry(states, row, drawn):
    width = states.shape[-1]
    for entry in drawn:
        states[row, entry // width, entry % width] = 0


CUTS = {"token-cutoff": cut_token, "feature-cutoff": cut_feature, "dropout": cut_entry}


def read(model, texts, view, drawn, change=None):
    """The mean of the last states, the first states being cut by a hook behind the embeddings."""
    if view == "span-cutoff":
        texts = [text[kept] for text, kept in zip(texts, drawn, strict=True)]
    ids, mask = padded(texts)
    positions = torch.arange(ids.shape[1]).repeat(len(ids), 1)
    if view in ("shuffle", "span-cutoff"):
        for row, order in enumerate(drawn):
            positions[row, : len(order)] = torch.tensor(order)

    def disturb(module, inputs, output):
        states = output.clone() if change is None else change(output)
        if view in CUTS:
            for row, each in enumerate(drawn):
                CUTS[view](states, row, each)
        return states

    hook = model.embeddings.register_forward_hook(disturb)
    states = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
    hook.remove()
    return torch.stack([states[row, : len(text)].mean(0) for row, text in enumerate(texts)])


def contrast(one, other, temperature):
    """The paper's NT-Xent, in loops: the mean over 2N anchors."""
    rows, half = [*one, *other], len(one)
    total = 0.0
    for i, anchor in enumerate(rows):
        cosines = {
            k: torch.exp(torch.cosine_similarity(anchor, row, dim=0) / temperature)
            for k, row in enumerate(rows)
            if k != i
        }
        total = total - torch.log(cosines[(i + half) % (2 * half)] / sum(cosines.values()))
    return total / (2 * half)


def classified(u, v, classifier, labels, features):
    total = 0.0
    for row, label in enumerate(labels):
        blocks = [u[row], v[row], abs(u[row] - v[row])]
        if features == "uvdm":
            blocks.append(torch.stack([max(a, b) ** 2 for a, b in zip(u[row], v[row], strict=True)]))
        logits = torch.cat(blocks) @ classifier[0].T + classifier[1]
        total = total - torch.log(torch.exp(logits[int(label)]) / torch.exp(logits).sum())
    return total / len(labels)


def unsup(model, classifier, batch, settings):
    one = read(model, batch.texts[0], settings.view_a, batch.draws["a0"])
    other = read(model, batch.texts[-1], settings.view_b, batch.draws["b0"])
    return settings.loss_scale * contrast(one, other, 0.1)


def sup(model, classifier, batch, settings):
    u = read(model, batch.texts[0], settings.view_a, batch.draws["a0"])
    v = read(model, batch.texts[1], settings.view_a, batch.draws["a1"])
    return classified(u, v, classifier, batch.targets, settings.pair_features)


def joint(model, classifier, batch, settings):
    u, v = (read(model, batch.texts[i], settings.view_a, batch.draws[f"a{i}"]) for i in (0, 1))
    w, x = (read(model, batch.texts[i], settings.view_b, batch.draws[f"b{i}"]) for i in (0, 1))
    contrasts = (contrast(u, w, 0.1) + contrast(v, x, 0.1)) / 2
    return classified(u, v, classifier, batch.targets, settings.pair_features) + settings.alpha * contrasts


def adversarial(model, classifier, batch, settings):
    """The gradient of the label loss by the first states of each text, as a second pass."""
    first = []

    def hold(states):
        first.append(states)
        return states

    u, v = (read(model, batch.texts[i], "none", (), hold) for i in (0, 1))
    labels = classified(u, v, classifier, batch.targets, settings.pair_features)
    views = []
    for side, slopes in enumerate(torch.autograd.grad(labels, first, retain_graph=True)):
        change = torch.zeros_like(slopes)
        for row, text in enumerate(batch.texts[side]):
            for place in range(len(text)):
                if settings.adv_form == "fgsm":
                    change[row, place] = settings.adv_eps * slopes[row, place].sign()
                else:
                    own = slopes[row, place] * len(batch)  # of the sum of the batch
                    change[row, place] = settings.adv_eps * own / ((own**2).sum().sqrt() + 1e-10)
        views.append(
            read(model, batch.texts[side], "none", (), lambda states, change=change: states + change)
        )
    contrasts = (contrast(u, views[0], 0.1) + contrast(v, views[1], 0.1)) / 2
    return labels + 0.6 * contrasts


def labelled(texts):
    words = ["entailment", "neutral", "contradiction"]
    pairs = zip(texts, texts[1:] + texts[:1], strict=True)
    return [{"text_a": a, "text_b": b, "label": words[i % 3]} for i, (a, b) in enumerate(pairs)]


def reworded(texts):
    return [{"text_a": text, "text_b": text.upper() + " now"} for text in texts]


def as_they_are(texts):
    return texts


@pytest.mark.parametrize(
    ("reference", "rows", "settings"),
    [
        (unsup, as_they_are, {}),
        (unsup, as_they_are, {"view_a": "token-cutoff", "view_b": "dropout", "token_cutoff_rate": 0.3}),
        (unsup, reworded, {"view_a": "none", "view_b": "shuffle", "loss_scale": 1.0}),
        (joint, labelled, {"mode": "joint", "view_a": "none", "view_b": "token-cutoff"}),
        (joint, labelled, {"mode": "joint", "pair_features": "uvdm", "alpha": 0.15}),
        (unsup, as_they_are, {"view_a": "span-cutoff", "span_cutoff_rate": 0.4}),
        (adversarial, labelled, {"mode": "joint", "view_a": "none", "view_b": "adversarial", "adv_eps": 0.5}),
        (
            adversarial,
            labelled,
            {"mode": "joint", "view_a": "none", "view_b": "adversarial", "adv_form": "fgsm"},
        ),
        (sup, labelled, {"mode": "sup", "view_a": "none"}),
        (sup, labelled, {"mode": "sup", "view_a": "dropout", "pair_features": "uvdm"}),
    ],
)
def test_steps_are_those_of_a_padded_reference(
    trainer_of, losses_of, texts, base_folder, reference, rows, settings
):
    settings = {"batch": 4, "epochs": 2, "lr": RATE, "clip": 0, "warmup": 0} | settings
    settings |= {"optimizer": "adamw", "weight_decay": 0}
    trainer = trainer_of(ConSERT, rows(texts), double=True, **settings)
    head = trainer.method.classifier
    classifier = [] if head is None else [head.weight.detach().clone(), head.bias.detach().clone()]
    batches = [trainer.batch(step) for step in range(STEPS)]
    ours = losses_of(trainer)[:STEPS]

    model = transformers.BertModel.from_pretrained(
        base_folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    for value in classifier:
        value.requires_grad_()
    optimizer = torch.optim.AdamW([*model.parameters(), *classifier], lr=RATE, weight_decay=0.0)
    theirs = []
    for step, batch in enumerate(batches):
        loss = reference(model, classifier, batch, trainer.recipe)
        rate = RATE * (trainer.order.steps - step) / trainer.order.steps
        theirs.append(take_step(optimizer, loss, rate))

    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    assert len(set(ours)) == STEPS
