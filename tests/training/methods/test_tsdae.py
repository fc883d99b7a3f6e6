"""TSDAE: deletion of words, and five steps beside transformers' decoder with cross-attention."""

import numpy as np
import pytest
import torch
import transformers

from sentkit.training.methods.mlm import TSDAE, word_starts

RATE = 1e-3


def tied_decoder(encoder, trainer, folder):
    """transformers' BertLMHeadModel with the encoder's parameters and the first weights of the method."""
    config = transformers.BertConfig.from_pretrained(folder, is_decoder=True, add_cross_attention=True)
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
        *path, last = name.split(".")
        module = decoder.bert
        for part in path if path[0] != "pooler" else ():
            module = getattr(module, part)
        if path[0] != "pooler":
            setattr(module, last, value)
    prediction.decoder.weight = encoder.embeddings.word_embeddings.weight
    prediction.decoder.bias = prediction.bias
    return decoder


def padded(texts, fill):
    longest = max(map(len, texts))
    return torch.tensor([[*each.tolist(), *[fill] * (longest - len(each))] for each in texts]).long()


@pytest.mark.parametrize("head", ["auto", "fresh"])
def test_five_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference, base_folder, head
):
    """In float64 and without dropout, with torch's AdamW."""
    recipe = {"batch": 4, "epochs": 2, "lr": RATE, "dropout": 0, "clip": 0}
    trainer = trainer_of(TSDAE, texts, double=True, head=head, **recipe)
    encoder = reference.model
    decoder = tied_decoder(encoder, trainer, base_folder)
    parameters = dict.fromkeys([*encoder.parameters(), *decoder.parameters()])
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)

    def loss_of(batch, rows):
        noisy, clean = batch.draws["noisy"], batch.texts[0]
        mask = padded([np.ones_like(each) for each in noisy], 0)
        vectors = encoder(input_ids=padded(noisy, 0), attention_mask=mask).last_hidden_state[:, :1]
        targets = padded([each[1:] for each in clean], -100)
        logits = decoder(
            input_ids=padded([each[:-1] for each in clean], 0),
            attention_mask=(targets != -100).long(),
            encoder_hidden_states=vectors,
        ).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    check_steps(trainer, parameters, loss_of, optimizer=optimizer, rate=lambda step: RATE)


def test_sixty_of_a_hundred_words_are_deleted(trainer_of, base):
    """One library keeps a word with this probability, and so deletes 40 of a hundred."""
    method = trainer_of(TSDAE, ["rain " * 28, "rain"]).method
    [tokens] = base.training_tokenizer(["rain " * 28])
    ids, dice = np.array(tokens.ids, np.int32), np.random.default_rng(0)
    counts = [len(method.noisy(ids, dice)) - 2 for _ in range(500)]

    assert np.mean(counts) / 28 == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("deletion", "text"), [(0.0, "the unbelievability of rain"), (1.0, "unbelievability"), (0.9, "rain")]
)
def test_words_are_kept_whole(trainer_of, base, deletion, text):
    """At least one word stays, with all its tokens and the special tokens. An empty text stays too."""
    method = trainer_of(TSDAE, [text, "cat"], deletion=deletion).method
    [tokens] = base.training_tokenizer([text])
    ids, dice = np.array(tokens.ids, np.int32), np.random.default_rng(0)

    assert all(method.noisy(ids, dice).tolist() == ids.tolist() for _ in range(20))
    assert method.noisy(ids[[0, -1]], dice).tolist() == ids[[0, -1]].tolist()


def test_a_word_begins_without_the_prefix_of_a_continuation(base):
    starts = word_starts(base.training_tokenizer, base.architecture.vocabulary)
    words = base.training_tokenizer.backend.get_vocab()

    assert (starts[words["rain"]], starts[words["."]]) == (True, True)
    assert not any(starts[number] for word, number in words.items() if word.startswith("##"))
