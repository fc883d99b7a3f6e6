"""The vectors of earlier vector files and folders, which `encode --reuse` copies for equal texts.

A text is found by a hash of 16 bytes. The search needs about 25 bytes per text, and 50 while it is
built.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import open_file, refuse_compressed_vectors
from sentkit.formats.rows.kinds import KINDS, prompts_of_sides, string_value
from sentkit.formats.vectors.fingerprint import space_of, spec_of_signs, without_machine
from sentkit.formats.vectors.folders import FolderRun, shown
from sentkit.formats.vectors.store import VectorFolder
from sentkit.formats.vectors.vector_file import VectorFile, VectorSource
from sentkit.model.groups import RowGroup
from sentkit.model.text.tokens import TokenBlock

RECORDED = ("_emb", "prompt", "max_length", "precision")  # a record must have these
# the first that differs names another space
SPACE = (
    "readout",
    "template",
    "full_stop",
    "steps",
    "_emb",
)
SETTINGS = (
    "prompt",
    "prompt_is_read",
    "max_length",
    "truncation_side",
    "precision",
    "largest_weight",
    "rounded",
    "on_truncate",
    "window",
    "stride",
    "chunks",
)
KEY = "S16"  # numpy ignores zero bytes at the end, which all keys may have
SPAN = ("start", "end")  # of a chunk, in characters
MISSING = -1  # instead of the number of a vector


# The identity of a block (see `Grid.identity_of`) and the names of its vectors -> the digest of
# its source -> its file.
BlockFiles = dict[tuple[Any, ...], dict[str, VectorFile]]


def difference(old: VectorSource, spec: Mapping[str, Any], kind: str) -> str | None:
    """The first setting that differs between old and new vectors; None if the old ones can be
    copied.
    """
    new = spec_of_signs(spec) if old.kind == "binary" else spec
    same_space = space_of(str(old.space_name)) == space_of(new["_emb"])
    compared = SETTINGS if same_space else SPACE
    for name in compared:
        old_value = old.metadata.get(name)
        new_value = new.get(name)
        if old_value != new_value:
            return f'"{name}" is {shown(old_value)}, this command has {shown(new_value)}'
    if old.kind not in ("float32", kind):
        return f'"store" is "{old.kind}", this command has "{kind}"'
    return None


def same_for_all(folder: FolderRun) -> dict[str, Any]:
    """The settings of a folder without its inputs."""
    settings = {name: value for name, value in folder.settings.items() if name != "inputs"}
    settings["encoder"] = without_machine(folder.settings["encoder"])
    return settings


def check_old(path: str, store: VectorSource | None) -> VectorSource:
    """Refuse a file that `--reuse` cannot read."""
    if store is None:
        if path != "-":
            open_file(path).close()
            refuse_compressed_vectors(path)
        advice = (
            "rows record the space, but not prompt, length and precision: use -o FILE.safetensors"
        )
        raise UsageError(
            f"--reuse {path}: expected a vector file or a vector folder", advice=advice
        )
    for name in RECORDED:
        if name not in store.metadata:
            problem = f'its record has no "{name}", so its vectors cannot be reused'
            raise DataError(
                problem, source=path, advice="use a vector file or folder of sentkit encode"
            )
    return store


class ReusableVectors:
    """The vectors of all files and folders of --reuse, numbered in the order of the files and of
    their rows.
    """

    def __init__(
        self,
        files: Mapping[str, VectorSource | None],
        spec: Mapping[str, Any],
        width: int,
        kind: str,
        warn: Callable[[str], None],
    ) -> None:
        """`files` are the files and folders of --reuse by path; None if they have no vectors."""
        self.width = width
        self.chunks = bool(spec.get("chunks"))
        self.copies = not spec.get("window")  # whole blocks; windows are counted by row
        # rows; known at the end of a process that reads all of the input
        self.unneeded: int | None = None
        self.stores: list[VectorSource] = []
        for path, opened in files.items():
            store = check_old(path, opened)
            difference_of_store = difference(store, spec, kind)
            if difference_of_store is not None:
                warn(f"--reuse {path}: {difference_of_store}; nothing is reused")
                continue
            if store.count and store.width != width:
                raise DataError(f"its vectors have {store.width} numbers, not {width}", source=path)
            if store.kind == "int8":  # the scales depend on all rows of a file
                warn(
                    f'--reuse {path}: "store" is "int8", so only whole blocks of a folder are '
                    f"reused"
                )
            self.stores.append(store)
        # The first vector of a text counts, and those in int8 cannot be read one by one.
        self.stores.sort(key=lambda store: store.kind == "int8")
        self.files = [file for store in self.stores for file in store.files]
        # The number of the first vector of each file, and the number of all.
        self.starts = np.cumsum([0, *(file.count * len(file.names) for file in self.files)])
        self.first = dict(zip(self.files, self.starts.tolist(), strict=False))
        self.needed = np.zeros(self.starts[-1], bool)  # by the number of the vector
        self.verified: set[int] = set()  # numbers of intact files

    @cached_property
    def keys_and_vectors(self) -> tuple[NDArray[np.bytes_], NDArray[np.intp]]:
        """The keys of all vectors, sorted, and the number of the vector of each.

        Equal keys are sorted by vector, so that `searchsorted` finds the first.
        """
        keys = bytearray()
        for store in self.stores:
            kind = next(kind for kind in KINDS if kind.vector_names == store.names)
            fields = [store.fields.get(name, name) for name in kind.text_names]
            prompt = store.metadata["prompt"]  # one for each field, if they differ
            prompts = prompts_of_sides(kind, prompt) if isinstance(prompt, dict) else ()
            for row in chain.from_iterable(store.row_blocks()):
                span = [row.values.get(name) for name in SPAN] if self.chunks else []
                texts: list[Any] = [string_value(row, name) for name in fields]
                if prompts:
                    texts = list(zip(prompts, texts, strict=True))
                for text in texts:
                    keys += key_of(text, span)
        unsorted = np.frombuffer(keys, KEY)
        order = np.argsort(unsorted, kind="stable")
        return unsorted[order], order

    def files_of(self, vectors: NDArray[np.intp]) -> NDArray[np.intp]:
        """The number of the file of each vector, from the number of the vector."""
        return np.searchsorted(self.starts, vectors, side="right") - 1

    def with_stored_vectors(self, group: RowGroup) -> RowGroup:
        """The same group with the numbers of the stored vectors of its texts."""
        stored_keys, _ = self.keys_and_vectors
        if not len(stored_keys):
            return group

        # A text has one key. With chunks it has one for each chunk, made of the text and the
        # characters.
        texts = dict(
            zip(
                group.text_numbers.ravel().tolist(),
                chain.from_iterable(group.rows.texts),
                strict=True,
            )
        )
        numbers: list[int] = []
        keys: list[bytes] = []
        for number, text in texts.items():
            for span in self.spans_of(group.tokens, number):
                numbers.append(number)
                keys.append(key_of(text, span))

        # A text is reused if all of its keys are stored.
        vectors_of_text: dict[int, list[int]] = {}
        for number, vector in zip(numbers, self.stored_vectors_of(keys), strict=True):
            vectors_of_text.setdefault(number, []).append(vector)
        stored = {
            number: tuple(vectors)
            for number, vectors in vectors_of_text.items()
            if MISSING not in vectors
        }
        return replace(group, stored_vectors=stored)

    def spans_of(self, tokens: TokenBlock, number: int) -> Sequence[Sequence[int]]:
        """For each vector of a text: nothing, or with chunks the characters of the chunk."""
        if not self.chunks:
            return [()]
        if number not in tokens.windows:
            return []
        return tokens.windows[number].characters

    def stored_vectors_of(self, keys: Sequence[bytes]) -> list[int]:
        """The number of the first vector with each key, or MISSING if it cannot be read."""
        vectors, is_stored = self._lookup(keys)
        # Noted before those in int8 are left out: the input has their texts, so they are needed.
        self.needed[vectors[is_stored]] = True
        is_readable = self.file_is_readable[self.files_of(vectors)]
        result: list[int] = np.where(is_stored & is_readable, vectors, MISSING).tolist()
        return result

    def _lookup(self, keys: Sequence[bytes]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The number of the first vector with each key, and whether there is one, both (n,)."""
        stored_keys, vectors_by_key = self.keys_and_vectors
        wanted_keys = np.frombuffer(b"".join(keys), KEY)
        indices = np.searchsorted(stored_keys, wanted_keys)
        # past the end: compare with the last key, which differs
        indices = np.minimum(indices, len(stored_keys) - 1)
        return vectors_by_key[indices], stored_keys[indices] == wanted_keys

    @cached_property
    def file_is_readable(self) -> NDArray[np.bool_]:
        """Whether vectors are read from each file one by one, which int8 does not allow."""
        return np.array([file.storage.kind != "int8" for file in self.files])

    def read(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The vectors with these numbers, (n, d). A file is verified before its first use."""
        vectors = np.empty((len(numbers), self.width), np.float32)
        file_numbers = self.files_of(np.array(numbers))
        for number in np.unique(file_numbers).tolist():
            file = self.files[number]
            storage = file.storage
            if number not in self.verified:
                file.verify()
                self.verified.add(number)
            dtype = np.dtype(storage.dtype)
            size = dtype.itemsize * storage.columns  # bytes of a vector
            first_offset = file.header.entries["embeddings"].start
            first_vector = int(self.starts[number])
            with open_file(file.path) as opened:
                for row in np.flatnonzero(file_numbers == number).tolist():
                    opened.seek(first_offset + (numbers[row] - first_vector) * size)
                    vectors[row] = storage.decode(np.frombuffer(opened.read(size), dtype))
        return vectors

    def blocks(self, folder: FolderRun) -> BlockFiles:
        """The files of the folders of --reuse that have the settings of `folder`."""
        blocks: BlockFiles = {}
        if not self.copies:
            return blocks
        for store in self.stores:
            if not isinstance(store, VectorFolder):
                continue
            before = store.run
            if same_for_all(before) != same_for_all(folder):
                continue
            for file in store.files:
                block = before.block(file.record["input"], file.record["start"])
                block.stop = file.record["stop"]
                block.is_last = file.record["last"]
                # The digests of an older folder can omit the header. --rejects gets the bad rows
                # again.
                is_stream = before.length(block.input_number) is None
                if not (before.by_line and is_stream) and not file.record["skipped"]:
                    files = blocks.setdefault((*before.identity_of(block), file.names), {})
                    files.setdefault(file.record["source"], file)
        return blocks

    def needs(self, file: VectorFile) -> None:
        """Note that all rows of a file are needed."""
        first = self.first[file]
        self.needed[first : first + file.count * len(file.names)] = True

    def count_unneeded(self) -> None:
        """Count the rows with only texts that no row of the input has."""
        keys, order = self.keys_and_vectors
        self.unneeded = 0
        if not len(keys):
            return
        # A vector is needed if one with the same key is.
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))  # of equal keys
        is_key_needed = np.logical_or.reduceat(self.needed[order], starts)
        is_needed = np.empty_like(self.needed)
        is_needed[order] = np.repeat(is_key_needed, np.diff(starts, append=len(keys)))
        for number, file in enumerate(self.files):
            of_file = is_needed[self.starts[number] : self.starts[number + 1]]
            is_row_needed = of_file.reshape(-1, len(file.names)).any(axis=1)
            self.unneeded += int((~is_row_needed).sum())


def key_of(text: str | tuple[str, ...], span: Iterable[object]) -> bytes:
    """The hash of a text, with its prompt if there are several, or of the chunk with these
    characters.
    """
    words = [text] if isinstance(text, str) else text
    return blake2b("\0".join([*words, *map(str, span)]).encode(), digest_size=16).digest()
