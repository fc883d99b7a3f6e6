"""The rows of a run as token ids, and the rows and random draws of each step.

The rows are tokenised once into a memory-mapped file. A million sentences need about 100 MB on disk and a few
MB of memory. Other files contain the end of each text and the target of each row. One process writes the
files and all processes map them.

The rows and draws of a step are computed from the seed and the step number. The position of a run in its data
is therefore one number, and no other state of the data is saved.
"""

import hashlib
import math
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.outputs.temporary import create
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.metrics.seen_pairs import SeenPairs
from sentkit.model.text.tokens import TextTokenizer, TokenBlock, TokenizerByPrompt, Tokens
from sentkit.training.data.examples import Classes, Example, ExampleParser

Ids = NDArray[np.int32]


def stream(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Return an independent generator for each seed, step and purpose."""
    sequence = np.random.SeedSequence([seed, step, zlib.crc32(purpose.encode())])
    return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class Batch:
    texts: tuple[Sequence[Ids], ...]  # for each text of a row: one sequence of token ids per row
    targets: NDArray[np.float64] | None = None  # one per row: the number of a label, or a score
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # name -> one value per row
    vectors: NDArray[np.float32] | None = None  # (b, d): those of a teacher

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def tokens(self) -> int:
        return sum(self.row_tokens)

    @property
    def row_tokens(self) -> list[int]:
        return [sum(map(len, texts)) for texts in zip(*self.texts, strict=True)]

    def part(self, rows: slice) -> "Batch":
        targets = None if self.targets is None else self.targets[rows]
        draws = {name: values[rows] for name, values in self.draws.items()}
        vectors = None if self.vectors is None else self.vectors[rows]
        return Batch(tuple(texts[rows] for texts in self.texts), targets, draws, vectors)


@dataclass(slots=True)
class Order:
    """The rows of each step. Each epoch is a new permutation, and its last batch can be smaller."""

    rows: int
    batch: int
    epochs: int
    seed: int
    least: int = 2  # omit a smaller last batch: a contrast needs two rows
    most: int | None = None  # steps
    _epoch: int = field(default=-1, init=False)
    _permutation: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

    @property
    def epoch_steps(self) -> int:
        whole, rest = divmod(self.rows, self.batch)
        return whole + (rest >= self.least)

    @property
    def steps(self) -> int:
        every = self.epoch_steps * self.epochs
        return every if self.most is None else min(every, self.most)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a step. The first step is 0."""
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._permutation = stream(self.seed, epoch, "order").permutation(self.rows)
            self._epoch = epoch
        return self._permutation[place * self.batch : (place + 1) * self.batch]


def shares(rows: int, parts: int) -> list[slice]:
    """Divide the rows of a batch into parts of nearly equal size."""
    ends = [rows * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def chunks(rows: int, size: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `size` rows. 0 means one chunk."""
    count = math.ceil(rows / size) if size else 1
    return shares(rows, max(count, 1))


def chunks_of_tokens(row_tokens: Sequence[int], most: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `most` tokens. A longer row is a chunk of its own."""
    starts, room = [0], most
    for row, tokens in enumerate(row_tokens):
        if tokens > room and row > starts[-1]:
            starts.append(row)
            room = most
        room -= tokens
    return [slice(start, end) for start, end in pairwise([*starts, len(row_tokens)])]


WINDOW = 2048  # rows tokenised at once
CORPUS = ("tokens.i32", "vectors.f32", "ends.npy", "targets.npy", "rows.json")
IDS, VECTORS, ENDS, TARGETS, ROWS = CORPUS


@dataclass(frozen=True, slots=True)
class Corpus:
    ids: Ids  # all texts, concatenated
    ends: NDArray[np.int64]  # (rows, most texts of a row); missing texts are last and empty
    targets: NDArray[np.float64] | None  # (rows,)
    labels: tuple[str, ...] = ()  # with `Classes`: the label of each number in `targets`
    vectors: NDArray[np.float32] | None = None  # (rows, d): those of a teacher
    teacher: str = ""  # the `_emb` of these vectors, if the rows have it

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def columns(self) -> int:
        return int(self.ends.shape[1])

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        texts = tuple([self.text(int(row), column) for row in rows] for column in range(self.columns))
        targets = None if self.targets is None else self.targets[rows]
        return Batch(texts, targets, vectors=None if self.vectors is None else self.vectors[rows])

    def text(self, row: int, column: int) -> Ids:
        flat = row * self.columns + column
        ends = self.ends.reshape(-1)
        return self.ids[ends[flat - 1] if flat else 0 : ends[flat]]

    @property
    def digest(self) -> str:
        """Hash of all data. It depends on the rows, the tokenizer and the maximum length."""
        hash = hashlib.blake2b(f"{self.columns} {len(self)}".encode(), digest_size=16)
        for values in (self.ids, self.ends, self.targets, self.vectors):
            if values is not None:
                hash.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        if self.labels:
            hash.update(orjson.dumps(self.labels))
        return hash.hexdigest()


@dataclass(slots=True)
class Tallied:
    """Counts of used, omitted and truncated rows, for the messages before the first step."""

    rows: int = 0
    left_out: int = 0
    why: str = ""  # reason for omitting them
    repeated: int = 0  # omitted duplicates
    truncated: int = 0  # rows with a truncated text
    unread: tuple[str, ...] = ()  # fields of a pair (label, score) that this method ignores

    def warnings(self) -> Iterator[str]:
        if self.left_out:
            yield f"{self.left_out} rows skipped: {self.why}"
        if self.repeated:
            yield f"{self.repeated} rows skipped: duplicate texts (dedup=on)"
        if self.unread:
            unread = " and ".join(f'"{name}"' for name in self.unread)
            yield f"this method uses every pair as a positive pair and ignores {unread}"
        if self.truncated:
            rows = f"{self.truncated} of {self.rows} rows"
            yield f"{rows} were truncated to the maximum length (--set max_length)"


def write_corpus(
    folder: Path,
    inputs: Inputs,
    parser: ExampleParser,
    tokenizer: TextTokenizer,
    *,
    dedup: bool = False,
    seen_pairs: SeenPairs | None = None,
) -> Tallied:
    """Tokenise all rows and write the files of a corpus. `seen_pairs` takes the texts of each row."""
    tallied, place = Tallied(), 0
    ends, counts, targets = array("q"), array("i"), array("d")
    for name in CORPUS:
        (folder / name).unlink(missing_ok=True)
    reader, has_vectors = VectorReader(inputs), parser.reads.vectors
    blocks = reader.blocks(parser.with_vectors) if has_vectors else without_vectors(inputs, parser)
    used = used_rows(blocks, tallied, seen_pairs, dedup=dedup)
    with create(folder / IDS) as file, create(folder / VECTORS) as vectors:
        for block in resized(used, joined, WINDOW):
            examples = [example for (example,) in block.rows.texts]
            for places, texts, owners in tokenised(block.rows, examples, parser, tokenizer, inputs.rejects):
                file.write(texts.ids.data)
                ends.extend((place + np.cumsum(texts.lengths)).tolist())
                place = ends[-1]
                of_rows = np.unique(owners, return_counts=True)[1]
                counts.extend(of_rows.tolist())
                tallied.rows += len(of_rows)
                tallied.truncated += len(np.unique(owners[texts.truncated]))
                chosen = examples[places] if isinstance(places, slice) else [examples[n] for n in places]
                targets.extend(each.target for each in chosen if each.target is not None)
                vectors.write(block.vectors[places].astype("<f4", copy=False).tobytes())
    tallied.unread = parser.unread
    tallied.why = parser.reads.target.why if parser.reads.target else ""
    own = np.array(counts, np.int64)[:, None]  # the texts of each row
    of_texts = np.cumsum(own, 0) - own + np.minimum(np.arange(max(counts, default=1)), own - 1)
    labels = parser.reads.target.sort(targets) if isinstance(parser.reads.target, Classes) else ()
    with create(folder / ENDS) as file:
        np.save(file, np.array(ends, np.int64)[of_texts])  # a row with fewer texts ends with empty texts
    with create(folder / TARGETS) as file:
        np.save(file, np.array(targets))
    with create(folder / ROWS) as file:
        file.write(orjson.dumps({"labels": labels, "teacher": reader.emb or ""}))
    return tallied


def without_vectors(inputs: Inputs, parser: ExampleParser) -> Iterator[VectorBlock]:
    for rows in inputs.blocks(parser.rows):
        yield VectorBlock(rows, np.empty((len(rows), 0, 0), np.float32), ())


def used_rows(
    blocks: Iterable[VectorBlock], tallied: Tallied, seen_pairs: SeenPairs | None, *, dedup: bool
) -> Iterator[VectorBlock]:
    """The rows of the blocks that are not omitted."""
    seen: set[bytes] = set()
    for block in blocks:
        used: list[int] = []
        for place, (example,) in enumerate(block.rows.texts):
            if example is None:
                tallied.left_out += 1
                continue
            if seen_pairs is not None:
                seen_pairs.take(example.row, example.texts)
            if dedup:
                identity = hashlib.blake2b("\0".join(example.texts).encode(), digest_size=12).digest()
                if identity in seen:
                    tallied.repeated += 1
                    continue
                seen.add(identity)
            used.append(place)
        yield block if len(used) == len(block) else block.take(used)


def tokenised(
    rows: RowBlock,
    examples: Sequence[Example],
    parser: ExampleParser,
    tokenizer: TextTokenizer,
    rejects: Rejects,
) -> Iterator[tuple[Sequence[int] | slice, TokenBlock, NDArray[np.int64]]]:
    """Yield the places of the rows, the columns of all their texts, and the row of each of these.

    Rows with a text that has a problem are rejected.
    """
    columns = columns_of([example.texts for example in examples], parser, tokenizer)
    blocks = [each if isinstance(each, TokenBlock) else TokenBlock.of(each) for each in columns]
    count, width = len(blocks[0]), len(blocks)  # the texts of a row are together, each with its columns
    own = [1] * len(rows) if count == len(rows) else [len(example.texts) for example in examples]
    owners = np.repeat(np.repeat(np.arange(len(rows)), own), width)
    order = (np.arange(count)[:, None] + count * np.arange(width)).ravel()
    problems = [(text, n, each) for n, block in enumerate(blocks) for text, each in block.problems.items()]
    for text, _, problem in sorted(problems):
        rows.refuse(int(owners[text * width]), problem)
    lengths = np.concatenate([each.lengths for each in blocks])
    cut = np.concatenate([each.truncated for each in blocks])
    tokens = TokenBlock(np.concatenate([each.ids for each in blocks]), lengths, lengths + cut)
    for places in rejects.good_places(rows):
        kept = np.zeros(len(rows), bool)
        kept[places] = True
        chosen = kept[owners]
        yield places, tokens.take(order[chosen]), owners[chosen]


def columns_of(
    rows: Sequence[tuple[str, ...]], parser: ExampleParser, tokenizer: TextTokenizer
) -> list[Sequence[Tokens]]:
    """The columns of all rows, or with as many for each text, those of all texts of all rows."""
    reads, prompts = parser.reads, parser.prompts
    if reads.tokenize is not None:
        return reads.tokenize(rows)
    if reads.columns:
        readers = [(n, read.with_prompt(prompts[n]) if prompts else read) for n, read in reads.columns]
        return [read([texts[n] for texts in rows]) for n, read in readers]
    read: list[Sequence[Tokens]]
    texts = [text for each in rows for text in each]
    if prompts:  # the texts of a list have the last one
        last = len(prompts) - 1
        of_texts = [prompts[min(place, last)] for each in rows for place in range(len(each))]
        read = [TokenizerByPrompt(tokenizer, prompts)([*zip(of_texts, texts, strict=True)])]
    else:
        read = [tokenizer(texts)]
    if reads.second is not None:  # another model, with its own prompt
        read.append(reads.second(texts))
    return read


def map_corpus(folder: Path) -> Corpus:
    ends, targets = np.load(folder / ENDS, mmap_mode="r").view(np.ndarray), np.load(folder / TARGETS)
    vectors, rows = mapped(folder / VECTORS, np.float32), orjson.loads((folder / ROWS).read_bytes())
    return Corpus(
        mapped(folder / IDS, np.int32),
        ends,
        targets if len(targets) else None,
        tuple(rows["labels"]),
        vectors.reshape(len(ends), -1) if len(vectors) else None,
        rows["teacher"],
    )


def mapped(path: Path, kind: type) -> NDArray:
    if not path.stat().st_size:
        return np.empty(0, kind)
    # Slices of a plain array are three times as fast as slices of a memmap.
    return np.memmap(path, kind, mode="r").view(np.ndarray)


def check_labels(corpus: Corpus, source: str, name: str) -> None:
    """Raise a DataError if all rows have the same label, or score."""
    assert corpus.targets is not None, "rows without labels"
    if corpus.targets.min() == corpus.targets.max():
        what = "classify" if name == "label" else "predict"
        problem = f'"{name}" is the same in all {len(corpus)} rows: nothing to {what}'
        raise DataError(problem, source=source)
