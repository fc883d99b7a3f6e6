"""Static models combine the word vectors of a text into one vector, with numpy and without torch.

They are folders of model2vec and of StaticEmbedding, word-vector files, and the word sets of the
input rows.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import WORD_SETS, Checkpoint
from sentkit.formats.checkpoints.modules import StoredDeclaration, is_model2vec
from sentkit.formats.files import shown_path
from sentkit.formats.lexicons.model2vec import Table, check_table, read_table
from sentkit.formats.vectors.fingerprint import Space, digest, name_for_label
from sentkit.model.encoding import TokenEncoder
from sentkit.model.groups import EncodeStats
from sentkit.model.reading import (
    ReadingOptions,
    all_steps,
    prompts_of,
    space_after_steps,
    width_after_steps,
)
from sentkit.model.static.tokenizers import CollectedWords, WordLookup, WordPieces
from sentkit.model.text.tokens import LongTextTokenizer, TokenBlock, WindowOptions, WindowTokenizer
from sentkit.transforms.steps import Normalize, Step, Truncate

BATCH_TOKENS = 65_536
REDUCTIONS: Mapping[str, np.ufunc] = {"mean": np.add, "max": np.maximum}
Matrix = NDArray[np.float32]


class WordTable:
    """Reduces the table rows of each text to one (b, d) array per reduction. Empty lists give
    zeros.
    """

    def __init__(self, table: Table, reductions: Sequence[str]) -> None:
        self.table = table
        self.reductions = reductions
        self.width = table.rows.shape[1]

    @property
    def hash(self) -> str:
        return arrays_hash(self.table.arrays)

    def __call__(self, texts: TokenBlock) -> list[Matrix]:
        return [self._reduce(texts, name) for name in self.reductions]

    def _reduce(self, texts: TokenBlock, reduction: str) -> Matrix:
        # The loop adds the first words of all texts, then the second words, and so on. The order of
        # additions within a text is fixed, so its vector does not depend on the batch. Longer texts
        # stay a prefix.
        order = np.argsort(-texts.lengths, kind="stable")
        lengths = texts.lengths[order]
        starts = texts.starts[order]
        reduce = REDUCTIONS[reduction]
        vectors = np.zeros((len(texts), self.width), np.float32)
        count = np.count_nonzero(lengths)  # of the texts that have the word
        vectors[:count] = self._rows(texts.ids[starts[:count]])
        for word in range(1, lengths[0]):
            while lengths[count - 1] <= word:
                count -= 1
            rows = self._rows(texts.ids[starts[:count] + word])
            reduce(vectors[:count], rows, out=vectors[:count])
        if reduction == "mean":
            vectors /= np.maximum(lengths, 1).astype(np.float32)[:, None]
        in_input_order = np.empty_like(vectors)
        in_input_order[order] = vectors
        return in_input_order

    def _rows(self, ids: NDArray[np.int32]) -> Matrix:
        row_indices = ids if self.table.row_of_token is None else self.table.row_of_token[ids]
        rows = self.table.rows[row_indices]
        if self.table.weights is None:
            return rows
        return rows * self.table.weights[ids, None]


class WordSets:
    """Indicator vectors over the vocabulary. The cosine of two vectors is the cosine of the word
    sets.
    """

    hash = "sets"

    def __init__(self, indexes: Mapping[str, int]) -> None:
        self.width = max(1, len(indexes))
        self.columns = np.empty(len(indexes), np.int64)
        # Columns are in alphabetical order, so that the space depends only on the vocabulary.
        self.columns[[indexes[word] for word in sorted(indexes)]] = np.arange(len(indexes))

    def __call__(self, texts: TokenBlock) -> list[Matrix]:
        vectors = np.zeros((len(texts), self.width), np.float32)
        vectors[np.repeat(np.arange(len(texts)), texts.lengths), self.columns[texts.ids]] = 1
        return [vectors]


StaticTokenizer = WordLookup | CollectedWords | WordPieces


@dataclass(frozen=True)
class StaticModel:
    """A static model and its reading options. `open_vectors` reads the word vectors."""

    name: str
    tokenizer: StaticTokenizer
    prompt_of_side: Mapping[str, str]  # the prompt of each side, or none
    readouts: Sequence[str]
    steps: Sequence[Step]
    transform: str | None
    open_vectors: Callable[[], WordTable | WordSets]
    table: Mapping[str, Any]  # properties of the word vectors for `inspect`
    notes: Sequence[str] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)  # declared ones, by name
    similarity: object = None  # the declared metric
    lineage: Mapping[str, Any] = field(default_factory=dict)  # how the checkpoint was made

    def window_tokenizer(self, options: WindowOptions) -> WindowTokenizer:
        if not isinstance(self.tokenizer, LongTextTokenizer):
            raise UsageError(
                f"--on-truncate window cannot be used with {self.name}, a static model"
            )
        return WindowTokenizer(self.tokenizer, options)

    def encoder(self, tokens: int | None = None) -> "StaticEncoder":
        return StaticEncoder(self)

    def summary(self) -> dict[str, Any]:
        summary = {
            "model": shown_path(self.name),
            **self.table,
            "readout": self.readouts[0],
            "steps": [step.suffix.strip("/+") for step in self.steps],
            "prompt": self.tokenizer.prompt,
            "max_length": self.tokenizer.max_length,
        }
        if self.lineage:
            summary["lineage"] = self.lineage
        return summary


class StaticEncoder(TokenEncoder):
    tokens_per_batch = BATCH_TOKENS

    def __init__(self, model: StaticModel) -> None:
        self.tokenizer = model.tokenizer
        self.steps = model.steps
        self.notes = []
        self.word_vectors = model.open_vectors()
        self.width = width_after_steps(self.steps, self.word_vectors.width)
        self.spaces = []
        tokenizer = self.tokenizer
        weights = self.word_vectors.hash
        for readout in model.readouts:
            record = {
                "model": shown_path(model.name),
                "weights": weights,
                "tokenizer": tokenizer.hash,
                "readout": readout,
                "prompt": model.prompt_of_side or tokenizer.prompt,
                "max_length": tokenizer.max_length,
                "precision": self.precision,
            }
            label = f"{name_for_label(model.name)}/{readout}"
            space = Space(label, digest([weights, "static", tokenizer.hash, readout]), record)
            self.spaces.append(space_after_steps(self.steps, space, model.transform))

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[list[Matrix]]:
        return map(self.word_vectors, batches)

    def warnings(self, stats: EncodeStats) -> list[str]:
        unit = self.tokenizer.unit
        messages = stats.truncation(self.tokenizer.max_length, unit)
        if stats.unknown:
            messages.append(
                f"{stats.unknown:,} of {stats.tokens + stats.unknown:,} {unit} have no vector"
            )
        messages += stats.languages()
        return messages + stats.without_tokens(f"have no known {unit.removesuffix('s')}")


def arrays_hash(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Return 32 hex digits that depend only on names, shapes and values, not on the file format."""
    content = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.shape}\n".encode())
        values = np.ascontiguousarray(array).reshape(-1)
        content.update(values.view(np.uint8).data)
    return content.hexdigest()


def read_word_sets(options: ReadingOptions) -> StaticModel:
    """Return the baseline of the SemEval STS tasks: indicator vectors of word sets."""
    for flag, value in {"--readout": options.readout, "--dim": options.dim}.items():
        if value is not None:
            raise UsageError(f"{flag} cannot be used with {WORD_SETS}")
    prompt, prompt_of_side = prompts_of(StoredDeclaration(), options)
    words = CollectedWords(max_length=options.max_length, prompt=prompt)
    return StaticModel(
        name=WORD_SETS,
        tokenizer=words,
        prompt_of_side=prompt_of_side,
        readouts=["set"],
        steps=steps_of(options, declared=[]),
        transform=options.transform,
        open_vectors=lambda: WordSets(words.indexes),
        table={"kind": "the set of a text's words, in lower case", "words": "those of the rows"},
    )


def read_word_vector_file(path: str, options: ReadingOptions) -> StaticModel:
    """Read word vectors: a text file into memory, or an array file with its words beside it."""
    # Only word vectors need it, and the start of other commands is faster without.
    from sentkit.formats.lexicons.word_vectors import ARRAY, read_word_array, read_word_vectors

    readouts = readouts_of(options.readout)

    # The words with their vectors, and what was left out.
    if path.endswith(ARRAY):
        file = read_word_array(path)
        kind = "word vectors in an array"
    else:
        file = read_word_vectors(path)
        kind = "word vectors in text"
    count, width = file.rows.shape
    notes = []
    if file.repeated:
        notes.append(f"{path}: {file.repeated:,} repeated words: the first vector of each is used")
    if file.unreadable:
        notes.append(f"{path}: {file.unreadable:,} words that are not UTF-8 are ignored")

    # How texts become words. A file of word vectors declares no prompts.
    prompt, prompt_of_side = prompts_of(StoredDeclaration(), options)
    words = WordLookup(file.words, max_length=options.max_length, prompt=prompt)
    return StaticModel(
        name=path,
        tokenizer=words,
        prompt_of_side=prompt_of_side,
        readouts=readouts,
        steps=steps_of(options, declared=[], width=width),
        transform=options.transform,
        open_vectors=lambda: WordTable(Table(file.rows), readouts),
        table={"kind": kind, "words": count, "width": width},
        notes=notes,
    )


def read_static_folder(checkpoint: Checkpoint, options: ReadingOptions) -> StaticModel:
    """Read a folder of model2vec, or of sentence-transformers that starts with a StaticEmbedding
    module.
    """
    folder = checkpoint.transformer_folder
    declared = checkpoint.declaration
    for step in declared.step_names:  # so all that remain are "normalise"
        if step != "normalise":
            problem = f'sentkit cannot run the module "{step}" after a StaticEmbedding'
            raise DataError(problem, source=str(checkpoint.folder))

    # The tokenizer.
    prompt, prompt_of_side = prompts_of(declared, options)
    of_model2vec = is_model2vec(folder)
    pieces = WordPieces(folder, prompt=prompt, keep_unknown=not of_model2vec)
    # Of a StaticEmbedding, the limit in tokenizer.json has priority over a declared one.
    pieces.max_length = options.max_length or pieces.max_length or declared.max_length

    # The header of the table; `open_vectors` below reads its numbers.
    tensors = check_table(folder, pieces.count)
    readouts = readouts_of(options.readout)
    embeddings = tensors["embeddings"]
    rows, width = embeddings.shape

    # The steps after the mean of the tokens. `truncate_dim` of sentence-transformers cuts the
    # normalized vectors; --dim replaces it, and is before the normalization.
    declared_steps: list[Step] = [Normalize()] if declared.step_names else []
    if declared.dim is not None and declared.dim < width and options.dim is None:
        declared_steps.append(Truncate(declared.dim))
    steps = steps_of(options, declared_steps, width)

    # What `inspect` prints of the table.
    table: dict[str, Any] = {
        "kind": "model2vec" if of_model2vec else "StaticEmbedding of sentence-transformers",
        "folder": shown_path(str(folder)),
        "tokens": pieces.count,
        "width": width,
        "rows": rows,
        "stored_as": embeddings.dtype,
        "tensors": list(tensors),
    }
    if not of_model2vec:
        table["prompts"] = declared.prompts
    return StaticModel(
        name=checkpoint.name,
        tokenizer=pieces,
        prompt_of_side=prompt_of_side,
        readouts=readouts,
        steps=steps,
        transform=options.transform,
        open_vectors=lambda: WordTable(read_table(folder), readouts),
        table=table,
        prompts=declared.prompts,
        similarity=declared.similarity,
        lineage=checkpoint.lineage,
    )


def readouts_of(names: str | None) -> list[str]:
    readouts = [name.strip() for name in (names or "mean").split(",")]
    for name in readouts:
        if name not in REDUCTIONS:
            advice = f"available: {', '.join(REDUCTIONS)}"
            raise UsageError(f'unknown readout "{name}" for a static model', advice=advice)
    return list(dict.fromkeys(readouts))


def steps_of(
    options: ReadingOptions, declared: Sequence[Step], width: int | None = None
) -> list[Step]:
    """Return the steps after the readout. Steps that do not fit raise an error before encoding
    starts.
    """
    if options.template is not None or options.full_stop is not None:
        raise UsageError("a template and its full stops can be used only with the readout prompt")
    steps = all_steps(declared, options)
    if width is not None:
        width_after_steps(steps, width)
    return steps
