"""DefSent and DefSent+: steps beside a padded reference, what they train, words, and
projections.
"""

import hashlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reference_steps import PlainAdamW, loss_of
from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.counted import counted
from sentkit.formats.rows.rows import Row
from sentkit.model.text.tokenizer import single_tokens
from sentkit.papers.defsent.method import DefSent, number_of, share_of
from sentkit.papers.defsent.plus import DefSentPlus, projection_of
from sentkit.papers.sg_bert.method import SelfGuided
from sentkit.training.base import open_named
from sentkit.training.data.corpus import Batch
from sentkit.training.method import changing_tensors, trained_parameters
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.runs.checkpoint import write_checkpoint
from support import padded
from training.methods.loops import cross_entropy, every_family, reference_model
from training.small import changed_by, equal, make_base

WORDS = ["cat", "dog", "rain", "sea", "house"]  # each one token
every_pooling = pytest.mark.parametrize("pooling", ["cls", "mean", "max"])


@pytest.fixture
def rows(texts):
    return [{"entry": WORDS[n % len(WORDS)], "definition": text} for n, text in enumerate(texts)]


def batch_of(base, rows):
    tokens = base.training_tokenizer([row["definition"] for row in rows])
    words = single_tokens(base.training_tokenizer, [row["entry"] for row in rows])
    ids = [np.array(tokens_of_text.ids, np.int32) for tokens_of_text in tokens]
    return Batch((ids,), np.array(words, np.float64))


def pooled(states, mask, pooling):
    """One sentence after the other, over its own tokens."""
    vectors = []
    for padded_states, length in zip(states, mask.sum(1).tolist(), strict=True):
        sentence = padded_states[:length]
        values = {
            "cls": sentence[0],
            "mean": sentence.sum(0) / length,
            "max": sentence.max(0).values,
        }
        vectors.append(values[pooling])
    return torch.stack(vectors)


def logits_of(model, family, batch, pooling):
    """The output of the head of transformers for the vectors of a padded batch in place of token
    states.
    """
    ids, mask = padded(*batch.texts)
    vectors = pooled(
        model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, pooling
    )
    if family == "bert":
        return model.cls(vectors)
    if family == "distilbert":
        activated = F.gelu(model.vocab_transform(vectors))
        return model.vocab_projector(model.vocab_layer_norm(activated))
    if family == "electra":
        return model.generator_lm_head(model.generator_predictions(vectors))
    return model.lm_head(vectors)


@every_pooling
@every_family
def test_the_loss_is_that_of_the_head_of_transformers(
    base_of, method_of, rows, tmp_path, family, pooling
):
    """Of a padded batch, and its gradients in the encoder, in float64."""
    base = base_of(family)
    method = method_of(DefSent, base, readout=pooling, dropout=0).double()
    batch = batch_of(base, rows)
    loss = loss_of(method, batch)
    loss.backward()
    model = reference_model(tmp_path / "base", family)
    logits = logits_of(model, family, batch, pooling)
    total = cross_entropy(logits, batch.targets)
    total.backward()
    named = {name: value.grad for name, value in model.base_model.named_parameters()}

    assert abs(loss.item() - total.item()) < 1e-9
    of_body = gradients(method.body)
    assert len(of_body) == 2 * 16
    for name, value in of_body.items():
        assert (value - named[name]).abs().max() < 1e-9, name


def gradients(body):
    """Of the blocks by transformers' names: the weights are replaced by their gradients, and then
    named.
    """
    with torch.no_grad():
        for weight in body.parameters():
            weight.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    return {name: value for name, value in body.tensors().items() if ".layer." in name}


@every_pooling
def test_eight_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, rows, base_folder, pooling
):
    """transformers' BertForMaskedLM with a frozen head and embeddings, and torch's Adam."""
    settings = {"batch": 4, "epochs": 3, "lr": 1e-3, "dropout": 0, "readout": pooling, "part": 1}
    trainer = trainer_of(DefSent, rows, double=True, **settings)
    model = reference_model(base_folder)
    optimizer = torch.optim.Adam(model.bert.encoder.parameters(), eps=1e-8)

    def loss_of(batch, numbers):
        return F.cross_entropy(
            logits_of(model, "bert", batch, pooling), torch.tensor(batch.targets).long()
        )

    assert trainer.order.steps == 12  # of which two warm up
    check_steps(trainer, [], loss_of, count=8, optimizer=optimizer, warmup=2, constant=True)


@every_family
def test_the_blocks_are_trained_and_neither_the_embeddings_nor_the_head(
    base_of, trainer_of, rows, family
):
    base = base_of(family)
    trainer = trainer_of(DefSent, rows, base=base, batch=4, lr=1e-2, part=1)
    method = trainer.method
    body = trainer.method.body
    changed = changed_by(trainer)
    learned = {name for name, _ in trained_parameters(method)}
    outside = {name for name in learned if not name.startswith("body.blocks.")}

    assert changed == learned
    assert {f"body.blocks.{n}." for n in range(body.depth)} <= {name[:14] for name in learned}
    assert outside == (
        {"body.projection.weight", "body.projection.bias"} if body.projection else set()
    )
    assert not any(weight.requires_grad for weight in method.head.parameters())
    assert not [name for name in changing_tensors(method) if name.startswith("head.")]
    assert method.finished().heads == {}


def test_labels_are_single_tokens(corpus_of, base, rows):
    """Words of several tokens or of none are omitted. A blank or a capital does not change the
    token.
    """
    more = ["sleeps", "a cat", "Cat", " rain ", "[MASK]", "\ufffd"]
    written = [*rows[:2], *({"entry": word, "definition": "a thing"} for word in more)]
    corpus = corpus_of(DefSent, written, DefSent.Settings(part=1))
    backend = base.training_tokenizer.backend

    assert [backend.id_to_token(int(word)) for word in corpus.targets] == [
        "cat",
        "dog",
        "cat",
        "rain",
    ]


def test_a_part_of_the_words_is_held_out(base):
    """The choice does not depend on other words. About that share of all words is chosen."""
    vocabulary = [
        word
        for word in base.training_tokenizer.backend.get_vocab()
        if word.isascii() and word.isalpha()
    ]
    words_below = {
        share: {word for word in vocabulary if share_of(word) < share} for share in (0.2, 0.8, 1)
    }
    reads = DefSent.reads(base, DefSent.Settings())

    assert words_below[0.2] < words_below[0.8] < words_below[1] == set(vocabulary)
    for share in (0.2, 0.8):
        sd = math.sqrt(share * (1 - share) / len(vocabulary))
        assert abs(len(words_below[share]) / len(vocabulary) - share) < 4 * sd
    words = sorted(words_below[1])[::50]
    single_token_words = [word for word in words if number_of(base)(word) is not None]
    learned = [
        word
        for word in words
        if reads.target(Row(b"{}", {"entry": word}, "rows", 1), "entry") is not None
    ]
    assert learned == [word for word in single_token_words if word in words_below[0.8]]
    unknown_rows = counted(len(words) - len(single_token_words), "row")
    held_out_rows = counted(len(single_token_words) - len(learned), "row")
    unknown = f"the entry of {unknown_rows} is not a single token"
    assert reads.target.why == f"{unknown}, the entry of {held_out_rows} is held out"


def test_the_held_out_words_are_always_the_same():
    """By the first 48 bits of BLAKE2b, which Python's hash of a string is not."""
    for word in WORDS:
        digits = hashlib.blake2b(word.encode(), digest_size=6).hexdigest()
        assert share_of(word) == pytest.approx(int(digits, 16) / 16**12, abs=1e-6)
    # One token: never learned and held out.
    assert share_of("Cat") == share_of(" cat ") == share_of("cat")


NAMES = ["cat", "a hot dog", "rain", "sea", "old house"]


@pytest.fixture
def named_rows(texts):
    return [{"entry": NAMES[n % len(NAMES)], "definition": text} for n, text in enumerate(texts)]


@pytest.fixture
def dictionary(with_entries):
    return with_entries(NAMES)


@pytest.mark.parametrize(
    ("pooling", "activation"), [("cls", "gelu"), ("mean", "gelu"), ("mean", "tanh")]
)
def test_eight_steps_of_defsent_plus_are_those_of_a_reference(
    trainer_of, check_steps, named_rows, reference, dictionary, base, pooling, activation
):
    """transformers' BertModel, the softmax, clipping, AdamW and the schedule in loops; float64."""
    settings = {"batch": 4, "epochs": 3, "lr": 1e-3, "dropout": 0, "pooling": pooling}
    trainer = trainer_of(DefSentPlus, named_rows, double=True, base=dictionary, **settings)
    trainer.method.activation = activation
    head = [
        base.stored[f"cls.predictions.transform.dense.{name}"].double().requires_grad_()
        for name in ("weight", "bias")
    ]
    weights = [*reference.parameters().items(), *zip(("weight", "bias"), head, strict=True)]
    entries = torch.from_numpy(dictionary.entries.vectors.copy()).double()
    read = reference.first if pooling == "cls" else reference.mean
    function = {"tanh": torch.tanh, "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2}[
        activation
    ]

    def loss_of(batch, numbers):
        predicted = function(read(batch.texts[0]) @ head[0].T + head[1])
        return cross_entropy(
            predicted @ entries.T, [NAMES.index(named_rows[number]["entry"]) for number in numbers]
        )

    check_steps(trainer, [], loss_of, count=8, optimizer=PlainAdamW(weights, beta2=0.999))


def test_all_of_the_encoder_and_the_projection_are_trained(trainer_of, named_rows, dictionary):
    """The word table, positions, types and norm too; never the entries, nor the base of other
    seeds.
    """
    trainer = trainer_of(DefSentPlus, named_rows, base=dictionary, batch=4, lr=1e-2)
    method = trainer.method
    before = dictionary.entries.vectors.copy()
    stored = {name: value.clone() for name, value in dictionary.stored.items()}
    changed = changed_by(trainer)
    learned = {name for name, _ in trained_parameters(method)}

    assert changed == learned == method.state_dict().keys() == changing_tensors(method).keys()
    assert {
        "projection.weight",
        "projection.bias",
        "body.words.weight",
        "body.positions.weight",
    } < learned
    assert "entries" not in learned
    assert np.array_equal(method.entries.numpy(), before)
    assert np.array_equal(dictionary.entries.vectors, before)
    assert equal(stored, dictionary.stored)


@pytest.mark.parametrize("offset", range(0, 64, 12))
def test_the_loss_does_not_depend_on_the_place_of_the_entries_in_memory(
    method_of, dictionary, offset
):
    """Vectors of a file and of named_rows start at other addresses. Aligned entries are not
    copied.
    """
    matrix = dictionary.entries.vectors
    room = np.zeros(matrix.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    placed = room[start : start + matrix.nbytes].view(np.float32).reshape(matrix.shape)
    placed[:] = matrix
    base = replace(dictionary, entries=replace(dictionary.entries, vectors=placed))
    method = method_of(DefSentPlus, base)

    assert method.entries.data_ptr() % 64 == 0
    assert np.shares_memory(placed, method.entries.numpy()) == (offset == 0)
    assert np.array_equal(method.entries.numpy(), matrix)


def test_a_prompt_without_a_mask_token_is_refused_before_any_row(dictionary, tmp_path):
    DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L3:cls"))
    folder = shutil.copytree(dictionary.checkpoint.folder, tmp_path / "maskless")
    text = (folder / "tokenizer.json").read_text().replace("[MASK]", "[COVER]")
    (folder / "tokenizer.json").write_text(text)
    base = replace(open_named(str(folder), 32), entries=dictionary.entries)

    with pytest.raises(UsageError, match="the readout prompt needs a mask token"):
        DefSentPlus.check(base, DefSentPlus.Settings())
    DefSentPlus.check(base, DefSentPlus.Settings(readout="mean,cls"))


DENSE = {"bert": "cls.predictions.transform.dense", "roberta": "lm_head.dense"}


def written(method, base, tmp_path, name="made"):
    """The base that its checkpoint is."""
    write_checkpoint(tmp_path / name, method, base, {})
    return open_named(str(tmp_path / name), 32)


def is_layer(projection, base, end):
    """Whether it is the layer of the base with a name that ends so."""
    [weight] = [value for name, value in base.stored.items() if name.endswith(f"{end}.weight")]
    [bias] = [value for name, value in base.stored.items() if name.endswith(f"{end}.bias")]
    return torch.equal(projection.layer.weight, weight) and torch.equal(projection.layer.bias, bias)


BEGINNINGS = [
    # family, its language model head, its pooler -> auto, checkpoint, lm-head
    ("bert", True, True, "pooler", "pooler", "head"),
    ("bert", True, False, "head", None, "head"),
    ("bert", False, True, "pooler", "pooler", None),
    ("roberta", True, True, "head", "pooler", "head"),
    ("roberta", True, False, "head", None, "head"),
    ("roberta", False, True, None, "pooler", None),
]


@pytest.mark.parametrize("beginning", ["auto", "checkpoint", "lm-head"])
@pytest.mark.parametrize(("family", "head", "pooler", "auto", "checkpoint", "lm_head"), BEGINNINGS)
def test_the_projection_starts_as_a_trained_layer(
    base_of, family, head, pooler, auto, checkpoint, lm_head, beginning
):
    base = base_of(family, "ForMaskedLM" if head else "Model", pooler=head and pooler)
    expected = {"auto": auto, "checkpoint": checkpoint, "lm-head": lm_head}[beginning]
    if expected is None:
        with pytest.raises(
            UsageError, match="has no pooler" if beginning == "checkpoint" else "has no language"
        ):
            projection_of(base, beginning)
        return
    projection = projection_of(base, beginning)

    assert projection.activation == ("gelu" if expected == "head" else "tanh")
    assert is_layer(projection, base, DENSE[family] if expected == "head" else "pooler.dense")
    assert all(weight.requires_grad for weight in projection.layer.parameters())


def test_a_refusal_mentions_an_untrained_pooler(base_of):
    """That of a RoBERTa may be random numbers; BERT's is not suspected of it."""
    with pytest.raises(
        UsageError, match="no language model head, and its pooler is probably not trained"
    ):
        projection_of(base_of("roberta", "Model", "one"), "auto")
    with pytest.raises(UsageError, match=r"base has no language model head$") as caught:
        projection_of(base_of("bert", "Model", "base"), "lm-head")
    assert "projection_from=CHECKPOINT" in str(caught.value.advice)


@pytest.mark.parametrize("beginning", ["auto", "checkpoint", "lm-head"])
def test_the_projection_of_another_checkpoint(base_of, with_entries, beginning):
    """Its layer and activation, on the encoder of the base; each run trains its own copy."""
    other = base_of("roberta", "ForMaskedLM", "other", pooler=True)
    base = with_entries(NAMES, base_of("bert"))
    name = other.checkpoint.name
    settings = DefSentPlus.Settings(projection_from=name, pooler=beginning)
    DefSentPlus.check(base, settings)
    method, second = (DefSentPlus.build(base, settings) for _ in range(2))
    expected = projection_of(other, beginning)

    assert (
        method.activation
        == expected.activation
        == ("tanh" if beginning == "checkpoint" else "gelu")
    )
    assert torch.equal(method.projection.weight, expected.layer.weight)
    assert torch.equal(method.projection.bias, expected.layer.bias)
    assert torch.equal(next(method.body.parameters()), next(base.body(None).parameters()))
    assert method.projection.weight.data_ptr() != second.projection.weight.data_ptr()


def test_a_projection_of_another_width_is_refused(with_entries, tmp_path):
    dictionary = with_entries(NAMES)
    name = str(make_base(tmp_path / "wide", hidden_size=32))
    problem = f"projection_from={name}: its layer takes 32 dimensions, but the encoder has 16"
    with pytest.raises(UsageError, match=f"^{problem}$"):
        DefSentPlus.check(dictionary, DefSentPlus.Settings(projection_from=name))


@pytest.mark.parametrize("family", ["distilbert", "modernbert"])
def test_the_families_without_a_pooler_have_a_head(
    base_of, with_entries, trainer_of, named_rows, family
):
    """Its projection serves training alone there, and is kept beside the checkpoint. That of
    ModernBERT has no bias.
    """
    trainer = trainer_of(DefSentPlus, named_rows, base=with_entries(NAMES, base_of(family)))

    assert trainer.method.activation == "gelu"
    assert math.isfinite(loss_of(trainer.method, trainer.batch(0)).item())


@pytest.mark.parametrize(
    ("kind", "family", "settings", "pooler"),
    [
        *((SimCSE, family, {}, Pooler("tanh", "pooler:cls", "")) for family in ("bert", "roberta")),
        *(
            (
                DefSentPlus,
                "roberta",
                {"pooling": name},
                Pooler("gelu", f"pooler:{name}", "0123456789ab"),
            )
            for name in ("cls", "mean")
        ),
    ],
)
def test_a_trained_pooler_is_trained_further(
    trainer_of, base_of, with_entries, named_rows, texts, tmp_path, kind, family, settings, pooler
):
    """By its activation, which is tanh for SimCSE in each family, and by the space in which it
    lands.
    """
    base = with_entries(NAMES, base_of(family), _emb="dict/mean:0123456789ab")
    trainer = trainer_of(
        kind, texts if kind is SimCSE else named_rows, base=base, batch=4, lr=1e-2, **settings
    )
    trainer.train()
    trained = written(trainer.method, base, tmp_path)
    projection = projection_of(trained, "auto")
    layer = trainer.method.head if kind is SimCSE else trainer.method.projection

    assert trained.checkpoint.declaration.pooler == pooler
    assert trained.architecture.pooler_activation == projection.activation == pooler.activation
    assert torch.equal(projection.layer.weight, layer.weight)
    assert torch.equal(projection.layer.bias, layer.bias)


@pytest.mark.parametrize("kind", [SelfGuided, SimCSE])
def test_later_training_ends_the_space(
    trainer_of, base_of, with_entries, named_rows, texts, tmp_path, kind
):
    """A method without a pooler leaves this one as it is; one with a pooler says what its
    own is.
    """
    base = with_entries(NAMES, base_of("roberta"), _emb="dict/mean:0123456789ab")
    first = written(DefSentPlus.build(base, DefSentPlus.Settings()), base, tmp_path, "first")
    more = {"head_width": 8} if kind is SelfGuided else {}
    trainer = trainer_of(kind, texts, base=first, batch=4, **more)
    trainer.train()
    second = written(trainer.method, first, tmp_path, "second")

    activation = "gelu" if kind is SelfGuided else "tanh"
    assert second.checkpoint.declaration.pooler == Pooler(activation, "pooler:cls", "")
    assert projection_of(second, "auto").activation == activation


def test_another_activation_gives_another_hash(base_of, with_entries, tmp_path):
    """A run cannot be resumed with a different activation."""
    base = with_entries(NAMES, base_of("roberta"))
    trained = written(DefSentPlus.build(base, DefSentPlus.Settings()), base, tmp_path)
    metadata_path = Path(trained.checkpoint.folder) / "sentkit.json"
    metadata_path.write_text(metadata_path.read_text().replace('"gelu"', '"relu"'))

    assert open_named(str(metadata_path.parent), 32).hash != trained.hash


def test_a_head_keeps_its_activation(base, base_folder, tmp_path):
    """BERT's head has the encoder's own; RoBERTa's is always the exact GELU."""
    shutil.copytree(base_folder, tmp_path / "relu")
    config = json.loads((tmp_path / "relu/config.json").read_text())
    (tmp_path / "relu/config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    changed = open_named(str(tmp_path / "relu"), 32)

    assert projection_of(changed, "auto").activation == "relu"
    assert projection_of(base, "auto").activation == "gelu"
