"""The rows of a run as token ids, and the rows and random draws of each step.

`corpus_writer.py` tokenizes the rows once into files. All processes map these files. A million
sentences need about 100 MB on disk and a few MB of memory.

The rows and draws of a step are computed from the seed and the step number. The position of a run
in its data is therefore one number, and no other state of the data is saved.
"""

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError

Ids = NDArray[np.int32]


def stream(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Return an independent generator for each seed, step and purpose."""
    sequence = np.random.SeedSequence([seed, step, zlib.crc32(purpose.encode())])
    return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class Batch:
    # columns: the first texts of all rows, then the second ones, ...
    texts: tuple[Sequence[Ids], ...]
    targets: NDArray[np.float64] | None = None  # one per row: the number of a label, or a score
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # name -> one value per row
    vectors: NDArray[np.float32] | None = None  # (b, d): those of a teacher
    # the columns of `texts` by a second tokenizer, for a guide or a comparison; see `Reads`
    second_texts: tuple[Sequence[Ids], ...] = ()

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def tokens(self) -> int:
        return sum(self.row_tokens)

    @property
    def row_tokens(self) -> list[int]:
        """The tokens of each row that the trained encoder reads."""
        return [sum(map(len, texts)) for texts in zip(*self.texts, strict=True)]

    def take(self, rows: slice) -> "Batch":
        targets = None
        if self.targets is not None:
            targets = self.targets[rows]
        vectors = None
        if self.vectors is not None:
            vectors = self.vectors[rows]
        texts = tuple(column[rows] for column in self.texts)
        second_texts = tuple(column[rows] for column in self.second_texts)
        draws = {name: values[rows] for name, values in self.draws.items()}
        return Batch(texts, targets, draws, vectors, second_texts)


MIXED = "mixed"  # values of the setting `batches`
BY_FILE = "by-file"
PROPORTIONAL = "proportional"
ROUND_ROBIN = "round-robin"


@dataclass
class Order:
    """The rows of each step. Each epoch is a new permutation, and its last batch can be smaller.

    If the batches are not mixed, each has rows of one file, and each file can have a smaller last
    batch.
    """

    rows: int
    batch: int
    epochs: int | None  # None: as many as `max_steps` needs
    seed: int
    smallest_batch: int = 2  # omit a smaller last batch: a contrast needs two rows
    max_steps: int | None = None
    batches: str = MIXED
    files: NDArray[np.int32] | None = None  # (rows,): the number of the file of each row
    _epoch: int = field(default=-1, init=False)
    _batches: list[NDArray[np.int64]] = field(default_factory=list, init=False)  # of this epoch

    @cached_property
    def file_steps(self) -> list[int]:
        """The number of batches of each file in an epoch; of all rows if the batches are mixed."""
        counts = [self.rows]
        if self.files is not None:
            counts = np.bincount(self.files).tolist()
        steps = [self.steps_of(count) for count in counts]
        if self.batches == ROUND_ROBIN:
            steps = [min(steps)] * len(steps)
        return steps

    def steps_of(self, rows: int) -> int:
        full_batches, rest = divmod(rows, self.batch)
        if rest >= self.smallest_batch:
            return full_batches + 1
        return full_batches

    @property
    def epoch_steps(self) -> int:
        return sum(self.file_steps)

    @property
    def steps(self) -> int:
        if self.epochs is None:
            assert self.max_steps is not None
            return self.max_steps
        steps = self.epoch_steps * self.epochs
        if self.max_steps is None:
            return steps
        return min(steps, self.max_steps)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a step. The first step is 0."""
        epoch, epoch_step = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._batches = self._batches_of(epoch)
            self._epoch = epoch
        return self._batches[epoch_step]

    def _batches_of(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch. The permutation of all rows also permutes those of each file."""
        permutation = stream(self.seed, epoch, "order").permutation(self.rows)
        rows_of_file = [permutation]
        if self.files is not None:
            files = self.files[permutation]
            rows_of_file = [permutation[files == file] for file in range(len(self.file_steps))]
        steps_done = [0] * len(rows_of_file)
        batches: list[NDArray[np.int64]] = []
        for file in self._files_of(epoch):
            start = steps_done[file] * self.batch
            batches.append(rows_of_file[file][start : start + self.batch])
            steps_done[file] += 1
        return batches

    def _files_of(self, epoch: int) -> list[int]:
        """The file of each batch of an epoch."""
        file_of_batch = np.repeat(np.arange(len(self.file_steps)), self.file_steps)
        if self.batches == BY_FILE:
            return stream(self.seed, epoch, "files").permutation(file_of_batch).tolist()
        # Batch i of the n of a file belongs at (i + 1/2) / n of the epoch; ties in file order.
        middles = [(np.arange(steps) + 0.5) / max(1, steps) for steps in self.file_steps]
        order = np.argsort(np.concatenate(middles), kind="stable")
        return file_of_batch[order].tolist()


def shares(rows: int, count: int) -> list[slice]:
    """Divide the rows of a batch into `count` slices of nearly equal size."""
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def chunks(rows: int, size: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `size` rows. 0 means one chunk."""
    count = 1
    if size and rows:
        count = math.ceil(rows / size)
    return shares(rows, count)


def chunks_of_tokens(row_tokens: Sequence[int], max_tokens: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `max_tokens`, or of one longer row."""
    starts = [0]
    room = max_tokens
    for row, tokens in enumerate(row_tokens):
        if tokens > room and row > starts[-1]:
            starts.append(row)
            room = max_tokens
        room -= tokens
    return [slice(start, end) for start, end in pairwise([*starts, len(row_tokens)])]


# The files of a corpus.
CORPUS = (
    "tokens.i32",
    "vectors.f32",
    "ends.npy",
    "first_texts.npy",
    "targets.npy",
    "files.npy",
    "rows.json",
)
IDS, VECTORS, ENDS, FIRST_TEXTS, TARGETS, FILES, ROWS = CORPUS


@dataclass(frozen=True, slots=True)
class Corpus:
    ids: Ids  # all texts, concatenated
    ends: NDArray[np.int64]  # (texts,): the end of each text in `ids`
    # (rows + 1,): the index of the first text of each row, and the number of texts
    first_texts: NDArray[np.int64]
    targets: NDArray[np.float64] | None  # (rows,)
    has_second_texts: bool = False  # after each text, the same text by a second tokenizer
    labels: tuple[str, ...] = ()  # with `Classes`: the label of each number in `targets`
    vectors: NDArray[np.float32] | None = None  # (rows, d): those of a teacher
    teacher: str = ""  # the `_emb` of these vectors, if the rows have it
    # For batches of one file: the number of the file of each row, (rows,), and the names.
    files: NDArray[np.int32] | None = None
    file_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first_texts) - 1

    @property
    def columns(self) -> int:
        """The most texts of a row."""
        most_texts = int(np.diff(self.first_texts).max(initial=0))
        if self.has_second_texts:
            return most_texts // 2
        return most_texts

    @property
    def tokens(self) -> int:
        """The tokens that the trained encoder reads in an epoch."""
        lengths = np.diff(self.ends, prepend=0)
        if self.has_second_texts:
            lengths = lengths[::2]
        return int(lengths.sum())

    def batch(self, rows: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return rows, with the columns of the row with the most texts; missing texts are empty."""
        text_counts = self.first_texts[np.add(rows, 1)] - self.first_texts[rows]
        texts = tuple(
            [self.text(int(row), column) for row in rows] for column in range(text_counts.max())
        )
        second_texts: tuple[Sequence[Ids], ...] = ()
        if self.has_second_texts:
            second_texts = texts[1::2]
            texts = texts[::2]
        targets = None
        if self.targets is not None:
            targets = self.targets[rows]
        vectors = None
        if self.vectors is not None:
            vectors = self.vectors[rows]
        return Batch(texts, targets, vectors=vectors, second_texts=second_texts)

    def text(self, row: int, column: int) -> Ids:
        """Return a text of a row; an empty one if the row has fewer texts. Second texts count."""
        text_index = self.first_texts[row] + column
        if text_index >= self.first_texts[row + 1]:
            return self.ids[:0]
        start = 0
        if text_index:
            start = self.ends[text_index - 1]
        return self.ids[start : self.ends[text_index]]

    @property
    def digest(self) -> str:
        """Hash of all data. It depends on the rows, the tokenizer and the maximum length."""
        text_counts = np.diff(self.first_texts)
        columns = text_counts.max(initial=0)
        hash = hashlib.blake2b(f"{columns} {len(self)}".encode(), digest_size=16)
        first_texts: NDArray[np.int64] | None = None
        if (text_counts != text_counts[:1]).any():  # else the number of columns gives them
            first_texts = self.first_texts
        arrays = (self.ids, self.ends, first_texts, self.targets, self.vectors, self.files)
        for values in arrays:
            if values is not None:
                hash.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        if self.labels:
            hash.update(orjson.dumps(self.labels))
        return hash.hexdigest()


def map_corpus(folder: Path) -> Corpus:
    """The corpus that `write_corpus` wrote; its arrays stay in their files."""
    ends = np.load(folder / ENDS, mmap_mode="r").view(np.ndarray)
    first_texts = np.load(folder / FIRST_TEXTS, mmap_mode="r").view(np.ndarray)
    all_targets = np.load(folder / TARGETS)
    all_vectors = memory_mapped(folder / VECTORS, np.float32)
    all_files = np.load(folder / FILES)
    files = None
    if len(all_files):
        files = all_files
    targets = None
    if len(all_targets):
        targets = all_targets
    vectors = None
    if len(all_vectors):
        vectors = all_vectors.reshape(len(first_texts) - 1, -1)
    names = orjson.loads((folder / ROWS).read_bytes())
    return Corpus(
        ids=memory_mapped(folder / IDS, np.int32),
        ends=ends,
        first_texts=first_texts,
        targets=targets,
        has_second_texts=names["second_texts"],
        labels=tuple(names["labels"]),
        vectors=vectors,
        teacher=names["teacher"],
        files=files,
        file_names=tuple(names["files"]),
    )


def memory_mapped(path: Path, dtype: type) -> NDArray:
    if not path.stat().st_size:
        return np.empty(0, dtype)
    # Slices of a plain array are three times as fast as slices of a memmap.
    return np.memmap(path, dtype, mode="r").view(np.ndarray)


def check_labels(corpus: Corpus, source: str, name: str) -> None:
    """Raise a DataError if all rows have the same label, or score."""
    assert corpus.targets is not None, "rows without labels"
    if corpus.targets.min() == corpus.targets.max():
        verb = "classify" if name == "label" else "predict"
        problem = f'"{name}" is the same in all {len(corpus)} rows: nothing to {verb}'
        raise DataError(problem, source=source)


def refuse_one_file(batches: str, source: str) -> NoReturn:
    problem = f"batches={batches} needs several different files, and only {source} has rows"
    raise UsageError(problem, advice=f"add files, or use --set batches={MIXED}")


def check_files(corpus: Corpus, batches: str, smallest_batch: int) -> None:
    """Raise an error for rows of one file, or a file with too few rows for a batch."""
    if corpus.files is None:
        return
    if len(corpus.file_names) < 2:
        refuse_one_file(batches, corpus.file_names[0])
    counts = np.bincount(corpus.files)
    fewest = int(counts.argmin())
    if counts[fewest] < smallest_batch:
        problem = f"{counts[fewest]} row can be used, but batches={batches} needs at least "
        problem += f"{smallest_batch} of each file"
        raise DataError(problem, source=corpus.file_names[fewest])
