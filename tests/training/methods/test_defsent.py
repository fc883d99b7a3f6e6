"""DefSent: its loss, its steps, its frozen parameters, and the words that it learns."""

import hashlib
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reference_steps import loss_of
from sentkit.formats.rows.rows import Row
from sentkit.model.text.tokenizer import single_tokens
from sentkit.papers.defsent.method import DefSent, number_of, share_of
from sentkit.training.data.corpus import Batch
from sentkit.training.method import changing, trained
from support import padded
from training.methods.loops import cross_entropy, every_family, theirs
from training.small import changed_by

WORDS = ["cat", "dog", "rain", "sea", "house"]  # each one token
every_pooling = pytest.mark.parametrize("pooling", ["cls", "mean", "max"])


@pytest.fixture
def rows(texts):
    return [{"entry": WORDS[n % len(WORDS)], "definition": text} for n, text in enumerate(texts)]


def batch_of(base, rows):
    tokens = base.training_tokenizer([row["definition"] for row in rows])
    words = single_tokens(base.training_tokenizer, [row["entry"] for row in rows])
    return Batch(([np.array(each.ids, np.int32) for each in tokens],), np.array(words, np.float64))


def pooled(states, mask, pooling):
    """One sentence after the other, over its own tokens."""
    found = []
    for own, length in zip(states, mask.sum(1).tolist(), strict=True):
        own = own[:length]
        found.append({"cls": own[0], "mean": own.sum(0) / length, "max": own.max(0).values}[pooling])
    return torch.stack(found)


def logits_of(model, family, batch, pooling):
    """The output of the head of transformers for the vectors of a padded batch in place of token states."""
    ids, mask = padded(*batch.texts)
    vectors = pooled(model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, pooling)
    if family == "bert":
        return model.cls(vectors)
    if family == "distilbert":
        return model.vocab_projector(model.vocab_layer_norm(F.gelu(model.vocab_transform(vectors))))
    if family == "electra":
        return model.generator_lm_head(model.generator_predictions(vectors))
    return model.lm_head(vectors)


@every_pooling
@every_family
def test_the_loss_is_that_of_the_head_of_transformers(base_of, method_of, rows, tmp_path, family, pooling):
    """Of a padded batch, and its gradients in the encoder, in float64."""
    base = base_of(family)
    method = method_of(DefSent, base, readout=pooling, dropout=0).double()
    batch = batch_of(base, rows)
    ours = loss_of(method, batch)
    ours.backward()
    model = theirs(tmp_path / "base", family)
    logits = logits_of(model, family, batch, pooling)
    total = cross_entropy(logits, batch.targets)
    total.backward()
    named = {name: value.grad for name, value in model.base_model.named_parameters()}

    assert abs(ours.item() - total.item()) < 1e-9
    found = gradients(method.body)
    assert len(found) == 2 * 16
    for name, value in found.items():
        assert (value - named[name]).abs().max() < 1e-9, name


def gradients(body):
    """Of the blocks by transformers' names: the weights are replaced by their gradients, and then named."""
    with torch.no_grad():
        for weight in body.parameters():
            weight.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    return {name: value for name, value in body.tensors().items() if ".layer." in name}


@every_pooling
def test_eight_steps_are_those_of_a_padded_reference(trainer_of, check_steps, rows, base_folder, pooling):
    """transformers' BertForMaskedLM with a frozen head and embeddings, and torch's Adam."""
    wanted = {"batch": 4, "epochs": 3, "lr": 1e-3, "dropout": 0, "readout": pooling, "part": 1}
    trainer = trainer_of(DefSent, rows, double=True, **wanted)
    model = theirs(base_folder)
    optimizer = torch.optim.Adam(model.bert.encoder.parameters(), eps=1e-8)

    def loss_of(batch, numbers):
        return F.cross_entropy(logits_of(model, "bert", batch, pooling), torch.tensor(batch.targets).long())

    assert trainer.order.steps == 12  # of which two warm up
    check_steps(trainer, [], loss_of, count=8, optimizer=optimizer, warmup=2, constant=True)


@every_family
def test_the_blocks_are_trained_and_neither_the_embeddings_nor_the_head(base_of, trainer_of, rows, family):
    base = base_of(family)
    trainer = trainer_of(DefSent, rows, base=base, batch=4, lr=1e-2, part=1)
    method, body = trainer.method, trainer.method.body
    changed = changed_by(trainer)
    learned = {name for name, _ in trained(method)}
    outside = {name for name in learned if not name.startswith("body.blocks.")}

    assert changed == learned
    assert {f"body.blocks.{n}." for n in range(body.depth)} <= {name[:14] for name in learned}
    assert outside == ({"body.projection.weight", "body.projection.bias"} if body.projection else set())
    assert not any(weight.requires_grad for weight in method.head.parameters())
    assert not [name for name in changing(method) if name.startswith("head.")]
    assert method.finished().heads == {}


def test_labels_are_single_tokens(corpus_of, base, rows):
    """Words of several tokens or of none are omitted. A blank or a capital does not change the token."""
    more = ["sleeps", "a cat", "Cat", " rain ", "[MASK]", "\ufffd"]
    written = [*rows[:2], *({"entry": word, "definition": "a thing"} for word in more)]
    corpus = corpus_of(DefSent, written, DefSent.Settings(part=1))
    backend = base.training_tokenizer.backend

    assert [backend.id_to_token(int(word)) for word in corpus.targets] == ["cat", "dog", "cat", "rain"]


def test_a_part_of_the_words_is_held_out(base):
    """The choice does not depend on other words. About that share of all words is chosen."""
    vocabulary = [
        word for word in base.training_tokenizer.backend.get_vocab() if word.isascii() and word.isalpha()
    ]
    kept = {part: {word for word in vocabulary if share_of(word) < part} for part in (0.2, 0.8, 1)}
    reads = DefSent.reads(base, DefSent.Settings())

    assert kept[0.2] < kept[0.8] < kept[1] == set(vocabulary)
    for part in (0.2, 0.8):
        sd = math.sqrt(part * (1 - part) / len(vocabulary))
        assert abs(len(kept[part]) / len(vocabulary) - part) < 4 * sd
    words = sorted(kept[1])[::50]
    known = [word for word in words if number_of(base)(word) is not None]
    learned = [
        word for word in words if reads.target(Row(b"{}", {"entry": word}, "rows", 1), "entry") is not None
    ]
    assert learned == [word for word in known if word in kept[0.8]]
    unknown = f"the entry of {len(words) - len(known)} rows is not a single token"
    assert reads.target.why == f"{unknown}, the entry of {len(known) - len(learned)} rows is held out"


def test_the_held_out_words_are_always_the_same():
    """By the first 48 bits of BLAKE2b, which Python's hash of a string is not."""
    for word in WORDS:
        digits = hashlib.blake2b(word.encode(), digest_size=6).hexdigest()
        assert share_of(word) == pytest.approx(int(digits, 16) / 16**12, abs=1e-6)
    assert share_of("Cat") == share_of(" cat ") == share_of("cat")  # one token: never learned and held out
