"""PromptBERT and SNCSE: five steps beside a padded reference, template denoising, and rows they refuse."""

from functools import partial

import pytest
import torch
import transformers

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import TRIPLET
from sentkit.training.base import open_named
from sentkit.training.methods.promptbert import SNCSE, PromptBERT
from training.losses.formulas import loop_in_batch, loop_soft_negatives, mean
from training.methods.loops import RECIPE, copies
from training.small import gradient_of, make_base

PROMPTS = {
    "a": 'This sentence of "{}" means [MASK].',
    "b": 'This sentence : "{}" means [MASK] .',
    "anchor": 'This sentence : " {} " means [MASK] .',
    "other": 'This sentence of " {} " means [MASK] .',
}


@pytest.fixture
def state_of(reference, base_folder):
    """The state of the mask in transformers' model, of one text at a time, with given positions."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base_folder)

    def read(prompt, text, without=False):
        ids = tokenizer(PROMPTS[prompt].format(text))["input_ids"]
        positions = list(range(len(ids)))
        if without:  # cut the tokens of the text out, and keep the positions of the others
            size = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            quote = ids.index(tokenizer.convert_tokens_to_ids('"'))
            del ids[quote + 1 : quote + 1 + size]
            del positions[quote + 1 : quote + 1 + size]
        tensors = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        return reference.model(**tensors).last_hidden_state[0, ids.index(tokenizer.mask_token_id)]

    return read


def contrast(anchors, candidates):
    return mean(loop_in_batch(anchors, candidates, 0.05))


def promptbert(state_of, head, rows, denoise=True):
    def vector(prompt, text):
        state = state_of(prompt, text)
        return head(state - state_of(prompt, text, without=True) if denoise else state)

    return contrast(*([vector(prompt, row["text"] + ".") for row in rows] for prompt in "ab"))


def supervised(state_of, head, rows, *, own=False):
    """All texts in the first template; all negatives of the batch are in each sum.

    The released code subtracts the outputs of the base's head, but the inputs of a fresh head.
    """

    def vector(text):
        state, bias = state_of("a", text + "."), state_of("a", text + ".", without=True)
        return head(state) - head(bias) if own else head(state - bias)

    anchors, positives, negatives = ([vector(row[name]) for row in rows] for name in TRIPLET.texts)
    return contrast(anchors, [*positives, *negatives])


def sncse(state_of, head, rows):
    one = [head(state_of("anchor", row["text_a"] + " .")) for row in rows]
    other = [head(state_of("other", row["text_a"] + " .")) for row in rows]
    opposite = [head(state_of("other", row["text_b"] + " .")) for row in rows]
    return contrast(one, other) + 0.5 * mean(loop_soft_negatives(one, other, opposite))


def rows_for(kind, texts, settings):
    if "objective" in settings:
        return [dict(zip(TRIPLET.texts, texts[i:] + texts[:i], strict=False)) for i in range(len(texts))]
    if kind is SNCSE:
        return [{"text_a": text, "text_b": "not " + text} for text in texts]
    return [{"text": text} for text in texts]


@pytest.mark.parametrize(
    ("kind", "loop", "settings"),
    [
        (PromptBERT, promptbert, {}),
        (PromptBERT, partial(promptbert, denoise=False), {"denoise": "off"}),
        (PromptBERT, supervised, {"objective": "triplets"}),
        (PromptBERT, partial(supervised, own=True), {"objective": "triplets", "head": "own"}),
        (SNCSE, sncse, {"margin_weight": 0.5}),
    ],
)
def test_five_steps_are_those_of_a_reference(
    trainer_of, check_steps, texts, base_folder, reference, state_of, kind, loop, settings
):
    """The own head is dense, GELU and LayerNorm of transformers' BertForMaskedLM, and is kept."""
    rows = rows_for(kind, texts, settings)
    trainer = trainer_of(kind, rows, **RECIPE, **settings)
    own = transformers.BertForMaskedLM.from_pretrained(base_folder).cls.predictions.transform.double()
    weight, *bias = copies(trainer.method.head)

    def fresh(state):
        return torch.tanh(state @ weight.T + bias[0])

    def loss_of(batch, numbers):
        return loop(state_of, own if "head" in settings else fresh, [rows[number] for number in numbers])

    if "head" in settings:
        names = {f"head.{layer}.{name}" for layer in ("dense", "norm") for name in ("weight", "bias")}
        assert trainer.method.finished().heads.keys() == names
    head = own.parameters() if "head" in settings else [weight, *bias]
    check_steps(trainer, [*reference.model.parameters(), *head], loss_of)


def test_frozen_biases_have_the_same_loss_and_another_gradient(trainer_of, texts):
    live, frozen = (
        trainer_of(PromptBERT, texts, double=True, batch=7, dropout=0, freeze_denoise=each)
        for each in ("off", "on")
    )
    (loss, ours), (other, others) = map(gradient_of, (live, frozen))

    assert loss == pytest.approx(other, abs=1e-12)
    assert torch.equal(ours["head.bias"], others["head.bias"])
    assert not torch.allclose(ours["body.words.weight"], others["body.words.weight"], atol=1e-6)


def test_a_sentence_is_cut_and_the_template_is_not(corpus_of, base, base_folder, texts):
    """A length that is too short for the template is refused."""
    with pytest.raises(DataError, match="the template alone has more than 8 tokens"):
        corpus_of(PromptBERT, texts, PromptBERT.Settings(), open_named(str(base_folder), 8))
    corpus = corpus_of(PromptBERT, ["cat " * 60], PromptBERT.Settings())
    lengths = [len(corpus.text(0, column)) for column in range(2)]
    before, after = base.training_tokenizer_with("promptbert-1").around_text()

    assert lengths == [32, 32]
    assert corpus.text(0, 0)[-len(after) :].tolist() == after
    assert corpus.text(0, 0)[: len(before)].tolist() == before


def test_the_template_of_a_tokenizer_with_spaces_in_its_tokens(tmp_path):
    """As in sentencepiece: the token of a word begins at the space before it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = make_base(tmp_path / "base")
    words = ["▁This", "▁sentence", "▁:", "▁'", "▁means", "▁a.", "<unk>", "▁."]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<mask>"])
    for name in ("tokenizer_config.json", "vocab.txt"):
        (folder / name).unlink()
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = open_named(str(folder), 32).training_tokenizer_with("promptroberta")

    assert tokenizer.around_text() == ([0, 1, 2, 3], [3, 4, 8, 7])
