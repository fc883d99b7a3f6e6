"""ConSERT: its views, its modes, and their steps beside a padded reference."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from sentkit.model.transformer.packed import pack
from sentkit.papers.consert.method import VIEWS, ConSERT, direction, share
from sentkit.training.settings import build
from support import padded
from training.losses.formulas import loop_paired, mean
from training.methods.loops import RECIPE, copies, cross_entropy, labelled


def encoded(trainer, step=0):
    trainer.method.train()
    with torch.no_grad():
        return trainer.method.encode(trainer.batch(step))


@pytest.mark.parametrize(("mode", "passes"), [("unsup", 2), ("sup", 1), ("joint", 2)])
def test_each_view_is_one_pass_with_the_labels_of_the_released_code(
    trainer_of, texts, mode, passes
):
    trainer = trainer_of(ConSERT, labelled(texts), mode=mode, batch=4)
    calls = []
    trainer.method.body.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    outputs = encoded(trainer)
    rows = trainer.order.at(0)
    assert len(calls) == passes
    if mode != "unsup":
        assert outputs["labels"].tolist() == [[1, 2, 0][row % 3] for row in rows]


def test_every_view_and_side_draws_its_own(trainer_of, texts):
    same = [{"text_a": text, "text_b": text, "label": "neutral"} for text in texts]
    views = {"view_a": "feature-cutoff", "view_b": "feature-cutoff"}
    draws = trainer_of(ConSERT, same, mode="joint", batch=13, **views).batch(0).draws

    assert sorted(draws) == ["a0", "a1", "b0", "b1"]
    assert {len(indices) for values in draws.values() for indices in values} == {3}  # of 16
    distinct = [tuple(sorted(indices)) for values in draws.values() for indices in values]
    assert len(set(distinct)) > 40  # of 52


def test_the_direction_of_an_attack():
    slopes = torch.tensor([[3.0, -4.0], [0.0, 0.0]])

    assert torch.allclose(direction(slopes, "fgv"), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))
    assert direction(slopes, "fgsm").tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert direction(slopes, "raw") is slopes


@pytest.mark.parametrize("preset", list(ConSERT.presets))
def test_each_preset_is_within_the_limits_and_builds(base, preset):
    settings = build(ConSERT.Settings, ConSERT.presets, preset, [])
    method = ConSERT.build(base, settings)
    assert (method.classifier is None) == (settings.mode == "unsup")
    assert bool(method.finished().heads) == (settings.mode != "unsup")


CUTS = {
    "token-cutoff": "token_cutoff_rate",
    "feature-cutoff": "feature_cutoff_rate",
    "dropout": "view_dropout_rate",
}


@pytest.mark.parametrize(("name", "setting"), CUTS.items())
def test_each_cut_has_its_own_rate(trainer_of, texts, name, setting):
    """Of 0 here, where the other two are not."""
    outputs = encoded(
        trainer_of(ConSERT, texts, view_a="none", view_b=name, batch=8, **{setting: 0})
    )
    assert torch.equal(outputs["a0"], outputs["b0"])


def cut(states, view, drawn):
    """Set tokens, features or entries of each sentence to 0."""
    for row, indices in enumerate(drawn):
        if view == "token-cutoff":
            states[row, indices] = 0
        elif view == "feature-cutoff":
            states[row][:, indices] = 0
        else:
            states[row].view(-1)[indices] = 0


def read(model, texts, view, drawn, change=None):
    """The mean of the last states, the first states being cut by a hook behind the embeddings."""
    if view == "span-cutoff":
        texts = [text[token_indices] for text, token_indices in zip(texts, drawn, strict=True)]
    ids, mask = padded(texts)
    positions = torch.arange(ids.shape[1]).repeat(len(ids), 1)
    if view in ("shuffle", "span-cutoff"):
        for row, order in enumerate(drawn):
            positions[row, : len(order)] = torch.tensor(order)

    def disturb(module, inputs, output):
        states = output.clone() if change is None else change(output)
        if view in CUTS:
            cut(states, view, drawn)
        return states

    hook = model.embeddings.register_forward_hook(disturb)
    states = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
    hook.remove()
    return torch.stack([states[row, : len(text)].mean(0) for row, text in enumerate(texts)])


def classified(u, v, classifier, labels, features):
    blocks = [u, v, abs(u - v)] + ([torch.maximum(u, v) ** 2] if features == "uvdm" else [])
    return cross_entropy(torch.cat(blocks, 1) @ classifier[0].T + classifier[1], labels)


def view(model, batch, settings, side, column):
    name = {"a": settings.view_a, "b": settings.view_b}[side]
    return read(model, batch.texts[column], name, batch.draws[f"{side}{column}"])


def unsup(model, classifier, batch, settings):
    vectors_a = view(model, batch, settings, "a", 0)
    vectors_b = read(model, batch.texts[-1], settings.view_b, batch.draws["b0"])
    return settings.loss_scale * mean(loop_paired(vectors_a, vectors_b, 0.1))


def sup(model, classifier, batch, settings):
    u, v = (view(model, batch, settings, "a", i) for i in (0, 1))
    return classified(u, v, classifier, batch.targets, settings.pair_features)


def joint(model, classifier, batch, settings):
    u, v, w, x = (view(model, batch, settings, side, i) for side in "ab" for i in (0, 1))
    contrasts = (mean(loop_paired(u, w, 0.1)) + mean(loop_paired(v, x, 0.1))) / 2
    return (
        classified(u, v, classifier, batch.targets, settings.pair_features)
        + settings.alpha * contrasts
    )


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
            for position in range(len(text)):
                gradient = slopes[row, position] * len(batch)  # of the sum of the batch
                if settings.adv_form == "fgsm":
                    gradient = gradient.sign()
                elif settings.adv_form == "fgv":
                    gradient = gradient / ((gradient**2).sum().sqrt() + 1e-10)
                change[row, position] = settings.adv_eps * gradient
        views.append(
            read(
                model, batch.texts[side], "none", (), lambda states, change=change: states + change
            )
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
        (
            unsup,
            as_they_are,
            {"view_a": "token-cutoff", "view_b": "dropout", "token_cutoff_rate": 0.3},
        ),
        (unsup, reworded, {"view_a": "none", "view_b": "shuffle", "loss_scale": 1.0}),
        (joint, labelled, {"mode": "joint", "view_a": "none", "view_b": "token-cutoff"}),
        (joint, labelled, {"mode": "joint", "pair_features": "uvdm", "alpha": 0.15}),
        (unsup, as_they_are, {"view_a": "span-cutoff", "span_cutoff_rate": 0.4}),
        (adversarial, labelled, ATTACK | {"adv_eps": 0.5}),
        (adversarial, labelled, ATTACK | {"adv_form": "fgsm"}),
        (adversarial, labelled, ATTACK | {"adv_form": "raw", "adv_eps": 3.0}),
        (sup, labelled, {"mode": "sup", "view_a": "none"}),
        (sup, labelled, {"mode": "sup", "view_a": "dropout", "pair_features": "uvdm"}),
    ],
)
def test_steps_are_those_of_a_reference(
    trainer_of, check_steps, texts, reference, loop, rows, settings
):
    trainer = trainer_of(ConSERT, rows(texts), **RECIPE, optimizer="adamw", **settings)
    classifier = [] if trainer.method.classifier is None else copies(trainer.method.classifier)

    def loss_of(batch, numbers):
        return loop(reference.model, classifier, batch, trainer.recipe)

    check_steps(trainer, [*reference.model.parameters(), *classifier], loss_of, count=4)


MIXED = [10, 6, 1, 7, 7, 20]
WIDTH = 24


def generator(seed=0):
    return np.random.default_rng(seed)


def random_states(lengths, width=WIDTH):
    return torch.randn(sum(lengths), width, generator=torch.Generator().manual_seed(1))


def batch(lengths):
    return pack([range(1, length + 1) for length in lengths])


def test_share_is_the_floor_in_decimal_arithmetic():
    """In floats, 0.29 of 100 is 28.999999999999996. A small rate is written with an exponent."""
    for rate in (0.15, 0.2, 0.29, 0.57, 1e-05, 0.0, 1.0):
        for count in (6, 9, 10, 20, 100, 768, 7680, 100_000):
            assert share(rate, count) == int(Decimal(str(rate)) * count)


@pytest.mark.parametrize(
    ("name", "rate", "counts", "limits"),
    [
        ("token-cutoff", 0.15, [1, 0, 3], [10, 6, 20]),
        ("feature-cutoff", 0.2, [153] * 3, [768] * 3),
        ("dropout", 0.2, [1536, 921, 3072], [10 * 768, 6 * 768, 20 * 768]),
    ],
)
def test_a_cut_draws_exact_counts_for_each_sentence(name, rate, counts, limits):
    drawn = VIEWS[name].draw(generator(), [10, 6, 20], 768, rate)

    assert (
        [len({*indices.tolist()}) for indices in drawn]
        == [len(indices) for indices in drawn]
        == counts
    )
    assert all(
        0 <= index < end for indices, end in zip(drawn, limits, strict=True) for index in indices
    )
    assert {*drawn[0].tolist()} != {*drawn[2].tolist()}


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_copies_the_states_and_only_kept_entries_get_gradients(name):
    view = VIEWS[name]
    states = random_states(MIXED)
    copied = states.clone()
    _, disturb = view.apply(batch(MIXED), view.draw(generator(), MIXED, WIDTH, 0.5))

    cut_states = disturb(states.requires_grad_())
    (cut_states * 3).sum().backward()

    assert torch.equal(states, copied)
    assert torch.equal(states.grad, (cut_states != 0) * 3.0)


@pytest.mark.parametrize(
    ("rate", "sizes"), [(0.15, [8, 5, 1, 17]), (0.0, [10, 6, 1, 20]), (1.0, [1, 1, 1, 1])]
)
def test_a_window_has_consecutive_tokens(rate, sizes):
    """Of 10 tokens 8.5 are kept, rounded down, and of 1 token 1."""
    drawn = VIEWS["span-cutoff"].draw(generator(), [10, 6, 1, 20], WIDTH, rate)

    assert [len(indices) for indices in drawn] == sizes
    for indices, length in zip(drawn, [10, 6, 1, 20], strict=True):
        assert indices.tolist() == list(range(length))[indices[0] :][: len(indices)]


def test_a_window_begins_at_any_token_that_leaves_room_for_it():
    """Of 10 tokens 7 are kept: the starts 0, 1, 2 and 3, each about 100 times in 400."""
    drawn = VIEWS["span-cutoff"].draw(generator(), [10] * 400, WIDTH, 0.3)
    starts, counts = np.unique([indices[0] for indices in drawn], return_counts=True)

    assert starts.tolist() == [0, 1, 2, 3]
    assert abs(counts - 100).max() < 5 * (400 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("name", VIEWS)
def test_part_of_a_draw_changes_its_sentences_as_the_whole_draw_does(name, base):
    """Random ids without special tokens. A draw for another batch is an error."""
    bert = base.body(None)
    texts = [generator().integers(5, base.architecture.vocabulary, length) for length in MIXED]
    drawn = VIEWS[name].draw(generator(), MIXED, bert.width, 0.3)

    def first_states(which):
        packed, disturb = VIEWS[name].apply(pack(texts[which]), drawn[which])
        return next(bert.states(packed, disturb=disturb)).split(packed.lengths)

    whole = first_states(slice(None))
    with torch.no_grad():
        three_sentences = first_states(slice(1, 4))

    assert all(torch.equal(a, b) for a, b in zip(whole[1:4], three_sentences, strict=True))
    with pytest.raises(AssertionError, match="a draw for other sentences"):
        VIEWS[name].apply(batch([3, 3]), [np.array([0])])


def test_shuffle_includes_special_tokens():
    """In many draws, each of 4 places gets each position about equally often."""
    drawn = np.stack(VIEWS["shuffle"].draw(generator(), [4] * 4000, WIDTH, 0.0))
    counts = np.stack([np.bincount(column, minlength=4) for column in drawn.T])

    assert (np.sort(drawn, axis=1) == np.arange(4)).all()
    assert counts.min() > 850
    assert counts.max() < 1150
