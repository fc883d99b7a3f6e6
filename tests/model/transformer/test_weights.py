"""All formats of checkpoint files give the same tensors; other files are errors."""

import json
import os
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import DataError, NoInputError
from sentkit.model.transformer.architecture import read_architecture
from sentkit.model.transformer.kernels.inference import prepare_for_cpu
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.transformers_model import load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_tensors, weights_hash


@pytest.fixture
def saved(make, tmp_path):
    """A folder of transformers with a masked-language-model head."""
    make("bert", "ForMaskedLM").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def architecture(saved):
    return read_architecture(json.loads((saved / "config.json").read_text()), "config.json")


@pytest.fixture
def raw(saved):
    return read_tensors([saved / "model.safetensors"])


@pytest.fixture
def named(raw, architecture):
    return canonical(raw, architecture)


@pytest.mark.parametrize("family", ["bert", "electra", "albert"])
def test_the_length_of_the_header_does_not_change_a_bit(make, load, config_of, tmp_path, family):
    """Tensors are mapped from the file. MKL rounds a product with one row by the address of the
    weights.
    """
    from transformers import AlbertModel

    is_albert = family == "albert"
    model = AlbertModel(config_of("albert", embedding_size=16)) if is_albert else make(family)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    results = set()
    tensors = load_file(file)
    for length in range(0, 64, 8):
        save_file(
            {name: tensor.clone() for name, tensor in tensors.items()},
            file,
            {"longer": "x" * length},
        )
        bert = load_transformers_model(tmp_path) if is_albert else prepare_for_cpu(load(tmp_path))
        with torch.inference_mode():
            *_, last = bert.states(pack([[5]]))
            vector = bert.pooled(last) if bert.has_pooler else last
        results.add(vector.numpy().tobytes())

    assert len(results) == 1


def test_shards_are_joined(make, tmp_path, named, architecture):
    make("bert", "ForMaskedLM").save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))

    assert len(files) > 1
    assert weights_hash(canonical(read_tensors(files), architecture)) == weights_hash(named)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.removeprefix("bert."),
        lambda name: f"0.auto_model.{name.removeprefix('bert.')}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "Norm.bias", "Norm.beta"
        ),
    ],
)
def test_a_bin_file_with_other_names_is_the_same_checkpoint(
    tmp_path, raw, named, architecture, zipped, rename
):
    renamed = {rename(name): tensor for name, tensor in raw.items()}
    torch.save(renamed, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    tensors = canonical(read_tensors([tmp_path / "pytorch_model.bin"]), architecture)

    assert renamed.keys() != raw.keys()
    assert weights_hash(tensors) == weights_hash(named)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_have_the_hash_of_their_float32_values(
    raw, architecture, dtype, tmp_path
):
    halves = {name: tensor.to(dtype) for name, tensor in raw.items()}
    save_file(halves, tmp_path / "model.safetensors")
    tensors = canonical(read_tensors([tmp_path / "model.safetensors"]), architecture)
    full = canonical({name: tensor.float() for name, tensor in halves.items()}, architecture)

    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert weights_hash(tensors) == weights_hash(full)


def test_the_hash_depends_on_names_and_shapes_and_not_on_strides(named):
    values = torch.arange(6.0)
    name = "encoder.layer.0.output.dense.weight"
    turned = named | {name: named[name].T.contiguous().T}

    hashes = {
        weights_hash({"a": values}),
        weights_hash({"b": values}),
        weights_hash({"a": values.view(2, 3)}),
        weights_hash({"a": values[:3], "b": values[3:]}),
    }

    assert weights_hash(turned) == weights_hash(named)
    assert len(hashes) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", hash_of_weights) for hash_of_weights in hashes)


def test_the_pooler_is_hashed_only_on_request(make, tmp_path):
    make("bert").save_pretrained(tmp_path)
    architecture = read_architecture(
        json.loads((tmp_path / "config.json").read_text()), "config.json"
    )
    whole = canonical(read_tensors([tmp_path / "model.safetensors"]), architecture)
    without = {name: tensor for name, tensor in whole.items() if not name.startswith("pooler.")}

    assert len(whole) == len(without) + 2
    assert weights_hash(whole) == weights_hash(without)
    assert weights_hash(whole, with_pooler=True) != weights_hash(without, with_pooler=True)
    fit(without, architecture, source="x")


WORDS = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("omitted", "changed", "problem"),
    [
        (WORDS, {}, f'missing "{WORDS}"'),
        # Of 16 tensors.
        (".layer.1.", {}, r'missing "encoder.layer.1[^,]*", "[^,]*", "[^,]*" and 13 more'),
        ("", {WORDS: torch.zeros(98, 32)}, f'"{WORDS}" is 98 x 32, expected 97 x 32'),
        (
            "",
            {WORDS: torch.zeros(97, 32, dtype=torch.int8)},
            f'"{WORDS}" is 97 x 32 of int8, expected 97',
        ),
        ("", {"pooler.dense.weight": torch.zeros(32, 32)}, 'missing "pooler.dense.bias"'),
    ],
    ids=["missing", "more", "shape", "integers", "pooler"],
)
def test_tensors_that_do_not_fit_are_named(named, architecture, omitted, changed, problem):
    tensors = {
        name: tensor for name, tensor in named.items() if not omitted or omitted not in name
    } | changed

    with pytest.raises(DataError, match=f"^ckpt: weights and config.json do not match: {problem}"):
        fit(tensors, architecture, source="ckpt")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "content",
    [
        *(0, 1, 7, 500, -1),
        b"hello\n" * 50,
        b"version https://git-lfs.github.com/spec/v1\n",
        bytes(99),
    ],
)
def test_an_incomplete_file_or_one_in_another_format_is_an_error(tmp_path, raw, name, content):
    """A number is that of the bytes that are kept."""
    path = tmp_path / name
    save_file(raw, path) if name.endswith("safetensors") else torch.save(raw, path)
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:content])

    with pytest.raises(DataError, match=f"{re.escape(str(path))}: not a"):
        read_tensors([path])


@pytest.mark.parametrize(
    "content", [{}, [1, 2], {"epoch": 3}, {"state_dict": {}}, {3: torch.zeros(1)}]
)
def test_a_bin_file_without_named_tensors_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "x.bin")

    with pytest.raises(DataError, match="not a checkpoint"):
        read_tensors([tmp_path / "x.bin"])


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("write", ["torch", "pickle"])
def test_a_pickle_with_code_is_an_error_and_its_code_does_not_run(tmp_path, write):
    content = {"weight": Malicious(str(tmp_path / "ran"))}
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path) if write == "torch" else path.write_bytes(pickle.dumps(content))

    with pytest.raises(DataError, match="not a checkpoint of plain tensors"):
        read_tensors([path])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["no.safetensors", "no.bin"])
def test_a_missing_file_is_an_error(tmp_path, name):
    with pytest.raises(NoInputError, match=name):
        read_tensors([tmp_path / name])
