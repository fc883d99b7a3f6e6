"""Read tables of static models (a vector per token) of model2vec or sentence-transformers, and
write them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import write_json
from sentkit.formats.vectors.tensors import Entry, read_array, read_header, write_arrays

TABLE_FILE = "model.safetensors"
NUMBERS = {"I8", "F16", "F32", "F64"}
WHOLE_NUMBERS = {"I32", "I64"}
AXES = 2  # number of axes of a table
LEAST_COSINE = 0.98  # of the vector of a token and its stored one; a smaller one changes the model


@dataclass(frozen=True, slots=True)
class Table:
    """The vectors of all tokens."""

    rows: NDArray[Any]  # (n, d), float32 except in a table to write
    # (tokens,): the row of each token, if tokens share rows
    row_of_token: NDArray[np.int64] | None = None
    weights: NDArray[np.float32] | None = None  # (tokens,): the factor for the vector of each token

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in model2vec folders."""
        named = {"embeddings": self.rows, "mapping": self.row_of_token, "weights": self.weights}
        return {name: array for name, array in named.items() if array is not None}


def stored_as(table: Table, store: str) -> Table:
    """The table in float32, float16 or int8. For int8, 127 / the largest number multiplies all
    numbers.
    """
    if store == "int8":
        largest = np.abs(table.rows).max() or 1
        scaled = table.rows * np.float32(127 / largest)
        return replace(table, rows=np.rint(scaled).astype(np.int8))
    with np.errstate(over="ignore"):
        return replace(table, rows=table.rows.astype(store))


def coarse_rows(table: Table, stored: Table) -> int:
    """The number of rows whose stored vector has a cosine below LEAST_COSINE to their own."""
    vectors = table.rows.astype(np.float32)
    stored_vectors = stored.rows.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(stored_vectors, axis=1)
    is_coarse = np.vecdot(vectors, stored_vectors) < LEAST_COSINE * lengths
    # a stored vector of zeros has no direction
    is_lost = vectors.any(axis=1) & ~stored_vectors.any(axis=1)
    return int(np.count_nonzero(is_coarse | is_lost))


def write_model2vec(
    folder: Path, table: NDArray[np.float32], rules: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    """Fill an empty folder with a model2vec model, which sentence-transformers also reads.

    `rules` is the content of tokenizer.json. `record` describes the training, for sentkit.json.
    """
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": table.shape[1],
        "seq_length": 1_000_000,
        "normalize": True,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", rules)
    write_arrays(folder / TABLE_FILE, {"embeddings": table})
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Normalize",
            "type": "sentence_transformers.models.Normalize",
        },
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentkit.json", record)


def write_table(folder: Path, base: Path, table: Table) -> None:
    """Write a table in its type, with the tensor names of the static model in `base`."""
    stored = stored_name(read_header(base / TABLE_FILE).entries)
    arrays = {
        stored if name == "embeddings" else name: array for name, array in table.arrays.items()
    }
    write_arrays(folder / TABLE_FILE, arrays)


def stored_name(entries: Collection[str]) -> str:
    """The tensor name of the table: that of sentence-transformers, or that of model2vec."""
    return "embedding.weight" if "embedding.weight" in entries else "embeddings"


def check_table(folder: Path, tokens: int) -> Mapping[str, Entry]:
    """The tensors of a table for this number of tokens, by the names of `Table.arrays`."""
    path = folder / TABLE_FILE
    source = str(path)
    tensors = read_header(path).entries
    stored = stored_name(tensors)
    table = tensors.get(stored)
    if table is None or len(table.shape) != AXES or 0 in table.shape or table.dtype not in NUMBERS:
        types = "/".join(sorted(NUMBERS))
        problem = f'"{stored}" is {form(table)}, expected a row of numbers for each token, {types}'
        raise DataError(problem, source=source)
    entries = {"embeddings": table}
    entries |= {name: tensors[name] for name in ("mapping", "weights") if name in tensors}
    if stored != "embeddings":
        tokens = max(tokens, table.shape[0])  # the table can have unused rows
    if "mapping" not in entries and table.shape[0] != tokens:
        problem = f'"embeddings" has {table.shape[0]} rows, and the tokenizer {tokens} tokens'
        raise DataError(problem, source=source)
    for name, dtypes in (("mapping", WHOLE_NUMBERS), ("weights", NUMBERS)):
        entry = entries.get(name)
        if entry is not None and (entry.shape != (tokens,) or entry.dtype not in dtypes):
            problem = f'"{name}" is {form(entry)}, expected a number for each token ({tokens})'
            raise DataError(problem, source=source)
    return entries


def read_table(folder: Path) -> Table:
    """Read the stored numbers of a checked table as float32. A quantised table is not scaled."""
    path = folder / TABLE_FILE
    tensors = read_header(path).entries
    rows = read_array(path, stored_name(tensors))
    mapping = read_array(path, "mapping") if "mapping" in tensors else None
    weights = read_array(path, "weights") if "weights" in tensors else None
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32, copy=False)
    if not np.isfinite(rows).all():
        problem = '"embeddings" contains NaN or a number too large for float32'
        raise DataError(problem, source=str(path))
    if mapping is not None:
        if mapping.min() < 0 or mapping.max() >= len(rows):
            problem = '"mapping" contains row numbers that do not exist in "embeddings"'
            raise DataError(problem, source=str(path))
        mapping = mapping.astype(np.int64)
    if weights is not None:
        weights = weights.astype(np.float32)
    return Table(rows, mapping, weights)


def form(entry: Entry | None) -> str:
    """The shape and the type of a tensor for a message."""
    if entry is None:
        return "missing"
    shape = " x ".join(str(size) for size in entry.shape)
    return f"{shape or 'one number'} of {entry.dtype}"
