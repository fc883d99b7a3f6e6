"""Methods of pairs, CT and IS-BERT: steps beside a padded reference, and rows that they refuse."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_steps import adamw
from sentkit.errors import UsageError
from sentkit.papers.pairsupcon.method import PairSupCon
from sentkit.training.base import open_named
from sentkit.training.method import changing_tensors, using
from sentkit.training.methods.contrastive_tension import ContrastiveTension
from sentkit.training.methods.is_bert import ISBERT
from sentkit.training.methods.pairs import SBERT, AnglE, CoSENT
from sentkit.training.runs.checkpoint import write_checkpoint
from sentkit.training.settings import build
from training.losses.formulas import (
    attraction,
    cosine,
    dot,
    double,
    loop_agreement,
    loop_entailment,
    loop_information,
    loop_margin,
    loop_ranked,
    loop_regression,
    loop_tension,
    mean,
    without,
)
from training.methods.loops import RECIPE, copies, cross_entropy

WORDS = ("contradiction", "entailment", "neutral")


@pytest.fixture
def rows_of(texts):
    """Ten rows of the kind that an objective reads."""
    rows = {
        "softmax": lambda i: {"text_a": texts[i], "text_b": texts[i + 1], "label": WORDS[i % 3]},
        "regression": lambda i: {"text_a": texts[i], "text_b": texts[i + 1], "score": i / 2},
        "triplet": lambda i: {
            "anchor": texts[i],
            "positive": texts[i + 1],
            "negative": texts[i + 2],
        },
    }
    return lambda objective: [rows[objective](i) for i in range(10)]


# The objectives as the paper states them, in loops.


def softmax(rows, vectors, classifier, settings):
    u, v = vectors
    logits = torch.cat([u, v, abs(u - v)], 1) @ classifier[0].T + classifier[1]
    return cross_entropy(logits, [WORDS.index(row["label"]) for row in rows])


def regression(rows, vectors, classifier, settings):
    return mean(loop_regression(*vectors, [row["score"] / settings["scale"] for row in rows]))


def triplet(rows, vectors, classifier, settings):
    return mean(loop_margin(*vectors, settings["margin"]))


@pytest.mark.parametrize(
    ("loop", "settings"), [(softmax, {}), (regression, {"scale": 6.0}), (triplet, {"margin": 2.0})]
)
def test_steps_are_those_of_a_reference(
    trainer_of, check_steps, rows_of, reference, loop, settings
):
    rows = rows_of(loop.__name__)
    recipe = RECIPE | {
        "warmup": 0.3,
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "objective": loop.__name__,
    }
    trainer = trainer_of(SBERT, rows, **recipe, **settings)
    classifier = copies(trainer.method.classifier) if loop is softmax else []
    named = reference.parameters() | dict(zip(("weight", "bias"), classifier, strict=False))

    def loss_of(batch, numbers):
        vectors = [reference.mean(column) for column in batch.texts]
        return loop([rows[number] for number in numbers], vectors, classifier, settings)

    # Of the warmup: 0.3 * 6 = 1.8.
    check_steps(trainer, [], loss_of, count=6, optimizer=adamw(named, 0.1), warmup=2)


def test_a_last_row_alone_is_a_batch(trainer_of, losses_of, rows_of):
    """A row needs no other to contrast with."""
    losses = losses_of(trainer_of(SBERT, rows_of("softmax"), batch=9))

    assert len(losses) == 2


def without_encoder(kind, width=2, **settings):
    """A method without an encoder to speak of: its heads and its loss need none."""
    body = torch.nn.Linear(2, 2)
    body.width = width
    return kind(body, kind.Settings(**settings))


def contrast(rows_a, rows_b, scores):
    """Both texts of each pair with a score of 4 or 5 against all other texts of the batch."""
    losses = []
    rows = [*rows_a, *rows_b]
    positive = [index for index, score in enumerate(scores) if score >= 4]
    for index in positive:
        for anchor in (index, index + len(rows_a)):
            partner = (anchor + len(rows_a)) % len(rows)
            other_rows = without(rows, anchor, partner)
            losses.append(attraction(rows[anchor], rows[partner], other_rows, 0.05))
    return sum(losses) / len(rows)  # as the released code: also over the rows that are no anchors


def cosent(rows_a, rows_b, scores):
    return loop_ranked([*map(cosine, rows_a, rows_b)], scores)


def angle_total(rows_a, rows_b, scores):
    angles = loop_agreement(rows_a, rows_b)
    return (
        cosent(rows_a, rows_b, scores)
        + contrast(rows_a, rows_b, scores)
        + 0.02 * loop_ranked(angles, scores)
    )


@pytest.mark.parametrize(("kind", "loop"), [(CoSENT, cosent), (AnglE, angle_total)])
def test_five_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, scored, reference, kind, loop
):
    trainer = trainer_of(kind, scored, **RECIPE)

    def loss_of(batch, numbers):
        chosen = [scored[number] for number in numbers]
        vectors_a, vectors_b = (
            reference.mean([row[name] for row in chosen]) for name in ("text_a", "text_b")
        )
        return loop(vectors_a, vectors_b, [row["score"] for row in chosen])

    check_steps(trainer, reference.model.parameters(), loss_of)


def test_a_batch_of_equal_scores_has_no_gradient():
    vectors_a = torch.eye(2).requires_grad_()
    outputs = {"a": vectors_a, "b": torch.ones(2, 2), "score": torch.tensor([2.0, 2.0])}
    value = without_encoder(CoSENT).loss(outputs)["cosine"].value
    value.backward()

    assert value.item() == 0.0
    assert vectors_a.grad.abs().max() == 0.0


def test_large_scores_that_float32_joins_are_ordered(trainer_of, texts):
    """2 ** 24 + 1 is 2 ** 24 in float32."""
    scores = [2**24, 2**24 + 1]
    rows = [
        {"text_a": texts[i], "text_b": texts[i + 2], "score": score}
        for i, score in enumerate(scores)
    ]
    trainer = trainer_of(CoSENT, rows, dropout=0)
    batch = trainer.batch(0)
    outputs = trainer.method.encode(batch)
    value = trainer.method.loss(outputs)["cosine"].value

    assert sorted(batch.targets) == scores
    expected = loop_ranked([*map(cosine, outputs["a"], outputs["b"])], batch.targets)
    torch.testing.assert_close(value, expected.to(value), rtol=1e-5, atol=0)
    assert value.item() > 0.0


def test_a_base_of_odd_width_is_refused():
    with pytest.raises(UsageError, match="even width, not 3"):
        without_encoder(AnglE, width=3)


RELATIONS = ("contradiction", "entailment")


@pytest.fixture
def pairs(texts):
    return [
        {"text_a": texts[i], "text_b": texts[i + 1], "label": RELATIONS[i % 3 > 0]}
        for i in range(10)
    ]


def test_six_steps_of_pairsupcon_are_those_of_a_padded_reference(
    trainer_of, check_steps, pairs, reference
):
    settings = {
        "batch": 4,
        "epochs": 2,
        "lr": 1e-4,
        "head_lr_factor": 30,
        "head_width": 8,
        "beta": 0.7,
    }
    trainer = trainer_of(PairSupCon, pairs, double=True, dropout=0, **settings)
    first, second = copies(trainer.method.contrast)
    [relation] = copies(trainer.method.relation)
    groups = [{"params": list(reference.parameters().values()), "lr": 1e-4}]
    groups += [{"params": [first, second, relation], "lr": 3e-3}]

    def loss_of(batch, rows):
        labels = [RELATIONS.index(pairs[row]["label"]) for row in rows]
        u, v = map(reference.mean, batch.texts)
        projected_a, projected_b = (torch.relu(side @ first.T) @ second.T for side in (u, v))
        logits = torch.cat([u, v, abs(u - v)], 1) @ relation.T
        return cross_entropy(logits, labels) + 0.7 * mean(
            loop_entailment(projected_a, projected_b, labels, 0.05, "code")
        )

    optimizer = torch.optim.Adam(groups)
    check_steps(trainer, [], loss_of, count=6, optimizer=optimizer, rates=[None] * 6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"hard_negatives": False}, 0.870714),
        ({}, 0.972263),
        ({"hard_negative_form": "exponent"}, 1.161203),
        ({"id_average": "pairs"}, 2 * 0.972263),
        ({"beta": 0.5}, 0.972263 / 2),
        ({"beta": 0.5, "id_average": "pairs"}, 0.972263),
    ],
)
def test_the_loss_of_an_example_worked_by_hand(settings, expected):
    """Only the entailment's sides are anchors, so the released mean is over two of the four."""
    vectors_a, vectors_b = double([[[1, 0], [0, 1]], [[0.8, 0.6], [0.6, 0.8]]])
    outputs = {"a": vectors_a, "b": vectors_b, "label": torch.tensor([1, 0])}
    term = without_encoder(PairSupCon, temperature=0.5, **settings).loss(outputs)["id"]

    assert term.value.item() == pytest.approx(expected, abs=1e-5)


ABLATION = {  # preset -> the terms, and whether hard negatives weigh more
    "paper": ({"cls", "id"}, True),
    "cls": ({"cls"}, True),
    "id": ({"id"}, True),
    "id-plain": ({"id"}, False),
    "plain": ({"cls", "id"}, False),
}


@pytest.mark.parametrize("preset", ABLATION)
def test_the_presets_are_the_rows_of_the_ablation(trainer_of, pairs, preset):
    terms, weighted = ABLATION[preset]
    settings = build(PairSupCon.Settings, PairSupCon.presets, preset, [])
    trainer = trainer_of(PairSupCon, pairs, objective=settings.objective)
    method = trainer.method

    assert settings.hard_negatives == weighted
    assert method.loss(method.encode(trainer.run.corpus.batch([0, 1, 2]))).keys() == terms
    assert (method.contrast is not None, method.relation is not None) == (
        "id" in terms,
        "cls" in terms,
    )


def test_the_heads_of_bert_base_have_as_many_weights_as_published():
    method = without_encoder(PairSupCon, width=768)

    assert method.finished().heads.keys() == {
        "contrast.0.weight",
        "contrast.2.weight",
        "relation.weight",
    }
    assert sum(value.numel() for value in method.relation.parameters()) == 4608
    assert sum(value.numel() for value in method.contrast.parameters()) == 688_128
    assert without_encoder(PairSupCon, width=768, head_width=64).contrast[2].weight.shape == (
        64,
        768,
    )


@pytest.mark.parametrize("objective", ["both", "id", "cls"])
def test_the_heads_learn_a_hundred_times_as_fast(trainer_of, pairs, objective):
    trainer = trainer_of(PairSupCon, pairs, objective=objective)
    encoder, heads = trainer.optimizer.param_groups
    sizes = [sum(value.numel() for value in group["params"]) for group in (encoder, heads)]

    assert heads["lr"] / encoder["lr"] == pytest.approx(100)
    assert encoder["lr"] == 5e-6
    assert sum(sizes) == sum(value.numel() for value in trainer.method.parameters())
    assert sizes[1] == sum(value.numel() for value in trainer.method.finished().heads.values())
    assert not trainer.optimizer.late  # that of torch
    assert [trainer.factor(step) for step in range(trainer.order.steps)] == [
        1.0
    ] * trainer.order.steps


def test_neutral_pairs_are_omitted(corpus_of, texts):
    words = ["neutral", "entailment", "neutral", "contradiction"]
    rows = [
        {"text_a": texts[i], "text_b": texts[i + 1], "label": word} for i, word in enumerate(words)
    ]
    corpus, alone = (
        corpus_of(PairSupCon, chosen, PairSupCon.Settings()) for chosen in (rows, rows[1:2])
    )

    assert corpus.targets.tolist() == [1.0, 0.0]
    assert corpus.text(0, 0).tolist() == alone.text(0, 0).tolist()


def test_five_steps_of_ct_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference
):
    """Two of transformers' BertModel, plain loops and torch's RMSprop, in float64."""
    recipe = {"batch": 3, "epochs": 2, "lr": 1e-3, "negatives": 2}
    trainer = trainer_of(ContrastiveTension, texts, double=True, **recipe)
    second = replace(reference, model=copy.deepcopy(reference.model))
    parameters = [*second.model.parameters(), *reference.model.parameters()]
    optimizer = torch.optim.RMSprop(parameters, alpha=0.9, eps=1e-7)

    def loss_of(batch, rows):
        products = [
            [
                dot(reference.mean([text])[0], second.mean([paired_text])[0])
                for paired_text in [text, *negatives]
            ]
            for text, negatives in zip(batch.texts[0], batch.draws["negatives"], strict=True)
        ]
        return torch.cat(loop_tension(products)).mean()

    check_steps(trainer, parameters, loss_of, optimizer=optimizer, constant=True)


def test_the_drawn_sentences_are_others(trainer_of, texts):
    """A text that occurs more often is not drawn for itself; draws depend on seed and step only."""
    trainer = trainer_of(ContrastiveTension, [*texts[:2], *texts[:2]], batch=4, negatives=5)
    batch = trainer.batch(0)

    for text, negatives in zip(batch.texts[0], batch.draws["negatives"], strict=True):
        assert len(negatives) == 5
        assert not any(np.array_equal(text, negative) for negative in negatives)
    drawn_again = trainer.batch(0).draws["negatives"]
    assert all(map(np.array_equal, batch.draws["negatives"][0], drawn_again[0]))


def test_each_encoder_can_become_the_body(trainer_of, texts):
    trainer = trainer_of(ContrastiveTension, texts, batch=4)
    method = trainer.method
    first = method.body
    second = method.second
    assert {name.partition(".")[0] for name in changing_tensors(method)} == {"body", "second"}
    assert [*method.encoders()] == [first, second]
    with using(method, second):
        assert method.body is second

    assert method.body is first


def test_five_steps_with_a_convolution_are_those_of_a_reference(
    trainer_of, check_steps, texts, reference
):
    """transformers' BertModel, torch's Conv1d on one sentence at a time, plain loops, in
    float64.
    """
    recipe = RECIPE | {"channels": 3, "optimizer": "adamw", "epsilon": 1e-8}
    trainer = trainer_of(ISBERT, texts, **recipe)
    kernels = [torch.nn.Conv1d(16, 3, size, padding=size // 2).double() for size in (1, 3, 5)]
    for kernel, trained_kernel in zip(kernels, trainer.method.body.convolution.convs, strict=True):
        kernel.load_state_dict(trained_kernel.state_dict())

    def loss_of(batch, rows):
        states, mask = reference.states([texts[row] for row in rows])
        local = []
        for row, length in zip(states, mask.sum(1), strict=True):
            sentence = row[:length].T[None]
            local.append(torch.cat([kernel(sentence)[0].T for kernel in kernels], 1))
        trained_kernel, of_other_sentences = loop_information(
            local, [values.mean(0) for values in local]
        )
        return mean(trained_kernel) + mean(of_other_sentences)

    parameters = [
        *reference.model.parameters(),
        *(value for any_kernel in kernels for value in any_kernel.parameters()),
    ]
    check_steps(trainer, parameters, loss_of)


def test_the_convolution_of_the_base_is_trained_further(trainer_of, texts, tmp_path):
    """It is part of the hash of the base, so a run with another convolution is another run."""
    trainer = trainer_of(ISBERT, texts, batch=13, channels=6)
    folder = tmp_path / "made"
    write_checkpoint(folder, trainer.method, trainer.run.base, {})
    base = open_named(str(folder), 32)
    second = ISBERT.build(base, ISBERT.Settings(channels=6))

    assert base.declared.name == "conv"
    for name, value in trainer.method.body.convolution.state_dict().items():
        assert torch.equal(value, second.body.convolution.state_dict()[name])
    with pytest.raises(
        UsageError, match="channels=256: the convolution of the base has 6"
    ) as caught:
        ISBERT.check(base, ISBERT.Settings())
    assert caught.value.advice == "use --set channels=6"
    ISBERT.check(base, ISBERT.Settings(channels=6))
    path = folder / "0_CNN/model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    assert open_named(str(folder), 32).hash != base.hash
