"""mlm: its loss and steps against transformers, and the head of its checkpoint."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

from reference_steps import adamw
from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.papers.defsent.method import DefSent
from sentkit.training.data.batches import Batch
from sentkit.training.methods.mlm import CLEAR, MaskedLanguageModel, vocabulary_of
from sentkit.training.methods.promptbert import PromptBERT
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.runs.run import write_checkpoint
from training.methods.loops import masked

every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])


def inputs_of(batch):
    return masked(batch.texts[0], batch.draws["chosen"], batch.draws["shown"])


def theirs(folder, family="bert"):
    model = getattr(transformers, f"{HEADS[family].kind}ForMaskedLM")
    loaded, report = model.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return loaded.eval()


def mean_loss(method, batch):
    return method.loss(method.encode(batch))["mlm"].value


@every_family
def test_the_loss_is_that_of_transformers(base_of, mlm_of, tmp_path, family, drawn):
    """ForMaskedLM on padded rows with labels of -100 elsewhere, in float64; and its gradients."""
    method = mlm_of(base_of(family), dropout=0).double().eval()
    batch = drawn(method, 1, 12, 30, 7)
    ours = mean_loss(method, batch)
    ours.backward()
    model = theirs(tmp_path / "base", family)
    loss = model(**inputs_of(batch)).loss
    loss.backward()
    gradients = dict(model.named_parameters())
    words = model.get_input_embeddings().weight

    assert abs(ours.item() - loss.item()) < 1e-9
    assert (method.body.words.weight.grad - words.grad).abs().max() < 1e-9
    for name, value in method.finished().tensors.items():
        assert torch.equal(gradients[name], value)
    biases = [each for name, each in gradients.items() if each.shape == method.head.bias.shape]
    assert (method.head.bias.grad - biases[0].grad).abs().max() < 1e-9


def test_ten_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, base_folder):
    """transformers' BertForMaskedLM and torch's AdamW, with decay but of biases and norms."""
    recipe = {"batch": 4, "epochs": 4, "lr": 1e-3, "dropout": 0, "clip": 0}
    trainer = trainer_of(MaskedLanguageModel, texts, double=True, **recipe)
    model = theirs(base_folder)
    optimizer = adamw(dict(model.named_parameters()), 0.01)

    def rate(step):
        """Four epochs of 13 rows in batches of 4, with two steps of warm-up."""
        return 1e-3 * (step / 2 if step < 2 else (16 - step) / 14)

    def loss_of(batch, rows):
        return model(**inputs_of(batch)).loss

    check_steps(trainer, [], loss_of, count=10, optimizer=optimizer, rate=rate)


def test_a_text_without_words_counts_nothing(mlm_of, drawn):
    method = mlm_of(dropout=0).double().eval()
    some, none = drawn(method, 12, 0, 7), drawn(method, 0, 0)
    without = Batch((some.texts[0][::2],), draws={name: values[::2] for name, values in some.draws.items()})
    nothing = mean_loss(method, none)
    nothing.backward()

    assert abs(mean_loss(method, some).item() - mean_loss(method, without).item()) < 1e-9
    assert nothing.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in method.parameters())


def test_only_chosen_tokens_have_logits(mlm_of, drawn):
    """Of 72 tokens 9 are predicted: 2 of 12, 6 of 40 and 1 of 7."""
    method, rows = mlm_of(), []
    method.head.register_forward_pre_hook(lambda module, given: rows.append(given[0].shape))
    method.encode(drawn(method, 12, 40, 7))

    assert rows == [(9, 16)]


@pytest.mark.parametrize(
    ("kind", "given", "advice"),
    [
        (MaskedLanguageModel, {}, None),
        (CLEAR, {}, None),
        (DefSent, {}, "sentkit train mlm --set head=fresh trains one"),
        (SimCSE, {"mlm_weight": 0.1}, "sentkit train mlm --set head=fresh trains one"),
        (PromptBERT, {"head": "own"}, "--set head=fresh starts with an untrained head"),
    ],
)
def test_a_base_without_a_head_is_refused(base_of, kind, given, advice):
    bare = base_of("bert", "Model")
    with pytest.raises(UsageError, match="base has no language model head") as caught:
        kind.check(bare, kind.Settings(**given))
    assert advice in (None, caught.value.advice)
    if "head" in kind.Settings.__dataclass_fields__:
        kind.check(bare, kind.Settings(**given | {"head": "fresh"}))


def test_a_fresh_head_replaces_the_base_s_own_and_depends_on_the_seed(base, mlm_of):
    stored, heads = base.stored["cls.predictions.transform.dense.weight"], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        heads.append(mlm_of(head="fresh").head)

    assert torch.equal(mlm_of().head.dense.weight, stored)
    assert torch.equal(heads[0].dense.weight, heads[1].dense.weight)
    assert not torch.equal(heads[0].dense.weight, heads[2].dense.weight)
    assert not torch.equal(heads[0].dense.weight, stored)
    assert not heads[0].bias.any()


@pytest.mark.parametrize("head", ["ForMaskedLM", "Model"])
@every_family
def test_transformers_loads_the_checkpoint_with_its_head(base_of, mlm_of, tmp_path, family, head, drawn):
    """Nothing is missing, the logits are the same, and the config names the class; no file of heads."""
    base = base_of(family, head)
    method = mlm_of(base, dropout=0, head="own" if head == "ForMaskedLM" else "fresh").eval()
    with torch.no_grad():
        for weight in method.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    write_checkpoint(tmp_path / "new", method, base, {})
    loaded, report = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "new", output_loading_info=True
    )
    batch = drawn(method, 12, 30, 7)
    with torch.no_grad():
        loss = loaded.eval()(**inputs_of(batch)).loss
        ours = mean_loss(method, batch)

    assert not report["missing_keys"]
    assert {name for name in report["unexpected_keys"] if "pooler" not in name} == set()
    assert loaded.config.architectures == [f"{HEADS[family].kind}ForMaskedLM"]
    assert abs(ours.item() - loss.item()) < 1e-5
    assert not (tmp_path / "new/heads.safetensors").exists()
    assert read_checkpoint(str(tmp_path / "new")).declared.readout.name == "mean"


def test_the_config_of_the_checkpoint_ties_the_head(base_of, mlm_of, tmp_path):
    """transformers would else draw a decoder at random."""
    base = base_of()
    base.checkpoint.config["tie_word_embeddings"] = False
    write_checkpoint(tmp_path / "new", mlm_of(base), base, {})

    theirs(tmp_path / "new")
    assert "cls.predictions.decoder.weight" not in load_file(tmp_path / "new/model.safetensors")


MASK, SPECIALS = 4, (0, 1, 2, 3, 4)  # of the small tokenizer


def test_fifteen_percent_of_the_tokens_are_chosen_and_at_least_one(mlm_of, drawn):
    """By hand: 0.15 n, rounded, halves to the even number, and not under 1."""
    wanted = {1: 1, 3: 1, 7: 1, 10: 2, 14: 2, 20: 3, 30: 4, 40: 6, 100: 15}
    for step in range(20):
        batch = drawn(mlm_of(), *wanted, step=step)

        assert [len(places) for places in batch.draws["chosen"]] == list(wanted.values())
        assert all(len(set(places.tolist())) == len(places) for places in batch.draws["chosen"])


def test_of_ten_tokens_eight_are_masked_one_replaced_and_one_kept(mlm_of, base, drawn):
    """20,000 tokens: the shares have standard deviations of 0.003 and 0.002."""
    method, kinds, replacing, at = mlm_of(), Counter(), [], Counter()
    batch = drawn(method, *[100] * 1334)
    rows = zip(batch.texts[0], batch.draws["chosen"], batch.draws["shown"], strict=True)
    for tokens, places, shown in rows:
        at.update(places.tolist())
        for place, token in zip(places.tolist(), shown.tolist(), strict=True):
            kind = "mask" if token == MASK else "kept" if token == tokens[place] else "other"
            kinds[kind] += 1
            replacing += [token] if kind == "other" else []
    total = sum(kinds.values())

    assert total == 20010
    assert abs(kinds["mask"] / total - 0.8) < 0.015
    assert abs(kinds["other"] / total - 0.1) < 0.011
    assert abs(kinds["kept"] / total - 0.1) < 0.011
    assert not set(replacing) & set(SPECIALS)
    assert sorted(at) == list(range(1, 101))
    assert all(abs(count - 200) < 70 for count in at.values())  # five standard deviations
    # About 2,000 draws out of all other tokens: each is drawn 4.5 times on average, and 1% of them never.
    ordinary = set(range(len(SPECIALS), base.architecture.vocabulary))
    assert set(replacing) < ordinary
    assert len(ordinary - set(replacing)) < 0.03 * len(ordinary)


def test_the_shares_are_settings(mlm_of, drawn):
    """Special tokens are never chosen: those inside of a text no more than those around it."""
    every = drawn(mlm_of(mask_rate=1), [2, 200, 4, 300, 1, 0, 400, 3, 2, 3])
    assert every.draws["chosen"][0].tolist() == [1, 3, 6]
    masked = drawn(mlm_of(mask_share=1, random_share=0), 10, 20)
    kept = drawn(mlm_of(mask_share=0, random_share=0, mask_rate=0.5), 10, 20)
    other = drawn(mlm_of(mask_share=0, random_share=1, mask_rate=0.5), 10, 20)

    assert [set(shown.tolist()) for shown in masked.draws["shown"]] == [{MASK}, {MASK}]
    assert [len(places) for places in kept.draws["chosen"]] == [5, 10]
    for tokens, places, shown in zip(kept.texts[0], *kept.draws.values(), strict=True):
        assert tokens[places].tolist() == shown.tolist()
    assert not set(np.concatenate(other.draws["shown"]).tolist()) & set(SPECIALS)
    for tokens, places, shown in zip(other.texts[0], *other.draws.values(), strict=True):
        assert (tokens[places] != shown).all()


def word_level(*words, special=()):
    tokenizer = object.__new__(Tokenizer)  # without a checkpoint
    tokenizer.backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.backend.add_special_tokens(list(special))
    return tokenizer


def test_special_tokens_are_found_by_their_names_and_by_their_mark(base):
    """Marked in the file, or of a usual name; here are also more tokens than words in the table."""
    words = ["<unk>", "<s>", "</s>", "<mask>", "a", "[X1]", "cat", "<pad>", "dog"]
    found = vocabulary_of(word_level(*words, special=["[X1]"]), SimpleNamespace(vocabulary=8))

    assert found.mask == 3
    assert found.words.tolist() == [4, 6]
    assert found.ordinary.tolist() == [n in (4, 6) for n in range(8)]


@pytest.mark.parametrize(("word", "problem"), [("a", "mask token"), ("[MASK]", "only special tokens")])
def test_a_tokenizer_is_refused_before_any_row_is_read(base, word, problem):
    with pytest.raises(UsageError, match=problem):
        MaskedLanguageModel.check(
            replace(base, training_tokenizer=word_level("[UNK]", word)),
            MaskedLanguageModel.Settings(head="fresh"),
        )


def test_the_check_draws_no_random_numbers(base):
    before = torch.random.get_rng_state()
    for head in ("own", "fresh"):
        MaskedLanguageModel.check(base, MaskedLanguageModel.Settings(head=head))

    assert torch.equal(torch.random.get_rng_state(), before)
