"""Classifiers: the steps and the checkpoints are those of transformers' sequence classification
models.
"""

import pytest
import torch

from reference_steps import adamw
from sentkit.model.checkpoint.heads import read_head
from sentkit.training.base import open_named
from sentkit.training.methods.classify import Classify
from sentkit.training.runs.checkpoint import write_checkpoint
from support import padded
from training.small import changed_by

WORDS = ("no", "other", "yes")


@pytest.fixture
def rows(texts):
    """Ten pairs with a label and a score."""
    return [
        {"text_a": texts[i], "text_b": texts[i + 2], "label": WORDS[i % 3], "score": i / 2}
        for i in range(10)
    ]


def sentences(rows):
    return [{"text": row["text_a"], "label": row["label"], "score": row["score"]} for row in rows]


def inputs_of(base, rows):
    """The padded batch that the tokenizer of transformers makes."""
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(base.checkpoint.transformer_folder / "tokenizer.json"), pad_token="[PAD]"
    )
    names = ("text_a", "text_b") if "text_a" in rows[0] else ("text",)
    columns = [[row[name] for row in rows] for name in names]
    encoded = tokenizer(*columns, truncation=True, max_length=32, return_token_type_ids=True)
    ids, mask = padded(encoded["input_ids"])
    types, _ = padded(encoded["token_type_ids"])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def written(trainer, folder):
    base = trainer.run.base
    write_checkpoint(folder, trainer.method, base, {"method": "classify", "run": {}})
    return folder


def loaded(folder, **more):
    import transformers

    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True, **more
    )
    assert not any(
        report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")
    ), report
    return model


@pytest.mark.parametrize("objective", ["classification", "regression"])
@pytest.mark.parametrize("kind", ["pairs", "sentences"])
def test_ten_steps_are_those_of_transformers(
    trainer_of, check_steps, rows, tmp_path, objective, kind
):
    """Its own loss, padded, torch's AdamW with decay and a warm-up, in float64 and without
    dropout.
    """
    rows = rows if kind == "pairs" else sentences(rows)
    recipe = {"batch": 3, "epochs": 3, "lr": 1e-3, "warmup": 0.2, "weight_decay": 0.1, "dropout": 0}
    trainer = trainer_of(Classify, rows, double=True, clip=0, objective=objective, **recipe)
    folder = written(trainer, tmp_path / "start")
    reference = loaded(
        folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    reference.train()
    # The folder is float32, so both start from its values.
    trainer.method.load_state_dict(
        {n: v.float().double() for n, v in trainer.method.state_dict().items()}
    )
    optimizer = adamw(dict(reference.named_parameters()), 0.1)

    def loss_of(batch, numbers):
        chosen = [rows[number] for number in numbers]
        scores = torch.tensor([row["score"] for row in chosen], dtype=torch.float64)
        labels = torch.tensor([WORDS.index(row["label"]) for row in chosen])
        targets = scores if objective == "regression" else labels
        return reference(**inputs_of(trainer.run.base, chosen), labels=targets).loss

    assert trainer.order.steps == 12
    check_steps(trainer, [], loss_of, count=10, optimizer=optimizer, warmup=3)  # 0.2 * 12 = 2.4


MODERN = {"local_attention": 6, "norm_eps": 1e-3}
MEAN = {"classifier_pooling": "mean", "classifier_bias": True, **MODERN}


@pytest.mark.parametrize(
    ("family", "config"),
    [
        *((family, {}) for family in ("bert", "roberta", "distilbert", "electra", "mpnet")),
        *(("modernbert", config) for config in (MODERN, MEAN)),
    ],
)
@pytest.mark.parametrize("kind", ["pairs", "sentences"])
def test_transformers_gives_equal_logits(trainer_of, rows, base_of, tmp_path, family, config, kind):
    """With tokens of both types, where the family has types."""
    rows = rows if kind == "pairs" else sentences(rows)
    base = base_of(family, **config)
    trainer = trainer_of(Classify, rows, base=base, batch=4, lr=1e-2, epochs=1, max_length=32)
    trainer.train()
    with torch.no_grad():
        for weight in trainer.method.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    folder = written(trainer, tmp_path / "made")
    model = loaded(folder).eval()
    batch = inputs_of(trainer.run.base, rows)
    if trainer.method.second_type == 0:
        del batch["token_type_ids"]
    method = trainer.method.eval()
    ten_rows = trainer.run.corpus.batch(list(range(10)))
    with torch.no_grad():
        expected = model(**batch).logits
        actual = method.encode(ten_rows)["logits"]

    assert torch.allclose(actual, expected, rtol=0, atol=1e-5)
    assert actual.std() > 1e-2
    assert model.config.id2label == dict(enumerate(WORDS))
    assert model.config.label2id == {word: number for number, word in enumerate(WORDS)}
    assert method.second_type == (family not in ("distilbert", "mpnet", "modernbert"))
    assert open_named(str(folder), 32).declared.name == config.get("classifier_pooling", "cls")


@pytest.mark.parametrize("config", [MODERN, MEAN], ids=["cls", "mean"])
def test_the_head_of_a_modernbert_begins_as_in_transformers(
    trainer_of, rows, base_of, tmp_path, config
):
    """The first layers are those of its language model head; the losses fall; the result can be a
    base.
    """
    base = base_of("modernbert", **config)
    reference = loaded_partly(base.checkpoint.transformer_folder)
    trainer = trainer_of(Classify, rows, base=base, batch=5, lr=1e-2, epochs=20, max_length=32)
    head = trainer.method.head
    ten_rows = trainer.run.corpus.batch(list(range(10)))
    with torch.no_grad():
        reference.classifier.load_state_dict(head.out.state_dict())
        inputs = {name: x for name, x in inputs_of(base, rows).items() if name != "token_type_ids"}
        logits = reference.eval()(**inputs).logits
        actual = trainer.method.eval().encode(ten_rows)["logits"]

    assert torch.equal(head.dense.weight, base.stored["head.dense.weight"])
    assert torch.equal(head.norm.weight, base.stored["head.norm.weight"])
    assert torch.allclose(actual, logits, rtol=0, atol=1e-5)
    losses = [loss_of(trainer)]
    trainer.train()
    losses.append(loss_of(trainer))
    assert losses[1] < losses[0] / 2
    trained_base = open_named(str(written(trainer, tmp_path / "made")), 32)
    assert read_head(trained_base.stored, trained_base.packed, source="made") is None
    assert Classify.identity(trained_base, None) == (
        {} if config is MODERN else {"pooling": "mean"}
    )


def loss_of(trainer):
    method = trainer.method.eval()
    ten_rows = trainer.run.corpus.batch(list(range(10)))
    with torch.no_grad():
        outputs = method.encode(ten_rows)
    return torch.nn.functional.cross_entropy(outputs["logits"], outputs["target"].long()).item()


def loaded_partly(folder):
    """The classifier that transformers makes of a language model; its last layer is new."""
    import transformers

    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=len(WORDS), output_loading_info=True
    )
    assert {*report["missing_keys"]} == {"classifier.weight", "classifier.bias"}
    return model


@pytest.mark.parametrize("head", ["ForMaskedLM", "Model"])
@pytest.mark.parametrize("pooler", [False, True])
def test_bases_with_and_without_a_head_and_a_pooler(
    trainer_of, rows, base_of, tmp_path, head, pooler
):
    """A pooler of the base is the first layer of the head. Names of the base may lack the
    prefix.
    """
    import safetensors.torch

    base = base_of("bert", head, pooler=pooler and head == "ForMaskedLM")
    trainer = trainer_of(Classify, rows, base=base)
    start = {name: value for name, value in base.stored.items() if "pooler.dense.weight" in name}
    folder = written(trainer, tmp_path / "made")
    loaded(folder)
    saved = safetensors.torch.load_file(folder / "model.safetensors")

    assert bool(start) == (head == "Model" or pooler)
    for value in start.values():
        assert torch.equal(saved["bert.pooler.dense.weight"], value)
    assert not [name for name in saved if name.startswith("cls.")]
    assert open_named(str(folder), 32).declared.name == "cls"


def test_lora_trains_the_head_but_no_weight_of_the_base(trainer_of, rows, base_of, tmp_path):
    """The pooler of the base is a layer of the head, so it is trained."""
    trainer = trainer_of(Classify, rows, base=base_of("bert", "Model"), lora=2, batch=4, lr=1e-2)
    changed = changed_by(trainer)

    assert changed >= {"head.dense.weight", "head.dense.bias", "head.out.weight", "head.out.bias"}
    of_body = {name for name in changed if name.startswith("body.")}
    assert of_body
    assert all("lora" in name for name in of_body)
    loaded(written(trainer, tmp_path / "made"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b", "c"], ("a", "b", "c")),
        ([10, 9, "-1", 9], ("-1", "9", "10")),
        (["1", 0, 1.0, "x"], ("0", "1", "x")),
        ([True, False, "true", "true"], ("false", "true")),
    ],
)
def test_labels_are_sorted(corpus_of, base, texts, labels, expected):
    """Whole numbers by value; a number and its digits are one label. Other labels are other
    data.
    """
    rows = [{"text": texts[i], "label": label} for i, label in enumerate(labels)]
    corpus, same, changed = (
        corpus_of(Classify, [*rows[:3], rows[3] | {"label": label}], Classify.Settings())
        for label in (labels[3], labels[3], "y")
    )
    named = [str(label).lower().removesuffix(".0") for label in labels]

    assert corpus.digest == same.digest != changed.digest
    assert corpus.labels == expected
    assert [corpus.labels[int(number)] for number in corpus.targets] == named
