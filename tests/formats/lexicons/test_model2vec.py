"""Folders of model2vec: reading, and errors for damaged ones."""

import json

import numpy as np
import pytest

from sentkit.errors import DataError, NoInputError
from sentkit.formats.lexicons.model2vec import is_model2vec, read_model2vec

TOKENS = 13
ROWS = np.arange(TOKENS * 2).reshape(TOKENS, 2)
ONES, TABLE = np.ones(TOKENS, np.float32), np.ones((TOKENS, 2), np.float32)
EACH = r"of F32, expected a number for each token \(13\)"


@pytest.mark.parametrize("kind", [np.int8, np.float16, np.float32, np.float64])
def test_stored_numbers_are_read_unscaled(model2vec, kind):
    table = read_model2vec(model2vec({"embeddings": ROWS.astype(kind)}), TOKENS).read()

    assert table.rows.dtype == np.float32
    assert np.array_equal(table.rows, ROWS)
    assert (table.places, table.weights) == (None, None)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_tokens_can_share_rows_and_have_weights(model2vec, kind):
    mapping, weights = np.arange(TOKENS).astype(kind) % 3, np.linspace(0, 1, TOKENS)
    arrays = {"embeddings": ROWS[:3].astype(np.float32), "mapping": mapping, "weights": weights}
    table = read_model2vec(model2vec(arrays), TOKENS).read()

    assert table.places is not None
    assert table.weights is not None
    assert np.array_equal(table.places, mapping)
    assert np.array_equal(table.weights, weights.astype(np.float32))


@pytest.mark.parametrize(
    ("config", "normalize", "length"),
    [
        ({}, False, 512),
        ({"normalize": True, "max_length": 20}, True, 20),
        ({"normalize": False, "max_length": None, "seq_length": 9}, False, None),
    ],
)
def test_the_config_contains_length_and_normalization(model2vec, config, normalize, length):
    """As in model2vec: 512 tokens by default; `seq_length` is ignored."""
    found = read_model2vec(model2vec(**config), TOKENS)

    assert (found.normalize, found.max_length, found.width) == (normalize, length, 5)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"weights": ONES}, 'no tensor "embeddings"'),
        ({"embeddings": TABLE[:12]}, '"embeddings" has 12 rows, and the tokenizer 13 tokens'),
        ({"embeddings": ONES}, '"embeddings" is 13 of F32, expected a row of numbers'),
        ({"embeddings": TABLE[:, :0]}, '"embeddings" is 13 x 0 of F32, expected a row'),
        ({"embeddings": TABLE.astype(np.uint8)}, '"embeddings" is 13 x 2 of U8, expected a row'),
        ({"embeddings": TABLE, "weights": ONES[:12]}, rf'"weights" is 12 {EACH}'),
        ({"embeddings": TABLE[:3], "mapping": 0 * ONES}, rf'"mapping" is 13 {EACH}'),
        (
            {"embeddings": TABLE[:3], "mapping": np.full(TOKENS, 3)},
            '"mapping" contains row numbers that do not exist in "embeddings"',
        ),
    ],
)
def test_tensors_of_a_wrong_shape_are_refused(model2vec, arrays, problem):
    folder = model2vec({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(DataError, match=f"model.safetensors: {problem}"):
        read_model2vec(folder, TOKENS).read()


def test_a_folder_without_tensors_is_refused(model2vec):
    folder = model2vec()
    (folder / "model.safetensors").unlink()
    with pytest.raises(NoInputError, match=r"has no model\.safetensors"):
        read_model2vec(folder, TOKENS)


@pytest.mark.parametrize("length", [0, "512", 2.5, True])
def test_a_wrong_length_is_refused(model2vec, length):
    folder = model2vec(max_length=length)
    with pytest.raises(DataError, match='"max_length" is '):
        read_model2vec(folder, TOKENS)


def test_a_folder_is_recognized_by_its_config(model2vec, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))

    assert is_model2vec(model2vec())
    assert not is_model2vec(tmp_path)
    assert not is_model2vec(tmp_path / "nowhere")
