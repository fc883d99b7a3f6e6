"""Writes an untrained encoder: random weights, a configuration and a tokenizer, in a new folder."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.checkpoints.folders import invalid_value, read_checkpoint, read_fraction
from sentkit.formats.files import is_there, read_object, write_json
from sentkit.model.checkpoint.export import write_weights
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    Architecture,
    UnsupportedArchitecture,
    read_architecture,
    tensor_shapes,
    words_name,
)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
)
# The tokens that a tokenizer can have for each role.
SPECIAL = {
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def write_fresh(
    folder: Path, config: Path, tokenizer: Path, seed: int, head: Mapping[str, Tensor] | None = None
) -> None:
    """Write an untrained encoder and the tensors of its `head` into an empty folder.

    `tokenizer` is a folder or a tokenizer.json; other tokenizer files next to it are copied too. The same
    seed gives the same bytes.
    """
    values = read_object(config)
    architecture = architecture_to_initialise(values, str(config))
    deviation = read_fraction(values, str(config), "initializer_range", 0.02)
    kept_values = {name: value for name, value in values.items() if name != "torch_dtype"}
    write_json(folder / "config.json", {**kept_values, "dtype": "float32"})

    # The tokenizer.
    tokenizer_folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    for name in TOKENIZER_FILES:
        if is_there(tokenizer_folder / name):
            shutil.copyfile(tokenizer_folder / name, folder / name)
    if not tokenizer.is_dir():
        if not is_there(tokenizer):
            raise NoInputError(f"{tokenizer}: no such tokenizer")
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    check_tokenizer(folder, architecture, source=str(tokenizer))

    # The weights.
    tensors = dict(head or {})
    random = np.random.default_rng(seed)
    prefix = HEADS[architecture.family].encoder
    for name, shape in tensor_shapes(architecture).items():
        if len(shape) > 1:  # matrices and tables follow N(0, deviation^2), as in transformers
            drawn = random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
            tensors[prefix + name] = torch.from_numpy(drawn)
        else:  # a bias or the weight of a norm
            tensors[prefix + name] = torch.full(shape, float(name.endswith(".weight")))
    tensors[prefix + words_name(architecture)][architecture.padding_id] = 0
    write_weights(folder / "model.safetensors", tensors)


def architecture_to_initialise(values: Mapping[str, object], source: str) -> Architecture:
    try:
        architecture = read_architecture(values, source)
        if architecture.kind.decoder:
            raise UnsupportedArchitecture(f'model type "{architecture.family}"')
    except UnsupportedArchitecture as reason:
        families = "BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, MPNet or ModernBERT"
        advice = f"use a config.json of {families}"
        raise UsageError(f"{source}: {reason}: not supported by --init", advice=advice) from reason
    if architecture.padding_id >= architecture.vocabulary:
        raise invalid_value("pad_token_id", architecture.padding_id, source)
    if values.get("sinusoidal_pos_embds"):
        raise UsageError(f"{source}: --init does not support sinusoidal positions")
    return architecture


def check_tokenizer(folder: Path, architecture: Architecture, *, source: str) -> None:
    """Check that the copied tokenizer fits the config; add a tokenizer_config.json if it is missing."""
    longest = architecture.max_tokens
    try:
        copied = Tokenizer(read_checkpoint(str(folder.resolve())), max_length=longest)
    except DataError as error:
        raise DataError(error.problem, source=source) from error
    words = copied.backend.get_vocab()
    rows = max(words.values(), default=-1) + 1
    if rows > architecture.vocabulary:
        problem = f'{rows} tokens, but "vocab_size" in config.json is {architecture.vocabulary}'
        raise DataError(problem, source=source)
    if not is_there(folder / "tokenizer_config.json"):
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": longest,
        }
        for role, tokens in SPECIAL.items():
            tokens_of_role = [token for token in tokens if token in words]
            if tokens_of_role:
                settings[role] = tokens_of_role[0]
        write_json(folder / "tokenizer_config.json", settings)
