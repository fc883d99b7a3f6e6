"""Tensor files that start with a digest of their content. They are loaded only if the digest matches."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

MAGIC = b"sentkit state 2 "  # increase the number if the fields of a state change: no reader checks them
DIGEST = 32  # bytes
HEADER = len(MAGIC) + 2 * DIGEST + 1
BLOCK = 1 << 20


class BadFile(Exception):
    """The reason why a file of a run is invalid."""


class Hashing:
    """A writable file that hashes all written data."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.hash = file, hashlib.blake2b(digest_size=DIGEST)
        self.error: OSError | None = None  # of the first write that failed

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_sealed(file: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write to an empty, seekable file. The digest is at the start, so it is written last."""
    file.write(bytes(HEADER))
    hashing = Hashing(file)
    try:
        torch.save(dict(content), cast(IO[bytes], hashing))  # torch.save only calls write and flush
    except RuntimeError:  # torch raises this in place of the error of `write`
        if hashing.error is None:
            raise
        raise hashing.error from None
    file.seek(0)
    file.write(MAGIC + hashing.hash.hexdigest().encode() + b"\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file of `write_sealed`. Raise a BadFile if it is damaged."""
    try:
        with path.open("rb") as file:
            check_digest(file)
            file.seek(HEADER)
            content = torch.load(file, weights_only=True, map_location="cpu")
    except OSError as error:  # for example a bad sector
        raise BadFile(f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    except BadFile:
        raise
    except Exception as error:  # the unpickler can raise any exception
        raise BadFile("its digest matches, but torch cannot load it") from error
    if not isinstance(content, dict):
        raise BadFile(f"it contains a {type(content).__name__}, expected a dict")
    return content


def check_digest(file: BinaryIO) -> None:
    header = file.read(HEADER)
    if not header.startswith(MAGIC):
        raise BadFile("no digest: it is damaged, or another version of sentkit wrote it")
    hash = hashlib.blake2b(digest_size=DIGEST)
    while block := file.read(BLOCK):
        hash.update(block)
    if header != MAGIC + hash.hexdigest().encode() + b"\n":
        raise BadFile("its digest does not match: it is damaged or truncated")
