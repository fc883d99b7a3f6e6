"""Heads have the predictions of transformers; a checkpoint with random weights depends only on its
seed.
"""

import json

import pytest
import torch

from sentkit.errors import DataError
from sentkit.model.checkpoint.heads import HEADS, fresh_head, read_head
from sentkit.model.transformer.architecture import read_architecture
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.weights import read_tensors
from support import FAMILIES

CASES = [
    *((family, {}) for family in FAMILIES),
    ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "vocab_size": 131}),
    ("roberta", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    ("xlm-roberta", {"hidden_act": "silu", "hidden_size": 20}),
    ("camembert", {"hidden_act": "gelu_pytorch_tanh"}),
    ("distilbert", {"activation": "relu", "dim": 20}),
    ("electra", {"hidden_act": "silu", "layer_norm_eps": 1e-3, "embedding_size": 32}),
    ("modernbert", {"classifier_bias": True, "norm_eps": 1e-3}),
]
every_family = pytest.mark.parametrize("family", FAMILIES)


def architecture_of(model):
    return read_architecture(json.loads(model.config.to_json_string(use_diff=False)), "config.json")


def saved(model, folder):
    """The tensors as `save_pretrained` stores them, and the architecture."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    return read_tensors([folder / "model.safetensors"]), read_architecture(config, "config.json")


@pytest.mark.parametrize(("family", "settings"), CASES)
@torch.no_grad()
def test_logits_equal_those_of_transformers(family, settings, make, tmp_path, load, sentences):
    """At given positions, from a saved folder, with the states of our encoder."""
    model = make(family, "ForMaskedLM", **settings)
    head = read_head(*saved(model, tmp_path), source="here")
    encoder = load(tmp_path)
    (ids,) = sentences([19])
    positions = torch.tensor([0, 7, 18])

    *_, states = encoder.states(pack([ids]))
    logits = head(states[positions], encoder.words.weight)

    assert (logits - model(torch.from_numpy(ids)[None]).logits[0, positions]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("family", "head", "has_head"),
    [
        *((family, "Model", False) for family in FAMILIES),
        ("electra", "ForPreTraining", False),  # its discriminator is not a language model head
        ("bert", "ForPreTraining", True),
    ],
)
def test_only_a_language_model_head_is_read(family, head, has_head, make, tmp_path):
    assert (read_head(*saved(make(family, head), tmp_path), source="here") is not None) == has_head


@every_family
def test_a_decoder_in_the_file_is_tied_to_the_words_or_an_error(family, make):
    """A complete state_dict also has the decoder weight and the alias of its bias. Words may be
    absent.
    """
    model = make(family, "ForMaskedLM")
    decoder = HEADS[family].decoder + ".weight"
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    changed = tensors[decoder].clone()
    changed[3, 4] += 1
    untied = f'^model.bin: .* not tied to the word embeddings: "{decoder}" differs'
    wordless = {name: value for name, value in tensors.items() if "_embeddings" not in name}

    assert read_head(tensors, architecture_of(model), source="here") is not None
    for wrong, problem in ((tensors | {decoder: changed}, untied), (wordless, "not tied")):
        with pytest.raises(DataError, match=problem):
            read_head(wrong, architecture_of(model), source="model.bin")


@every_family
@pytest.mark.parametrize("layer", ["dense", "norm"])
def test_an_incomplete_head_is_an_error(family, layer, make, tmp_path):
    tensors, architecture = saved(make(family, "ForMaskedLM"), tmp_path)
    missing = getattr(HEADS[family], layer) + ".weight"
    del tensors[missing]

    problem = "weights of the language model head and config.json do not match"
    with pytest.raises(DataError, match=f'^model.bin: {problem}: missing "{missing}"$'):
        read_head(tensors, architecture, source="model.bin")


@every_family
def test_a_fresh_head_has_the_distribution_of_transformers(family, make):
    """N(0, 0.02) for the dense layer, a neutral norm, zero biases; the generator makes all
    draws.
    """
    architecture = architecture_of(make(family))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    head, same_head = (fresh_head(architecture, torch.Generator().manual_seed(5)) for _ in range(2))
    state = head.state_dict()

    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(state[name], value) for name, value in same_head.state_dict().items())
    assert state["dense.weight"].std() == pytest.approx(0.02, rel=0.15)
    assert state["norm.weight"].unique().tolist() == [1]
    assert not any(state[name].any() for name in state if name.endswith("bias"))
    assert ("dense.bias" in state) == (family != "modernbert")
