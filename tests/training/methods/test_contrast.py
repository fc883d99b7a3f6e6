"""InfoNCE with any negatives, and the setting `dims`: references, sentence-transformers, and
refusals.
"""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from sentkit.errors import DataError, UsageError
from sentkit.model.transformer.architecture import stored_tensors
from sentkit.model.transformer.bert import split
from sentkit.training import losses
from sentkit.training.catalogue import METHODS
from sentkit.training.method import terms_of
from sentkit.training.methods.contrast import Contrast
from sentkit.training.methods.pairs import SBERT, CoSENT
from sentkit.training.methods.rank_encoder import RankEncoder
from sentkit.training.methods.simcse import SupervisedSimCSE
from sentkit.training.recipe import Dims, widths_of
from sentkit.training.settings import build
from support import declare_modules
from training.losses.formulas import attraction, without
from training.methods.loops import RECIPE
from training.small import gradient_of, make_base


@pytest.fixture
def rows(texts):
    """Thirteen rows with none to three negatives."""
    return [
        {
            "anchor": texts[i],
            "positive": texts[(i + 1) % 13],
            "negatives": [texts[(i + 3 + j) % 13] for j in range(i % 4)],
        }
        for i in range(13)
    ]


def settings_of(*assignments):
    return build(Contrast.Settings, Contrast.presets, None, assignments)


def info_nce(anchors, positives, negatives, banned):
    """Plain loops: `banned[i]` are the candidates that are no negatives of anchor i."""
    values = []
    candidates = [*positives, *negatives]
    for i, anchor in enumerate(anchors):
        values.append(attraction(anchor, positives[i], without(candidates, i, *banned[i]), 0.05))
    return sum(values) / len(values)


@pytest.mark.parametrize("guided", [False, True])
def test_steps_are_those_of_a_reference(trainer_of, check_steps, rows, reference, tmp_path, guided):
    """No negatives are the texts of the row, nor those that a guide finds nearer than the
    positive.
    """
    folder = make_base(tmp_path / "guide", seed=5)
    near = []
    trainer = trainer_of(Contrast, rows, guide=folder if guided else "none", **RECIPE)
    guide = transformers.BertModel.from_pretrained(folder, dtype=torch.float64).eval()

    def nearer(anchors, candidates):
        """By row, the candidates that are nearer to its anchor than its positive is."""
        with torch.no_grad():
            anchor_vectors, candidate_vectors = (
                replace(reference, model=guide).mean(texts) for texts in (anchors, candidates)
            )
        cosines = torch.cosine_similarity(anchor_vectors[:, None], candidate_vectors[None], dim=2)
        return [{*(row > row[i]).nonzero().flatten().tolist()} for i, row in enumerate(cosines)]

    def loss_of(batch, numbers):
        chosen = [rows[number] for number in numbers]
        anchors = [row["anchor"] for row in chosen]
        candidates = [row["positive"] for row in chosen] + [
            text for row in chosen for text in row["negatives"]
        ]
        banned = [
            {j for j, text in enumerate(candidates) if text in (row["anchor"], row["positive"])}
            for row in chosen
        ]
        if guided:
            near.extend(nearer(anchors, candidates))
            banned = [
                equal_texts | nearer_texts
                for equal_texts, nearer_texts in zip(banned, near[-len(chosen) :], strict=True)
            ]
        vectors, candidate_states = reference.mean(anchors + candidates).split(
            [len(anchors), len(candidates)]
        )
        return info_nce(
            vectors, candidate_states[: len(chosen)], candidate_states[len(chosen) :], banned
        )

    check_steps(trainer, reference.model.parameters(), loss_of)
    assert any(near) == guided


def test_pairs_and_triplets_are_rows_with_lists_of_none_and_one(trainer_of, losses_of, rows, texts):
    pairs = [{"anchor": row["anchor"], "positive": row["positive"]} for row in rows]
    forms = [
        [{"text_a": row["anchor"], "text_b": row["positive"]} for row in rows],
        pairs,
        [{**pair, "negatives": []} for pair in pairs],
        [{**pair, "negative": texts[(i + 5) % 13]} for i, pair in enumerate(pairs)],
        [{**pair, "negatives": [texts[(i + 5) % 13]]} for i, pair in enumerate(pairs)],
    ]
    losses = [losses_of(trainer_of(Contrast, rows_of_form, **RECIPE)) for rows_of_form in forms]

    assert losses[0] == losses[1] == losses[2]
    assert losses[3] == losses[4] != losses[0]


def test_another_guide_is_another_run_and_the_output_cannot_replace_it(tmp_path, base):
    """The command compares its outputs with the checkpoints that the settings name."""
    guides = [make_base(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    hashes = [Contrast.identity(base, settings_of(f"guide={guide}")) for guide in guides]

    assert hashes[0] != hashes[1]
    assert Contrast.identity(base, settings_of("guide=self")) == {}
    assert Contrast.other_checkpoints(settings_of("guide=GUIDE")) == {"guide": "GUIDE"}
    assert Contrast.other_checkpoints(settings_of("guide=self")) == {"guide": None}
    assert Contrast.other_checkpoints(settings_of()) == {"guide": None}


@pytest.mark.parametrize("kind", [Contrast, RankEncoder])
def test_a_guide_with_nan_or_with_steps_that_change_cosines_is_refused(tmp_path, base, kind):
    from safetensors.torch import load_file, save_file

    broken = make_base(tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.output.dense.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    folder = make_base(tmp_path / "guide")
    dense = {
        "in_features": 32,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.Tanh",
    }
    declare_modules(folder, "mean_tokens", 32, "2_Dense", **{"2_Dense/config": dense})

    with pytest.raises(DataError, match="contains NaN or infinity"):
        kind.check(base, kind.Settings(guide=str(broken)))
    with pytest.raises(UsageError, match="has the step 2_Dense, which training does not support"):
        kind.check(base, kind.Settings(guide=str(folder)))


@pytest.mark.parametrize("kind", [Contrast, RankEncoder])
@pytest.mark.parametrize(
    ("name", "declared", "problem"),
    [
        ("config_sentence_transformers", {"truncate_dim": 4}, "declares truncate_dim=4"),
        ("sentkit", {"readout": "prompt"}, "has the readout prompt, with a template"),
    ],
)
def test_a_guide_with_a_truncation_or_a_template_is_refused(
    tmp_path, base, kind, name, declared, problem
):
    """Its cosines are not those of the whole vectors, and its texts have no template."""
    folder = declare_modules(make_base(tmp_path / "guide"), "mean_tokens", 32)
    (folder / f"{name}.json").write_text(json.dumps(declared))

    with pytest.raises(UsageError, match=problem):
        kind.check(base, kind.Settings(guide=str(folder)))


BOTH = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.mark.parametrize(("form", "same"), [("one-way", {}), ("symmetric", BOTH)])
def test_the_gradient_of_the_cached_loss(
    form, same, trainer_of, base, base_folder, texts, monkeypatch
):
    """In float64, without dropout, with two negatives for each row, in spans of four anchors."""
    monkeypatch.setattr(losses, "MAX_COSINES", 4 * 39)
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    columns = [[texts[(i + k) % 13] for i in range(13)] for k in (0, 1, 4, 7)]
    rows = [{"anchor": a, "positive": p, "negatives": n} for a, p, *n in zip(*columns, strict=True)]
    settings = {"batch": 13, "dropout": 0, "equal_texts": False, "form": form}
    trainer = trainer_of(Contrast, rows, double=True, **settings)
    gradients = {
        name.removeprefix("body."): gradient
        for name, gradient in gradient_of(trainer, chunk=4)[1].items()
    }
    tensors = split(gradients, base.architecture)

    body = Transformer(str(base_folder), max_seq_length=32)
    pooling = Pooling(base.architecture.width, "mean")
    model = SentenceTransformer(modules=[body, pooling], device="cpu").double().eval()
    loss = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=4, **same)
    loss([model.tokenize(column) for column in columns], None).backward()
    expected = {name: weight.grad for name, weight in body.auto_model.named_parameters()}

    names = stored_tensors(base.architecture)
    assert len(names) == sum(".qkv." not in name for name in tensors)
    for stored_name, (name, _) in names.items():
        torch.testing.assert_close(
            tensors[stored_name], expected[name], rtol=1e-9, atol=1e-12, msg=name
        )
    assert max(tensor.abs().max() for tensor in tensors.values()) > 1e-4


# the full width and the setting
WIDTH = 8
WIDTHS = (8, 5, 2)
TRIPLET = ("anchor", "positive", "negative")


class Given(nn.Module):
    """An encoder of sentence-transformers whose vectors are given."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return WIDTH


def vectors(names, rows=6):
    torch.manual_seed(0)
    return {name: torch.randn(rows, WIDTH, requires_grad=True) for name in names}


SCORES = torch.tensor([0.0, 3.0, 5.0, 2.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("kind", "settings", "names", "rest", "reference_class"),
    [
        (SupervisedSimCSE, {}, TRIPLET, {}, "MultipleNegativesRankingLoss"),
        (CoSENT, {}, ("a", "b"), {"score": SCORES}, "CoSENTLoss"),
        (
            SBERT,
            {"objective": "regression", "scale": 1.0},
            ("text_a", "text_b"),
            {"target": SCORES},
            "CosineSimilarityLoss",
        ),
    ],
)
def test_value_and_gradient_are_those_of_matryoshka_loss(
    kind, settings, names, rest, reference_class
):
    """Of sentence-transformers, with the full width as the first of its widths."""
    from sentence_transformers.sentence_transformer import losses

    outputs = vectors(names)
    model = Given()
    loss = losses.MatryoshkaLoss(model, getattr(losses, reference_class)(model), list(WIDTHS))
    copies_of_vectors = [vector.detach().clone().requires_grad_() for vector in outputs.values()]
    expected = loss(
        [{"vectors": vector} for vector in copies_of_vectors], next(iter(rest.values()), None)
    )
    expected.backward()
    body = nn.Linear(2, 2)
    body.width = WIDTH
    terms = terms_of(kind(body, kind.Settings(dims="5,2", **settings)), outputs | rest)
    value = sum(term.value for term in terms.values())
    value.backward()

    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for output, vector in zip(outputs.values(), copies_of_vectors, strict=True):
        torch.testing.assert_close(output.grad, vector.grad, rtol=1e-4, atol=1e-6)


def test_terms_without_vectors_occur_once(trainer_of, texts):
    rows = [dict(zip(TRIPLET, texts[i : i + 3], strict=True)) for i in range(8)]
    trainer = trainer_of(SupervisedSimCSE, rows, batch=4, mlm_weight=0.1, dims="8,4")
    records = []
    trainer.reporter.step = records.append
    trainer.train()

    assert list(records[0]["terms"]) == ["contrast", "mlm", "contrast_8", "contrast_4"]
    assert records[0]["loss"] == pytest.approx(sum(records[0]["terms"].values()))


def test_each_method_with_dims_names_its_vectors():
    """The setting has an effect exactly in the methods that have sentence vectors as outputs."""
    for name, listing in METHODS.items():
        kind = listing.load()
        assert issubclass(kind.Settings, Dims) == bool(kind.needs.vectors), name
        assert widths_of(kind.Settings()) == []
