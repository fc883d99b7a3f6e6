"""The vectors of earlier vector files and folders, which `encode --reuse` copies for equal texts.

A text is found by a hash of 16 bytes. The search needs about 25 bytes per text, and 50 while it is built.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import open_file
from sentkit.formats.rows.kinds import KINDS, prompts_of_sides, string_in
from sentkit.formats.urls import is_url
from sentkit.formats.vectors.fingerprint import space_of, spec_of_signs
from sentkit.formats.vectors.folders import shown
from sentkit.formats.vectors.store import OPEN_MAPS, Store, is_store
from sentkit.formats.vectors.vector_file import damaged
from sentkit.model.text.tokens import OuterTokenizer, TextTokenizer, TokenBlock, tokenized

RECORDED = ("_emb", "prompt", "max_length", "precision")  # a record must have these
SPACE = ("readout", "template", "full_stop", "steps", "_emb")  # the first that differs names another space
SETTINGS = (
    *("prompt", "max_length", "precision", "largest_weight", "rounded"),
    *("on_truncate", "window", "stride", "chunks"),
)
SPAN = ("start", "end")  # of a chunk, in characters


def difference(old: Store, spec: Mapping[str, Any], kind: str) -> str | None:
    """The first setting that differs between old and new vectors; None if the old ones can be copied.

    `spec` is the record of the new vectors before they are stored as `kind`.
    """
    new = spec_of_signs(spec) if old.kind == "binary" else spec
    same_space = space_of(str(old.emb)) == space_of(new["_emb"])
    for name in SETTINGS if same_space else SPACE:
        before, now = old.spec.get(name), new.get(name)
        if before != now:
            return f'"{name}" is {shown(before)}, this command has {shown(now)}'
    if old.kind not in ("float32", kind):
        return f'"store" is "{old.kind}", this command has "{kind}"'
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """One file or folder of --reuse."""

    store: Store
    texts: tuple[str, ...]  # the fields of its rows with the texts
    prompts: tuple[str, ...]  # of these fields, if they differ; else ()
    first: int  # the place of its first text; a row has one place for each text

    @property
    def by_row(self) -> bool:
        """Whether vectors of single rows can be copied; the scales of int8 depend on all rows of a file."""
        return self.store.kind != "int8"

    def place(self, file: int) -> int:
        """The place of the first text of a file."""
        return self.first + self.store.starts[file] * len(self.texts)


class OldVectors:
    """The vectors of all files and folders of --reuse. A place is the number of a text in all of them."""

    def __init__(
        self,
        paths: Iterable[str],
        spec: Mapping[str, Any],
        width: int,
        kind: str,
        warn: Callable[[str], None],
    ) -> None:
        self.spec, self.width, self.kind, self.chunks = spec, width, kind, bool(spec.get("chunks"))
        self.sources: list[Source] = []
        self.unneeded: int | None = None  # rows; known at the end of a process that reads all of the input
        self.verified: set[str] = set()  # paths of intact files
        count = 0
        for path in paths:
            source, note = self.open(path, count)
            if note is not None:
                warn(f"--reuse {path}: {note}")
            if source is not None:
                self.sources.append(source)
                count += source.store.count * len(source.texts)
        self.needed = np.zeros(count, bool)  # by place
        self.firsts = [source.first for source in self.sources]
        self.open_file = lru_cache(OPEN_MAPS)(open_file)

    def open(self, path: str, first: int) -> tuple[Source | None, str | None]:
        """Open a file or folder, or return the reason why nothing or only blocks of it can be copied."""
        if path == "-" or not is_store(path):
            if path != "-":
                open_file(path).close()
            advice = "rows record the space, but not prompt, length and precision: use -o FILE.safetensors"
            raise UsageError(f"--reuse {path}: expected a vector file or a vector folder", advice=advice)
        store = Store(path)
        if missing := [name for name in RECORDED if name not in store.spec]:
            problem = f'its record has no "{missing[0]}", so its vectors cannot be reused'
            raise DataError(problem, source=path, advice="use a vector file or folder of sentkit encode")
        if (different := difference(store, self.spec, self.kind)) is not None:
            return None, f"{different}; nothing is reused"
        if store.count and store.width != self.width:
            raise DataError(f"its vectors have {store.width} numbers, not {self.width}", source=path)
        kind = next(each for each in KINDS if each.vectors == store.names)
        prompts = store.spec["prompt"] if isinstance(store.spec["prompt"], dict) else {}
        own = prompts_of_sides(kind, prompts)
        source = Source(store, tuple(store.fields.get(name, name) for name in kind.texts), own, first)
        by_row = None if source.by_row else '"store" is "int8", so only whole blocks of a folder are reused'
        return source, by_row

    @cached_property
    def index(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.intp]]:
        """Both halves of all keys, and their places, in the order of the first half and of the place."""
        keys = bytearray()
        for source in self.sources:
            for row in chain.from_iterable(source.store.row_blocks()):
                span = [row.values.get(name) for name in SPAN] if self.chunks else ()
                texts = [string_in(row, name) for name in source.texts]
                for text in zip(source.prompts, texts, strict=True) if source.prompts else texts:
                    keys += key_of(text, span)
        halves = np.frombuffer(keys, "<u8").reshape(-1, 2)
        order = np.argsort(halves[:, 0], kind="stable")
        return halves[order, 0], halves[order, 1], order

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The place of each key, or -1."""
        first, second, order = self.index
        wanted = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
        if not len(first):
            return [-1] * len(wanted)
        at = np.minimum(np.searchsorted(first, wanted[:, 0]), len(first) - 1)
        found = (first[at] == wanted[:, 0]) & (second[at] == wanted[:, 1])
        places = order[at]
        self.needed[places[found]] = True
        by_row = np.array([source.by_row for source in self.sources])
        found &= by_row[np.searchsorted(self.firsts, places, side="right") - 1]
        return np.where(found, places, -1).tolist()

    def read(self, places: Sequence[int]) -> NDArray[np.float32]:
        """The vectors at these places, (n, d). A file is verified before its first use."""
        vectors = np.empty((len(places), self.width), np.float32)
        for row, place in enumerate(places):
            source = self.sources[bisect_right(self.firsts, place) - 1]
            texts, starts = len(source.texts), source.store.starts
            number = bisect_right(starts, (place - source.first) // texts) - 1
            file = source.store.files[number]
            if file.path not in self.verified:
                if file.has_digest and (damage := file.damage()):
                    raise damaged(file, damage)
                self.verified.add(file.path)
            numbers = np.dtype(file.storage.dtype)
            size = numbers.itemsize * file.storage.columns
            at = file.header.entries["embeddings"].start + (place - source.place(number)) * size
            if is_url(file.path):
                with open_file(file.path) as far:
                    far.seek(at)
                    raw = far.read(size)
            else:
                opened = self.open_file(file.path)  # it stays open under this name, if a thread opens others
                raw = os.pread(opened.fileno(), size, at)
            vectors[row] = file.storage.decode(np.frombuffer(raw, numbers))
        return vectors

    def count_unneeded(self) -> None:
        """Count the rows with only texts that no row of the input has."""
        first, _, order = self.index
        self.unneeded = 0
        if not len(first):
            return
        starts = np.flatnonzero(np.append(True, first[1:] != first[:-1]))  # of equal texts
        needed = np.empty_like(self.needed)
        any_of_them = np.logical_or.reduceat(self.needed[order], starts)
        needed[order] = np.repeat(any_of_them, np.diff(starts, append=len(first)))
        for source in self.sources:
            own = needed[source.first :][: source.store.count * len(source.texts)]
            self.unneeded += int((~own.reshape(-1, len(source.texts)).any(axis=1)).sum())


def key_of(text: str | tuple[str, ...], span: Iterable[object]) -> bytes:
    """The hash of a text, with its prompt if there are several, or of the chunk with these characters."""
    words = [text] if isinstance(text, str) else text
    return blake2b("\0".join([*words, *map(str, span)]).encode(), digest_size=16).digest()


class ReusingTokenizer(OuterTokenizer):
    """Tokenizes texts, and adds the places of their old vectors."""

    whole = False  # see `TextTokenizer`

    def __init__(self, tokenizer: TextTokenizer, old: OldVectors) -> None:
        self.tokenizer, self.old, self.unit = tokenizer, old, tokenizer.unit

    def __call__(self, texts: Sequence[Any]) -> TokenBlock:
        tokens = tokenized(self.tokenizer, texts)
        # One item for each vector of a text: nothing, or the characters of a chunk.
        spans: list[Sequence[Sequence[int]]] = [[()]] * len(tokens)
        if self.old.chunks:
            spans = [tokens.windows[k].places if k in tokens.windows else [] for k in range(len(tokens))]
        keys = [key_of(text, span) for text, own in zip(texts, spans, strict=True) for span in own]
        places = iter(self.old.find(keys))
        found = (tuple(islice(places, len(own))) for own in spans)
        return replace(tokens, old={k: own for k, own in enumerate(found) if own and min(own) >= 0})
