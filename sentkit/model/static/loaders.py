"""Loads static models from model2vec and StaticEmbedding folders, word-vector files and the input rows."""

from collections.abc import Sequence
from pathlib import Path

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import WORD_SETS
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules
from sentkit.formats.files import readable
from sentkit.formats.lexicons.model2vec import Model2Vec, Table, is_model2vec, read_embedding, read_model2vec
from sentkit.formats.lexicons.word_arrays import read_word_array
from sentkit.formats.lexicons.word_vectors import ARRAY, read_word_vectors
from sentkit.model.post_steps import all_steps, width_behind
from sentkit.model.reading import ReadingOptions, prompt_of
from sentkit.model.static.encoder import REDUCTIONS, StaticModel, TableSummary, WordSets, WordTable
from sentkit.model.static.tokenizers import CollectedWords, WordLookup, WordPieces
from sentkit.model.text.left_out import read_left_out
from sentkit.transforms.steps import Normalize, Step, Truncate


def read_sets(options: ReadingOptions) -> StaticModel:
    """Return the baseline of the SemEval STS tasks: indicator vectors of word sets."""
    flags = {"--readout": options.readout, "--dim": options.dim, "--leave-out": options.leave_out}
    for flag, value in flags.items():
        if value is not None:
            raise UsageError(f"{flag} cannot be used with {WORD_SETS}")
    words = CollectedWords(max_length=options.max_length, prompt=prompt_of(StoredDeclaration(), options))
    return StaticModel(
        WORD_SETS,
        words,
        ["set"],
        steps_of(options, []),
        options.transform,
        lambda: WordSets(words.indexes),
        TableSummary("the set of a text's words, in lower case", words="those of the rows"),
    )


def read_vectors(path: str, options: ReadingOptions) -> StaticModel:
    """Read word vectors: a text file into memory, or an array file with its words beside it."""
    readouts = readouts_of(options.readout)
    is_array = path.endswith(ARRAY)
    file = read_word_array(path) if is_array else read_word_vectors(path)
    count, width = file.rows.shape
    notes = []
    if file.repeated:
        notes.append(f"{path}: {file.repeated:,} repeated words: the first vector of each is used")
    if file.unreadable:
        notes.append(f"{path}: {file.unreadable:,} words that are not UTF-8 are ignored")
    return StaticModel(
        path,
        WordLookup(file.words, max_length=options.max_length, prompt=prompt_of(StoredDeclaration(), options)),
        readouts,
        steps_of(options, [], width),
        options.transform,
        lambda: WordTable(Table(file.rows), readouts),
        TableSummary(f"word vectors in {'an array' if is_array else 'text'}", words=count, width=width),
        notes,
        left_out=read_left_out(options.leave_out, file.words.get),
    )


def read_folder(folder: Path, name: str, options: ReadingOptions) -> StaticModel:
    """Read a folder of model2vec, or of sentence-transformers that starts with a StaticEmbedding module."""
    if is_model2vec(folder):
        pieces = WordPieces(folder, prompt=prompt_of(StoredDeclaration(), options))
        table = read_model2vec(folder, pieces.count)
        pieces.max_length = options.max_length or table.max_length
        return table_model(table, pieces, name, options, "model2vec")
    place, declared = read_modules(folder)
    unknown = next((step for step in declared.steps if step != "normalise"), None)
    if unknown is not None:
        raise DataError(
            f'sentkit cannot run the module "{unknown}" after a StaticEmbedding', source=str(folder)
        )
    pieces = WordPieces(place, prompt=prompt_of(declared, options), keep_unknown=True)
    pieces.max_length = options.max_length or pieces.max_length
    table = read_embedding(place, pieces.count, pieces.max_length, normalize=bool(declared.steps))
    kind = "StaticEmbedding of sentence-transformers"
    return table_model(table, pieces, name, options, kind, declared)


def table_model(
    table: Model2Vec,
    pieces: WordPieces,
    name: str,
    options: ReadingOptions,
    kind: str,
    declared: StoredDeclaration | None = None,
) -> StaticModel:
    readouts, stored = readouts_of(options.readout), table.entries["embeddings"]
    steps: list[Step] = [Normalize()] if table.normalize else []
    if declared is not None and declared.dim is not None and options.dim is None:
        steps.append(Truncate(declared.dim))
    return StaticModel(
        name,
        pieces,
        readouts,
        steps_of(options, steps, table.width),
        options.transform,
        lambda: WordTable(table.read(), readouts),
        TableSummary(
            kind,
            folder=readable(str(table.folder)),
            tokens=pieces.count,
            width=table.width,
            rows=stored.shape[0],
            stored_as=stored.dtype,
            tensors=list(table.entries),
            prompts=None if declared is None else declared.prompts,
        ),
        left_out=read_left_out(options.leave_out, pieces.backend.token_to_id),
    )


def check_machine(device: str, precision: str) -> None:
    """Raise an error for a device or precision that static models do not support."""
    if device != "cpu" and not device.startswith("auto"):
        raise UsageError(f"--device {device}: a static model runs on the CPU")
    if precision not in ("auto", "fp32"):
        raise UsageError(f"--precision {precision}: a static model computes in fp32")


def readouts_of(names: str | None) -> list[str]:
    readouts = [name.strip() for name in (names or "mean").split(",")]
    unknown = next((name for name in readouts if name not in REDUCTIONS), None)
    if unknown is not None:
        advice = f"available: {', '.join(REDUCTIONS)}"
        raise UsageError(f'unknown readout "{unknown}" for a static model', advice=advice)
    return list(dict.fromkeys(readouts))


def steps_of(options: ReadingOptions, declared: Sequence[Step], width: int | None = None) -> list[Step]:
    """Return the steps after the readout. Steps that do not fit raise an error before encoding starts."""
    if options.template is not None or options.full_stop is not None:
        raise UsageError("--template and --full-stop can be used only with --readout prompt")
    steps = all_steps(declared, dim=options.dim, normalize=options.normalize, transform=options.transform)
    if width is not None:
        width_behind(steps, width)
    return steps
