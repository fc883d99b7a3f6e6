"""Writes trained weights under the names of their base, together with the other tensors of the base."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sentkit.formats.outputs.temporary import create
from sentkit.formats.vectors.safetensors_header import OF_WEIGHTS, header_bytes
from sentkit.model.checkpoint.lm_head import HEADS
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.weight_names import (
    EMBEDDINGS,
    PREFIXES,
    encoder_shapes,
    modern,
    pooler_shapes,
)

WORDS = EMBEDDINGS["words"] + ".weight"


def merged(
    stored: Mapping[str, Tensor], trained: Mapping[str, Tensor], architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint in float32, with trained tensors replaced.

    `stored` has the names of the files, `trained` the plain names of the family. Untrained tensors stay,
    except buffers, which transformers creates, and copies of other tensors in a head.
    """
    old = next((prefix for prefix in PREFIXES if prefix + WORDS in stored), "")
    own = HEADS[architecture.family].encoder
    prefix = old if old in ("", own) else own  # transformers does not know wrapper prefixes
    encoder = encoder_shapes(architecture) | pooler_shapes(architecture)
    tensors = {
        prefix + modern(name.removeprefix(old)) if name.startswith(old) else modern(name): tensor
        for name, tensor in stored.items()
        if tensor.is_floating_point()
    }
    remove_tied(tensors, prefix + WORDS, architecture)
    tensors |= {prefix + name if name in encoder else name: tensor for name, tensor in trained.items()}
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def remove_tied(tensors: dict[str, Tensor], words: str, architecture: Architecture) -> None:
    """Remove tied copies in the head: they would keep old values, and transformers ties them again.

    A decoder with values different from the word table is not tied and stays.
    """
    head = HEADS[architecture.family]
    weight, bias = f"{head.decoder}.weight", f"{head.decoder}.bias"
    if weight in tensors and torch.equal(tensors[weight].float(), tensors[words].float()):
        del tensors[weight]
    if bias in tensors:
        copy = tensors.pop(bias)
        tensors.setdefault(head.bias, copy)


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file in float32 and sync it to disk. The same values give the same bytes.

    Integer tensors are buffers that transformers creates, so they are not written.
    """
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    start = 0
    for name in sorted(name for name, tensor in tensors.items() if tensor.is_floating_point()):
        end = start + 4 * tensors[name].numel()
        entries[name] = ("F32", tuple(tensors[name].shape), start, end)
        start = end
    with create(path) as file:
        file.write(header_bytes(entries, OF_WEIGHTS))
        for name in entries:  # one tensor at a time, to avoid a second copy of the model
            values = tensors[name].detach().to("cpu", torch.float32).contiguous().numpy()
            file.write(values.reshape(-1).view("uint8").data)
        file.flush()
        os.fsync(file.fileno())
