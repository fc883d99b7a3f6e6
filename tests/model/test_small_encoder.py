"""The encoder without torch has the states and the hash of the encoder with torch."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sentkit.formats.checkpoints.folders import checkpoint_in
from sentkit.model.checkpoint_reading import hash_of_weights
from sentkit.model.small_encoder import ACTIVATIONS, SmallBert, read_arrays
from sentkit.model.text.tokens import TokenBlock, concatenated_ids
from sentkit.model.transformer import bert
from sentkit.model.transformer.architecture import architecture_of
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.weights import canonical, read_tensors, weights_hash

LENGTHS = [5, 1, 29, 5, 2]


def read(folder):
    checkpoint = checkpoint_in(folder, "saved")
    architecture = architecture_of(checkpoint)
    return read_arrays(checkpoint, architecture), architecture


def test_states_are_those_of_transformers_and_the_hash_is_that_of_torch(
    checkpoint, tmp_path, sentences, oracle
):
    checkpoint.save_pretrained(tmp_path)
    batch = sentences(LENGTHS, vocabulary=97)
    arrays, architecture = read(tmp_path)
    tensors = canonical(read_tensors([tmp_path / "model.safetensors"]), architecture)

    for with_pooler in (False, True):
        weights_digest = hash_of_weights(arrays, np.asarray, with_pooler=with_pooler, threads=1)
        assert weights_digest == weights_hash(tensors, with_pooler=with_pooler)
    tokens = TokenBlock(*concatenated_ids(batch), None)
    layers = list(SmallBert(arrays, architecture).states(tokens))
    for states, expected in zip(layers, oracle(checkpoint, batch), strict=True):
        assert states.dtype == np.float32
        assert states == pytest.approx(expected.numpy(), abs=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("family", ["roberta", "mpnet", "bert"])
@torch.no_grad()
def test_a_padding_token_in_a_text_has_the_position_of_transformers(make, load, tmp_path, family):
    """RoBERTa and MPNet count the other tokens; in both encoders."""
    model = make(family, pad_token_id=1)
    model.save_pretrained(tmp_path)
    arrays, architecture = read(tmp_path)
    batch = [[5, 1, 6, 1, 1, 7], [8, 9], [1, 5]]
    tokens = TokenBlock(*concatenated_ids(batch), None)
    [*_, small_states] = SmallBert(arrays, architecture).states(tokens)
    [*_, states] = load(tmp_path).states(pack(batch))
    expected = [model(torch.tensor([ids])).last_hidden_state[0] for ids in batch]

    assert states.numpy() == pytest.approx(torch.cat(expected).numpy(), abs=1e-5)
    assert small_states == pytest.approx(torch.cat(expected).numpy(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_converted_as_torch_does(make, tmp_path, dtype):
    """The file has a head and its prefix, and old names of the norms."""
    model = make("bert", "ForMaskedLM")
    model.save_pretrained(tmp_path)
    stored = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): tensor.to(dtype)
        for name, tensor in model.bert.state_dict().items()
    }
    save_file(stored | {"cls.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    arrays, architecture = read(tmp_path)
    expected = canonical(stored, architecture)

    assert arrays.keys() == expected.keys()
    assert all((arrays[name] == expected[name].numpy()).all() for name in arrays)


@pytest.mark.parametrize(
    "change", ["missing", "shape", "integers", "pickle", "incomplete", "adapter"]
)
def test_other_files_are_left_to_torch(make, tmp_path, change):
    make("bert").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = read_tensors([path])
    name = "encoder.layer.0.output.dense.bias"
    bias = tensors.pop(name)
    damaged = {"missing": {}, "shape": {name: bias[:-1]}, "integers": {name: bias.to(torch.int32)}}
    save_file(tensors | damaged.get(change, {name: bias}), path)
    if change == "pickle":
        torch.save(tensors | {name: bias}, tmp_path / "pytorch_model.bin")
        path.unlink()
    elif change == "incomplete":
        path.write_bytes(path.read_bytes()[:-1])
    elif change == "adapter":
        (tmp_path / "adapter_config.json").write_text("{}")

    assert read(tmp_path)[0] is None


@pytest.mark.parametrize("name", sorted(bert.ACTIVATIONS))
def test_activations_are_those_of_torch(name):
    values = np.linspace(-20, 20, 10_001, dtype=np.float32)
    expected = bert.ACTIVATIONS[name](torch.from_numpy(values)).numpy()

    assert ACTIVATIONS.keys() == bert.ACTIVATIONS.keys()
    assert ACTIVATIONS[name](values) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_gelu_is_the_exact_function():
    values = np.linspace(-7, 7, 5_003, dtype=np.float32)
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in values.tolist()]

    assert ACTIVATIONS["gelu"](values) == pytest.approx(expected, rel=2e-7, abs=5e-7)
