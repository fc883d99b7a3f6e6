"""Writes weights: trained ones under the names of their base, or random ones in a new folder."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.files import is_there, read_object, write_json
from sentkit.formats.outputs.temporary import create
from sentkit.formats.vectors.tensors import OF_WEIGHTS, put_arrays
from sentkit.model.checkpoint.heads import HEADS
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    PREFIXES,
    Architecture,
    UnsupportedArchitecture,
    canonical_names,
    encoder_shapes,
    invalid_value,
    modern,
    pooler_shapes,
    read_architecture,
    read_fraction,
    words_name,
)
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.transformers_model import TransformersModel


def merged(
    stored: Mapping[str, Tensor], trained: Mapping[str, Tensor], architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint in float32, with trained tensors replaced.

    `stored` has the names of the files, `trained` the plain names of the family. Untrained tensors stay,
    except buffers, which transformers creates, and copies of other tensors in a head.
    """
    words = words_name(architecture)
    old = next((prefix for prefix in PREFIXES if prefix + words in stored), "")
    head = HEADS[architecture.family]
    prefix = old if old in ("", head.encoder) else head.encoder  # transformers knows no wrapper prefixes
    encoder = encoder_shapes(architecture) | pooler_shapes(architecture)
    tensors = {
        prefix + modern(name.removeprefix(old)) if name.startswith(old) else modern(name): tensor
        for name, tensor in stored.items()
        if tensor.is_floating_point()
    }
    weight, bias = f"{head.decoder}.weight", f"{head.decoder}.bias"
    # Tied copies would keep old values, and transformers ties them again. Another decoder stays.
    if weight in tensors and torch.equal(tensors[weight].float(), tensors[prefix + words].float()):
        del tensors[weight]
    if bias in tensors:
        copy = tensors.pop(bias)
        tensors.setdefault(head.bias, copy)
    tensors |= {prefix + name if name in encoder else name: tensor for name, tensor in trained.items()}
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def without_language_head(
    tensors: Mapping[str, Tensor], body: Bert | TransformersModel, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors that AutoModel of transformers has; of a classifier, which `predict` reads, all."""
    if "ForSequenceClassification" in str(config.get("architectures")):
        return dict(tensors)
    if isinstance(body, Bert):
        own = {*canonical_names(tensors, body.architecture).values()}
        unused = {name for name in tensors.keys() - own if tensors[name].is_floating_point()}
    else:
        unused = {*body.unused}
    return {name: tensor for name, tensor in tensors.items() if name not in unused}


def encoder_class(body: Bert | TransformersModel) -> str:
    """Return the name of the class that AutoModel of transformers builds."""
    if isinstance(body, Bert):
        return f"{HEADS[body.architecture.family].kind}Model"
    return type(body.model).__name__


def write_weights(path: Path, tensors: Mapping[str, Tensor], store: str | None = "float32") -> None:
    """Write a safetensors file in the type `store` and sync it to disk. The same values give the same bytes.

    None: as they are, except that the other types than float16 become float32. Integer tensors are buffers
    that transformers creates, so they are not written.
    """
    arrays = {}
    for name, tensor in sorted(tensors.items()):
        if tensor.is_floating_point():
            own = tensor.dtype if tensor.dtype == torch.float16 else torch.float32
            dtype = own if store is None else getattr(torch, store)
            arrays[name] = tensor.detach().to("cpu", dtype).numpy()
    with create(path) as file:
        put_arrays(file, arrays, OF_WEIGHTS)
        file.flush()
        os.fsync(file.fileno())


TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
)
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
    spread = read_fraction(values, str(config), "initializer_range", 0.02)
    stated = {name: value for name, value in values.items() if name != "torch_dtype"}
    write_json(folder / "config.json", {**stated, "dtype": "float32"})
    place = tokenizer if tokenizer.is_dir() else tokenizer.parent
    for name in TOKENIZER:
        if is_there(place / name):
            shutil.copyfile(place / name, folder / name)
    if not tokenizer.is_dir():
        if not is_there(tokenizer):
            raise NoInputError(f"{tokenizer}: no such tokenizer")
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    set_tokenizer(folder, architecture, source=str(tokenizer))
    tensors, random = dict(head or {}), np.random.default_rng(seed)
    prefix = HEADS[architecture.family].encoder
    for name, shape in encoder_shapes(architecture).items():
        if len(shape) > 1:  # matrices and tables follow N(0, spread^2), as in transformers
            drawn = random.standard_normal(shape, dtype=np.float32) * np.float32(spread)
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


def set_tokenizer(folder: Path, architecture: Architecture, *, source: str) -> None:
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
        known = {role: [token for token in tokens if token in words] for role, tokens in SPECIAL.items()}
        named = {role: tokens[0] for role, tokens in known.items() if tokens}
        generic = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
        write_json(folder / "tokenizer_config.json", {**generic, **named})
