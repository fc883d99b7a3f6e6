"""Hashes the weights of an encoder, as tensors of torch or as arrays of numpy."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from sentkit.arrays import Float32


class Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


T = TypeVar("T", bound=Shaped)


def hash_of_weights(
    weights: Mapping[str, T], as_float32: Callable[[T], Float32], *, with_pooler: bool, threads: int
) -> str:
    """Return 32 hex digits that depend only on names, shapes and values; tensors are converted one by one."""
    names = sorted(name for name in weights if with_pooler or not name.startswith("pooler."))
    with ThreadPoolExecutor(threads) as pool:  # hashlib releases the interpreter lock
        digests = list(pool.map(lambda name: digest(as_float32(weights[name])), names))
    whole = hashlib.blake2b(digest_size=16)
    for name, one in zip(names, digests, strict=True):
        whole.update(f"{name} {by(weights[name].shape)}\n".encode() + one)
    return whole.hexdigest()


def digest(values: Float32) -> bytes:
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return hashlib.blake2b(raw.data, digest_size=16).digest()


def by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
