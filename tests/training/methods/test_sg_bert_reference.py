"""SG-BERT in training: its steps against a plain reference, and the parameters that stay unchanged."""

import shutil
from copy import deepcopy
from functools import partial

import pytest
import torch
import transformers
from torch.nn import functional as F

from reference_steps import PlainAdamW
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.papers.sg_bert.method import SelfGuided
from sentkit.training.base import open_base
from sentkit.training.data.batches import stream
from sentkit.training.method import changing, restore
from support import padded

SMALL = {"batch": 4, "head_width": 24}
RATE, HEAT, LAMBDA, DECAY, STEPS = 1e-3, 0.01, 0.1, 0.01, 10


@pytest.fixture(scope="module")
def pooled_folder(base_folder, tmp_path_factory):
    """The small base with a pooler, which SG-BERT has no task for."""
    folder = tmp_path_factory.mktemp("pooled") / "base"
    shutil.copytree(base_folder, folder)
    torch.manual_seed(1)
    transformers.BertModel.from_pretrained(base_folder, add_pooling_layer=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pooled_base(pooled_folder):
    return open_base(read_checkpoint(str(pooled_folder)), 32)


def cosine(one, other):
    return (one * other).sum() / (one * one).sum().sqrt() / (other * other).sum().sqrt()


def share(own, others):
    return torch.stack([own, *others]).logsumexp(0) - own


def opt3(queries, views):
    """Views by sentence and layer. The other layers of a sentence are not negatives."""
    values = []
    for i, query in enumerate(queries):
        foreign = [cosine(query, view) / HEAT for j in range(len(views)) if j != i for view in views[j]]
        values += [share(cosine(query, own) / HEAT, foreign) for own in views[i]]
    return sum(values) / len(values)


def base_loss(queries, views):
    """One view a sentence; all 2b vectors look for their partners."""
    rows, half = [*queries, *views], len(queries)
    values = []
    for m, row in enumerate(rows):
        partner = (m + half) % (2 * half)
        others = [cosine(row, rows[n]) / HEAT for n in range(2 * half) if n not in (m, partner)]
        values.append(share(cosine(row, rows[partner]) / HEAT, others))
    return sum(values) / len(values)


class Reference:
    """The method as the paper has it: a model, its frozen copy, a head, and one loss."""

    def __init__(self, folder, head):
        self.tuned = transformers.BertModel.from_pretrained(
            folder, dtype=torch.float64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        ).train()
        self.guide = deepcopy(self.tuned).eval()
        self.start = [value.detach() for value in self.guide.parameters()]
        self.tuned.embeddings.requires_grad_(False)
        self.head = {name: value.detach().clone().requires_grad_() for name, value in head.items()}
        trained = [(name, value) for name, value in self.tuned.named_parameters() if value.requires_grad]
        self.optimizer = PlainAdamW([*trained, *self.head.items()], beta2=0.9, decay=DECAY)

    def projected(self, values):
        values = F.gelu(values @ self.head["0.weight"].T + self.head["0.bias"])
        return F.gelu(values @ self.head["2.weight"].T + self.head["2.bias"])

    def views(self, ids, mask):
        """By sentence and layer: the largest value of each dimension, over the real tokens."""
        model = self.tuned if self.own else self.guide
        with torch.set_grad_enabled(self.own):
            layers = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        lengths = mask.sum(1).tolist()
        return [
            [states[row, :length].max(0).values for states in layers] for row, length in enumerate(lengths)
        ]

    def step(self, ids, mask, layers, rate):
        """The loss; `layers` says which view each sentence has, if not all."""
        queries = self.projected(self.tuned(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0])
        views = self.views(ids, mask)
        if layers is None:
            loss = opt3(queries, [[self.projected(view) for view in own] for own in views])
        else:
            chosen = [self.projected(own[layer]) for own, layer in zip(views, layers, strict=True)]
            loss = base_loss(queries, chosen)
        drift = zip(self.tuned.parameters(), self.start, strict=True)
        loss = loss + LAMBDA * sum(((now - start) ** 2).sum() for now, start in drift)
        return self.optimizer.step(loss, rate)


@pytest.mark.parametrize("guide", ["copy", "self"])
@pytest.mark.parametrize("objective", ["opt3", "base"])
def test_ten_steps_are_those_of_a_padded_reference(
    objective, guide, trainer_of, losses_of, texts, pooled_base, pooled_folder
):
    """transformers' BertModel with padding, the loss and AdamW in loops; float64, and no dropout."""
    settings = {"epochs": 4, "lr": RATE, "dropout": 0, "guide": guide, **SMALL}
    trainer = trainer_of(SelfGuided, texts, double=True, base=pooled_base, objective=objective, **settings)
    reference = Reference(pooled_folder, dict(trainer.method.head.named_parameters()))
    reference.own = guide == "self"
    batches = [trainer.order.at(step) for step in range(STEPS)]
    draws = [
        trainer.method.draw(trainer.run.corpus.batch(rows), partial(stream, 0, step)).get("layer")
        for step, rows in enumerate(batches)
    ]

    ours = losses_of(trainer)[:STEPS]

    assert trainer.order.steps == 12  # so that ceil(0.1 * 12) = 2 steps warm up
    rates = [0, RATE / 2, *(RATE * (12 - step) / 10 for step in range(2, STEPS))]
    theirs = [
        reference.step(
            *padded([pooled_base.training_tokenizer([texts[row]])[0].ids for row in rows]), layers, rate
        )
        for rows, layers, rate in zip(batches, draws, rates, strict=True)
    ]
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    assert abs(ours[0] - ours[-1]) > 0.1


def test_the_drift_alone_reaches_the_pooler(trainer_of, texts, pooled_base):
    """The contrast has no gradient for it; the decay moves it, and then the drift pulls it back."""
    trainer = trainer_of(SelfGuided, texts, base=pooled_base, batch=4, head_width=24)
    pooler, method = trainer.method.body.pooler, trainer.method
    batch = trainer.run.corpus.batch(trainer.order.at(0))
    [term] = method.loss(method.encode(batch)).values()
    term.value.backward()

    assert pooler.weight.grad is None
    with torch.no_grad():
        pooler.bias[0] += 0.5
    [drift] = method.penalty().values()
    drift.backward()
    assert drift.item() == pytest.approx(0.1 * 0.25)
    assert pooler.bias.grad[0].item() == pytest.approx(2 * 0.1 * 0.5)


def bits(module):
    return [value.detach().clone() for value in module.parameters()]


def unchanged(before, module):
    return all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("frozen", [True, False])
def test_three_steps_change_the_blocks_and_nothing_frozen(trainer_of, texts, frozen):
    trainer = trainer_of(SelfGuided, texts, **SMALL, freeze_embeddings=frozen, guide_dropout="on")
    method, body = trainer.method, trainer.method.body
    tables = torch.nn.ModuleList([body.words, body.positions, body.types, body.norm])
    guide, zero, blocks = bits(method.guide), bits(tables), [bits(block) for block in body.blocks]
    trainer.train()

    assert trainer.position.step == 3
    assert unchanged(guide, method.guide)
    assert not any(weight.requires_grad for weight in method.guide.parameters())
    assert unchanged(zero, tables) == frozen
    assert not any(unchanged(was, block) for was, block in zip(blocks, body.blocks, strict=True))


def test_a_resumed_run_reads_the_guide_from_the_base_again(trainer_of, texts):
    trained, fresh = (trainer_of(SelfGuided, texts, **SMALL, seed=seed) for seed in (0, 1))
    trained.train()
    restore(fresh.method, changing(trained.method))

    assert not [name for name in changing(trained.method) if name.startswith("guide.")]
    assert {name.split(".")[0] for name in trained.method.finished().heads} == {"head"}
    assert fresh.method.penalty()["drift"].item() == trained.method.penalty()["drift"].item() > 0
