"""Tokenizers of other kinds than nano's, in folders."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory):
    """A byte-level BPE as RoBERTa's, of 400 tokens learnt from these sentences."""

    def make(sentences):
        folder = tmp_path_factory.mktemp("roberta")
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet
        )
        backend.train_from_iterator(sentences * 9, trainer)
        backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        backend.save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(
            json.dumps({"model_type": "roberta", "pad_token_id": 1})
        )
        roles = zip(("bos", "pad", "eos", "unk", "mask"), special, strict=True)
        config = {f"{role}_token": token for role, token in roles}
        config |= {"cls_token": "<s>", "sep_token": "</s>", "tokenizer_class": "RobertaTokenizer"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.fixture(scope="session")
def roberta(byte_level):
    return byte_level(["This sentence : ' a cat sat. ' means that", "The cat sat. A naïve café"])


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory):
    """Pieces with the space before them, as of sentencepiece: "▁" begins a word, also the first."""
    folder = tmp_path_factory.mktemp("metaspace")
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<s>", "</s>", "<unk>", "<mask>"])
    backend.train_from_iterator(["query: a cat sat on the mat. The naïve café"] * 9, trainer)
    pair = [("<s>", 0), ("</s>", 1)]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=pair
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "xlm-roberta", "pad_token_id": 1})
    )
    return folder
