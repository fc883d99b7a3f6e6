"""A masked language model, CLEAR and TSDAE: steps beside a reference, draws, and what a checkpoint
keeps.
"""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from reference_steps import adamw
from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.training.data.corpus import Batch
from sentkit.training.methods.clear import CLEAR
from sentkit.training.methods.mlm import MaskedLanguageModel, vocabulary_of
from sentkit.training.methods.tsdae import TSDAE, word_starts
from sentkit.training.runs.checkpoint import write_checkpoint
from support import padded
from training.losses.formulas import loop_paired, mean
from training.methods.loops import RECIPE, copies, draws_of, every_family, masked, reference_model


def mean_loss(method, batch):
    return method.loss(method.encode(batch))["mlm"].value


@every_family
def test_the_loss_is_that_of_transformers(base_of, mlm_of, tmp_path, family, drawn):
    """ForMaskedLM on padded rows with labels of -100 elsewhere, in float64; and its gradients."""
    method = mlm_of(base_of(family), dropout=0).double().eval()
    batch = drawn(method, 1, 12, 30, 7)
    actual = mean_loss(method, batch)
    actual.backward()
    model = reference_model(tmp_path / "base", family)
    loss = model(**masked(batch)).loss
    loss.backward()
    gradients = dict(model.named_parameters())
    words = model.get_input_embeddings().weight

    assert abs(actual.item() - loss.item()) < 1e-9
    assert (method.body.words.weight.grad - words.grad).abs().max() < 1e-9
    for name, value in method.finished().tensors.items():
        assert torch.equal(gradients[name], value)
    biases = [
        parameter
        for name, parameter in gradients.items()
        if parameter.shape == method.head.bias.shape
    ]
    assert (method.head.bias.grad - biases[0].grad).abs().max() < 1e-9


def test_ten_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, base_folder):
    """transformers' BertForMaskedLM and torch's AdamW, with decay but of biases and norms."""
    recipe = RECIPE | {"epochs": 4, "weight_decay": 0.01, "warmup": 0.1}
    trainer = trainer_of(MaskedLanguageModel, texts, **recipe)
    model = reference_model(base_folder)
    optimizer = adamw(dict(model.named_parameters()), 0.01)

    def loss_of(batch, rows):
        return model(**masked(batch)).loss

    check_steps(trainer, [], loss_of, count=10, optimizer=optimizer, warmup=2)


def test_a_text_without_words_counts_nothing(mlm_of, drawn):
    method = mlm_of(dropout=0).double().eval()
    some = drawn(method, 12, 0, 7)
    none = drawn(method, 0, 0)
    without = Batch(
        (some.texts[0][::2],), draws={name: values[::2] for name, values in some.draws.items()}
    )
    nothing = mean_loss(method, none)
    nothing.backward()

    assert abs(mean_loss(method, some).item() - mean_loss(method, without).item()) < 1e-9
    assert nothing.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in method.parameters())


def test_only_chosen_tokens_have_logits(mlm_of, drawn):
    """Of 72 tokens 9 are predicted: 2 of 12, 6 of 40 and 1 of 7."""
    method = mlm_of()
    rows = []
    method.head.register_forward_pre_hook(lambda module, inputs: rows.append(inputs[0].shape))
    method.encode(drawn(method, 12, 40, 7))

    assert rows == [(9, 16)]


def test_a_fresh_head_replaces_the_base_s_own_and_depends_on_the_seed(base, mlm_of):
    stored = base.stored["cls.predictions.transform.dense.weight"]
    heads = []
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
def test_transformers_loads_the_checkpoint_with_its_head(
    base_of, mlm_of, tmp_path, family, head, drawn
):
    """Nothing is missing, the logits are the same, and the config names the class; no file of
    heads.

    The config ties the head; transformers would else draw a decoder at random.
    """
    base = base_of(family, head)
    base.checkpoint.config["tie_word_embeddings"] = False
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
        loss = loaded.eval()(**masked(batch)).loss
        actual = mean_loss(method, batch)

    assert not report["missing_keys"]
    assert {name for name in report["unexpected_keys"] if "pooler" not in name} == set()
    assert loaded.config.architectures == [f"{HEADS[family].kind}ForMaskedLM"]
    assert abs(actual.item() - loss.item()) < 1e-5
    assert not (tmp_path / "new/heads.safetensors").exists()
    assert read_checkpoint(str(tmp_path / "new")).declaration.readout.name == "mean"


def test_the_checkpoint_keeps_the_pooler_of_its_base(base_of, mlm_of, texts, tmp_path):
    """sentence-transformers reads the layer of the base with the readout `pooler`."""
    from sentence_transformers import SentenceTransformer

    base = base_of(pooler=True)
    method = mlm_of(base).eval()
    write_checkpoint(tmp_path / "new", method, base, {}, "pooler")
    tokens = [tokens_of_text.ids for tokens_of_text in base.training_tokenizer(texts)]
    with torch.no_grad():
        expected = method.vectors(method.pack(tokens), "pooler").numpy()
    vectors = SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(texts)

    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert "model_args" not in json.loads((tmp_path / "new/sentence_bert_config.json").read_text())


# of the small tokenizer
MASK = 4
SPECIALS = (0, 1, 2, 3, 4)


def test_fifteen_percent_of_the_tokens_are_chosen_and_at_least_one(mlm_of, drawn):
    """By hand: 0.15 n, rounded, halves to the even number, and not under 1."""
    counts = {1: 1, 3: 1, 7: 1, 10: 2, 14: 2, 20: 3, 30: 4, 40: 6, 100: 15}
    for step in range(20):
        batch = drawn(mlm_of(), *counts, step=step)

        chosen, _ = draws_of(batch)
        assert [len(positions) for positions in chosen] == list(counts.values())
        assert all(len(set(positions.tolist())) == len(positions) for positions in chosen)


def test_of_ten_tokens_eight_are_masked_one_replaced_and_one_kept(mlm_of, base, drawn):
    """20,000 tokens: the shares have standard deviations of 0.003 and 0.002."""
    method = mlm_of()
    kinds = Counter()
    replacing = []
    counts = Counter()
    batch = drawn(method, *[100] * 1334)
    rows = zip(batch.texts[0], *draws_of(batch), strict=True)
    for tokens, positions, shown in rows:
        counts.update(positions.tolist())
        for position, token in zip(positions.tolist(), shown.tolist(), strict=True):
            kind = "mask" if token == MASK else "kept" if token == tokens[position] else "other"
            kinds[kind] += 1
            replacing += [token] if kind == "other" else []
    total = sum(kinds.values())

    assert total == 20010
    assert abs(kinds["mask"] / total - 0.8) < 0.015
    assert abs(kinds["other"] / total - 0.1) < 0.011
    assert abs(kinds["kept"] / total - 0.1) < 0.011
    assert not set(replacing) & set(SPECIALS)
    assert sorted(counts) == list(range(1, 101))
    assert all(abs(count - 200) < 70 for count in counts.values())  # five standard deviations
    # About 2,000 draws out of all other tokens: each is drawn 4.5 times on average, and 1% of them
    # never.
    ordinary = set(range(len(SPECIALS), base.architecture.vocabulary))
    assert set(replacing) < ordinary
    assert len(ordinary - set(replacing)) < 0.03 * len(ordinary)


def test_the_shares_are_settings(mlm_of, drawn):
    """Special tokens are never chosen: those inside of a text no more than those around it."""
    all_chosen = drawn(mlm_of(mask_rate=1), [2, 200, 4, 300, 1, 0, 400, 3, 2, 3])
    assert draws_of(all_chosen)[0][0].tolist() == [1, 3, 6]
    all_masked = drawn(mlm_of(mask_share=1, random_share=0), 10, 20)
    unchanged = drawn(mlm_of(mask_share=0, random_share=0, mask_rate=0.5), 10, 20)
    replaced = drawn(mlm_of(mask_share=0, random_share=1, mask_rate=0.5), 10, 20)

    assert [set(shown.tolist()) for shown in draws_of(all_masked)[1]] == [{MASK}, {MASK}]
    assert [len(positions) for positions in draws_of(unchanged)[0]] == [5, 10]
    for tokens, positions, shown in zip(unchanged.texts[0], *draws_of(unchanged), strict=True):
        assert tokens[positions].tolist() == shown.tolist()
    assert not set(np.concatenate(draws_of(replaced)[1]).tolist()) & set(SPECIALS)
    for tokens, positions, shown in zip(replaced.texts[0], *draws_of(replaced), strict=True):
        assert (tokens[positions] != shown).all()


def word_level(*words, special=()):
    tokenizer = object.__new__(Tokenizer)  # without a checkpoint
    tokenizer.backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: number for number, word in enumerate(words)}, unk_token=words[0]
        )
    )
    tokenizer.backend.add_special_tokens(list(special))
    return tokenizer


def test_special_tokens_are_found_by_their_names_and_by_their_mark(base):
    """Marked in the file, or of a usual name; here are also more tokens than words in the table."""
    words = ["<unk>", "<s>", "</s>", "<mask>", "a", "[X1]", "cat", "<pad>", "dog"]
    tokenizer = word_level(*words, special=["[X1]"])
    size = SimpleNamespace(vocabulary=8)
    vocabulary = vocabulary_of(SimpleNamespace(transformer_tokenizer=tokenizer, packed=size))

    assert vocabulary.mask == 3
    assert vocabulary.ordinary.tolist() == [4, 6]
    assert vocabulary.is_ordinary.tolist() == [n in (4, 6) for n in range(8)]


@pytest.mark.parametrize(
    ("word", "problem"), [("a", "mask token"), ("[MASK]", "only special tokens")]
)
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


@pytest.fixture
def rows(texts):
    return [{"text_a": text, "text_b": " ".join(text.split()[::-1])} for text in texts]


def test_five_steps_of_clear_are_those_of_a_reference(
    trainer_of, check_steps, rows, reference, base_folder
):
    trainer = trainer_of(CLEAR, rows, mlm_weight=0.5, **RECIPE)
    a, c, b, d = copies(trainer.method.projection)
    model = reference_model(base_folder)
    encoder = replace(reference, model=model.bert)

    def loss_of(batch, rows):
        projected = [torch.relu(encoder.mean(texts) @ a.T + c) @ b.T + d for texts in batch.texts]
        return mean(loop_paired(*projected, 0.1)) + 0.5 * model(**masked(batch)).loss

    check_steps(trainer, [*model.parameters(), a, b, c, d], loss_of)


def test_the_checkpoint_keeps_the_language_model(trainer_of, rows):
    method = trainer_of(CLEAR, rows, head="fresh").method

    assert "cls.predictions.bias" in method.finished().tensors
    assert method.finished().config["architectures"] == ["BertForMaskedLM"]
    assert {name.partition(".")[0] for name in method.finished().heads} == {"projection"}


def tied_decoder(encoder, trainer, folder):
    """transformers' BertLMHeadModel with the encoder's parameters and the first weights of the
    method.
    """
    config = transformers.BertConfig.from_pretrained(
        folder, is_decoder=True, add_cross_attention=True
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    decoder = transformers.BertLMHeadModel(config).double().train()
    head = trainer.method.head
    with torch.no_grad():
        prediction = decoder.cls.predictions
        prediction.transform.dense.load_state_dict(head.dense.state_dict())
        prediction.transform.LayerNorm.load_state_dict(head.norm.state_dict())
        prediction.bias.copy_(head.bias)
        for layer, cross in zip(decoder.bert.encoder.layer, trainer.method.cross, strict=True):
            attention = layer.crossattention
            attention.self.value.load_state_dict(cross.value.state_dict())
            attention.output.dense.load_state_dict(cross.mix.state_dict())
            attention.output.LayerNorm.load_state_dict(cross.norm.state_dict())
    for name, value in encoder.named_parameters():
        if name.startswith("pooler."):
            continue
        path, _, last = name.rpartition(".")
        setattr(decoder.bert.get_submodule(path), last, value)
    prediction.decoder.weight = encoder.embeddings.word_embeddings.weight
    prediction.decoder.bias = prediction.bias
    return decoder


@pytest.mark.parametrize("head", ["auto", "fresh"])
def test_steps_of_tsdae_are_those_of_a_reference(
    trainer_of, check_steps, texts, reference, base_folder, head
):
    trainer = trainer_of(TSDAE, texts, head=head, **RECIPE)
    encoder = reference.model
    decoder = tied_decoder(encoder, trainer, base_folder)
    parameters = dict.fromkeys([*encoder.parameters(), *decoder.parameters()])

    def loss_of(batch, rows):
        vectors = reference.first(batch.draws["noisy"])[:, None]
        inputs, mask = padded([ids[:-1] for ids in batch.texts[0]])
        targets = padded([ids[1:] for ids in batch.texts[0]])[0].masked_fill(mask == 0, -100)
        logits = decoder(
            input_ids=inputs, attention_mask=mask, encoder_hidden_states=vectors
        ).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    check_steps(trainer, parameters, loss_of, constant=True)


def test_sixty_of_a_hundred_words_are_deleted(trainer_of, base):
    """One library keeps a word with this probability, and so deletes 40 of a hundred."""
    method = trainer_of(TSDAE, ["rain " * 28, "rain"]).method
    [tokens] = base.training_tokenizer(["rain " * 28])
    ids = np.array(tokens.ids, np.int32)
    dice = np.random.default_rng(0)
    counts = [len(method.noisy(ids, dice)) - 2 for _ in range(500)]

    assert np.mean(counts) / 28 == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("deletion", "text"),
    [(0.0, "the unbelievability of rain"), (1.0, "unbelievability"), (0.9, "rain")],
)
def test_words_are_kept_whole(trainer_of, base, deletion, text):
    """At least one word stays, with all its tokens and the special tokens. An empty text
    stays too.
    """
    method = trainer_of(TSDAE, [text, "cat"], deletion=deletion).method
    [tokens] = base.training_tokenizer([text])
    ids = np.array(tokens.ids, np.int32)
    dice = np.random.default_rng(0)

    assert all(method.noisy(ids, dice).tolist() == ids.tolist() for _ in range(20))
    assert method.noisy(ids[[0, -1]], dice).tolist() == ids[[0, -1]].tolist()


def test_a_word_begins_without_the_prefix_of_a_continuation(base):
    starts = word_starts(base.training_tokenizer, base.architecture.vocabulary)
    words = base.training_tokenizer.backend.get_vocab()

    assert (starts[words["rain"]], starts[words["."]]) == (True, True)
    assert not any(starts[number] for word, number in words.items() if word.startswith("##"))
