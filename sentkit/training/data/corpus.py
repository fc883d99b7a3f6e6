"""The texts of a run as token ids: tokenised once into a memory-mapped file.

A million sentences need about 100 MB on disk and a few MB of memory. Other files contain the end of each text
and the target of each row. One process writes the files and all processes map them.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.outputs.temporary import create
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.metrics.sts.seen import Sightings
from sentkit.model.text.tokens import PromptTokenizer, TokenizerByPrompt, Tokens
from sentkit.training.data.batches import Batch, Ids
from sentkit.training.data.examples import Classes, Example, ExampleParser
from sentkit.training.run_folders import CORPUS

WINDOW = 2048  # rows tokenised at once
IDS, ENDS, TARGETS, COLUMNS, LABELS, VECTORS, TEACHER = CORPUS


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
    tokenizer: PromptTokenizer,
    *,
    dedup: bool = False,
    sightings: Sightings | None = None,
) -> Tallied:
    """Tokenise all rows and write the files of a corpus. `sightings` gets the texts of each row."""
    tallied, place = Tallied(), 0
    ends, counts, targets = array("q"), array("i"), array("d")
    for name in CORPUS:
        (folder / name).unlink(missing_ok=True)
    reader, has_vectors = VectorReader(inputs), parser.reads.vectors
    examples = reader.read(parser.with_vector) if has_vectors else inputs.read(parser)
    vector_file = create(folder / VECTORS) if has_vectors else nullcontext(None)
    with create(folder / IDS) as file, vector_file as vectors:
        for window in windows(examples, tallied, sightings, dedup=dedup):
            for example, own in tokenised(window, parser, tokenizer, inputs.rejects):
                tallied.rows += 1
                counts.append(len(own))
                tallied.truncated += any(each.truncated for each in own)
                for each in own:
                    place += len(each.ids)
                    ends.append(place)
                    file.write(np.array(each.ids, np.int32).tobytes())
                if example.target is not None:
                    targets.append(example.target)
                if vectors is not None and example.vector is not None:
                    vectors.write(example.vector.astype("<f4", copy=False).tobytes())
    tallied.unread = parser.unread
    tallied.why = parser.reads.target.why if parser.reads.target else ""
    width = max(counts, default=1)
    with create(folder / ENDS) as file:
        file.write(rectangular(ends, counts, width).data)
    if isinstance(parser.reads.target, Classes):
        with create(folder / LABELS) as file:
            file.write(orjson.dumps(parser.reads.target.sort(targets)))
    if targets:
        with create(folder / TARGETS) as file:
            file.write(targets)
    with create(folder / COLUMNS) as file:
        file.write(b"%d" % width)
    if reader.emb:
        with create(folder / TEACHER) as file:
            file.write(reader.emb.encode())
    return tallied


def rectangular(ends: array, counts: array, width: int) -> NDArray[np.int64]:
    """Return the ends as (rows, width). A row with fewer texts ends with empty texts."""
    own = np.array(counts, np.int64)[:, None]
    first = np.cumsum(own, 0) - own
    return np.array(ends, np.int64)[first + np.minimum(np.arange(width), own - 1)]


def tokenised(
    window: Sequence[Example], parser: ExampleParser, tokenizer: PromptTokenizer, rejects: Rejects
) -> Iterator[tuple[Example, Sequence[Tokens]]]:
    """Yield each example with the tokens of its columns. Reject examples with a text that has a problem."""
    rows: Iterable[Sequence[Tokens]]
    reads, prompts = parser.reads, parser.prompts
    if reads.tokenize is not None:
        rows = zip(*reads.tokenize([example.texts for example in window]), strict=True)
    elif reads.columns:
        readers = [(n, read.with_prompt(prompts[n]) if prompts else read) for n, read in reads.columns]
        rows = zip(*(read([each.texts[n] for each in window]) for n, read in readers), strict=True)
    else:
        texts = [text for example in window for text in example.texts]
        if prompts:
            of_texts = chain.from_iterable(prompts_of(example, prompts) for example in window)
            read = [TokenizerByPrompt(tokenizer, prompts)([*zip(of_texts, texts, strict=True)])]
        else:
            read = [tokenizer(texts)]
        if reads.second is not None:  # another model, with its own prompt
            read.append(reads.second(texts))
        columns = chain.from_iterable(zip(*read, strict=True))
        rows = [list(islice(columns, len(read) * len(example.texts))) for example in window]
    for example, own in zip(window, rows, strict=True):
        problem = next((each.problem for each in own if each.problem), None)
        if problem is None:
            yield example, own
        else:
            rejects.add(example.row.input_line, example.row.error(problem))


def prompts_of(example: Example, prompts: Sequence[str]) -> Iterator[str]:
    """The prompt of each text; the texts of a list have the last one."""
    return (prompts[min(place, len(prompts) - 1)] for place in range(len(example.texts)))


def windows(
    examples: Iterator[Example | None], tallied: Tallied, sightings: Sightings | None, *, dedup: bool
) -> Iterator[list[Example]]:
    window: list[Example] = []
    seen: set[bytes] = set()
    for example in examples:
        if example is None:
            tallied.left_out += 1
            continue
        if sightings is not None:
            sightings.take(example.row, list(map(sightings.pairs.find, example.texts)))
        if dedup:
            identity = hashlib.blake2b("\0".join(example.texts).encode(), digest_size=12).digest()
            if identity in seen:
                tallied.repeated += 1
                continue
            seen.add(identity)
        window.append(example)
        if len(window) == WINDOW:
            yield window
            window = []
    if window:
        yield window


def map_corpus(folder: Path) -> Corpus:
    """Map the files that `write_corpus` wrote."""
    columns = int((folder / COLUMNS).read_text())
    ends, vectors = mapped(folder / ENDS, np.int64).reshape(-1, columns), None
    if len(ends) and (folder / VECTORS).is_file():
        vectors = mapped(folder / VECTORS, np.float32).reshape(len(ends), -1)
    return Corpus(
        mapped(folder / IDS, np.int32),
        ends,
        mapped(folder / TARGETS, np.float64) if (folder / TARGETS).is_file() else None,
        tuple(orjson.loads((folder / LABELS).read_bytes())) if (folder / LABELS).is_file() else (),
        vectors,
        (folder / TEACHER).read_text() if (folder / TEACHER).is_file() else "",
    )


def mapped(path: Path, kind: type) -> NDArray:
    if not path.stat().st_size:
        return np.empty(0, kind)
    # Slices of a plain array are three times as fast as slices of a memmap.
    return np.memmap(path, kind, mode="r").view(np.ndarray)


def check_labels(corpus: Corpus, source: str, name: str = "label") -> None:
    """Raise a DataError if all rows have the same label, or score."""
    assert corpus.targets is not None, "rows without labels"
    if corpus.targets.min() == corpus.targets.max():
        what = "classify" if name == "label" else "predict"
        problem = f'"{name}" is the same in all {len(corpus)} rows: nothing to {what}'
        raise DataError(problem, source=source)


def check_rows(corpus: Corpus, tallied: Tallied, least: int, source: str) -> None:
    """Raise a DataError if there are fewer rows than a batch needs."""
    if len(corpus) < least:
        why = f"; {tallied.left_out} rows skipped: {tallied.why}" if tallied.left_out else ""
        one = "row" if len(corpus) == 1 else "rows"
        raise DataError(
            f"{len(corpus)} {one} can be used, but training needs at least {least}{why}", source=source
        )
