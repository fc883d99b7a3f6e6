"""ConSERT step by step, against transformers' BertModel over padded batches and plain loops.

All in float64 and without the encoder's dropout; the draws of the views are the trainer's own.
"""

import pytest
import torch

from sentkit.papers.consert.method import ConSERT
from support import padded
from training.losses.formulas import loop_paired, mean
from training.methods.loops import copies, cross_entropy, labelled


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


def classified(u, v, classifier, labels, features):
    blocks = [u, v, abs(u - v)] + ([torch.maximum(u, v) ** 2] if features == "uvdm" else [])
    return cross_entropy(torch.cat(blocks, 1) @ classifier[0].T + classifier[1], labels)


def unsup(model, classifier, batch, settings):
    one = read(model, batch.texts[0], settings.view_a, batch.draws["a0"])
    other = read(model, batch.texts[-1], settings.view_b, batch.draws["b0"])
    return settings.loss_scale * mean(loop_paired(one, other, 0.1))


def sup(model, classifier, batch, settings):
    u = read(model, batch.texts[0], settings.view_a, batch.draws["a0"])
    v = read(model, batch.texts[1], settings.view_a, batch.draws["a1"])
    return classified(u, v, classifier, batch.targets, settings.pair_features)


def joint(model, classifier, batch, settings):
    u, v = (read(model, batch.texts[i], settings.view_a, batch.draws[f"a{i}"]) for i in (0, 1))
    w, x = (read(model, batch.texts[i], settings.view_b, batch.draws[f"b{i}"]) for i in (0, 1))
    contrasts = (mean(loop_paired(u, w, 0.1)) + mean(loop_paired(v, x, 0.1))) / 2
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
    contrasts = (mean(loop_paired(u, views[0], 0.1)) + mean(loop_paired(v, views[1], 0.1))) / 2
    return labels + 0.6 * contrasts


ATTACK = {"mode": "joint", "view_a": "none", "view_b": "adversarial"}


def reworded(texts):
    return [{"text_a": text, "text_b": text.upper() + " now"} for text in texts]


def as_they_are(texts):
    return texts


@pytest.mark.parametrize(
    ("loop", "rows", "settings"),
    [
        (unsup, as_they_are, {}),
        (unsup, as_they_are, {"view_a": "token-cutoff", "view_b": "dropout", "token_cutoff_rate": 0.3}),
        (unsup, reworded, {"view_a": "none", "view_b": "shuffle", "loss_scale": 1.0}),
        (joint, labelled, {"mode": "joint", "view_a": "none", "view_b": "token-cutoff"}),
        (joint, labelled, {"mode": "joint", "pair_features": "uvdm", "alpha": 0.15}),
        (unsup, as_they_are, {"view_a": "span-cutoff", "span_cutoff_rate": 0.4}),
        (adversarial, labelled, ATTACK | {"adv_eps": 0.5}),
        (adversarial, labelled, ATTACK | {"adv_form": "fgsm"}),
        (sup, labelled, {"mode": "sup", "view_a": "none"}),
        (sup, labelled, {"mode": "sup", "view_a": "dropout", "pair_features": "uvdm"}),
    ],
)
def test_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference, loop, rows, settings
):
    settings = {"batch": 4, "epochs": 2, "lr": 1e-3, "clip": 0, "warmup": 0} | settings
    settings |= {"optimizer": "adamw", "weight_decay": 0}
    trainer = trainer_of(ConSERT, rows(texts), double=True, **settings)
    classifier = [] if trainer.method.classifier is None else copies(trainer.method.classifier)

    def loss_of(batch, numbers):
        return loop(reference.model, classifier, batch, trainer.recipe)

    check_steps(trainer, [*reference.model.parameters(), *classifier], loss_of, count=4)
